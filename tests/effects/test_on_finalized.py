"""`on_finalized` on whole streams: a portal that forks, a real database, real threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater import create_target
from headwater.cli import app
from headwater.core import Flush
from headwater.effects import Message, dead_letters, webhook
from headwater.errors import (
    CursorMoveError,
    DeadLetterError,
    DeliveryRefusedError,
    InvalidOptionError,
    MessageRowsError,
    SideTablesError,
)
from headwater.pipeline import Event, RolledBack, Settled
from headwater.portal import RetryPolicy
from headwater.stream import StopRequested
from headwater.targets import clickhouse_target, duckdb_target, postgres_target
from headwater.testing import PortalServer, simulated_portal
from tests.effects.outbox_walk import require
from tests.effects.test_webhook import Hook, receiving
from tests.stream.test_stream import stream_of
from tests.stream.truth import transfers
from tests.targets import clickhouse_places
from tests.targets.postgres_places import database

QUICK = RetryPolicy(schedule_s=(0.01,), attempts=3)
Row = tuple[int, str, int]


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=40, finality_depth=10) as server:
        yield server


@pytest.fixture(params=["duckdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return _PLACES[request.param](tmp_path)


_PLACES: dict[str, Callable[[Path], str]] = {
    "duckdb": lambda folder: str(folder / "a.duckdb"),
    "postgres": lambda folder: database(),
    "clickhouse": lambda folder: clickhouse_places.database(),
}


def target_at(place: str) -> Any:
    if place.startswith("http"):
        return clickhouse_target(place)
    return postgres_target(place) if place.startswith("postgres") else duckdb_target(place)


class Inbox:
    """Receives messages; what it has seen before is dropped, as a careful receiver does."""

    def __init__(self, fails: Callable[[Message], Exception | None] = lambda one: None) -> None:
        self.seen: dict[str, Message] = {}
        self.fails = fails

    def __call__(self, messages: Sequence[Message]) -> None:
        for one in messages:
            error = self.fails(one)
            if error is not None:
                raise error
            require(self.seen.setdefault(one.key, one) == one, "a key stands for one message")

    @property
    def rows(self) -> list[Row]:
        return [(m.block_number, m.block_hash, m.row["log_index"]) for m in self.seen.values()]


def final_rows(portal: PortalServer, first: int = 0) -> list[Row]:
    final = portal.chain.finalized
    assert final is not None
    return [row[:3] for row in transfers(portal.chain, portal.chain.canonical(first, final.number))]


class ForksThenStops:
    """Forks a few times, finalizes as it goes, and ends the run when the head is reached again."""

    def __init__(self, portal: PortalServer, rounds: int = 4) -> None:
        self.portal, self.rounds, self.rolled_back = portal, rounds, 0

    def __call__(self, event: Event) -> None:
        chain = self.portal.chain
        self.rolled_back += isinstance(event, RolledBack)
        if isinstance(event, Settled) and event.state.cursor == chain.head.cursor:
            self.rounds -= 1
            if self.rounds < 0:
                raise StopRequested
            self.portal.fork(3) if self.rounds % 2 else self.portal.extend(4)
            chain.finalize(chain.head.number - 6)


@pytest.mark.guarantee("OUTBOX-1")
@pytest.mark.guarantee("OUTBOX-2")
def test_what_is_final_is_delivered_through_forks_failures_and_restarts(
    portal: PortalServer, place: str
) -> None:
    broken = {"left": 3}

    def sometimes(one: Message) -> Exception | None:
        if one.block_number % 5 == 0 and broken["left"]:
            broken["left"] -= 1
            return OSError("down")
        return None

    inbox, forks = Inbox(sometimes), ForksThenStops(portal)
    stream = stream_of(portal).on_finalized(
        "transfers", inbox, batch_size=7, retry=RetryPolicy(schedule_s=(0.01,), attempts=None)
    )
    stream.pipe_to(target_at(place), on_event=forks)
    assert forks.rolled_back
    last = portal.chain.head.number
    portal.chain.finalize(last)
    portal.extend(1)
    bounded = stream_of(portal, (0, last + 1)).on_finalized("transfers", inbox)
    bounded.pipe_to(target_at(place))  # a bounded stream returns when all is delivered
    assert inbox.rows == final_rows(portal)
    assert inbox.rows
    assert not dead_letters(target_at(place), "transfers")


def test_a_webhook_gets_what_a_stream_finds(portal: PortalServer, tmp_path: Path) -> None:
    with receiving(Hook()) as hook:
        deliver = webhook(hook.url, secret="s")
        stream_of(portal, (0, 20)).on_finalized("transfers", deliver).pipe_to(
            duckdb_target(tmp_path / "a.duckdb")
        )
        keys = [headers["Idempotency-Key"] for headers, _ in hook.requests]
    assert keys


@pytest.mark.parametrize("option", ["flush", "flush_backfill", "undo_buffer"])
def test_batches_that_are_committed_late_are_delivered_before_the_stream_returns(
    portal: PortalServer, tmp_path: Path, option: str
) -> None:
    inbox = Inbox()
    options: dict[str, Any] = {option: 7 if option == "undo_buffer" else Flush(blocks=10**6)}
    stream_of(portal, (0, 25), **options).on_finalized("transfers", inbox).pipe_to(
        duckdb_target(tmp_path / "a.duckdb")
    )
    wanted = transfers(portal.chain, portal.chain.canonical(0, 25))
    assert inbox.rows == [row[:3] for row in wanted]


def test_a_receiver_that_is_down_does_not_stop_the_stream(
    portal: PortalServer, tmp_path: Path
) -> None:
    inbox = Inbox(lambda one: OSError("down"))
    path = tmp_path / "a.duckdb"
    stream = stream_of(portal).on_finalized(
        "transfers", inbox, retry=RetryPolicy(schedule_s=(1000.0,), attempts=None)
    )
    stream.pipe_to(duckdb_target(path), on_event=ForksThenStops(portal))
    target = duckdb_target(path)
    assert target.query("SELECT count(*) AS n FROM transfers").to_pylist()[0]["n"] == len(
        transfers(portal.chain, portal.chain.canonical())
    )
    final = portal.chain.finalized
    assert final is not None
    waiting = target.query(
        f"SELECT count(*) AS n FROM headwater_outbox_transfers WHERE block_number <= {final.number}"
    )
    assert waiting.to_pylist()[0]["n"] == len(final_rows(portal))


def test_two_subscriptions_go_their_own_ways(portal: PortalServer, place: str) -> None:
    first, second = Inbox(), Inbox(lambda one: DeliveryRefusedError("never"))
    stream = (
        stream_of(portal, (0, 25))
        .on_finalized("transfers", first)
        .on_finalized("transfers", second, name="alerts", batch_size=5)
    )
    stream.pipe_to(target_at(place))
    wanted = [row[:3] for row in transfers(portal.chain, portal.chain.canonical(0, 25))]
    assert first.rows == wanted
    dead = dead_letters(target_at(place), "transfers")
    assert sorted(one.message.key for one in dead) == sorted(first.seen)
    assert {one.name for one in dead} == {"alerts"}


@pytest.mark.guarantee("OUTBOX-4")
@pytest.mark.parametrize("place", ["duckdb", "postgres", "clickhouse"], indirect=True)
def test_dead_letters_are_shown_and_replayed_by_command(portal: PortalServer, place: str) -> None:
    healthy = False
    inbox = Inbox(
        lambda one: None if healthy or one.ordinal else DeliveryRefusedError("bad \x1b[31mrow")
    )
    stream = stream_of(portal, (0, 25)).on_finalized("transfers", inbox, retry=QUICK)
    stream.pipe_to(target_at(place))
    wanted = [row[:3] for row in transfers(portal.chain, portal.chain.canonical(0, 25))]
    dead = dead_letters(target_at(place), "transfers")
    assert dead
    assert len(inbox.rows) + len(dead) == len(wanted)

    run, at = CliRunner(), [place, "--id", "transfers"]
    shown = run.invoke(app, ["outbox", "show", *at])
    assert shown.exit_code == 0, shown.output
    assert "transfers: 0 waiting" in shown.output
    assert f"{len(dead)} dead letters" in shown.output
    assert "E7002" in shown.output
    assert "\x1b" not in shown.output
    one = run.invoke(app, ["outbox", "replay", *at, "--key", dead[0].message.key])
    assert "1 messages will be delivered again" in one.output
    assert "transfers: 1 waiting" in run.invoke(app, ["outbox", "show", *at]).output
    unknown = run.invoke(app, ["outbox", "replay", *at, "--key", "nothing"])
    assert isinstance(unknown.exception, DeadLetterError)
    rest = run.invoke(app, ["outbox", "replay", *at, "--name", "transfers"])
    assert f"{len(dead) - 1} messages" in rest.output

    healthy = True
    stream.pipe_to(target_at(place))
    assert sorted(inbox.rows) == sorted(wanted)
    assert "0 dead letters" in run.invoke(app, ["outbox", "show", *at]).output


def test_a_stream_without_an_outbox_has_nothing_to_show(
    portal: PortalServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.duckdb"
    stream_of(portal, (0, 5)).pipe_to(duckdb_target(path))
    shown = CliRunner().invoke(app, ["outbox", "show", str(path), "--id", "transfers"])
    assert shown.output.strip() == "0 dead letters"
    for place, stream_id in ((path, "x"), (tmp_path / "no", "transfers")):
        for command in ("show", "replay"):
            missing = CliRunner().invoke(app, ["outbox", command, str(place), "--id", stream_id])
            assert isinstance(missing.exception, CursorMoveError), missing.output


def test_what_cannot_work_is_refused_before_anything_is_written(
    portal: PortalServer, tmp_path: Path
) -> None:
    def write(read: Any) -> None:
        next(read(None))

    inbox = Inbox()
    stream = stream_of(portal, (0, 5)).on_finalized("transfers", inbox)
    with pytest.raises(InvalidOptionError, match="give name="):
        stream.on_finalized("transfers", inbox, name="Transfers")
    with pytest.raises(SideTablesError):
        stream.pipe_to(create_target(write=write))
    path = tmp_path / "a.duckdb"
    with pytest.raises(MessageRowsError, match="other"):
        stream_of(portal, (0, 5)).on_finalized("other", inbox).pipe_to(duckdb_target(path))
    assert not path.exists()
    assert not inbox.seen
