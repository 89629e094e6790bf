"""Factories through forks, crashes and restarts: after every step, what the plain model says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater import BlockCursor, Flush, create_target, evm, pipe_to_iterator
from headwater.core import Batch, PipeState
from headwater.errors import ConfigChangedError
from headwater.pipeline import Committed, Event, Recovered, RolledBack, Settled
from headwater.runtime import ALONE, Runtime
from headwater.stream import PortalStream, StopRequested, StreamBatch, portal_stream
from headwater.stream.factories import FactoryScan
from headwater.stream.factory_index import CHILDREN
from headwater.targets import (
    Delivery,
    MemoryStore,
    MemoryTarget,
    SideTable,
    clickhouse_target,
    duckdb_target,
    postgres_target,
)
from headwater.targets.clickhouse import ClickHouseClient
from headwater.targets.contract import Capabilities
from headwater.testing import PortalServer, simulated_portal
from tests.sampling import is_whole, visit
from tests.stream import pool_truth as truth
from tests.targets.clickhouse_places import database as clickhouse_database
from tests.targets.postgres_places import database

Row = tuple[Any, ...]
NAMES = truth.COLUMNS.split(", ")


def pool_portal(seed: int, blocks: int = 30, **options: Any) -> Any:
    return simulated_portal(
        seed=seed, blocks=blocks, finality_depth=8, content=truth.SETTINGS, **options
    )


def stream_of(portal: PortalServer, block_range: Any = 0, **options: Any) -> PortalStream:
    start = options.pop("start", 0)
    return portal_stream(
        id="pools",
        portal=portal.url,
        outputs={
            "swaps": evm.events(
                truth.SWAP_EVENT,
                contracts=truth.pools_of(portal.chain, start=start),
                range=block_range,
            ),
            "launched": evm.events(
                truth.SWAP_EVENT,
                contracts=truth.launched_of(portal.chain, start=start),
                range=block_range,
            ),
            "united": truth.united_of(portal.chain, block_range, start=start),
        },
        **{"far": 10**9, "poll_interval_s": 0.01, **options},
    )


# --- places: the same test on every target that keeps side tables ---------------------------------


class InMemory:
    """Batches and side tables of a memory target."""

    def __init__(self, folder: Path) -> None:
        self.store: MemoryStore[Delivery] = MemoryStore()

    def target(self) -> Any:
        return MemoryTarget(self.store)

    def rows(self, name: str) -> list[Row]:
        tables = [batch.data.data[name].toArrow() for batch in self.store.committed.batches]
        return sorted(row for table in tables for row in as_rows(table.select(NAMES)))

    def children(self) -> list[str]:
        return addresses(self.store.committed.side[CHILDREN.name]["address"].to_pylist())


class InDuckDB:
    """Tables of a DuckDB file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pools.duckdb"

    def target(self) -> Any:
        return duckdb_target(self.path)

    def query(self, sql: str) -> pa.Table:
        return duckdb_target(self.path).query(sql)

    def rows(self, name: str) -> list[Row]:
        return sorted(as_rows(self.query(f"SELECT {truth.COLUMNS} FROM {name}")))

    def children(self) -> list[str]:
        found = self.query("SELECT address FROM headwater_factory_children")
        return addresses(found["address"].to_pylist())


class InPostgres:
    """Tables of a PostgreSQL database."""

    def __init__(self, folder: Path) -> None:
        self.dsn = database()

    def target(self) -> Any:
        return postgres_target(self.dsn)

    def query(self, sql: str) -> list[Row]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(sql.encode()).fetchall()

    def rows(self, name: str) -> list[Row]:
        return sorted((*row[:5], str(row[5])) for row in self.query(
            f"SELECT {truth.COLUMNS} FROM {name}"))  # fmt: skip

    def children(self) -> list[str]:
        return addresses([row[0] for row in self.query(
            "SELECT address FROM headwater_factory_children")])  # fmt: skip


class InClickHouse:
    """Tables of a ClickHouse database: what a fork has not taken back."""

    def __init__(self, folder: Path) -> None:
        self.url = clickhouse_database()

    def target(self) -> Any:
        return clickhouse_target(self.url)

    def query(self, sql: str) -> list[Row]:
        client = ClickHouseClient(self.url)
        try:
            return as_rows(client.query(sql))
        finally:
            client.close()

    def rows(self, name: str) -> list[Row]:
        found = self.query(f"SELECT {truth.COLUMNS} FROM {name}_live")
        return sorted((*row[:5], str(row[5])) for row in found)

    def children(self) -> list[str]:
        return addresses([row[0] for row in self.query(
            "SELECT address FROM headwater_factory_children FINAL")])  # fmt: skip


PLACES = [InMemory, InDuckDB, InPostgres, InClickHouse]


def as_rows(table: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


def addresses(stored: list[str]) -> list[str]:
    return sorted(one for one in stored if one)


def expected(portal: PortalServer, cursor: BlockCursor, **options: Any) -> dict[str, list[Row]]:
    """What the tables must hold at a cursor, and all children, worked out from the first block."""
    branch = portal.chain.path(str(cursor.hash))
    first = options.pop("first", 0)
    plain = truth.Model(portal.chain, **options)
    nested = truth.Model(portal.chain, nested=True, **options)
    made = {"swaps": sorted(plain.swaps(branch, first)),
            "launched": sorted(nested.swaps(branch, first))}  # fmt: skip
    created = [row for row in nested.creations if row[0] >= first]
    made["united"] = sorted([*(row[:4] for row in made["swaps"]), *created])
    known = [*plain.pools, *nested.pools, *nested.launchpads]
    return {**made, "children": [(one,) for one in sorted(known)]}


def check(place: Any, portal: PortalServer, state: PipeState, **options: Any) -> None:
    if state.cursor is None:
        return
    wanted = expected(portal, state.cursor, **options)
    assert place.rows("swaps") == wanted["swaps"]
    assert place.rows("launched") == wanted["launched"]
    assert [row[:4] for row in place.rows("united")] == wanted["united"]
    assert [(one,) for one in place.children()] == wanted["children"]


# --- forks and restarts ---------------------------------------------------------------------------


@pytest.mark.guarantee("FACTORY-2")
def test_blocks_of_a_branch_whose_creations_are_gone_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that was behind sent them, and left the branch before it told the creations."""
    monkeypatch.setattr("headwater.stream.portal_run.WAIT_S", 0.001)
    place, read_to = InDuckDB(tmp_path), FactoryScan.read_to
    with pool_portal(3) as portal:
        events: list[Event] = []

        def until_head(event: Event) -> None:
            events.append(event)
            if event.state.cursor == portal.chain.head.cursor:
                raise StopRequested

        stream_of(portal).pipe_to(place.target(), on_event=until_head)
        orphaned = portal.chain.head
        portal.extend(2)
        replica = portal.sim.replicas[0].freeze()
        portal.fork(4)
        asked: list[BlockCursor] = []

        def unless_orphaned(scan: FactoryScan, cursor: BlockCursor, final: int) -> bool:
            asked.append(cursor)
            if len(asked) == 3:
                replica.live()
            return cursor != orphaned.cursor and read_to(scan, cursor, final)

        monkeypatch.setattr(FactoryScan, "read_to", unless_orphaned)
        stream_of(portal).pipe_to(place.target(), on_event=until_head)
        assert asked.count(orphaned.cursor) > 3
        assert [one for one in events if isinstance(one, RolledBack)]
        check(place, portal, events[-1].state)


@pytest.mark.guarantee("FACTORY-1", "FACTORY-2")
@pytest.mark.parametrize("place_type", PLACES)
@pytest.mark.parametrize("seed", [0, 2])
def test_forks_and_restarts_leave_what_the_model_says(
    seed: int, place_type: Callable[[Path], Any], tmp_path: Path
) -> None:
    """After every step rows and stored children are those of the branch that ends in the cursor."""
    dice, place, forks = Random(seed), place_type(tmp_path), 0
    options: dict[str, Any] = {"flush": Flush(blocks=3)} if seed == 2 else {}
    with pool_portal(seed) as portal:
        chain = portal.chain

        def on_event(event: Event) -> None:
            nonlocal forks
            forks += isinstance(event, RolledBack)
            if not isinstance(event, Recovered):
                check(place, portal, event.state)
            if isinstance(event, Settled):
                if chain.head.number > 55:
                    raise StopRequested
                if dice.random() < 0.5:
                    portal.fork(dice.randint(1, 6))
                portal.extend(dice.randint(1, 4))
                if chain.head.number > 40 and dice.random() < 0.5:
                    chain.finalize(chain.head.number - 8)
                if dice.random() < 0.2:
                    raise StopRequested

        reached: BlockCursor | None = None

        def reach(event: Event) -> None:
            nonlocal reached
            reached = event.state.cursor
            on_event(event)

        while reached is None or reached.number < 50:
            stream_of(portal, **options).pipe_to(place.target(), on_event=reach)
        assert forks, f"seed {seed} had no fork"
        assert len(expected(portal, reached)["launched"]) > 10


# --- crashes --------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """A target whose process dies before or after its n-th effect."""

    def __init__(self, inner: Any, at: int) -> None:
        self.inner, self.at, self.effects = inner, at, 0

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        return replace(self.inner.capabilities, side_tables=self)

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        self.inner.bind(stream_id)

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        self._effect(lambda: self.inner.open_side_tables(tables))

    def read_side_table(self, name: str, **options: Any) -> pa.Table:
        return self.inner.read_side_table(name, **options)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        raise AssertionError("children are never settled")

    def recover(self) -> PipeState:
        state: PipeState = self._effect(self.inner.recover)
        return state

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        self._effect(lambda: self.inner.commit(batches, state))

    def roll_back(self, state: PipeState) -> None:
        self._effect(lambda: self.inner.roll_back(state))

    def close(self) -> None:
        self.inner.close()

    def _effect(self, effect: Callable[[], Any]) -> Any:
        for after in (False, True):
            made = effect() if after else None
            self.effects += 1
            if self.effects == self.at:
                raise Crash
        return made


def script(portal: PortalServer) -> Callable[[Event], None]:
    """A short history: some forks, the second one undoes creations, then the end."""
    forks = iter([2, 2, 1, 3, 2])

    def on_event(event: Event) -> None:
        if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
            depth = next(forks, None)
            if depth is None:
                raise StopRequested
            portal.fork(depth)
            portal.extend(1)

    return on_event


@pytest.mark.guarantee("FACTORY-2")
@pytest.mark.parametrize("place_type", PLACES)
def test_a_crash_at_every_step_leaves_no_orphan_and_loses_no_child(
    place_type: Callable[[Path], Any], tmp_path: Path
) -> None:
    """CASE-25. It dies before and after each effect; the chain forks while it is down.

    `make test` takes a sample of the walk.
    """

    def crash_at(at: int) -> int | None:
        folder = tmp_path / str(at)
        folder.mkdir()
        place = place_type(folder)
        with pool_portal(5, blocks=14) as portal:
            portal.chain.finalize(11)
            target = Crashing(place.target(), at + 1)
            follow = script(portal)
            crashed = False
            try:
                stream_of(portal).pipe_to(target, on_event=follow)
            except Crash:
                crashed = True
                portal.fork(2)
                stream_of(portal).pipe_to(place.target(), on_event=follow)
            check(place, portal, PipeState(portal.chain.head.cursor))
        return None if crashed else target.effects

    k = 12 if place_type is InMemory else 30
    visited = visit(k, crash_at, ends=place_type is InMemory)
    assert len(visited) > (25 if is_whole() else 0)


# --- before the first block -----------------------------------------------------------------------


def stop_at(portal: PortalServer) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
            raise StopRequested

    return on_event


@pytest.mark.parametrize("block_range", [20, "latest"])
def test_children_from_before_the_first_block_are_known(block_range: Any, tmp_path: Path) -> None:
    """Read apart where they are final; the stream begins earlier where they are not."""
    place = InDuckDB(tmp_path)
    with pool_portal(3, blocks=40) as portal:
        first = 20 if block_range == 20 else portal.chain.head.number
        stream_of(portal, block_range).pipe_to(place.target(), on_event=stop_at(portal))
        head = PipeState(portal.chain.head.cursor)
        check(place, portal, head, first=first)
        portal.fork(6)
        portal.extend(5)
        stream_of(portal, block_range).pipe_to(place.target(), on_event=stop_at(portal))
        head = PipeState(portal.chain.head.cursor)
        check(place, portal, head, first=min(first, 34))
        assert place.rows("swaps")


def test_creations_before_the_start_do_not_count(tmp_path: Path) -> None:
    place = InDuckDB(tmp_path)
    with pool_portal(3, blocks=40) as portal:
        stream_of(portal, start=12).pipe_to(place.target(), on_event=stop_at(portal))
        check(place, portal, PipeState(portal.chain.head.cursor), start=12)
        assert place.rows("swaps")


def test_a_factory_that_joins_later_finds_the_children_from_before(tmp_path: Path) -> None:
    """The stream ran without it, or without marks behind a moved cursor: they are read again."""
    place = InDuckDB(tmp_path)
    with pool_portal(4, blocks=40) as portal:
        chain = portal.chain
        swaps = evm.events(truth.SWAP_EVENT, contracts=truth.pools_of(chain))
        plain = {"launched": evm.events("erc20.Transfer", contracts=[chain.population.router])}
        for outputs, end in (({**plain, "swaps": swaps}, 10), (plain, 20), ({"swaps": swaps}, 35)):
            for output in outputs.values():
                object.__setattr__(output, "ranges", evm.blocks(range=(0, end)).ranges)
            portal_stream(
                id="pools", portal=portal.url, outputs=outputs, far=10**9, poll_interval_s=0.01,
                on_config_change="ignore",
            ).pipe_to(place.target())  # fmt: skip
        wanted = truth.swaps_of(chain, chain.canonical(0, 35))
        assert place.rows("swaps") == [row for row in wanted if not 10 < row[0] <= 20]
        assert len(place.children()) == len(set(place.children()))


def test_parameters_of_the_creation_choose_the_children(tmp_path: Path) -> None:
    place = InDuckDB(tmp_path)
    with pool_portal(3, blocks=40) as portal:
        chain = portal.chain
        token = chain.population.pools[0].token1
        factory = truth.pools_of(chain, params={"token1": token})
        portal_stream(
            id="pools", portal=portal.url, far=10**9,
            outputs={"swaps": evm.events(truth.SWAP_EVENT, contracts=factory, range=(0, 39))},
        ).pipe_to(place.target())  # fmt: skip
        wanted = truth.swaps_of(chain, chain.canonical(0, 39), token1=token)
        assert place.rows("swaps") == wanted
        assert len(wanted) > 3


@pytest.mark.guarantee("FACTORY-1")
def test_rows_of_a_child_count_from_the_point_that_since_names(tmp_path: Path) -> None:
    """Through forks and restarts, beside each other: what a child logs before its announcement."""
    place, forks = InDuckDB(tmp_path), iter([3, 2])
    sinces: tuple[Any, ...] = ("transaction", "block", "log")
    with pool_portal(12, blocks=40) as portal:
        chain = portal.chain
        outputs = {
            f"{kind}_{since}": evm.events(truth.SWAP_EVENT, contracts=make(chain, since=since))
            for since in sinces
            for kind, make in (("plain", truth.pools_of), ("nested", truth.launched_of))
        }

        def fork_at_head(event: Event) -> None:
            if isinstance(event, Settled) and event.state.cursor == chain.head.cursor:
                depth = next(forks, None)
                if depth is None:
                    raise StopRequested
                portal.fork(depth)
                portal.extend(2)
                if depth == 2:
                    raise StopRequested

        for _ in range(2):
            portal_stream(
                id="pools", portal=portal.url, outputs=outputs, far=10**9, poll_interval_s=0.01
            ).pipe_to(place.target(), on_event=fork_at_head)
        assert len(chain.forks) == 2
        counts = {}
        for name in outputs:
            kind, since = name.split("_")
            model = truth.Model(chain, nested=kind == "nested", since=since)
            assert place.rows(name) == sorted(model.swaps(chain.canonical()))
            counts[name] = len(place.rows(name))
        assert counts["plain_log"] < counts["plain_transaction"] < counts["plain_block"]


@pytest.mark.parametrize("make", [truth.pools_of, truth.launched_of])
def test_a_table_that_was_filled_behind_the_log_is_not_mixed_with_other_rows(
    make: Callable[..., evm.Factory], tmp_path: Path
) -> None:
    """It goes on with `since="log"`, or `evolve` replaces its rows."""
    place = InDuckDB(tmp_path)
    with pool_portal(12, blocks=40) as portal:
        chain = portal.chain

        def run(end: int, on_config_change: Any = "error", **options: Any) -> None:
            factory = make(chain, **options)
            portal_stream(
                id="pools",
                portal=portal.url,
                outputs={"swaps": evm.events(truth.SWAP_EVENT, contracts=factory, range=(0, end))},
                far=10**9,
                on_config_change=on_config_change,
            ).pipe_to(place.target())

        def wanted(end: int, **options: Any) -> list[Row]:
            model = truth.Model(chain, nested=make is truth.launched_of, **options)
            return sorted(model.swaps(chain.canonical(0, end)))

        run(20, since="log")
        with pytest.raises(ConfigChangedError, match=r"E0012.*since=swaps: log.* -> transaction"):
            run(25)
        assert place.rows("swaps") == wanted(20, since="log")
        run(25, since="log")
        assert place.rows("swaps") == wanted(25, since="log")
        run(31, on_config_change="evolve")
        assert place.rows("swaps") == wanted(31)
        assert wanted(31) != wanted(31, since="log")


# --- targets that keep nothing --------------------------------------------------------------------


class Own:
    """A reader's own history and rows."""

    def __init__(self) -> None:
        self.blocks: list[BlockCursor] = []
        self.rows: list[Row] = []

    def save(self, batch: StreamBatch) -> None:
        self.blocks.append(batch.ctx.stream.state.current)
        self.rows += as_rows(batch.data["swaps"].toArrow().select(NAMES))

    def fork(self, previous_blocks: list[BlockCursor]) -> BlockCursor | None:
        known = {(one.number, one.hash) for one in previous_blocks}
        while self.blocks and (self.blocks[-1].number, self.blocks[-1].hash) not in known:
            self.blocks.pop()
        safe = self.blocks[-1] if self.blocks else None
        self.rows = [row for row in self.rows if safe is not None and row[0] <= safe.number]
        return safe


def test_without_side_tables_the_children_are_read_again(tmp_path: Path) -> None:
    """Iteration with a cursor, from which the chain forks away while nobody reads."""
    own = Own()
    with pool_portal(6, blocks=40) as portal:
        for turn in range(4):
            cursor = own.blocks[-1] if own.blocks else None
            for batch in pipe_to_iterator(stream_of(portal), cursor, own.fork):
                own.save(batch)
                if batch.ctx.stream.state.current == portal.chain.head.cursor:
                    if len(portal.chain.forks) > 2 * turn:
                        break
                    portal.fork(3)
                    portal.extend(1)
            portal.fork(2)
            portal.extend(3)
            wanted = expected(portal, own.blocks[-1])
            assert sorted(own.rows) == wanted["swaps"]


def test_create_target_and_plain_iteration_know_the_children() -> None:
    own = Own()
    with pool_portal(7, blocks=40) as portal:
        final = portal.chain.finalized
        assert final is not None

        def write(read: Any) -> None:
            for batch in read(None):
                own.save(batch)

        stream_of(portal, (10, final.number)).pipe_to(create_target(write=write))
        wanted = expected(portal, final.cursor, first=10)["swaps"]
        assert sorted(own.rows) == wanted
        rows: list[Row] = []
        for batch in stream_of(portal, (10, final.number)):
            rows += as_rows(batch.data["swaps"].toArrow().select(NAMES))
        assert sorted(rows) == wanted


@pytest.fixture
def quiet_portal() -> Iterator[PortalServer]:
    with pool_portal(8, blocks=60) as portal:
        yield portal


def test_calls_of_children_are_taken_from_transactions_and_traces(
    quiet_portal: PortalServer,
) -> None:
    chain = quiet_portal.chain
    calls = {
        source: evm.calls(
            truth.SWAP_CALL, contracts=truth.pools_of(chain), source=source, range=(0, 51)
        )
        for source in ("transactions", "traces")
    }
    stream = portal_stream(id="calls", portal=quiet_portal.url, outputs=calls, far=10**9)
    found: dict[str, list[Row]] = {name: [] for name in calls}
    for batch in stream:
        for name, rows in found.items():
            columns = ["block_number", "transaction_index", "address"]
            rows += as_rows(batch.data[name].toArrow().select(columns))
    for name, rows in found.items():
        assert rows == truth.Model(chain).calls(chain.canonical(0, 51), name)
        assert rows


def test_events_tell_of_commits(quiet_portal: PortalServer) -> None:
    """Children are stored with the batch that finds them, not in steps of their own."""
    store: MemoryStore[Delivery] = MemoryStore()
    commits = blocks = 0

    def on_event(event: Event) -> None:
        nonlocal commits, blocks
        if isinstance(event, Committed):
            commits += 1
            blocks += event.blocks
        if isinstance(event, Settled):
            raise StopRequested

    stream_of(quiet_portal).pipe_to(MemoryTarget(store), on_event=on_event)
    batches = store.committed.batches
    assert 0 < commits <= len(batches), "blocks that wait share a commit"
    assert blocks == sum(len(batch.headers) for batch in batches)
