"""Streams of one id whose states are in two tables are told apart, or refused before a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from headwater import StopRequested, evm, portal_stream
from headwater.changes import TableSchema
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.decode import Output
from headwater.errors import HeadwaterError, LakeForeignWriteError
from headwater.pipeline import Event, Settled
from headwater.targets import (
    Delivery,
    clickhouse_target,
    duckdb_target,
    history_target,
    iceberg_target,
    postgres_target,
)
from headwater.targets.admin import open_admin
from headwater.targets.clickhouse import ClickHouseClient, ClickHouseSettings
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.clickhouse.sql import DELETED
from headwater.targets.contract import SideTable
from headwater.targets.duckdb import DuckDBSettings
from headwater.targets.duckdb import table as duckdb_table
from headwater.targets.iceberg import IcebergSettings
from headwater.targets.iceberg.catalog import CatalogName
from headwater.targets.postgres import PostgresSettings
from headwater.targets.postgres import table as postgres_table
from headwater.testing import PortalServer, simulated_portal
from tests.stream.test_stream import HEAD_ONLY
from tests.targets import clickhouse_places
from tests.targets.postgres_places import database

OUTBOX = SideTable(
    "outbox",
    pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64()), ("payload", pa.string())]),
)
TABLES: dict[str, Callable[..., Any]] = {
    "clickhouse": clickhouse_table,
    "postgres": postgres_table,
    "duckdb": duckdb_table,
}
IN_USE = {"clickhouse": "E2015", "postgres": "E2103", "duckdb": "E2507"}
SHARED = {"clickhouse": "E2015", "postgres": "E2112", "duckdb": "E2508"}


class Place:
    """A database; targets keep their state in a table of it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        makers: dict[str, Callable[[], str]] = {
            "clickhouse": clickhouse_places.database,
            "postgres": database,
            "duckdb": lambda: str(folder / "a.duckdb"),
        }
        self.address = makers[kind]()
        self._opened: list[Any] = []

    def settings(self, state: str) -> Any:
        kinds: dict[str, Callable[..., Any]] = {
            "clickhouse": ClickHouseSettings,
            "postgres": PostgresSettings,
            "duckdb": DuckDBSettings,
        }
        return kinds[self.kind](table=state)

    def target(self, state: str, **options: Any) -> Any:
        make: dict[str, Callable[..., Any]] = {
            "clickhouse": clickhouse_target,
            "postgres": postgres_target,
            "duckdb": duckdb_target,
        }
        self._opened.append(make[self.kind](self.address, settings=self.settings(state), **options))
        return self._opened[-1]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.target("sync").query(sql).to_pylist()
        return found

    def fill(self, name: str) -> None:
        """Make a table with a row for each of a hundred blocks, as another program does."""
        if self.kind == "clickhouse":
            client = ClickHouseClient(self.address)
            columns = "(block_number Int64, value String) ENGINE MergeTree ORDER BY block_number"
            client.run(f"CREATE TABLE {name} {columns}")
            client.run(f"INSERT INTO {name} SELECT number, 'x' FROM numbers(100)")
            client.close()
            return
        connect: Any = psycopg.connect if self.kind == "postgres" else duckdb.connect
        with connect(self.address) as connection:
            connection.execute(f"CREATE TABLE {name} (block_number BIGINT, value TEXT)")
            connection.execute(
                f"INSERT INTO {name} SELECT n, 'x' FROM generate_series(0, 99) AS s(n)"
            )

    def close(self) -> None:
        for one in self._opened:
            one.close()


class Rig:
    """A target that is given blocks, one at a time."""

    def __init__(self, target: Any, stream_id: str = "one", *, side: bool = False) -> None:
        target.bind(stream_id)
        if side:
            target.open_side_tables([OUTBOX])
        self.target = target
        self.state: PipeState = target.recover()

    def block(self, number: int, data: Any = None, side: Any = None) -> None:
        header = BlockHeader(number, f"h{number}", None, number - 1, number)
        state = self.state.advance([header], Head(BlockCursor(0, "h0")))
        batch = Batch((header,), Head(), state, (), Delivery(data or {}, None, side or {}))
        prepare = self.target.capabilities.prepare_batch
        self.target.commit([batch if prepare is None else prepare(batch)], state)
        self.state = state

    def fork(self, number: int) -> None:
        safe = next(one for one in self.state.landing_points() if one.number == number)
        self.state = self.state.rewind(safe)
        self.target.roll_back(self.state)

    def messages(self) -> list[str]:
        return list(self.target.read_side_table("outbox")["payload"].to_pylist())


def rows(number: int, value: str) -> pa.Table:
    return pa.table({"block_number": pa.array([number], pa.int64()), "value": [value]})


def message(number: int, text: str) -> dict[str, pa.Table]:
    return {"outbox": pa.table([[number], [0], [text]], schema=OUTBOX.columns)}


@pytest.fixture(params=["clickhouse", "postgres", "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=12, finality_depth=4) as server:
        yield server


@pytest.mark.guarantee("STATE-5")
def test_each_stream_has_its_own_definition(place: Place, portal: PortalServer) -> None:
    wanted: dict[str, Output] = {
        "sync": evm.events("erc20.Transfer", range=(0, 11)),
        "state_b": evm.transactions(fields=["from"], range=(0, 11)),
    }

    options: dict[str, Any] = dict(HEAD_ONLY)

    def run(state: str) -> None:
        outputs = {f"rows_of_{state}": wanted[state]}
        stream = portal_stream(id="one", portal=portal.url, outputs=outputs, **options)
        stream.pipe_to(place.target(state), progress=False)

    for state in (*wanted, *wanted):
        run(state)
    assert all(place.rows(f"SELECT * FROM rows_of_{state}") for state in wanted)


@pytest.mark.guarantee("STATE-5")
def test_each_stream_has_its_own_side_rows(place: Place) -> None:
    first = Rig(place.target("sync"), side=True)
    for number in (1, 2, 3):
        first.block(number, side=message(number, f"first {number}"))
    second = Rig(place.target("state_b"), side=True)
    assert second.messages() == []
    for number in (1, 2):
        second.block(number, side=message(number, f"second {number}"))
    second.fork(1)
    first.target.settle_side_rows("outbox", (1, 0), {})
    for rig, state, kept in (
        (first, "sync", ["first 2", "first 3"]),
        (second, "state_b", ["second 1"]),
    ):
        rig.target.close()
        again = Rig(place.target(state), side=True)
        assert again.messages() == kept
        again.target.close()
    for state, count in (("sync", 2), ("state_b", 1)):
        admin = open_admin(place.address, table=state)
        assert [one.id for one in admin.streams()] == ["one"]
        assert admin.side_tables("one")["outbox"].rows == count
    open_admin(place.address, table="state_b").reset("one", force=True)
    assert Rig(place.target("sync"), side=True).messages() == ["first 2", "first 3"]
    begun = Rig(place.target("state_b"), side=True)
    assert (begun.state, begun.messages()) == (PipeState(), [])


@pytest.mark.guarantee("STATE-5")
@pytest.mark.parametrize("ids", [("one", "one"), ("one", "other")], ids=["same-id", "other-id"])
def test_a_table_is_not_written_from_two_tables_of_state(place: Place, ids: Sequence[str]) -> None:
    """Neither knows of the other's forks: each would take back the other's rows."""
    running = Rig(place.target("sync"), ids[0])
    running.block(1, {"t": rows(1, "a")})
    other = Rig(place.target("state_b"), ids[1])
    other.block(1, {"u": rows(1, "b")})
    code = (IN_USE if ids[0] == ids[1] else SHARED)[place.kind]
    with pytest.raises(HeadwaterError, match=code):
        running.block(2, {"u": rows(2, "a")})
    with pytest.raises(HeadwaterError, match=code):
        other.block(2, {"t": rows(2, "b")})
    for rig in (running, other):
        rig.target.close()
    assert place.rows("SELECT value FROM t") == [{"value": "a"}]
    assert place.rows("SELECT value FROM u") == [{"value": "b"}]
    for state, stream_id in (("sync", ids[0]), ("state_b", ids[1])):
        resumed = Rig(place.target(state), stream_id)
        assert resumed.state.cursor == BlockCursor(1, "h1", 1)
        resumed.target.close()


@pytest.mark.guarantee("STATE-5")
def test_what_an_earlier_release_kept_under_the_id_alone_is_taken_over(place: Place) -> None:
    """Definitions on all databases, side rows on ClickHouse."""
    old = Rig(place.target("state_b"), side=True)
    for number in (1, 2):
        old.block(number, side=message(number, f"kept {number}"))
    old.target.stored_config().write("kept")
    old.target.close()
    _as_it_was(place, "state_b")
    opened = Rig(place.target("state_b"), side=True)
    assert opened.messages() == ["kept 1", "kept 2"]
    assert opened.target.stored_config().read() == "kept"
    opened.fork(1)
    opened.target.close()
    again = Rig(place.target("state_b"), side=True)
    assert again.messages() == ["kept 1"]
    assert again.target.stored_config().read() == "kept"


def _as_it_was(place: Place, state: str) -> None:
    """Give definition and side rows the keys that the release before had for them."""
    if place.kind != "clickhouse":
        moved = f"UPDATE headwater_config SET stream_id = 'one' WHERE stream_id = '{state}/one'"
        fixer = place.target("fixer", on_start=lambda tx: tx.session.run(moved))
        Rig(fixer, "fixer").target.close()
        return
    client = ClickHouseClient(place.address)
    for name, column in (("headwater_config", "stream_id"), ("headwater_outbox", "stream_id"),
                         (f"{state}__tables", "id")):  # fmt: skip
        found = client.rows(
            f"SELECT arrayStringConcat(groupArray(name), ', ') AS names FROM system.columns "
            f"WHERE table = '{name}' AND database = currentDatabase() AND name != '{column}'"
        )
        names = found[0]["names"]
        client.run(
            f"INSERT INTO {name} ({column}, {names}) SELECT 'one', {names} FROM {name} "
            f"WHERE {column} = '{state}/one'"
        )
        client.run(f"DELETE FROM {name} WHERE {column} = '{state}/one'", settings=DELETED)
    client.close()


def test_side_rows_that_an_earlier_release_has_mixed_are_refused() -> None:
    """Nothing tells whose they are; `headwater cursor reset` of one of the streams decides it."""
    place = Place("clickhouse", Path())
    for state in ("state_a", "state_b"):
        old = Rig(place.target(state), side=True)
        old.block(1, side=message(1, state))
        old.target.stored_config().write("kept")
        old.target.close()
        _as_it_was(place, state)
    for state in ("state_a", "state_b"):
        with pytest.raises(HeadwaterError, match=r"E2015.*mixed rows.*cursor reset --state-table"):
            Rig(place.target(state), side=True)
    open_admin(place.address, table="state_a").reset("one", force=True)
    kept = Rig(place.target("state_b"), side=True)
    assert "state_b" in kept.messages()
    place.close()


@pytest.mark.guarantee("STATE-5")
def test_an_iceberg_table_is_not_written_from_two_namespaces_of_state(tmp_path: Path) -> None:
    def rig(namespace: str) -> Rig:
        settings = IcebergSettings(namespace=namespace)
        return Rig(iceberg_target(tmp_path, tables=["a.t", "a.u"], settings=settings))

    first, second = rig("a"), rig("b")
    first.block(1, {"a.t": rows(1, "first")})
    second.block(1, {"a.u": rows(1, "second")})
    for running, name in ((first, "a.u"), (second, "a.t")):
        with pytest.raises(LakeForeignWriteError, match="another stream"):
            running.block(2, {name: rows(2, "lost")})
        running.target.close()
    catalog = CatalogName.of(tmp_path).open()
    for name, value in (("a.t", "first"), ("a.u", "second")):
        assert catalog.load_table(name).scan().to_arrow()["value"].to_pylist() == [value]
    catalog.close()


@pytest.mark.guarantee("STATE-5")
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
def test_a_change_log_is_not_shared_by_streams_of_one_id(kind: str, tmp_path: Path) -> None:
    """Their tables differ, but a fork of one would undo changes of the other."""
    place = Place(kind, tmp_path)

    def rig(state: str, **options: Any) -> Rig:
        tables = [TableSchema(f"of_{state}", ["id"], {"id": "text"})]
        settings = place.settings(state)
        target = history_target(place.address, tables=tables, settings=settings, **options)
        return Rig(target)

    rig("sync").target.close()
    for options in ({}, {"history_table": "log_b"}, {"cursors_table": "cursors_b"}):
        with pytest.raises(HeadwaterError, match=f"{IN_USE[kind]}.*same id"):
            rig("state_b", **options)
    rig("state_b", history_table="log_b", cursors_table="cursors_b").target.close()
    place.close()


@pytest.mark.guarantee("STATE-5")
@pytest.mark.parametrize("declares", [False, True])
def test_rows_that_another_program_wrote_are_left_alone(place: Place, declares: bool) -> None:
    """A stream goes on, and is to write a table of theirs: it has claimed each table of its own."""

    def start(*tables: str) -> Rig:
        def on_data(tx: Any, data: Any) -> None:
            for name, frame in data.items():
                tx.insert(name, frame)

        if not declares:
            return Rig(place.target("sync"))
        options = {"append_only": True} if place.kind != "clickhouse" else {}
        given = [TABLES[place.kind](one, **options) for one in tables]
        return Rig(place.target("sync", tables=given, on_data=on_data))

    first = start("t")
    for number in (1, 2):
        first.block(number, {"t": rows(number, "a")})
    first.target.close()
    place.fill("theirs")
    with pytest.raises(HeadwaterError, match=f"{SHARED[place.kind]}.*has not reached.*theirs"):
        start("t", "theirs").block(3, {"t": rows(3, "a"), "theirs": rows(3, "a")})
    place.close()
    assert place.rows("SELECT count(*) AS n FROM theirs") == [{"n": 100}]
    place.close()
    again = start("t")
    again.block(3, {"t": rows(3, "b")})
    assert again.target.query("SELECT value FROM t ORDER BY 1")["value"].to_pylist() == [*"aab"]


@pytest.mark.guarantee("STATE-5")
@pytest.mark.parametrize("declares", [False, True])
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
def test_a_first_start_refuses_rows_that_its_forks_would_remove(
    kind: str, declares: bool, tmp_path: Path
) -> None:
    """Rows of blocks before the stream's first are the user's own, and stay what they are."""
    place = Place(kind, tmp_path)
    place.fill("theirs")

    def start() -> Rig:
        if not declares:
            return Rig(place.target("sync"))
        declared = TABLES[kind]("theirs", append_only=True)

        def on_data(tx: Any, data: Any) -> None:
            tx.insert("theirs", data["theirs"])

        return Rig(place.target("sync", tables=[declared], on_data=on_data))

    with pytest.raises(HeadwaterError, match=rf"{SHARED[kind]}.*has not reached.*theirs.*=4"):
        start().block(5, {"theirs": rows(5, "a")})
    place.close()
    assert place.rows("SELECT count(*) AS n FROM theirs") == [{"n": 100}]
    place.close()
    stream = start()
    for number in (100, 101):
        stream.block(number, {"theirs": rows(number, "a")})
    stream.fork(100)
    assert place.rows("SELECT count(*) AS n FROM theirs") == [{"n": 101}]
    place.close()


def test_a_fork_of_a_running_stream_leaves_the_table_of_another_alone(
    portal: PortalServer,
) -> None:
    """It has declared the table, which another stream made after it had started."""
    place, options = Place("clickhouse", Path()), dict[str, Any](HEAD_ONLY)
    transfers: Output = evm.events("erc20.Transfer")

    def follow(stream_id: str, *tables: str, at_head: Callable[[], None]) -> None:
        def write(store: Any, data: Any) -> None:
            store.insert(tables[0], data["rows"])

        def watch(event: Event) -> None:
            if isinstance(event, Settled):
                at_head()

        target = place.target("sync", tables=tables, on_data=write)
        stream = portal_stream(
            id=stream_id, portal=portal.url, outputs={"rows": transfers}, **options
        )
        stream.pipe_to(target, on_event=watch, progress=False)

    def stop() -> None:
        raise StopRequested

    def start_the_other_and_fork() -> None:
        follow("other", "u", at_head=stop)
        assert written("t") == written("u") != []
        portal.sim.chain.fork(2)
        portal.sim.chain.extend(3)

    def written(name: str) -> list[dict[str, Any]]:
        return place.rows(f"SELECT block_number, block_hash FROM {name}_live ORDER BY ALL")

    with pytest.raises(HeadwaterError, match=r"E2015.*streams=\['other'\]"):
        follow("running", "t", "u", at_head=start_the_other_and_fork)
    before = written("u")
    follow("running", "t", at_head=stop)
    assert written("u") == before
    follow("other", "u", at_head=stop)
    assert written("t") == written("u") != before
    place.close()
