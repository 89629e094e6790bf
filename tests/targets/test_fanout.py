"""Several targets behind one stream: each keeps its own cursor, and a restart heals differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headwater import StopRequested, evm, portal_stream
from headwater.errors import (
    FanOutBranchError,
    FanOutFrameError,
    InvalidOptionError,
    SideTablesError,
)
from headwater.pipeline import Event
from headwater.runtime import Runtime
from headwater.targets import (
    MemoryStore,
    MemoryTarget,
    duckdb_target,
    history_target,
    parquet_target,
    postgres_target,
)
from headwater.targets.delta import delta_target
from headwater.targets.duckdb import DuckDBSettings, DuckDBTarget, table
from headwater.targets.fanout import FanOutTarget
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.conformance import TargetConformance, apply_changes
from headwater.testing.conformance.model import Change, Rig, in_order, log
from tests.sampling import every
from tests.stream.truth import COLUMNS, transfers
from tests.targets import points

ENDS = ("BEGIN TRANSACTION", "COMMIT")
"""A crash between transactions leaves targets apart; one inside is DuckDB's own suite."""


def test_every_target_waits_for_its_server_as_the_stream_says() -> None:
    """Else a stop would not end the wait for a database that is away."""
    one = postgres_target("postgresql://localhost/a")
    two = history_target("postgresql://localhost/b", tables=["t"])
    paused: list[tuple[float, str]] = []
    both = FanOutTarget([MemoryTarget(), one, two])
    both.bind("s", Runtime(wait=lambda seconds, why: paused.append((seconds, why))))
    for target in (one, two):
        target.pause(1, "away")
    assert paused == [(1, "away")] * 2


@pytest.mark.guarantee("FANOUT-1")
class TestFanOut(TargetConformance):
    """CASE-19: two DuckDB files. While they differ, what is read is the one that is behind."""

    sample = every(24)
    exclusive = shares = False
    side_tables = True
    walks = side_walks = 3

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.places = (tmp_path / f"{number}.duckdb" for number in itertools.count())
        self.fresh()

    def fresh(self) -> None:
        self.paths = [next(self.places), next(self.places)]
        self.made: FanOutTarget | None = None

    def one(self, path: Path) -> DuckDBTarget:
        return duckdb_target(
            path,
            tables=[
                table("log", append_only=True), table("balances", key=["owner", "token"]), "plain"
            ],
            on_data=apply_changes,
            settings=DuckDBSettings(config={"threads": 1}),
        )  # fmt: skip

    def make_target(self, stream_id: str) -> FanOutTarget:
        self.made = FanOutTarget([self.one(path) for path in self.paths])
        self.made.bind(stream_id)
        return self.made

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        assert self.made is not None
        states = self.made.states
        found = [self.rows_of(path, name) for path in self.paths]
        if states[0] == states[1]:
            assert in_order(found[0]) == in_order(found[1])
        return found[0 if states[0].number <= states[1].number else 1]

    def rows_of(self, path: Path, name: str) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = duckdb_target(path).query(f"FROM {name}").to_pylist()
        except duckdb.CatalogException:
            return []
        return rows

    def watch_io(self, target: FanOutTarget, hook: Callable[[], None]) -> None:
        watching = points.watching("Two DuckDB files", hook, lambda sql: sql in ENDS)
        for one in target.targets:
            assert isinstance(one, DuckDBTarget)
            one.on_statement = watching


def rig_of(*stores: MemoryStore[Any]) -> Rig:
    target = FanOutTarget([MemoryTarget(one) for one in stores])
    target.recover()
    return Rig(target, lambda name: [], [])


def numbers(store: MemoryStore[Any]) -> list[int]:
    return [batch.headers[-1].number for batch in store.committed.batches]


@pytest.mark.guarantee("FANOUT-1")
def test_a_target_that_is_behind_catches_up_and_the_other_is_not_given_blocks_twice() -> None:
    a: MemoryStore[Any] = MemoryStore()
    alone = Rig(MemoryTarget(a), lambda name: [], [])
    for number in range(1, 6):
        alone.block(number, log(number, number), final=1)
    b: MemoryStore[Any] = MemoryStore()
    rig = rig_of(a, b)
    assert rig.target.recover().cursor is None
    for number in range(1, 8):
        rig.block(number, log(number, number), final=1)
    assert numbers(a) == numbers(b) == list(range(1, 8))
    assert a.committed.state == b.committed.state


def test_a_batch_of_final_blocks_reaches_a_target_without_the_rows_it_has() -> None:
    a: MemoryStore[Any] = MemoryStore()
    alone = Rig(MemoryTarget(a), lambda name: [], [])
    for number in (1, 2):
        alone.block(number, log(number, number), final=9)
    b: MemoryStore[Any] = MemoryStore()
    rig = rig_of(a, b)
    many = pa.concat_tables([rows(number) for number in (1, 2, 3)])
    rig.block(3, Change("insert", "log", (), many), final=9)
    assert a.committed.batches[-1].data.data["log"]["block_number"].to_pylist() == [3]
    assert b.committed.batches[-1].data.data["log"]["block_number"].to_pylist() == [1, 2, 3]
    c = rig_of(a, MemoryStore())
    with pytest.raises(FanOutFrameError):
        c.block(9, Change("insert", "log", (), pa.table({"value": ["x"]})), final=9)


def rows(number: int) -> pa.Table:
    return pa.table({"block_number": [number]})


def test_a_target_on_another_branch_goes_back_to_the_last_common_block() -> None:
    a: MemoryStore[Any] = MemoryStore()
    b: MemoryStore[Any] = MemoryStore()
    rig = rig_of(a, b)
    for number in (1, 2, 3):
        rig.block(number, log(number, number), final=1)
    ahead = Rig(MemoryTarget(a), lambda name: [], [])
    ahead.model.settle(a.committed.state)
    for number in (4, 5):
        ahead.block(number, log(number, number))
    behind = Rig(MemoryTarget(b), lambda name: [], [])
    behind.model.settle(b.committed.state)
    behind.block(4, log(4, 4), branch="b")
    target = FanOutTarget([MemoryTarget(a), MemoryTarget(b)])
    state = target.recover()
    assert state.number == 3
    assert numbers(a) == numbers(b) == [1, 2, 3], "blocks that only one of them has are read again"
    rig = Rig(target, lambda name: [], [])
    rig.model.settle(state)
    rig.block(4, log(4, 4), branch="c")
    assert numbers(a) == numbers(b) == [1, 2, 3, 4]
    assert a.committed.state == b.committed.state, "the orphaned block 4 is gone"
    odd: MemoryStore[Any] = MemoryStore()
    other = Rig(MemoryTarget(odd), lambda name: [], [])
    for number in (1, 2):
        other.block(number, log(number, 0), branch="z", final=2)
    with pytest.raises(FanOutBranchError):
        rig_of(odd, MemoryStore()).block(2, log(2, 0), branch="y", final=2)


def test_hot_blocks_that_only_one_target_has_are_read_again() -> None:
    """They may be orphaned, and blocks without rows never arrive: no hash could show it."""
    a: MemoryStore[Any] = MemoryStore()
    b: MemoryStore[Any] = MemoryStore()
    both = rig_of(a, b)
    for number in (1, 2, 3):
        both.block(number, log(number, number), final=2)
    ahead = Rig(MemoryTarget(a), lambda name: [], [])
    ahead.model.settle(a.committed.state)
    for number in (4, 5):
        ahead.block(number, log(number, "orphaned"))
    target = FanOutTarget([MemoryTarget(a), MemoryTarget(b)])
    state = target.recover()
    assert (state.number, numbers(a)) == (3, [1, 2, 3])
    rig = Rig(target, lambda name: [], [])
    rig.model.settle(state)
    rig.block(6, log(6, 6), branch="b")
    assert numbers(a) == numbers(b) == [1, 2, 3, 6]


def test_targets_are_two_or_more_and_different() -> None:
    one: MemoryTarget[Any] = MemoryTarget()
    for wrong in ([one], [one, one]):
        with pytest.raises(InvalidOptionError):
            FanOutTarget(wrong)


# --- whole streams --------------------------------------------------------------------------------


def test_what_no_target_can_keep_is_refused(portal: PortalServer, tmp_path: Path) -> None:
    outputs = {"transfers": evm.events("erc20.Transfer", range=(5, 20))}
    stream = portal_stream(id="x", portal=portal.url, outputs=outputs)
    both = [parquet_target(tmp_path / "a"), parquet_target(tmp_path / "b")]
    with pytest.raises(SideTablesError, match="cannot keep"):
        stream.on_finalized("transfers", lambda messages: None).pipe_to(both)


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


class Breaks:
    """A target that fails once the stream has reached a block."""

    def __init__(self, target: Any, at: int) -> None:
        self.target, self.at = target, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def commit(self, batches: Any, state: Any) -> None:
        if state.number >= self.at:
            raise OSError("the disk is gone")
        self.target.commit(batches, state)


@pytest.mark.guarantee("FANOUT-1")
def test_one_failing_target_stops_the_stream_and_a_restart_heals_all(
    portal: PortalServer, tmp_path: Path
) -> None:
    chain = portal.sim.chain
    stream = portal_stream(
        id="transfers", portal=portal.url, far=10**9, poll_interval_s=0.01, max_bytes=1,
        outputs={"transfers": evm.events("erc20.Transfer", range=5)},
    )  # fmt: skip

    def places() -> list[Any]:
        return [
            duckdb_target(tmp_path / "a.duckdb"), delta_target(tmp_path / "delta"),
            parquet_target(tmp_path / "parquet"),
        ]  # fmt: skip

    broken = places()
    broken[1] = Breaks(broken[1], 50)
    with pytest.raises(OSError, match="the disk is gone"):
        stream.pipe_to(broken, progress=False)
    first = duckdb_target(tmp_path / "a.duckdb").query("SELECT max(block_number) n FROM transfers")
    assert first["n"].to_pylist()[0] >= 50, "the first target kept what it had committed"
    chain.fork(6, 8)

    def until_head(event: Event) -> None:
        if event.state.number == chain.head.number:
            raise StopRequested

    stream.start(places(), on_event=until_head).await_termination(300)
    wanted = transfers(chain, chain.canonical(5, chain.head.number))
    names = [one.strip('" ') for one in COLUMNS.split(",")]
    order = [("block_number", "ascending"), ("log_index", "ascending")]
    held = duckdb_target(tmp_path / "a.duckdb").query(f"SELECT {COLUMNS} FROM transfers")
    lake = DeltaTable(tmp_path / "delta" / "transfers").to_pyarrow_table(columns=names)
    for found in (held, lake):
        assert [tuple(row.values()) for row in found.sort_by(order).to_pylist()] == wanted


@pytest.mark.guarantee("FANOUT-1")
def test_messages_are_sent_once_while_targets_fail_and_join(
    portal: PortalServer, tmp_path: Path
) -> None:
    """The first target is ahead of the one that failed, and keeps messages that are not due yet."""
    sent: list[tuple[int, str]] = []
    outputs = {"transfers": evm.events("erc20.Transfer", range=(5, 45))}
    stream = portal_stream(
        id="x", portal=portal.url, outputs=outputs, far=10**9, max_bytes=1, poll_interval_s=0.01
    ).on_finalized(
        "transfers", lambda messages: sent.extend((one.block_number, one.key) for one in messages)
    )
    delta, files = delta_target(tmp_path / "delta"), parquet_target(tmp_path / "files")
    with pytest.raises(OSError, match="the disk is gone"):
        stream.pipe_to([delta, Breaks(files, 30)], progress=False)
    assert max(block for block, _ in sent) < 30
    delta = delta_target(tmp_path / "delta")
    stream.pipe_to([duckdb_target(tmp_path / "a.duckdb"), files, delta], progress=False)
    final = portal.sim.chain.canonical(5, 44)
    assert len(sent) == len({key for _, key in sent}) == len(transfers(portal.sim.chain, final))
