"""A definition that grew: what was added is filled, and a crash anywhere in between costs nothing.

What a table must hold is what a stream of the new definition writes into an empty database.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from headwater import StopRequested, evm, portal_stream
from headwater.changes import TableSchema, add, from_columns, max_
from headwater.decode import Output
from headwater.errors import (
    ClickHouseServerError,
    ConfigChangedError,
    EvolveError,
    InvalidOptionError,
    TargetError,
)
from headwater.pipeline import Event, Recovered, Settled
from headwater.stream import PortalStream
from headwater.stream.config import Config
from headwater.stream.evolve import plan_evolution
from headwater.targets import (
    aggregate,
    delta_target,
    duckdb_target,
    history_target,
    iceberg_target,
    parquet_target,
    postgres_target,
    table,
)
from headwater.targets.clickhouse import ClickHouseTarget, clickhouse_target
from headwater.targets.delta import DeltaSettings, DeltaTarget
from headwater.targets.iceberg import IcebergSettings
from headwater.targets.iceberg.catalog import CatalogName
from headwater.targets.lake.target import LakeTarget
from headwater.testing import PortalServer, simulated_portal
from tests.sampling import every
from tests.stream.test_stream import HEAD_ONLY
from tests.targets import clickhouse_places
from tests.targets.lake_places import bucket
from tests.targets.postgres_places import database

Targets = Callable[..., Any]
TRANSFERS: Output = evm.events("erc20.Transfer")
APPROVALS: Output = evm.events("erc20.Approval")
FIRST = {"transfers": TRANSFERS}
BOTH = {"transfers": TRANSFERS, "approvals": APPROVALS}
SOME: Output = evm.transactions(fields=["from", "to"])
NAMES = ("transfers", "approvals", "moves", "sent", "swaps")
MORE: Output = evm.transactions(fields=["from", "to", "value"])


BLOCKS, DEPTH = 30, 8
OF_A_START = ("SELECT", "CREATE", "KILL", "claim", "put back", "sweep")


class Crash(BaseException):
    """The process is gone."""


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=BLOCKS, finality_depth=DEPTH) as server:
        yield server


KINDS = ("duckdb", "postgres", "clickhouse", "iceberg", "delta")


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Targets:
    return targets(request.param, tmp_path)


def targets(kind: str, tmp_path: Path) -> Targets:
    """Return what makes targets of one place."""
    if kind == "duckdb":
        return lambda **options: duckdb_target(tmp_path / "a.duckdb", **options)
    if kind == "clickhouse":
        url = clickhouse_places.database()
        return lambda **options: clickhouse_target(url, **options)
    if kind == "iceberg":
        return lambda **options: iceberg_target(tmp_path / "lake", **{"tables": NAMES} | options)
    if kind == "delta":
        return lambda **options: delta_target(tmp_path / "lake", **options)
    dsn = database()
    return lambda **options: postgres_target(dsn, **options)


def stream(portal: PortalServer, outputs: Mapping[str, Output], **options: Any) -> PortalStream:
    return portal_stream(
        id="one",
        portal=portal.url,
        outputs=outputs,
        **({"on_config_change": "evolve"} | HEAD_ONLY | options),
    )


def follow(stream: PortalStream, target: Any, until: type[Event] = Settled) -> None:
    """Run until the head is reached, or until another event."""

    def stop(event: Event) -> None:
        if isinstance(event, until):
            raise StopRequested

    stream.pipe_to(target, on_event=stop, progress=False)


def held(target: Any, name: str) -> list[dict[str, Any]]:
    if isinstance(target, LakeTarget):
        rows = _read(target, name).to_pylist()
    else:
        live = "_live" if isinstance(target, ClickHouseTarget) else ""
        rows = target.query(f"SELECT * FROM {name}{live}").to_pylist()
    return sorted(rows, key=lambda row: [str(value) for _, value in sorted(row.items())])


def _read(target: Any, name: str) -> Any:
    """Return the rows of a lake's table, as any reader sees them."""
    if isinstance(target, DeltaTarget):
        return DeltaTable(target.place.local_path / name).to_pyarrow_table()
    catalog = target.place.open()
    try:
        return catalog.load_table(f"default.{name}").scan().to_arrow()
    finally:
        catalog.close()


def watch(target: Any, see: Callable[[str], None]) -> None:
    """Have a function called before each change of the target."""
    setattr(target, "on_step" if isinstance(target, LakeTarget) else "on_statement", see)


def fresh(tmp_path: Path, stream: PortalStream, **options: Any) -> Any:
    """Return what the stream writes where nothing was before."""
    target = duckdb_target(tmp_path / "fresh.duckdb", **options)
    follow(stream, target)
    return target


def texts(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in row.items()} for row in rows]


def grow(portal: PortalServer, fork: int = 3, blocks: int = 5) -> None:
    portal.sim.chain.fork(fork)
    head = portal.sim.chain.extend(blocks)[-1]
    portal.sim.chain.finalize(head.number - DEPTH)


@pytest.mark.guarantee("EVOLVE-1")
def test_an_output_that_is_added_is_filled_and_the_others_go_on(
    portal: PortalServer, target: Targets, tmp_path: Path
) -> None:
    follow(stream(portal, FIRST), target())
    grow(portal)
    follow(stream(portal, BOTH), target())
    truth = fresh(tmp_path, stream(portal, BOTH))
    for name in BOTH:
        assert held(truth, name)
        assert texts(held(target(), name)) == texts(held(truth, name))
    grow(portal)
    follow(stream(portal, BOTH, on_config_change="error"), target())


@pytest.mark.guarantee("EVOLVE-1")
def test_a_column_that_is_added_is_filled_in_rows_that_were_there(
    portal: PortalServer, target: Targets, tmp_path: Path
) -> None:
    follow(stream(portal, {"sent": SOME}), target())
    grow(portal)
    follow(stream(portal, {"sent": MORE}), target())
    truth = fresh(tmp_path, stream(portal, {"sent": MORE}))
    assert all(row["value"] is not None for row in held(target(), "sent"))
    assert texts(held(target(), "sent")) == texts(held(truth, "sent"))


def test_an_output_that_is_renamed_keeps_its_rows(
    portal: PortalServer, target: Targets, tmp_path: Path
) -> None:
    follow(stream(portal, FIRST), target())
    grow(portal)
    renamed = {"moves": TRANSFERS, "approvals": APPROVALS}
    with pytest.raises(EvolveError, match=r"E0018.*removed=transfers"):
        follow(stream(portal, renamed), target())
    for _ in range(2):  # the declaration may stay
        follow(stream(portal, renamed, renamed={"moves": "transfers"}), target())
    grow(portal)
    follow(stream(portal, renamed), target())
    truth = fresh(tmp_path, stream(portal, renamed))
    for name in renamed:
        assert texts(held(target(), name)) == texts(held(truth, name))


@pytest.mark.guarantee("EVOLVE-2")
@pytest.mark.parametrize("kind", ["clickhouse", "iceberg", "delta"])
def test_a_table_that_is_half_renamed_is_not_split_in_two(kind: str, tmp_path: Path) -> None:
    """Each run dies one change later; then the earlier program is started, also with the option.

    Changes of the start are left out: the program died before it wanted to rename anything.
    """
    moves, renamed = {"moves": TRANSFERS}, {"moves": "transfers"}
    refused = 0
    for deaths in itertools.count():
        (folder := tmp_path / str(deaths)).mkdir()
        target, left = targets(kind, folder), [deaths]

        def die(sql: str, left: list[int] = left) -> None:
            if not sql.lstrip().startswith(OF_A_START) and "__epochs" not in sql:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash

        with simulated_portal(seed=11, blocks=10, finality_depth=4) as portal:
            follow(stream(portal, FIRST), target())
            dying = target()
            watch(dying, die)
            is_over = False
            with suppress(Crash):
                follow(stream(portal, moves, renamed=renamed), dying, until=Recovered)
                is_over = True
            if is_over:
                break
            grow(portal, fork=2, blocks=3)
            earlier = stream(portal, FIRST, on_config_change="error")
            with suppress(ConfigChangedError):  # all was done
                try:
                    follow(earlier, target())
                except EvolveError:
                    refused += 1
                    for how in ("ignore", "evolve"):
                        with pytest.raises(EvolveError, match=r"half renamed.*transfers=moves"):
                            follow(replace(earlier, on_config_change=how), target())
            follow(stream(portal, moves, renamed=renamed), target())
            truth = fresh(folder, stream(portal, moves))
            assert texts(held(target(), "moves")) == texts(held(truth, "moves"))
            with pytest.raises((ClickHouseServerError, NoSuchTableError, TableNotFoundError)):
                held(target(), "transfers")
    assert refused >= 2


@pytest.mark.guarantee("EVOLVE-2")
def test_a_crash_before_any_statement_costs_nothing(target: Targets, tmp_path: Path) -> None:
    """Each run dies one change of the target later, counted from what was committed last.

    `make test` takes a sample; lakes take five times as long, and are given fewer.
    """
    before = {"sent": SOME, "moves": TRANSFERS}
    after = {"sent": MORE, "transfers": TRANSFERS, "approvals": APPROVALS}
    with simulated_portal(seed=11, blocks=16, finality_depth=4) as portal:
        follow(stream(portal, before), target())
        portal.sim.chain.fork(2)
        portal.sim.chain.extend(2)
        grown = stream(portal, after, renamed={"transfers": "moves"}, max_bytes=30_000)
        is_lake = isinstance(target(), LakeTarget)
        sample = every(16 if is_lake else 8)
        all_deaths, deaths = 0, 0
        stored: object = None
        while True:
            one, left = target(), [deaths]

            def die(sql: str, left: list[int] = left) -> None:
                if not sql.lstrip().startswith(("SELECT", "BEGIN", "CREATE")):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Crash

            watch(one, die)
            with suppress(Crash):
                follow(grown, one, until=Recovered)
                break
            before_it, stored = stored, _stored(target())
            deaths = deaths + sample.every if stored == before_it else 0
            all_deaths += 1
        follow(grown, target())
        truth = fresh(tmp_path, stream(portal, after))
        for name in after:
            assert texts(held(target(), name)) == texts(held(truth, name))
    assert all_deaths > (16 if is_lake else 20) // sample.every


def _stored(target: Any) -> object:
    """Return what tells how far an evolution is: the configuration, and the cursor."""
    if isinstance(target, LakeTarget):
        target.bind("one")
        cursor, config = target.recover().cursor, target.stored_config().read()
        target.close()
        return cursor, config
    if isinstance(target, ClickHouseTarget):
        config = "SELECT config FROM headwater_config ORDER BY version DESC LIMIT 1"
        return target.query(config), target.query("SELECT count() FROM sync")
    config = "SELECT config, (SELECT max(current_number) FROM sync) FROM headwater_config"
    return target.query(config)


def test_a_broken_off_replacement_without_transactions_has_to_be_finished(
    portal: PortalServer, tmp_path: Path
) -> None:
    """Rows of the blocks under way may be missing: the old program would leave the hole."""
    url = clickhouse_places.database()
    follow(stream(portal, {"sent": SOME}), clickhouse_target(url))
    broken, seen = clickhouse_target(url), 0

    def die(sql: str) -> None:
        nonlocal seen
        seen += "INSERT INTO" in sql and "`sent`" in sql
        if seen > 3:
            raise Crash

    broken.on_statement = die
    with pytest.raises(Crash):
        follow(stream(portal, {"sent": MORE}, max_bytes=10_000), broken)
    for how in ("error", "ignore", "warn"):
        with pytest.raises(EvolveError, match=r"E0018.*half filled.*outputs=sent"):
            follow(stream(portal, {"sent": SOME}, on_config_change=how), clickhouse_target(url))
    follow(stream(portal, {"sent": MORE}), clickhouse_target(url))
    truth = fresh(tmp_path, stream(portal, {"sent": MORE}))
    assert texts(held(clickhouse_target(url), "sent")) == texts(held(truth, "sent"))


def test_clickhouse_refuses_what_a_crash_would_mix_up(portal: PortalServer) -> None:
    url = clickhouse_places.database()

    def write(store: Any, data: Any) -> None:
        store.insert("moves", data["transfers"])

    def both(data: Any) -> Any:
        return {**data, "all": data["approvals"]}

    owned: dict[str, Any] = {"tables": ["moves"], "on_data": write}
    follow(stream(portal, FIRST), clickhouse_target(url, **owned))
    with pytest.raises(EvolveError, match=r"E0018.*on_data.*id of its own"):
        follow(stream(portal, BOTH), clickhouse_target(url, **owned))
    url = clickhouse_places.database()
    follow(stream(portal, FIRST), clickhouse_target(url))
    with pytest.raises(EvolveError, match=r"E0018.*another table.*table=all"):
        follow(stream(portal, BOTH).pipe(both), clickhouse_target(url))
    follow(stream(portal, BOTH), clickhouse_target(url))
    viewed = clickhouse_target(url)
    clickhouse_places.admin(
        f"CREATE MATERIALIZED VIEW {_name(url)}.sums ENGINE = MergeTree ORDER BY block_number "
        f"AS SELECT block_number, sign FROM {_name(url)}.approvals"
    )
    renamed = {**FIRST, "grants": APPROVALS}
    with pytest.raises(EvolveError, match=r"E0018.*materialized view.*sums"):
        follow(stream(portal, renamed, renamed={"grants": "approvals"}), viewed)


def _name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def test_a_table_that_holds_rows_is_not_filled_a_second_time(
    portal: PortalServer, target: Targets
) -> None:
    """An output that was given up for a while, and is added again."""
    follow(stream(portal, BOTH), target())
    rows = held(target(), "approvals")
    follow(stream(portal, FIRST, on_config_change="ignore"), target())
    with pytest.raises(EvolveError, match=r"E0018.*holds rows already.*approvals"):
        follow(stream(portal, BOTH), target())
    assert held(target(), "approvals") == rows


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_a_column_is_filled_in_a_table_with_a_key(
    portal: PortalServer, tmp_path: Path, kind: str
) -> None:
    """And forks are undone by the key afterwards, with the new column."""
    dsn = database() if kind == "postgres" else ""

    def keyed() -> Any:
        tables = [table("sent", key=["transaction_hash"])]
        if kind == "postgres":
            return postgres_target(dsn, tables=tables)
        return duckdb_target(tmp_path / "a.duckdb", tables=tables)

    some = evm.transactions(fields=["hash", "from"])
    more = evm.transactions(fields=["hash", "from", "value"])
    follow(stream(portal, {"sent": some}), keyed())
    grow(portal)
    follow(stream(portal, {"sent": more}), keyed())
    for _ in range(2):
        truth = fresh(tmp_path, stream(portal, {"sent": more}))
        assert texts(held(keyed(), "sent")) == texts(held(truth, "sent"))
        grow(portal)
        follow(stream(portal, {"sent": more}), keyed())


@pytest.mark.guarantee("EVOLVE-1")
@pytest.mark.parametrize("target", KINDS, indirect=True)
def test_what_transforms_make_is_made_again_for_another_version(
    portal: PortalServer, target: Targets, tmp_path: Path
) -> None:
    """A column that only a transform adds is no part of the definition: the version is.

    How a target replaces rows with wider ones is shown by a column that is added, for all kinds.
    """

    def doubled(data: Any) -> Any:
        rows = data["sent"].toArrow()
        return {"sent": rows.append_column("twice", pc.multiply(rows["transaction_index"], 2))}

    follow(stream(portal, {"sent": SOME}), target())
    grow(portal)
    with pytest.raises(TargetError, match=r"lacks.*evolve.*versions="):
        follow(stream(portal, {"sent": SOME}).pipe_batches(doubled), target())
    changed = stream(portal, {"sent": SOME}, versions={"sent": 2})
    with pytest.raises(ConfigChangedError, match="changed=sent"):
        follow(replace(changed, on_config_change="error"), target())
    for _ in range(2):  # the mark may stay
        follow(changed.pipe_batches(doubled), target())
        grow(portal)
    follow(changed.pipe_batches(doubled), target())
    truth = fresh(tmp_path, changed.pipe_batches(doubled))
    assert all(row["twice"] == 2 * row["transaction_index"] for row in held(target(), "sent"))
    assert texts(held(target(), "sent")) == texts(held(truth, "sent"))
    for wrong in ({"nothing": 2}, {"sent": 1.5}, 3):
        with pytest.raises(InvalidOptionError, match="versions maps"):
            stream(portal, {"sent": SOME}, versions=wrong)


@pytest.mark.guarantee("EVOLVE-1")
@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_a_change_log_is_given_outputs_that_write_tables_of_their_own(
    portal: PortalServer, tmp_path: Path, kind: str
) -> None:
    """Sums add up in the order of blocks; a crash in between and a fork later cost nothing."""
    dsn = database() if kind == "postgres" else str(tmp_path / "a.duckdb")
    counted = {name: f"{name}_count" for name in ("transfers", "approvals")}
    tables = tuple(counted.values())

    def sums(data: Any, *, only: str = "") -> Any:
        return {
            name: from_columns(
                data[name].toArrow(),
                table=only or counted[name],
                operation="upsert",
                key=["address"],
                fields={"n": add("log_index"), "last": max_("block_number")},
            )
            for name in data
        }

    def target(place: str = dsn) -> Any:
        columns: dict[str, Any] = {"address": "text", "n": "integer", "last": "integer"}
        return history_target(
            place, tables=[TableSchema(one, key=["address"], columns=columns) for one in tables]
        )

    follow(stream(portal, FIRST).pipe_batches(sums), target())
    grow(portal)
    both, pieces = stream(portal, BOTH), stream(portal, BOTH, max_bytes=500)
    with pytest.raises(EvolveError, match=r"held rows.*tables=transfers_count"):
        follow(both.pipe_batches(lambda data: sums(data, only="transfers_count")), target())
    broken, fills = target(), 0

    def die(sql: str) -> None:
        nonlocal fills
        fills += "headwater_config" in sql and "INSERT" in sql
        if fills > 3:
            raise Crash

    broken.on_statement = die
    with pytest.raises(Crash):
        follow(pieces.pipe_batches(sums), broken)
    assert target().query("SELECT * FROM approvals_count").num_rows
    follow(both.pipe_batches(sums), target())
    truth = target(str(tmp_path / "fresh.duckdb"))
    for _ in range(2):
        follow(both.pipe_batches(sums), truth)
        for name in tables:
            assert held(truth, name)
            assert texts(held(target(), name)) == texts(held(truth, name))
        grow(portal)
        follow(both.pipe_batches(sums), target())
    with pytest.raises(EvolveError, match=r"E0018.*cannot be replaced.*new id"):
        follow(stream(portal, BOTH, versions={"transfers": 2}).pipe_batches(sums), target())
    moved = {"moves": TRANSFERS, "approvals": APPROVALS}
    counted["moves"] = counted["transfers"]
    follow(stream(portal, moved, renamed={"moves": "transfers"}).pipe_batches(sums), target())


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_lakes_say_what_they_cannot_fill_and_do_not_tear_files_that_hold_other_blocks(
    portal: PortalServer, tmp_path: Path, kind: str
) -> None:
    """Files that were compacted hold more blocks than a batch of the filling."""
    target = targets(kind, tmp_path)

    def write(tx: Any, data: Any) -> None:
        tx.insert("moves", data["transfers"])

    def without_block(data: Any) -> Any:
        return {name: data[name].toArrow().drop(["block_number"]) for name in data}

    follow(stream(portal, {"sent": SOME}), target())
    settings = {"iceberg": IcebergSettings, "delta": DeltaSettings}[kind](compact_files=2)
    one = target(settings=settings)
    one.bind("one")
    one.maintain()
    one.close()
    grow(portal)
    follow(stream(portal, {"sent": MORE}, max_bytes=20_000), target())
    truth = fresh(tmp_path, stream(portal, {"sent": MORE}))
    assert texts(held(target(), "sent")) == texts(held(truth, "sent"))
    owned: dict[str, Any] = {"tables": ["sent", "moves"], "on_data": write}
    more = {"sent": MORE, "transfers": TRANSFERS}
    with pytest.raises(EvolveError, match=r"E0018.*on_data.*id of its own"):
        follow(stream(portal, more), target(**owned))
    with pytest.raises(EvolveError, match="must say their block"):
        follow(stream(portal, more).pipe_batches(without_block), target())
    follow(stream(portal, more), target())
    renamed = {"sent": MORE, "approvals": TRANSFERS}
    _occupy(tmp_path / "lake", kind, "approvals")
    with pytest.raises(EvolveError, match="there already"):
        follow(stream(portal, renamed, renamed={"approvals": "transfers"}), target())


def _occupy(lake: Path, kind: str, name: str) -> None:
    """Make a table of another program."""
    if kind == "delta":
        (lake / name).mkdir()
        return
    catalog = CatalogName.of(lake).open()
    catalog.create_table(f"default.{name}", pa.schema([("a", pa.int64())]))
    catalog.close()


def test_a_folder_of_an_object_store_is_not_renamed(portal: PortalServer) -> None:
    """The message says how to do it by hand."""
    place = bucket()

    def target() -> Any:
        return delta_target(place.uri, options=place.options)

    follow(stream(portal, FIRST), target())
    with pytest.raises(EvolveError, match=r"E0018.*move all its objects.*new=s3://.*moves"):
        follow(stream(portal, {"moves": TRANSFERS}, renamed={"moves": "transfers"}), target())


def test_a_catalog_that_renames_no_tables_leaves_the_earlier_program_as_it_is(
    portal: PortalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = targets("iceberg", tmp_path)
    follow(stream(portal, FIRST), make())

    def rename_table(self: object, old: object, new: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(SqlCatalog, "rename_table", rename_table)
    with pytest.raises(EvolveError, match=r"E0018.*renames no tables"):
        follow(stream(portal, {"moves": TRANSFERS}, renamed={"moves": "transfers"}), make())
    follow(stream(portal, FIRST, on_config_change="error"), make())


def test_parquet_files_are_published_for_good(portal: PortalServer, tmp_path: Path) -> None:
    """Readers may have read them; so a second stream fills what is new, beside the first."""
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 15))}
    more = {**outputs, "approvals": evm.events("erc20.Approval", range=(0, 15))}
    stream(portal, outputs).pipe_to(parquet_target(tmp_path / "lake"), progress=False)
    with pytest.raises(EvolveError, match=r"E0018.*id of its own.*ParquetTarget"):
        stream(portal, more).pipe_to(parquet_target(tmp_path / "lake"), progress=False)
    second = replace(stream(portal, {"approvals": more["approvals"]}), id="two")
    second.pipe_to(parquet_target(tmp_path / "lake"), progress=False)
    assert {one.parent.name for one in (tmp_path / "lake").glob("*/*.parquet")} == set(more)


@pytest.mark.guarantee("EVOLVE-2")
def test_targets_behind_one_stream_are_filled_each_by_its_own_state(
    portal: PortalServer, tmp_path: Path
) -> None:
    """One was evolved before, one is behind, and the first dies while it is filled."""
    paths = [tmp_path / f"{name}.duckdb" for name in "abc"]

    def several() -> list[Any]:
        return [duckdb_target(path) for path in paths]

    follow(stream(portal, FIRST), duckdb_target(paths[2]))
    grow(portal)
    for path in paths[:2]:
        follow(stream(portal, FIRST), duckdb_target(path))
    follow(stream(portal, BOTH), duckdb_target(paths[1]))
    with pytest.raises(ConfigChangedError, match="added=approvals"):
        follow(stream(portal, BOTH, on_config_change="error"), several())
    dying = several()

    def die(sql: str) -> None:
        if "INSERT INTO" in sql and "approvals" in sql:
            raise Crash

    dying[2].on_statement = die
    with pytest.raises(Crash):
        follow(stream(portal, BOTH), dying)
    with pytest.raises(EvolveError, match="half filled"):
        follow(stream(portal, BOTH, on_config_change="ignore"), several())
    follow(stream(portal, BOTH), several())
    truth = fresh(tmp_path, stream(portal, BOTH))
    for path in paths:
        for name in BOTH:
            assert held(duckdb_target(path), name) == held(truth, name)


def test_the_earlier_definition_can_go_on_in_between(portal: PortalServer, tmp_path: Path) -> None:
    """A fill that was broken off, the old program for a while, then the new one again."""
    path = tmp_path / "a.duckdb"
    follow(stream(portal, {"sent": SOME}), duckdb_target(path))
    more = {"sent": MORE, "approvals": APPROVALS}
    begun = duckdb_target(path)
    fills: list[str] = []

    def die(sql: str) -> None:
        fills.extend([sql] * ("headwater_config" in sql and "INSERT" in sql))
        if len(fills) > 3:
            raise Crash

    begun.on_statement = die
    with pytest.raises(Crash):
        follow(stream(portal, more, max_bytes=10_000), begun)
    with pytest.raises(EvolveError, match=r"E0018.*half filled.*outputs=sent"):
        follow(stream(portal, more, on_config_change="ignore"), duckdb_target(path))
    other = {"sent": SOME, "swaps": APPROVALS}
    with pytest.raises(EvolveError, match=r"another backfill has begun.*begun=sent"):
        follow(stream(portal, other), duckdb_target(path))
    grow(portal, blocks=20)
    follow(stream(portal, {"sent": SOME}, on_config_change="error"), duckdb_target(path))
    follow(stream(portal, more), duckdb_target(path))
    truth = fresh(tmp_path, stream(portal, more))
    for name in more:
        assert held(duckdb_target(path), name) == held(truth, name)


@pytest.mark.parametrize("target", ["duckdb", "postgres"], indirect=True)
def test_code_of_the_user_sees_all_outputs_and_adds_up_what_is_filled(
    portal: PortalServer, target: Targets, tmp_path: Path
) -> None:
    """Transforms, aggregates and on_data run over what is filled; other outputs are empty then."""

    def both(data: Any) -> Any:
        return {name: data[name] for name in data}

    sums = [aggregate("totals", source="approvals", keys=["address"], add={"n": 1})]
    follow(stream(portal, FIRST), target())
    grow(portal)
    follow(stream(portal, BOTH).pipe(both), target(aggregates=sums))
    truth = fresh(tmp_path, stream(portal, BOTH), aggregates=sums)
    for name in (*BOTH, "totals"):
        assert texts(held(target(), name)) == texts(held(truth, name))


def test_on_data_is_given_what_is_filled(portal: PortalServer, tmp_path: Path) -> None:
    def written(path: Path) -> Any:
        def write(tx: Any, data: Any) -> None:
            tx.insert("moves", data["transfers"])
            if "approvals" in data:
                tx.upsert("owners", _owners(data["approvals"].toArrow()))

        tables = [table("moves", append_only=True), table("owners", key=["owner"])]
        return duckdb_target(path, tables=tables, on_data=write)

    path = tmp_path / "a.duckdb"
    follow(stream(portal, FIRST), written(path))
    grow(portal)
    follow(stream(portal, BOTH), written(path))
    truth = written(tmp_path / "fresh.duckdb")
    follow(stream(portal, BOTH), truth)
    for name in ("moves", "owners"):
        assert held(written(path), name) == held(truth, name)
    follow(stream(portal, {"sent": SOME}), duckdb_target(tmp_path / "b.duckdb"))
    with pytest.raises(EvolveError, match="on_data writes"):
        follow(stream(portal, {"sent": MORE}), written(tmp_path / "b.duckdb"))


def _owners(approvals: Any) -> Any:
    return (
        approvals.select(["owner", "block_number"])
        .group_by("owner")
        .aggregate([("block_number", "max")])
        .rename_columns(["owner", "block"])
    )


def test_an_output_from_now_on_needs_no_filling(portal: PortalServer, tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    follow(stream(portal, FIRST), duckdb_target(path))
    late = evm.events("erc20.Approval", range="latest")
    grow(portal, blocks=10)
    follow(stream(portal, {**FIRST, "approvals": late}), duckdb_target(path))
    rows = held(duckdb_target(path), "approvals")
    assert min(row["block_number"] for row in rows) > BLOCKS - 5
    wider = evm.transactions(fields=["from", "value"], range="latest")
    narrow = evm.transactions(fields=["from"], range="latest")
    outputs = {**FIRST, "approvals": late}
    follow(stream(portal, {**outputs, "sent": narrow}), duckdb_target(path))
    grow(portal, blocks=30)
    follow(stream(portal, {**outputs, "sent": narrow}), duckdb_target(path))
    first = min(row["block_number"] for row in held(duckdb_target(path), "sent"))
    follow(stream(portal, {**outputs, "sent": wider}), duckdb_target(path))
    rows = held(duckdb_target(path), "sent")
    assert min(row["block_number"] for row in rows) == first > BLOCKS + 5
    assert all(row["value"] is not None for row in rows)
    outputs["sent"] = wider
    follow(stream(portal, {**outputs, "seen": narrow}), duckdb_target(path))
    portal.sim.chain.extend(5)
    follow(stream(portal, {**outputs, "seen": narrow}), duckdb_target(path))
    follow(stream(portal, {**outputs, "seen": wider}), duckdb_target(path))  # all rows are hot
    assert all(row["value"] is not None for row in held(duckdb_target(path), "seen"))


def test_what_cannot_be_brought_about_is_said_before_anything_changes(
    portal: PortalServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.duckdb"

    class Counting:
        def transform(self, data: Any) -> Any:
            return data

        def fork(self, cursor: object) -> None: ...

    follow(stream(portal, {"sent": MORE}), duckdb_target(path))
    others = evm.transactions(fields=["from", "to", "value"], to=["0x" + "1" * 40])
    for outputs, said in (
        ({"sent": SOME}, "columns_gone=value"),
        ({"sent": others}, "other rows"),
        ({"approvals": APPROVALS}, "removed=sent"),
    ):
        with pytest.raises(EvolveError, match=said):
            follow(stream(portal, outputs), duckdb_target(path))
    more = {"sent": MORE, "approvals": APPROVALS}
    with pytest.raises(EvolveError, match="transformer"):
        follow(stream(portal, more).pipe_batches(Counting()), duckdb_target(path))
    with pytest.raises(EvolveError, match="in use"):
        follow(stream(portal, more, renamed={"approvals": "sent"}), duckdb_target(path))
    with pytest.raises(ConfigChangedError, match="evolve"):
        follow(stream(portal, more, on_config_change="error"), duckdb_target(path))
    for wrong in ({"nothing": "sent"}, "sent"):
        with pytest.raises(InvalidOptionError, match="renamed maps"):
            stream(portal, more, renamed=wrong)
    loose = duckdb_target(tmp_path / "c.duckdb", tables=[table("sent", untracked=True)])
    follow(stream(portal, {"sent": SOME}), loose)
    with pytest.raises(EvolveError, match=r"is not undone.*id of its own"):
        follow(stream(portal, {"sent": MORE}), loose)
    keyed = duckdb_target(tmp_path / "b.duckdb", tables=[table("sent", key=["transaction_hash"])])
    follow(stream(portal, {"sent": SOME}), keyed)
    with pytest.raises(EvolveError, match="only an append-only table"):
        follow(stream(portal, {"other": SOME}, renamed={"other": "sent"}), keyed)


def test_what_an_earlier_release_stored_tells_outputs_but_no_columns() -> None:
    """It stored hashes alone."""
    some, more = Config.of({"sent": SOME}), Config.of({"sent": MORE, "approvals": APPROVALS})
    before = Config(some.outputs)
    assert Config.load(before.dump()) == before
    assert plan_evolution(before, Config.of({"sent": SOME, "more": SOME}), {}).added == ("more",)
    with pytest.raises(EvolveError, match="earlier release"):
        plan_evolution(before, more, {})


def test_a_renaming_that_has_begun_comes_before_any_other_change() -> None:
    begun = replace(Config.of(FIRST), renaming={"moves": "transfers"})
    assert Config.load(begun.dump()) == begun
    assert plan_evolution(begun, Config.of({"moves": TRANSFERS}), {}).renamed == begun.renaming
    for outputs, renamed in ((BOTH, {}), ({"swaps": TRANSFERS}, {"swaps": "transfers"})):
        with pytest.raises(EvolveError, match=r"half renamed.*renamed=transfers=moves"):
            plan_evolution(begun, Config.of(outputs), renamed)
