"""Rows of a backfill go from executors to the target; the driver's Python gets receipts alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import RDD
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from headwater import evm, portal_stream
from headwater.core import BlockRange
from headwater.errors import BlockLinkError
from headwater.spark import parts
from headwater.targets import clickhouse_target, duckdb_target, postgres_target
from headwater.targets.clickhouse import ClickHouseClient
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.duckdb import table as duckdb_table
from headwater.targets.frames import bounded_tables
from headwater.targets.postgres import table as postgres_table
from headwater.testing import PortalServer
from tests.spark.conftest import LAST, decoded, requested
from tests.stream.truth import COLUMNS, transfers
from tests.targets import clickhouse_places, postgres_places

Frames = Mapping[str, Any]
RECEIPTS = 40_000  # bytes: less than a tenth of the rows, more than what all tasks say of theirs


@dataclass
class Driver:
    """What Spark has handed to the driver's Python."""

    tables: list[pa.Table] = field(default_factory=list)
    other: int = 0

    @property
    def size(self) -> int:
        return self.other + sum(int(one.nbytes) for one in self.tables)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the small chain of the tests into several parts: four for a span on two cores."""
    monkeypatch.setattr(parts, "_SMALL_TASK", 20_000)
    monkeypatch.setattr(parts, "_TASKS_PER_CORE", 2)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    seen, to_arrow, collect = Driver(), DataFrame.toArrow, RDD.collect

    def watched_to_arrow(frame: DataFrame) -> pa.Table:
        seen.tables.append(to_arrow(frame))
        return seen.tables[-1]

    def watched_collect(rdd: RDD[Any]) -> list[Any]:
        found = collect(rdd)
        seen.other += len(pickle.dumps(found))
        return found

    monkeypatch.setattr(DataFrame, "toArrow", watched_to_arrow)
    monkeypatch.setattr(RDD, "collect", watched_collect)
    return seen


class Place:
    """A target of one kind, and how its rows are read."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        if kind == "postgres":
            self.address = postgres_places.database()
        elif kind == "clickhouse":
            self.address = clickhouse_places.database()
        else:
            self.address = str(folder / "chain.duckdb")

    def target(self, on_data: Callable[..., None] | None, *names: str) -> Any:
        if self.kind == "postgres":
            tables: list[Any] = [postgres_table(name, append_only=True) for name in names]
            return postgres_target(self.address, tables=tables, on_data=on_data)
        if self.kind == "clickhouse":
            tables = [clickhouse_table(name, types={"value": "UInt256"}) for name in names]
            return clickhouse_target(self.address, tables=tables, on_data=on_data)
        return duckdb_target(self.address, tables=list(names), on_data=on_data)

    def rows(self, name: str = "transfers") -> list[tuple[Any, ...]]:
        columns = COLUMNS
        if self.kind == "clickhouse":
            columns, name = COLUMNS.replace("value", "toString(value) AS value"), f"{name}_live"
        query = f"SELECT {columns} FROM {name} ORDER BY 1, 3"
        if self.kind == "clickhouse":
            found = ClickHouseClient(self.address).query(query)
        else:
            found = self.target(None, name).query(query)
        return [tuple(row.values()) for row in found.to_pylist()]


KINDS = ["postgres", "clickhouse", "duckdb"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def backfill(portal: PortalServer, spark: SparkSession, **outputs: Any) -> Any:
    return portal_stream(
        id="backfill",
        portal=portal.url,
        outputs=outputs or {"transfers": evm.events("erc20.Transfer", range=(0, LAST))},
        spark=spark,
        far=20,
        first_span=300,
    )


def everything(portal: PortalServer) -> list[tuple[Any, ...]]:
    return list(transfers(portal.chain, portal.chain.canonical(0, LAST)))


def row_bytes(portal: PortalServer) -> int:
    output = evm.events("erc20.Transfer")
    found = decoded(portal, {"t": output}, {"t": [BlockRange(0)]}, output.query)
    return int(found["t"].nbytes)


def test_rows_of_one_output_never_reach_the_driver(
    spark: SparkSession, portal: PortalServer, place: Place, driver: Driver
) -> None:
    backfill(portal, spark).pipe_to(place.target(None, "transfers"))
    assert place.rows() == everything(portal)
    assert row_bytes(portal) > 10 * RECEIPTS
    assert driver.size < RECEIPTS
    blocks = [one for one in requested(portal) if one <= LAST]
    assert len(set(blocks)) == LAST + 1


def test_rows_of_several_outputs_never_reach_the_driver(
    spark: SparkSession, portal: PortalServer, place: Place, driver: Driver
) -> None:
    outputs = {
        "transfers": evm.events("erc20.Transfer", range=(0, LAST)),
        "later": evm.events("erc20.Transfer", range=(100, LAST)),
    }
    backfill(portal, spark, **outputs).pipe_to(place.target(None, *outputs))
    assert place.rows() == everything(portal)
    assert place.rows("later") == [row for row in everything(portal) if row[0] >= 100]
    assert driver.size < RECEIPTS


def test_rows_that_a_transform_or_a_callback_makes_never_reach_the_driver(
    spark: SparkSession, portal: PortalServer, place: Place, driver: Driver
) -> None:
    def write(tx: Any, data: Frames) -> None:
        tx.insert("transfers", data["transfers"].where("block_number % 2 = 0"))

    stream = backfill(portal, spark)
    stream.pipe(lambda data: {"transfers": data["transfers"].where("block_number >= 50")}).pipe_to(
        place.target(write, "transfers")
    )
    expected = [row for row in everything(portal) if row[0] >= 50 and row[0] % 2 == 0]
    assert place.rows() == expected
    assert driver.size < RECEIPTS


def test_a_callback_that_makes_a_dataframe_of_a_plain_output_gets_checked_rows(
    spark: SparkSession, portal: PortalServer, place: Place, driver: Driver
) -> None:
    def write(tx: Any, data: Frames) -> None:
        tx.insert("transfers", data["transfers"].where("block_number % 2 = 0"))

    backfill(portal, spark).pipe_to(place.target(write, "transfers"))
    assert place.rows() == [row for row in everything(portal) if row[0] % 2 == 0]
    assert driver.size < RECEIPTS


@pytest.mark.parametrize("looks_early", [False, True])
def test_rows_that_cannot_be_decoded_are_counted(
    spark: SparkSession, portal: PortalServer, place: Place, looks_early: bool
) -> None:
    """Known once the rows are written; a callback that looks before sees the same."""
    skipping = evm.events("erc20.Transfer", range=(0, LAST), decimals=["value"], on_error="skip")
    late: list[tuple[int, int, int]] = []
    early: list[int] = []

    def write(tx: Any, data: Frames, ctx: Any) -> None:
        if looks_early:
            early.append(ctx.batch.skipped["transfers"])
        tx.insert("transfers", data["transfers"])
        late.append((ctx.batch.skipped["transfers"], ctx.batch.rows_count, ctx.batch.bytes_size))

    target = place.target(write, "transfers")
    backfill(portal, spark, transfers=skipping).pipe_to(target)
    kept = len(place.rows())
    lost = len(everything(portal)) - kept
    assert lost > 0
    assert sum(one for one, _, _ in late) == lost
    assert sum(rows for _, rows, _ in late) == kept
    assert min(size for _, _, size in late) > 0
    assert not looks_early or sum(early) == lost


def test_parts_of_two_chains_are_never_committed(
    spark: SparkSession, portal: PortalServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockLinkError("block 10 is not a descendant of block 9")

    monkeypatch.setattr(parts, "BlockOrder", refuse)
    with pytest.raises(BlockLinkError, match="not a descendant"):
        backfill(portal, spark).pipe_to(place.target(None, "transfers"))
    monkeypatch.undo()
    backfill(portal, spark).pipe_to(place.target(None, "transfers"))
    assert place.rows() == everything(portal)


def test_duckdb_takes_rows_in_tables_of_bounded_size(
    spark: SparkSession, portal: PortalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserts and deletes go table by table; an upsert sees all rows at once."""
    sizes: list[int] = []

    def small(frame: Any) -> Iterator[pa.Table]:
        for rows in bounded_tables(frame, 100):
            sizes.append(rows.num_rows)
            yield rows

    monkeypatch.setattr("headwater.targets.duckdb.tx.bounded_tables", small)

    def write(tx: Any, data: Frames) -> None:
        tx.insert("transfers", data["transfers"])
        tx.upsert("latest", data["transfers"], key=["block_number", "log_index"])
        tx.delete("latest", data["transfers"].where("block_number < 100"))

    target = duckdb_target(
        tmp_path / "a.duckdb",
        tables=["transfers", duckdb_table("latest", key=["block_number", "log_index"])],
        on_data=write,
    )
    backfill(portal, spark).pipe_to(target)
    expected = everything(portal)
    for name, first in (("transfers", 0), ("latest", 100)):
        found = target.query(f"SELECT {COLUMNS} FROM {name} ORDER BY 1, 3").to_pylist()
        assert [tuple(row.values()) for row in found] == [r for r in expected if r[0] >= first]
    assert len(sizes) > 10
    assert max(sizes) < len(expected) / 3
