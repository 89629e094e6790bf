"""Several streams that start in an empty place at one moment: what they share is made once."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, event

from headwater import clickhouse_target, evm, portal_stream, postgres_target
from headwater.stream import StreamHandle
from headwater.targets import (
    clickhouse,
    delta_target,
    duckdb,
    duckdb_target,
    iceberg_target,
    parquet_target,
    postgres,
)
from headwater.targets.duckdb import DuckDBSettings
from headwater.targets.iceberg.catalog import CatalogName
from headwater.targets.postgres import PostgresSettings
from headwater.testing import simulated_portal
from tests.shared import HANG_S
from tests.targets import clickhouse_places, postgres_places

STREAMS = 8
Make = Callable[[str, str], Any]


def into_postgres(place: str, name: str) -> Any:
    """Return a target whose table is tracked, with its state in a schema that is not there yet."""
    keyed = postgres.table(name, key=("block_number", "log_index"), append_only=False)
    return postgres_target(
        place,
        tables=[keyed],
        on_data=lambda tx, data: tx.upsert(name, data[name]),
        settings=PostgresSettings(schema="state"),
    )


def into_one_table(place: str, name: str) -> Any:
    """Return a target that creates a table, in a schema of its own, which the others write too."""
    key = ("stream", "block_number", "log_index")

    def write(tx: Any, data: Any) -> None:
        rows = data[name].toArrow()
        rows = rows.append_column("stream", pa.array([name] * rows.num_rows, pa.string()))
        tx.upsert("chain.all", rows)

    return postgres_target(
        place,
        tables=[postgres.table("chain.all", key=key, append_only=False)],
        on_data=write,
    )


def into_clickhouse(place: str, name: str) -> Any:
    return clickhouse_target(place)


def into_one_clickhouse_table(place: str, name: str) -> Any:
    return clickhouse_target(
        place,
        tables=[clickhouse.table("all", stream_column="stream")],
        on_data=lambda store, data: store.insert("all", data[name]),
    )


def into_duckdb(place: str, name: str) -> Any:
    return duckdb_target(
        f"{place}/a.duckdb",
        tables=[duckdb.table(name, key=("block_number", "log_index"), append_only=False)],
        on_data=lambda tx, data: tx.upsert(name, data[name]),
        settings=DuckDBSettings(schema="state"),
    )


def into_one_duckdb_table(place: str, name: str) -> Any:
    key = ("stream", "block_number", "log_index")

    def write(tx: Any, data: Any) -> None:
        rows = data[name].toArrow()
        rows = rows.append_column("stream", pa.array([name] * rows.num_rows, pa.string()))
        tx.upsert("chain.all", rows)

    return duckdb_target(
        f"{place}/a.duckdb",
        tables=[duckdb.table("chain.all", key=key, append_only=False)],
        on_data=write,
    )


def into_iceberg(place: str, name: str) -> Any:
    return iceberg_target(place, tables=[name])


def into_delta(place: str, name: str) -> Any:
    return delta_target(place, tables=[name])


def into_parquet(place: str, name: str) -> Any:
    return parquet_target(place)


@pytest.mark.parametrize(
    ("database", "make"),
    [
        (postgres_places.database, into_postgres),
        (postgres_places.database, into_one_table),
        (clickhouse_places.database, into_clickhouse),
        (clickhouse_places.database, into_one_clickhouse_table),
        (None, into_duckdb),
        (None, into_one_duckdb_table),
        (None, into_iceberg),
        (None, into_delta),
        (None, into_parquet),
    ],
    ids=[
        "postgres",
        "postgres-one-table",
        "clickhouse",
        "clickhouse-one-table",
        "duckdb",
        "duckdb-one-table",
        "iceberg",
        "delta",
        "parquet",
    ],
)
def test_eight_first_starts_at_one_moment(
    database: Callable[[], str] | None, make: Make, tmp_path: Path
) -> None:
    place, together = database() if database else str(tmp_path), Barrier(STREAMS)
    with simulated_portal(seed=3, blocks=12, finality_depth=6) as portal:
        handles = []
        for number in range(STREAMS):
            target = make(place, f"t{number}")
            keeps_side_tables = target.capabilities.side_tables is not None
            for call in ("open_side_tables", "recover", "commit")[not keeps_side_tables :]:
                setattr(target, call, _after(together, getattr(target, call)))
            transfers = evm.events("erc20.Transfer", range=(0, 11))
            stream = portal_stream(
                id=f"s{number}", portal=portal.url, outputs={f"t{number}": transfers}
            )
            if keeps_side_tables:
                stream = stream.on_finalized(f"t{number}", lambda messages: None, name="outbox")
            handles.append(stream.start(target))
        with ThreadPoolExecutor(STREAMS) as waiters:
            failures = waiters.map(lambda handle: _failure(handle, together), handles)
            assert [*failures] == [None] * STREAMS
        assert [handle.record.state.number for handle in handles] == [11] * STREAMS


def _failure(handle: StreamHandle, together: Barrier) -> Exception | None:
    """Return the error of a stream once it has ended. After an error no other waits for it."""
    try:
        handle.await_termination()
    except Exception as error:  # noqa: BLE001 - of whatever kind, the test shows it
        together.abort()
        return error
    return None


def test_a_catalog_opens_while_others_make_each_of_its_tables(tmp_path: Path) -> None:
    """Both tables come into being between the look of this start and its own CREATE TABLE."""
    made = []

    @event.listens_for(Engine, "before_cursor_execute")
    def another_is_first(connection: Any, cursor: Any, statement: str, *further: Any) -> None:
        table = statement.split()[2] if "CREATE TABLE" in statement else ""
        if table and table not in made:
            made.append(table)
            connection.connection.rollback()  # the other start does not wait for this one
            with closing(sqlite3.connect(tmp_path / "catalog.db")) as other:
                other.execute(statement)

    try:
        catalog = CatalogName.of(tmp_path).open()
    finally:
        event.remove(Engine, "before_cursor_execute", another_is_first)
    assert len(made) == 2
    assert catalog.list_namespaces() == []


def _after(together: Barrier, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that waits the first time until all streams are about to make it."""
    first = iter([together.wait])

    def wait_and_call(*arguments: Any) -> Any:
        for wait in first:
            wait(HANG_S)
        return call(*arguments)

    return wait_and_call
