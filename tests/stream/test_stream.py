"""Streams without Spark: near the head, and without transforms, no session is needed."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater import (
    BlockCursor,
    StopRequested,
    create_target,
    evm,
    find_rollback_index,
    pipe_to_iterator,
)
from headwater.errors import (
    AsyncCallbackError,
    ForkCursorError,
    ForkCursorMissingError,
    ForkHandlerMissingError,
    HeadwaterError,
    InvalidOptionError,
    NetworkError,
    PortalHttpError,
    PortalUnreachableError,
    ResumeError,
    SkippedBlocksError,
    StreamIdError,
)
from headwater.pipeline import Event, Recovered, RolledBack, Settled
from headwater.portal import RetryPolicy
from headwater.runtime import StoppableClock
from headwater.stream import BatchContext, PortalStream, StartInfo, StreamBatch, portal_stream
from headwater.targets import DuckDBSettings, duckdb_target
from headwater.testing import ChainSim, Network, PortalServer, PortalSim, simulated_portal
from tests.sampling import every
from tests.stream.truth import COLUMNS, transfers

HEAD_ONLY = {"far": 10**9, "poll_interval_s": 0.01}


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


def stream_of(portal: PortalServer, block_range: Any = 0, **options: Any) -> PortalStream:
    return portal_stream(
        id="transfers",
        portal=portal.url,
        outputs={"transfers": evm.events("erc20.Transfer", range=block_range)},
        **{**HEAD_ONLY, **options},
    )


def held(path: Path) -> list[tuple[Any, ...]]:
    target = duckdb_target(path)
    rows = target.query(f"SELECT {COLUMNS} FROM transfers ORDER BY block_number, log_index")
    return [tuple(row.values()) for row in rows.to_pylist()]


class StopAtHead:
    """Ends a run the way a person does, once it has settled at the head."""

    def __init__(self, portal: PortalServer) -> None:
        self.portal = portal
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Settled) and event.state.cursor == self.portal.chain.head.cursor:
            raise StopRequested


def test_a_stream_fills_a_table_and_stops_cleanly_on_a_signal(
    portal: PortalServer, tmp_path: Path
) -> None:
    stream_of(portal).pipe_to(duckdb_target(tmp_path / "a.duckdb"), on_event=StopAtHead(portal))
    assert held(tmp_path / "a.duckdb") == transfers(portal.chain, portal.chain.canonical())


def test_a_bounded_stream_returns_by_itself(portal: PortalServer, tmp_path: Path) -> None:
    stream_of(portal, (10, 20)).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    assert held(tmp_path / "a.duckdb") == transfers(portal.chain, portal.chain.canonical(10, 20))


def test_a_restarted_stream_goes_on_where_it_was(portal: PortalServer, tmp_path: Path) -> None:
    stream_of(portal, (0, 20)).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    portal.ledger.clear()
    stream_of(portal, (0, 40)).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    assert held(tmp_path / "a.duckdb") == transfers(portal.chain, portal.chain.canonical(0, 40))
    assert portal.ledger.stream_requests()[0].from_block == 21


@pytest.mark.parametrize("raised", [(22, 40), 22, 50])
def test_a_range_raised_above_the_cursor_is_refused_before_anything_is_skipped(
    portal: PortalServer, tmp_path: Path, raised: object
) -> None:
    path = tmp_path / "a.duckdb"
    stream_of(portal, (0, 20)).pipe_to(duckdb_target(path))
    with pytest.raises(SkippedBlocksError, match=r"E0016.*skipped=21\.\.(21|49)\b.*both ranges"):
        stream_of(portal, raised).pipe_to(duckdb_target(path), on_event=StopAtHead(portal))
    stream_of(portal, (21, 30)).pipe_to(duckdb_target(path))
    stream_of(portal, [(0, 30), (35, 40)]).pipe_to(duckdb_target(path))
    expected = [*portal.chain.canonical(0, 30), *portal.chain.canonical(35, 40)]
    assert held(path) == transfers(portal.chain, expected)


@pytest.mark.guarantee("RANGE-1")
def test_one_output_of_several_that_is_raised_above_the_cursor_is_refused(
    portal: PortalServer, tmp_path: Path
) -> None:
    def run(approvals_from: int, to: int) -> None:
        stream = portal_stream(
            id="two",
            portal=portal.url,
            outputs={
                "transfers": evm.events("erc20.Transfer", range=(0, to)),
                "approvals": evm.events("erc20.Approval", range=(approvals_from, to)),
            },
            far=10**9,
            poll_interval_s=0.01,
        )
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))

    run(5, 20)
    run(12, 20)  # all of that is behind the cursor
    with pytest.raises(SkippedBlocksError, match=r"output=approvals.*first=31.*skipped=21\.\.30"):
        run(31, 40)
    run(21, 40)
    rows = duckdb_target(tmp_path / "a.duckdb").query("SELECT max(block_number) m FROM approvals")
    assert rows["m"][0].as_py() > 20


@pytest.mark.guarantee("RANGE-1")
def test_a_range_that_is_raised_over_blocks_which_a_fork_can_undo_is_refused(
    portal: PortalServer, tmp_path: Path
) -> None:
    """A fork would take their rows, and none would come in their place."""
    target = duckdb_target(tmp_path / "a.duckdb")
    stream_of(portal, (0, 55)).pipe_to(target)
    assert portal.chain.finalized is not None
    floor = portal.chain.finalized.number
    with pytest.raises(SkippedBlocksError, match=rf"E0016.*skipped={floor + 1}\.\.49"):
        stream_of(portal, (50, 58)).pipe_to(target)
    stream_of(portal, (floor + 1, 58)).pipe_to(target)


@pytest.mark.guarantee("RANGE-1")
def test_a_stream_that_a_fork_led_below_its_first_block_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    """It was stopped between the rollback and the next commit."""

    def after_the_rollback(event: Event) -> None:
        if isinstance(event, RolledBack):
            assert event.state.number == 1, "final, and far below block 10"
            raise StopRequested

    target = duckdb_target(tmp_path / "a.duckdb")
    with simulated_portal(seed=3, blocks=12, finality_depth=10) as portal:
        stream_of(portal, 10).pipe_to(target, on_event=StopAtHead(portal))
        portal.chain.fork(6, 8)
        stream_of(portal, 10).pipe_to(target, on_event=after_the_rollback)
        stream_of(portal, 10).pipe_to(target, on_event=StopAtHead(portal))
        with pytest.raises(SkippedBlocksError, match="E0016"):
            stream_of(portal, 13).pipe_to(target)
        expected = transfers(portal.chain, portal.chain.canonical(10))
    assert held(tmp_path / "a.duckdb") == expected


def test_a_cursor_of_ones_own_below_the_range_is_refused_too(portal: PortalServer) -> None:
    start = portal.chain.canonical(30, 30)[0].cursor
    with pytest.raises(SkippedBlocksError, match="E0016"):
        next(iter(pipe_to_iterator(stream_of(portal, 40), start, lambda blocks: None)))


def test_latest_is_where_a_stored_cursor_says(portal: PortalServer, tmp_path: Path) -> None:
    stream_of(portal, (50, 52)).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    stream_of(portal, "latest").pipe_to(
        duckdb_target(tmp_path / "a.duckdb"), on_event=StopAtHead(portal)
    )
    assert held(tmp_path / "a.duckdb") == transfers(portal.chain, portal.chain.canonical(50))


def test_latest_loses_nothing_to_a_fork_behind_the_cursor_it_was_restarted_at(
    portal: PortalServer, tmp_path: Path
) -> None:
    for _ in range(2):
        stream_of(portal, "latest").pipe_to(
            duckdb_target(tmp_path / "a.duckdb"), on_event=StopAtHead(portal)
        )
        portal.extend(6)
        stream_of(portal, "latest").pipe_to(
            duckdb_target(tmp_path / "a.duckdb"), on_event=StopAtHead(portal)
        )
        portal.fork(4)
    stream_of(portal, "latest").pipe_to(
        duckdb_target(tmp_path / "a.duckdb"), on_event=StopAtHead(portal)
    )
    assert held(tmp_path / "a.duckdb") == transfers(portal.chain, portal.chain.canonical(59))


@pytest.mark.guarantee("ORACLE-2")
@pytest.mark.parametrize("seed", every(3).seeds(range(8)))
def test_random_forks_and_restarts_leave_what_the_canonical_chain_says(
    seed: int, tmp_path: Path
) -> None:
    """After every step the DuckDB table equals the branch that ends in the cursor."""
    dice, path = Random(seed), tmp_path / "a.duckdb"
    with simulated_portal(seed=seed, blocks=30, finality_depth=8) as portal:
        chain = portal.chain
        target = duckdb_target(path)
        forks = 0

        def on_event(event: Event) -> None:
            nonlocal forks
            forks += isinstance(event, RolledBack)
            if event.state.cursor is not None:
                rows = target.query(f"SELECT {COLUMNS} FROM transfers ORDER BY ALL")
                branch = chain.path(str(event.state.cursor.hash))
                assert [tuple(row.values()) for row in rows.to_pylist()] == sorted(
                    transfers(chain, branch)
                )
            if isinstance(event, Settled):
                if chain.head.number > 70 and event.state.cursor == chain.head.cursor:
                    raise StopRequested
                if dice.random() < 0.5:
                    portal.fork(dice.randint(1, 6))
                else:
                    portal.extend(dice.randint(1, 4))
                if chain.head.number > 40 and dice.random() < 0.5:
                    chain.finalize(chain.head.number - 8)
                if dice.random() < 0.1:
                    os.kill(os.getpid(), signal.SIGINT)

        reached = -1
        while reached < max(chain.head.number, 70):
            with suppress(SystemExit):
                stream_of(portal).pipe_to(target, on_event=on_event)
            found = target.query("SELECT max(current_number) AS n FROM sync")
            reached = found.to_pylist()[0]["n"] or -1
        assert held(path) == transfers(chain, chain.canonical())
        assert forks, f"seed {seed} had no fork"


# --- transformers ---------------------------------------------------------------------------------


@dataclass
class Counter:
    """A stateful transformer: how many transfers there are per block."""

    calls: list[str] = field(default_factory=list)
    per_block: dict[int, int] = field(default_factory=dict)

    def start(self, info: StartInfo) -> None:
        self.calls.append(f"start {info.id} {info.initial} {info.current}")

    def transform(self, data: Mapping[str, Any], ctx: BatchContext) -> Mapping[str, Any]:
        for number in data["transfers"].toArrow()["block_number"].to_pylist():
            self.per_block[number] = self.per_block.get(number, 0) + 1
        return data

    def fork(self, cursor: BlockCursor) -> None:
        self.calls.append("fork")
        self.per_block = {n: c for n, c in self.per_block.items() if n <= cursor.number}

    def stop(self) -> None:
        self.calls.append("stop")


def test_a_stateful_transformer_moves_in_lockstep_with_the_target(
    portal: PortalServer, tmp_path: Path
) -> None:
    counter, stop = Counter(), StopAtHead(portal)

    def on_event(event: Event) -> None:
        if isinstance(event, Settled) and len(portal.chain.forks) < 3:
            portal.fork(4)
        else:
            stop(event)
        if event.state.cursor is not None:
            branch = portal.chain.path(str(event.state.cursor.hash))
            assert sum(counter.per_block.values()) == len(transfers(portal.chain, branch))

    stream_of(portal).pipe_batches(counter).pipe_to(
        duckdb_target(tmp_path / "a.duckdb"), on_event=on_event
    )
    assert counter.calls == ["start transfers 0 None", "fork", "fork", "fork", "stop"]


def test_stop_is_called_on_every_exit_path(portal: PortalServer, tmp_path: Path) -> None:
    first, second = Counter(), Counter()

    def fails(data: Mapping[str, Any]) -> Mapping[str, Any]:
        raise OSError("user code")

    with pytest.raises(OSError, match="user code"):
        stream_of(portal).pipe_batches(first).pipe_batches(second).pipe(fails).pipe_to(
            duckdb_target(tmp_path / "a.duckdb")
        )
    assert first.calls[-1] == second.calls[-1] == "stop"
    assert duckdb_target(tmp_path / "a.duckdb").query("SELECT * FROM sync").num_rows == 0


def test_a_transformer_that_fails_to_stop_does_not_keep_others_from_it(
    portal: PortalServer, tmp_path: Path
) -> None:
    class Fails(Counter):
        def stop(self) -> None:
            raise OSError("stop")

    first, last = Counter(), Counter()
    with pytest.raises(OSError, match="stop"):
        stream_of(portal, (0, 5)).pipe_batches(first).pipe_batches(Fails()).pipe_batches(
            last
        ).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    assert first.calls[-1] == last.calls[-1] == "stop"


# --- targets of one's own -------------------------------------------------------------------------


class OwnHistory:
    """What the seed document asks its readers to write."""

    def __init__(self) -> None:
        self.blocks: list[BlockCursor] = []
        self.mark: BlockCursor | None = None
        self.rows: dict[int, int] = {}
        self.forks = 0

    def save(self, batch: StreamBatch) -> None:
        state, head = batch.ctx.stream.state, batch.ctx.stream.head
        self.blocks += state.rollback_chain
        if head.finalized and (self.mark is None or head.finalized.number > self.mark.number):
            self.mark = head.finalized
        if self.mark is not None:
            self.blocks = [one for one in self.blocks if one.number >= self.mark.number]
        numbers = batch.data["transfers"].toArrow()["block_number"].to_pylist()
        for number in numbers:
            self.rows[number] = self.rows.get(number, 0) + 1

    def fork(self, previous_blocks: list[BlockCursor]) -> BlockCursor | None:
        self.forks += 1
        index = find_rollback_index(self.blocks, previous_blocks)
        if index < 0:
            return None
        del self.blocks[index + 1 :]
        safe = self.blocks[index]
        self.rows = {n: c for n, c in self.rows.items() if n <= safe.number}
        return safe


def test_create_target_leaves_cursor_and_history_to_the_user(portal: PortalServer) -> None:
    own = OwnHistory()

    def write(read: Any) -> None:
        for batch in read(None):
            own.save(batch)
            if batch.ctx.stream.state.current == portal.chain.head.cursor:
                if len(portal.chain.forks) == 2:
                    return
                portal.fork(3)

    stream_of(portal).pipe_to(create_target(write=write, fork=own.fork))
    assert own.forks == 2
    assert sum(own.rows.values()) == len(transfers(portal.chain, portal.chain.canonical()))


def test_pipe_to_iterator_resumes_after_a_full_cursor_and_survives_forks(
    portal: PortalServer,
) -> None:
    own, start = OwnHistory(), portal.chain.canonical(30, 30)[0].cursor
    for batch in pipe_to_iterator(stream_of(portal), start, own.fork):
        own.save(batch)
        if batch.ctx.stream.state.current == portal.chain.head.cursor:
            if portal.chain.forks:
                break
            portal.fork(2)
    assert portal.ledger.stream_requests()[0].parent_block_hash == start.hash
    assert sum(own.rows.values()) == len(transfers(portal.chain, portal.chain.canonical(31)))


class Resumed:
    """A target of one's own that goes on after a stored cursor, as `resume` says."""

    def __init__(self, portal: PortalServer, stored: Any, answer: BlockCursor | None) -> None:
        self.portal, self.stored, self.answer = portal, stored, answer
        self.delivered: list[int] = []

    def write(self, read: Any) -> None:
        for batch in read():
            self.delivered.append(batch.ctx.stream.state.current.number)
            if batch.ctx.stream.state.current == self.portal.chain.head.cursor:
                return

    def run(self) -> None:
        target = create_target(
            write=self.write, fork=lambda blocks: self.answer, resume=lambda: self.stored
        )
        stream_of(self.portal, poll_interval_s=0.001).pipe_to(target)


def test_resume_says_where_a_target_of_ones_own_goes_on(portal: PortalServer) -> None:
    at = {number: portal.chain.canonical(number, number)[0].cursor for number in (30, 40, 50)}
    ahead = portal.chain.canonical(55, 55)[0].cursor  # finality may be ahead of a backfill
    for stored in (at[40], (at[40], None), (at[40], at[30]), (at[40], at[40]), (at[40], ahead)):
        own = Resumed(portal, stored, None)
        own.run()
        assert own.delivered[0] > 40
        assert portal.ledger.stream_requests()[0].parent_block_hash == at[40].hash
        portal.ledger.clear()
    for none in (None, (None, None)):
        own = Resumed(portal, none, None)
        own.run()
        assert portal.ledger.stream_requests()[0].from_block == 0
        portal.ledger.clear()


@pytest.mark.parametrize(
    "stored",
    [7, "cursor", (1, 2, 3), (None, BlockCursor(3, "0x3")), (BlockCursor(9, "0x9"), BlockCursor(3)),
     (BlockCursor(9, "0x9"), BlockCursor(9, "0x8"))],
)  # fmt: skip
def test_what_cannot_be_resumed_is_refused_before_anything_is_asked(
    portal: PortalServer, stored: Any
) -> None:
    with pytest.raises(ResumeError, match="E0065"):
        Resumed(portal, stored, None).run()
    assert portal.ledger.stream_requests() == []


def test_no_fork_goes_below_what_resume_said_is_final(portal: PortalServer) -> None:
    """The callback is asked once, and a portal on another chain is refused."""
    cursor, floor, below = (
        portal.chain.canonical(number, number)[0].cursor for number in (58, 50, 49)
    )
    portal.fork(5, 7)
    with pytest.raises(ForkCursorError, match=r"E1007.*final.*finalized=50"):
        Resumed(portal, (cursor, floor), below).run()
    own = Resumed(portal, (cursor, floor), floor)
    own.run()
    assert own.delivered[0] == 51
    portal.fork(14, 16)  # 48 is the last block of both chains
    with pytest.raises(ForkCursorMissingError, match="contradicts a finalized block"):
        Resumed(portal, (cursor, floor), floor).run()


def test_a_fork_callback_that_gives_up_ends_the_run(portal: PortalServer) -> None:
    def write(read: Any) -> None:
        for batch in read(None):
            if batch.ctx.stream.state.current == portal.chain.head.cursor:
                portal.fork(2)

    with pytest.raises(ForkCursorMissingError, match="E1003"):
        stream_of(portal).pipe_to(create_target(write=write, fork=lambda blocks: None))


class OwnFork:
    """A target of one's own that answers the first fork, and counts how often it is asked."""

    def __init__(self, portal: PortalServer, answer: Any) -> None:
        self.portal = portal
        self.answer = answer
        self.asked = 0

    def write(self, read: Any) -> None:
        for batch in read(None):
            if batch.ctx.stream.state.current == self.portal.chain.head.cursor:
                self.portal.fork(2)

    def fork(self, previous_blocks: list[BlockCursor]) -> Any:
        self.asked += 1
        return self.answer

    def run(self) -> None:
        stream_of(self.portal).pipe_to(create_target(write=self.write, fork=self.fork))


@pytest.mark.parametrize("ahead", [1, 100])
def test_a_fork_callback_must_not_name_a_cursor_ahead_of_the_stream(
    portal: PortalServer, ahead: int
) -> None:
    """The blocks in between would never be read."""
    own = OwnFork(portal, BlockCursor(59 + ahead, "0xab"))
    with pytest.raises(ForkCursorError, match=r"E1007.*has not reached"):
        own.run()
    assert own.asked == 1


def test_a_fork_callback_must_not_name_a_block_that_was_not_delivered(portal: PortalServer) -> None:
    with pytest.raises(ForkCursorError, match=r"E1007.*not delivered"):
        OwnFork(portal, BlockCursor(59, "0xab")).run()


@pytest.mark.parametrize("answer", [7, "0xab", {"number": 5}, (5, "0xab")])
def test_a_fork_callback_returns_a_cursor_or_nothing(portal: PortalServer, answer: Any) -> None:
    with pytest.raises(ForkCursorError, match=r"E1007.*BlockCursor"):
        OwnFork(portal, answer).run()


def test_a_fork_callback_that_returns_something_to_await_is_refused(portal: PortalServer) -> None:
    async def good() -> BlockCursor:
        return BlockCursor(3, "0xab")

    with pytest.raises(AsyncCallbackError, match="E0015"):
        OwnFork(portal, good()).run()


def test_a_fork_callback_that_insists_on_the_present_cursor_is_asked_slowly_and_not_for_ever(
    portal: PortalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(StoppableClock, "sleep", lambda self, s: pauses.append(s))
    own = OwnFork(portal, portal.chain.head.cursor)
    with pytest.raises(ForkCursorError, match=r"E1007.*keeps naming"):
        own.run()
    assert own.asked == 6
    assert pauses.count(1.0) == 5


def test_a_fork_without_a_callback_is_a_coded_error(portal: PortalServer) -> None:
    orphaned = portal.chain.head.cursor

    def write(read: Any) -> None:
        for batch in read(None):
            if batch.ctx.stream.state.current == orphaned:
                portal.fork(2)

    with pytest.raises(ForkHandlerMissingError, match="E1001") as raised:
        stream_of(portal).pipe_to(create_target(write=write))
    assert f"delivered={orphaned}" in str(raised.value)
    canonical = {block.cursor for block in portal.chain.canonical()}
    assert raised.value.facts["portal_has"] in canonical


def test_plain_iteration_reads_final_blocks_from_the_beginning_every_time(
    portal: PortalServer,
) -> None:
    final = portal.chain.finalized
    assert final is not None
    for _ in range(2):
        rows = 0
        for batch in stream_of(portal, (5, final.number)):
            rows += batch.data["transfers"].count()
        assert rows == len(transfers(portal.chain, portal.chain.canonical(5, final.number)))
    assert {one.route for one in portal.ledger.stream_requests()} == {"finalized-stream"}


def test_the_context_tells_where_the_stream_stands(portal: PortalServer) -> None:
    batches = list(stream_of(portal, (5, 40)))
    ctx = batches[-1].ctx
    assert ctx.id == "transfers"
    assert ctx.stream.state.current == portal.chain.canonical(40, 40)[0].cursor
    assert (ctx.stream.state.initial, ctx.stream.state.last) == (5, 40)
    assert [str(one) for one in ctx.stream.state.ranges] == ["5..40"]
    assert ctx.stream.state.rollback_chain == ()
    assert ctx.stream.head.finalized == portal.chain.finalized.cursor  # type: ignore[union-attr]
    assert ctx.stream.progress.percent == 100.0
    assert ctx.stream.query.url == portal.url
    assert len(ctx.stream.query.hash) == 64
    assert ctx.stream.dataset is not None
    assert ctx.batch.blocks_count > 0
    assert ctx.batch.bytes_size > 0


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_id", ["", "   ", None, 7, ".", "..", "a\0b", "a\n"])
def test_a_stream_without_a_usable_id_is_refused(stream_id: Any) -> None:
    with pytest.raises(StreamIdError, match="E0001"):
        portal_stream(
            id=stream_id, portal="http://x/y", outputs={"t": evm.events("erc20.Transfer")}
        )


@pytest.mark.parametrize("outputs", [{}, None, evm.events("erc20.Transfer"), {"t": 7}, {"": 7}])
def test_outputs_that_are_none_are_refused(outputs: Any) -> None:
    with pytest.raises(InvalidOptionError, match="E0007"):
        portal_stream(id="s", portal="http://x/y", outputs=outputs)


@pytest.mark.parametrize("code", [7, object(), lambda: None, lambda a, b, c: None])
def test_what_cannot_be_piped_is_refused(code: Any, portal: PortalServer) -> None:
    with pytest.raises(InvalidOptionError, match="E0007"):
        stream_of(portal).pipe(code)


def test_a_transform_must_return_a_mapping(portal: PortalServer, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="mapping"):
        stream_of(portal).pipe(lambda data: data["transfers"]).pipe_to(
            duckdb_target(tmp_path / "a.duckdb")
        )


def test_a_dataset_of_another_network_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with (
        simulated_portal(seed=1, blocks=5, network=Network.SOLANA) as portal,
        pytest.raises(NetworkError, match="E0010"),
    ):
        stream_of(portal).pipe_to(duckdb_target(tmp_path / "a.duckdb"))


def test_a_dataset_that_does_not_exist_is_refused(portal: PortalServer, tmp_path: Path) -> None:
    wrong = portal_stream(
        id="s",
        portal=portal.url.rsplit("/", 1)[0] + "/nonsense",
        outputs={"transfers": evm.events("erc20.Transfer")},
    )
    with pytest.raises(PortalHttpError, match="E3001"):
        wrong.pipe_to(duckdb_target(tmp_path / "a.duckdb"))


def test_a_portal_that_cannot_be_reached_is_a_coded_error_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with simulated_portal(seed=1, blocks=3) as gone:
        url = gone.url
    nobody = portal_stream(
        id="s",
        portal=url,
        outputs={"transfers": evm.events("erc20.Transfer")},
        retry=RetryPolicy(schedule_s=(0.01,)),
    )
    with pytest.raises(PortalUnreachableError, match="E3002"):
        nobody.pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    assert duckdb_target(tmp_path / "a.duckdb").query("SELECT * FROM sync").num_rows == 0


def test_a_portal_that_is_away_when_a_stream_starts_is_waited_for_visibly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first failure is in the log at once, with when it is asked again; then silence."""
    caplog.set_level(logging.DEBUG, "headwater.portal")
    chain = ChainSim(11)
    chain.grow(5)
    with PortalServer(PortalSim(chain)) as away:
        port = int(away.base_url.rpartition(":")[2])
    stream = stream_of(away, (0, 4), retry=RetryPolicy(schedule_s=(0.2,), jitter=0))
    handle = stream.start(duckdb_target(tmp_path / "a.duckdb"))
    until(lambda: len(caplog.records) > 7)
    with PortalServer(PortalSim(chain), port=port):
        assert handle.await_termination(300)
    assert held(tmp_path / "a.duckdb") == transfers(chain, chain.canonical(0, 4))
    shown = [one.getMessage() for one in caplog.records if one.levelno >= logging.INFO]
    assert shown[0].startswith("retrying: asking again in 0.2 s after the connection")
    assert [text.split(":")[0] for text in shown] == ["retrying", "recovered"]


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    limit = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < limit, "it never came to hold"
        time.sleep(0.01)


@pytest.mark.guarantee("RANGE-2")
def test_a_stream_from_now_begins_with_the_next_block_and_resumes_like_latest(
    portal: PortalServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.duckdb"
    head = portal.chain.head.number

    def grows(event: Event) -> None:
        if isinstance(event, Recovered):
            portal.extend(3)
        StopAtHead(portal)(event)

    for _ in range(2):  # each start means a later time
        stream_of(portal, datetime.now(UTC)).pipe_to(duckdb_target(path), on_event=grows)
    assert portal.chain.head.number == head + 6
    assert held(path) == transfers(portal.chain, portal.chain.canonical(head + 1, head + 6))


def test_a_callback_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="E0007"):
        create_target(write=7)  # type: ignore[arg-type]


def test_an_error_names_its_code_in_every_case(portal: PortalServer) -> None:
    with pytest.raises(HeadwaterError, match=r"^\[E0002\]"):
        stream_of(portal, (9, 5))


# --- how deep a fork may be -----------------------------------------------------------------------


def reached(path: Path) -> int:
    """Return the number of the committed cursor."""
    found = duckdb_target(path).query("SELECT max(current_number) AS n FROM sync")
    number: int = found.to_pylist()[0]["n"]
    return number


def deep_fork(path: Path, depth: int, cap: int, raised_cap: int | None = None) -> ChainSim:
    """Read a chain whose finality nobody reports, restart, and meet a fork."""
    settings = DuckDBSettings(unfinalized_blocks_retention=1)
    chain = ChainSim(5)
    chain.grow(79)
    with simulated_portal(chain=chain, blocks_per_answer=1) as portal:
        for rollback_cap in (cap, raised_cap or cap):
            stream_of(portal, rollback_cap=rollback_cap).pipe_to(
                duckdb_target(path, settings=settings), on_event=StopAtHead(portal)
            )
            if not portal.chain.forks:
                portal.fork(depth, length=depth + 1)
    return chain


@pytest.mark.guarantee("FORK-1")
def test_a_fork_is_undone_as_deep_as_the_stream_may_go_also_after_a_restart(tmp_path: Path) -> None:
    chain = deep_fork(tmp_path / "a.duckdb", depth=30, cap=40)
    assert held(tmp_path / "a.duckdb") == transfers(chain, chain.canonical())


@pytest.mark.guarantee("FORK-4")
@pytest.mark.parametrize("raised_cap", [None, 500])
def test_a_fork_deeper_than_the_cap_ends_the_stream_and_leaves_the_rows(
    tmp_path: Path, raised_cap: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undo data that a lower cap has let go is not believed to be there once it is raised."""
    monkeypatch.setattr("headwater.stream.portal_run.WAIT_S", 0.01)
    with pytest.raises(ForkCursorMissingError, match="E1003"):
        deep_fork(tmp_path / "a.duckdb", depth=60, cap=20, raised_cap=raised_cap)
    assert reached(tmp_path / "a.duckdb") == 79


@pytest.mark.parametrize("cap", [0, -1, 1.5, "1000", None, True])
def test_a_cap_that_is_none_is_refused(portal: PortalServer, cap: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"E0007.*rollback_cap"):
        stream_of(portal, rollback_cap=cap)
