"""Keeps a stream's configuration and side tables on a ClickHouse server. Runs on the driver.

Side tables are tables like any other: written with their batch, taken back with it. A settlement
changes several tables, so the target notes first what it will do; the next start completes one
that a crash has interrupted.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headwater.targets import text
from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.layout import Table, create_table
from headwater.targets.clickhouse.sql import DELETED, TableName, into
from headwater.targets.clickhouse.state import Lease
from headwater.targets.clickhouse.store import Store
from headwater.targets.contract import SideTable
from headwater.targets.side_rows import (
    KEY,
    PREFIX,
    STREAM,
    check_side_table,
    side_rows,
    without_keys,
)
from headwater.targets.sql.side_tables import ConfigTable, StoredSideTables
from headwater.targets.text import Fragment, Part, QualifiedName

_NOTE = {"id": "String", "name": "String", "document": "String", "sign": "Int8"}
_OWN = "stream_id = {stream:String}"


class Statements:
    """Lets code that is written for SQL databases use a client: parameters are `$1`."""

    on_statement: Callable[[str], None] | None = None

    def __init__(self, client: ClickHouseClient) -> None:
        self._client = client

    def run(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> None:
        """Run a statement for its effect; one that may run twice without harm."""
        self._client.run(
            *_named(text.compose(sql, **parts) if parts else sql, params), settings=DELETED
        )

    def rows(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""
        rows = self._client.rows(*_named(text.compose(sql, **parts) if parts else sql, params))
        return [tuple(row.values()) for row in rows]

    def arrow(self, sql: str, params: Sequence[object] = (), **parts: Part) -> pa.Table:
        """Run a query and return a table."""
        return self._client.query(*_named(text.compose(sql, **parts) if parts else sql, params))

    def transaction(self) -> AbstractContextManager[None]:
        """Do nothing: there are no transactions."""
        return nullcontext()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class ServerLookup:
    """Asks ClickHouse which tables there are."""

    name_type: ClassVar[type[QualifiedName]] = TableName
    text: ClassVar[str] = "String"

    def exists(self, session: Any, name: QualifiedName) -> bool:
        """Tell whether there is a table of this name."""
        tables = "SELECT count() FROM system.tables WHERE database = $1 AND name = $2"
        return bool(session.rows(tables, [name.schema, name.name])[0][0])

    def columns_of(self, session: Any, schema: str, prefix: str) -> list[tuple[str, str, str]]:
        """Return table, column and type of all tables whose name begins with a prefix."""
        columns: list[tuple[str, str, str]] = session.rows(
            "SELECT table, name, type FROM system.columns WHERE database = $1 "
            "AND startsWith(table, $2) ORDER BY table, position",
            [schema, prefix],
        )
        return columns


LOOKUP = ServerLookup()


class LeasedConfig(ConfigTable):
    """Stores what one stream asked for; the newest version counts."""

    creates = (
        "CREATE TABLE IF NOT EXISTS {config} (stream_id String, config String, "
        "version UInt64) ENGINE = ReplacingMergeTree(version) ORDER BY stream_id"
    )
    reads = "SELECT config FROM {config} WHERE stream_id = $1 ORDER BY version DESC LIMIT 1"
    writes = (
        "INSERT INTO {config} SELECT $1, $2, "
        "(SELECT max(version) + 1 FROM {config} WHERE stream_id = $1) WHERE {condition}"
    )
    removes = "DELETE FROM {config} WHERE stream_id = $1 AND {condition}"

    def __init__(self, lease: Lease) -> None:
        session, database = Statements(lease.client), lease.sync.database
        super().__init__(session, LOOKUP, database, lease.own_id, lease.stream_id)
        self._lease = lease

    def _statement(self, sql: str) -> Fragment:
        return text.compose(sql, config=self._name, condition=self._lease.condition)


class SideTables(StoredSideTables):
    """The side tables of one stream. `name` is the table in which settlements are noted."""

    final = Fragment("FINAL")

    def __init__(self, catalog: Catalog, lease: Lease) -> None:
        super().__init__(Statements(lease.client), LOOKUP, lease.sync.database, lease.own_id)
        self.name = lease.sync.suffixed("__settlements")
        self._client = lease.client
        self._catalog = catalog
        self._lease = lease

    def complete(self, store: Store) -> None:
        """Complete a settlement that was interrupted. Called at every start."""
        for note in self._noted():
            self._apply(store, note["document"])
            self._note(note["name"], note["document"], -1)

    def create(self, tables: Sequence[SideTable] = ()) -> None:
        """Create what is missing."""
        self._client.run(
            "CREATE TABLE IF NOT EXISTS <notes> (id String, name String, document String, "
            "sign Int8) ENGINE = CollapsingMergeTree(sign) ORDER BY (id, name)",
            notes=self.name,
        )
        for table in tables:
            declared = _declaration(table.name)
            self._catalog.declare(declared)
            self._tables[table.name] = check_side_table(table)
            name = self._catalog.parse(declared.name)
            create_table(self._client, name, declared, table.columns)

    def forget(self) -> None:
        """Remove the notes of interrupted settlements: the stream begins anew."""
        self.create()
        for note in self._noted():
            self._note(note["name"], note["document"], -1)

    def write(self, store: Store, side: Mapping[str, pa.Table]) -> None:
        """Insert the rows of a batch."""
        for name, rows in side.items():
            store.insert(_declaration(name).name, side_rows(self._tables[name], rows))

    def settle(
        self, store: Store, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Note what is to be done, do it, and remove the note."""
        rows = {
            other: base64.b64encode(_packed(side_rows(self._tables[other], frame))).decode()
            for other, frame in moved.items()
            if frame.num_rows
        }
        document = json.dumps({"name": name, "up_to": list(up_to), "moved": rows})
        note = secrets.token_hex(8)
        self._note(note, document, 1)
        self._apply(store, document)
        self._note(note, document, -1)

    def _apply(self, store: Store, document: str) -> None:
        """Remove rows up to a key, then add those that are not there. Safe to repeat."""
        todo = json.loads(document)
        store.remove_all_rows(
            tables=[_declaration(todo["name"]).name],
            where=f"{_OWN} AND (block_number, ordinal) <= ({{block:Int64}}, {{ordinal:Int64}})",
            params={"stream": self._id, "block": todo["up_to"][0], "ordinal": todo["up_to"][1]},
        )
        for name, packed in todo["moved"].items():
            rows = pa.ipc.open_stream(base64.b64decode(packed)).read_all()
            store.insert(_declaration(name).name, self._missing(name, rows))

    def _missing(self, name: str, rows: pa.Table) -> pa.Table:
        """Return those of the rows whose keys are not there."""
        blocks = pc.min_max(rows.column(KEY[0])).as_py()
        known = self._client.query(
            "SELECT block_number, ordinal FROM <table> FINAL WHERE <own> "
            "AND block_number BETWEEN {min:Int64} AND {max:Int64}",
            {"stream": self._id, **blocks},
            table=self._name(name),
            own=Fragment(_OWN),
        )
        return without_keys(rows, known)

    def _noted(self) -> list[dict[str, str]]:
        return self._client.rows(
            "SELECT name, document FROM <notes> FINAL WHERE id = {id:String}",
            {"id": self._lease.stream_id},
            notes=self.name,
        )

    def _note(self, name: str, document: str, sign: int) -> None:
        frame = pa.table(
            {
                "id": [self._lease.stream_id],
                "name": [name],
                "document": [document],
                "sign": pa.array([sign], pa.int8()),
            }
        )
        target = into(str(self.name), _NOTE, self._lease.condition)
        self._client.insert(target, frame, f"{name}/{sign}")


def _named(sql: str, params: Sequence[object]) -> tuple[str, dict[str, object]]:
    """Return a statement and its parameters as ClickHouse reads them: with names and types."""
    kinds = ["Int64" if isinstance(value, int) else "String" for value in params]
    named = re.sub(r"\$(\d+)", lambda at: f"{{p{at[1]}:{kinds[int(at[1]) - 1]}}}", sql)
    return named, {f"p{place}": value for place, value in enumerate(params, 1)}


def _declaration(name: str) -> Table:
    name = f"`{PREFIX}{name}`"
    return Table(name, order_by=("ordinal",), stream_column=STREAM, live_view=False)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
