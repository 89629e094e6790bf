"""Keeps a stream's configuration and its side tables, next to the state.

All of it runs on the driver; in a database with transactions, inside the one that writes the data.
Streams share the tables; each sees its own rows alone. ClickHouse derives from these classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from headwater.targets.contract import SideTable
from headwater.targets.side_rows import (
    KEY,
    PREFIX,
    STREAM,
    SideStatus,
    check_side_table,
    side_rows,
    with_stream,
)
from headwater.targets.sql.dialect import Dialect, Lookup, Session
from headwater.targets.text import Fragment, QualifiedName, columns, compose, quote

CONFIG = "headwater_config"
"""The table that holds the definitions of streams."""


class ConfigTable:
    """Stores the configuration of one stream, in table `headwater_config`.

    A table of its own: the Pipes SDK shares table `sync`, and reads all of its columns. Streams of
    several tables of state share it; `plain_id` is the id that earlier releases stored for all.
    """

    creates = (
        "CREATE TABLE IF NOT EXISTS {config} (stream_id {text} PRIMARY KEY, config {text} NOT NULL)"
    )
    reads = "SELECT config FROM {config} WHERE stream_id = $1"
    writes = (
        "INSERT INTO {config} VALUES ($1, $2) "
        "ON CONFLICT (stream_id) DO UPDATE SET config = excluded.config"
    )
    removes = "DELETE FROM {config} WHERE stream_id = $1"

    def __init__(
        self, session: Session, lookup: Lookup, schema: str, stream_id: str, plain_id: str
    ) -> None:
        self._session = session
        self._lookup = lookup
        self._name = lookup.name_type(schema, CONFIG)
        self._id = stream_id
        self._plain_id = plain_id

    def create(self) -> None:
        """Create the table if it is not there. Another user may have made it, with more rights."""
        if not self._exists:
            self._session.run(self._statement(self.creates))

    def read(self) -> str | None:
        """Return what is stored; None if nothing is."""
        return self._read(self._id)

    def adopt(self) -> None:
        """Take over what an earlier release stored for a stream that has committed."""
        if self._id == self._plain_id or self.read() is not None:
            return
        text = self._read(self._plain_id)
        if text is not None:
            self.write(text)

    def write(self, text: str) -> None:
        """Replace it. Called inside a transaction."""
        self.create()
        self._session.run(self._statement(self.writes), [self._id, text])

    def remove(self) -> None:
        """Forget it. Called inside a transaction."""
        if self._exists:
            self._session.run(self._statement(self.removes), [self._id])

    def _read(self, stream_id: str) -> str | None:
        rows = self._exists and self._session.rows(self._statement(self.reads), [stream_id])
        return str(rows[0][0]) if rows else None

    @property
    def _exists(self) -> bool:
        return self._lookup.exists(self._session, self._name)

    def _statement(self, sql: str) -> Fragment:
        return compose(sql, config=self._name, text=Fragment(self._lookup.text))


class StoredSideTables:
    """Reads the rows that one stream keeps for itself, in tables `headwater_<name>`.

    `final` follows a table's name, so that only rows that count are read.
    """

    final: ClassVar = Fragment("")

    def __init__(self, session: Session, lookup: Lookup, schema: str, stream_id: str) -> None:
        self._session = session
        self._lookup = lookup
        self._schema = schema
        self._id = stream_id
        self._tables: dict[str, SideTable] = {}

    def held(self) -> list[str]:
        """Return the side tables that hold rows of this stream."""
        sql = "SELECT 1 FROM {table} WHERE stream_id = $1 LIMIT 1"
        names = self._existing()
        return [name.name for name in names if self._session.rows(sql, [self._id], table=name)]

    def status(self) -> dict[str, SideStatus]:
        """Return how much each side table holds of this stream."""
        sql = "SELECT count(*), min(block_number) FROM {table} {final} WHERE stream_id = $1"
        statuses = {}
        for name in self._existing():
            rows = self._session.rows(sql, [self._id], table=name, final=self.final)
            statuses[name.name.removeprefix(PREFIX)] = SideStatus(*rows[0])
        return statuses

    def read(
        self,
        table: str | SideTable,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return rows in the order of their keys. A table that `create` was given may be named."""
        table = self._tables[table] if isinstance(table, str) else table
        schema = table.columns
        conditions, params = ["stream_id = $1"], list[object]([self._id])
        if after is not None:
            conditions.append("(block_number, ordinal) > ($2, $3)")
            params += after
        if up_to_block is not None:
            params.append(up_to_block)
            conditions.append(f"block_number <= ${len(params)}")
        rows = self._session.arrow(
            "SELECT {names} FROM {table} {final} WHERE {conditions} "
            "ORDER BY block_number, ordinal {limit}",
            params,
            names=schema.names,
            table=self._name(table.name),
            final=self.final,
            conditions=Fragment(" AND ".join(conditions)),
            limit=Fragment("" if limit is None else f"LIMIT {int(limit)}"),
        )
        return rows.cast(schema)

    def _name(self, name: str) -> QualifiedName:
        kind = self._lookup.name_type
        return kind(self._schema, kind.fitted(name, prefix=PREFIX))

    def _existing(self) -> list[QualifiedName]:
        """Return the side tables that there are; another table may have such a name too."""
        kind, tables = self._lookup.name_type, self._held()
        return [
            kind(self._schema, table)
            for table, types in tables.items()
            if list(types)[:3] == [STREAM, *KEY]
        ]

    def _held(self) -> dict[str, dict[str, str]]:
        """Return the columns with their types of all tables whose name begins like a side table."""
        tables: dict[str, dict[str, str]] = {}
        for table, column, kind in self._lookup.columns_of(self._session, self._schema, PREFIX):
            tables.setdefault(table, {})[column] = kind
        return tables


class SideTables(StoredSideTables):
    """Keeps side tables in a database with transactions.

    Also tables that this run has not asked for are undone: a stream may run without a part of it
    for a while.
    """

    def __init__(self, session: Session, dialect: Dialect, schema: str, stream_id: str) -> None:
        super().__init__(session, dialect, schema, stream_id)
        self._dialect = dialect

    @property
    def names(self) -> list[QualifiedName]:
        """The tables that this stream writes."""
        return [self._name(name) for name in self._tables]

    def create(self, tables: Sequence[SideTable]) -> None:
        """Create what is missing, and refuse tables of other columns."""
        existing = self._held() if tables else {}
        for table in tables:
            self._tables[table.name] = check_side_table(table)
            name = self._name(table.name)
            fields = [pa.field(STREAM, pa.string()), *table.columns]
            wanted = {field.name: self._dialect.column_type(field) for field in fields}
            if name.name not in existing:
                self._create(name, wanted)
            elif existing[name.name] != wanted:
                raise self._dialect.errors.table(
                    "a table of the stream's own has other columns",
                    table=name,
                    wanted=wanted,
                    found=existing[name.name],
                )

    def write(self, rows: Mapping[str, Any]) -> None:
        """Add the rows of a batch."""
        for name, frame in rows.items():
            self._add(name, frame, only_new=False)

    def remove_above(self, number: int) -> None:
        """Remove the rows of blocks above a number, in every side table that there is."""
        sql = "DELETE FROM {table} WHERE stream_id = $1 AND block_number > $2"
        for name in self._existing():
            self._session.run(sql, [self._id, number], table=name)

    def settle(self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]) -> None:
        """Remove rows up to a key, then add rows; those whose key is there stay as they are."""
        self._session.run(
            "DELETE FROM {table} WHERE stream_id = $1 AND (block_number, ordinal) <= ($2, $3)",
            [self._id, *up_to],
            table=self._name(name),
        )
        for other, rows in moved.items():
            self._add(other, rows, only_new=True)

    def _add(self, name: str, frame: Any, *, only_new: bool) -> None:
        rows = with_stream(self._id, side_rows(self._tables[name], frame))
        if rows.num_rows:
            self._dialect.append(self._session, self._name(name), rows, only_new=only_new)

    def _create(self, name: QualifiedName, types: Mapping[str, str]) -> None:
        self._dialect.make_schema(self._session, self._schema)
        parts = [f"{quote(column)} {kind}" for column, kind in types.items()]
        parts.append(f"PRIMARY KEY ({columns([STREAM, *KEY])})")
        self._session.run(
            "CREATE TABLE {table} ({parts})", table=name, parts=Fragment(", ".join(parts))
        )
