"""PostgreSQL and ClickHouse in the simulation: a schema or a database of each world's own.

It is reached through a proxy that can lose connections.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import psycopg

from headwater.core.codec import load_cursor
from headwater.errors import ClickHouseServerError
from headwater.substreams.outputs import CHANGES
from headwater.substreams.sink import _Inserts as ChangesWriter
from headwater.targets.admin import open_admin
from headwater.targets.clickhouse import ClickHouseClient, ClickHouseSettings, clickhouse_target
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.clickhouse.client import refused_as
from headwater.targets.postgres import PostgresSettings, postgres_target
from headwater.targets.postgres import table as postgres_table
from headwater.targets.sql.history import history_target
from tests.simulation.lossy_proxy import LossyProxy
from tests.simulation.places import (
    SIDE_CHILDREN,
    SIDE_MISSING,
    Engines,
    Place,
    Stored,
    declared,
    ranges_in,
    read_sql,
)
from tests.simulation.tables import POOLS, Shape, Tables, in_order, pools_in

_NUMBERS = itertools.count(1)
_UNKNOWN_TABLE = 60
_TYPES = {"block_number": "UInt64", "log_index": "UInt64"}


class PostgresPlace(Place):
    """A schema of its own on the one server."""

    kind = "PostgreSQL"
    keyed = sums = changes = evolves = maintained = True

    def __init__(self, engines: Engines) -> None:
        self._dsn = engines.postgres
        parts = urlsplit(self._dsn)
        self.proxy = LossyProxy(str(parts.hostname), int(parts.port or 5432))
        self.schema = f"world_{os.getpid()}_{next(_NUMBERS)}"
        self._by_proxy = self._dsn.replace(f":{parts.port}/", f":{self.proxy.port}/")
        self._admin = psycopg.connect(
            self._dsn,
            autocommit=True,
            row_factory=psycopg.rows.dict_row,
            options="-c lock_timeout=60s",  # of a paused process: nobody else would end the wait
        )

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target on the schema, by way of the proxy."""
        return self._target(shape, process, "sync")

    def rival(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return one with its state in another table."""
        return self._target(shape, process, "elsewhere")

    def _target(self, shape: Shape, process: str, table: str) -> Any:
        address = f"{self._by_proxy}?application_name={self.schema}_{process}"
        settings = PostgresSettings(
            schema=self.schema,
            table=table,
            attempts=3,
            lock_wait_s=0.2,
            unfinalized_blocks_retention=1,
        )
        if shape.changes:
            return history_target(address, tables=shape.schemas(), settings=settings)
        return postgres_target(
            address,
            tables=declared(shape, postgres_table),
            on_data=shape.on_data(),
            aggregates=shape.aggregates(),
            settings=settings,
        )

    def read(self, shape: Shape) -> Stored:
        """Read in one transaction."""
        with self._admin.transaction():
            self._admin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            there = {
                row["name"]
                for row in self._rows(
                    "SELECT table_schema || '.' || table_name AS name FROM "
                    f"information_schema.tables WHERE table_schema IN ('{self.schema}', 'public')"
                )
            }
            return read_sql(self.kind, shape, self._rows, there)

    def admin(self, shape: Shape) -> Any:
        """Connect as a command would."""
        return open_admin(self._dsn, schema=self.schema)

    def maintain(self) -> None:
        """Vacuum and analyze what nobody holds."""
        self._admin.execute("VACUUM (SKIP_LOCKED, ANALYZE)")

    def waits_for_lock(self, process: str) -> bool:
        """Ask the server."""
        (found,) = self._admin.execute(
            "SELECT count(*) AS n FROM pg_stat_activity "
            "WHERE application_name = %s AND wait_event_type = 'Lock'",
            [f"{self.schema}_{process}"],
        ).fetchall()
        return bool(found["n"])

    def has_sessions(self, processes: Sequence[str]) -> bool:
        """Ask the server."""
        (found,) = self._admin.execute(
            "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = ANY(%s)",
            [[f"{self.schema}_{one}" for one in processes]],
        ).fetchall()
        return bool(found["n"])

    def drop_sessions(self, process: str) -> None:
        """Let the server end them, and wait for it."""
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name = %s",
            [f"{self.schema}_{process}"],
        )

    def close(self) -> None:
        """Remove the schema."""
        assert self.proxy is not None
        self.proxy.close()
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE starts_with(application_name, %s)",
            [f"{self.schema}_"],
        )
        self._admin.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE".encode())
        for row in self._rows(
            "SELECT table_name AS name FROM information_schema.tables "
            f"WHERE table_schema = 'public' AND table_name LIKE '%\\_{self.schema}%'"
        ):
            self._admin.execute(f'DROP TABLE IF EXISTS public."{row["name"]}" CASCADE'.encode())
        self._admin.close()

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        return self._admin.execute(sql.encode()).fetchall()


class ClickHousePlace(Place):
    """A database of its own on the one server. Rows are appended, and nothing is transactional."""

    kind = "ClickHouse"
    transactional = False
    applies = evolves = maintained = True

    def __init__(self, engines: Engines, engine: str) -> None:
        parts = urlsplit(engines.clickhouse)
        self.proxy = LossyProxy(str(parts.hostname), int(parts.port or 8123))
        self._engine, self._url = engine, engines.clickhouse
        self._name = f"world_{os.getpid()}_{next(_NUMBERS)}"
        self._server = ClickHouseClient(engines.clickhouse)
        self._server.run(f"CREATE DATABASE {self._name}")
        self._client = ClickHouseClient(f"{engines.clickhouse}/{self._name}")
        self._by_proxy = f"http://127.0.0.1:{self.proxy.port}/{self._name}?fsync_metadata=0"

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target on the database, by way of the proxy, on a machine with this clock."""
        return self._target(shape, clock, ClickHouseSettings(attempts=3))

    def rival(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return one of another id."""
        return self._target(shape, clock, ClickHouseSettings(attempts=3, id="rival"))

    def _target(
        self, shape: Shape, clock: Callable[[], float], settings: ClickHouseSettings
    ) -> Any:
        if shape.changes:
            return self._applying(shape, clock, settings)
        target = clickhouse_target(
            self._by_proxy,
            tables=[clickhouse_table(shape.name(one), engine=self._engine) for one in shape.tables],
            on_data=shape.on_data(),
            settings=settings,
        )
        target.clock = clock
        return target

    def _applying(
        self, shape: Shape, clock: Callable[[], float], settings: ClickHouseSettings
    ) -> Any:
        """Return a target that applies changes to tables whose engine keeps versions of rows."""
        for one in shape.schemas():
            columns = (
                f"`{name}` {_TYPES.get(name, 'UInt256' if kind == 'integer' else 'String')}"
                for name, kind in one.columns.items()
            )
            self._client.run(
                f"CREATE TABLE IF NOT EXISTS {one.name} "
                f"({', '.join(columns)}, version UInt64, is_deleted UInt8) "
                f"ENGINE = ReplacingMergeTree(version, is_deleted) ORDER BY ({', '.join(one.key)})"
            )
        writer = ChangesWriter()

        def write(store: Any, data: Mapping[str, Any]) -> None:
            for changes in data.values():
                writer.insert(store, {CHANGES: changes})

        target = clickhouse_target(
            self._by_proxy, tables=[], on_start=writer.prepare, on_data=write, settings=settings
        )
        target.clock = clock
        return target

    def read(self, shape: Shape) -> Stored:
        """Read what the view shows."""
        found = self._rows(
            "SELECT current FROM sync GROUP BY current, timestamp, id HAVING sum(sign) > 0 "
            f"AND id = '{shape.stream}' ORDER BY timestamp DESC LIMIT 1"
        )
        cursor = load_cursor(found[0]["current"]) if found else None
        tables: Tables = {}
        for one in shape.tables:
            name = shape.name(one)
            shown = name if self._engine == "MergeTree" else f"{name}_live"
            if shape.changes:
                shown = f"{name} FINAL"
            columns = ", ".join(f"`{column}`" for column in shape.columns(one))
            tables[one] = in_order(shape, one, self._rows(f"SELECT {columns} FROM {shown}"))
        if shape.swaps:
            children = self._rows(
                f"SELECT address FROM {SIDE_CHILDREN} FINAL WHERE stream_id = '{shape.stream}'"
            )
            tables[POOLS] = pools_in(row["address"] for row in children)
        missing = self._rows(
            f"SELECT block_number, ordinal FROM {SIDE_MISSING} FINAL "
            f"WHERE stream_id = '{shape.stream}'"
        )
        return Stored(self.kind, cursor, tables, missing=ranges_in(missing))

    def admin(self, shape: Shape) -> Any:
        """Connect as a command would."""
        return open_admin(f"{self._url}/{self._name}")

    def maintain(self) -> None:
        """Merge every table."""
        self.merge()

    def merge(self) -> None:
        """Merge every table into one part."""
        for row in self._rows(
            "SELECT name FROM system.tables "
            "WHERE database = currentDatabase() AND endsWith(engine, 'MergeTree')"
        ):
            self._client.run(f"OPTIMIZE TABLE `{row['name']}` FINAL")

    def close(self) -> None:
        """Remove the database."""
        assert self.proxy is not None
        self.proxy.close()
        self._server.run(f"DROP DATABASE IF EXISTS {self._name}")
        self._server.close()
        self._client.close()

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self._client.query(sql).to_pylist()
        except ClickHouseServerError as error:
            if not refused_as(error, _UNKNOWN_TABLE):
                raise
            return []
        return found
