"""Tables `headwater_<name>` beside the state: rows that the stream keeps for itself.

Runs on the driver, inside the transaction of a batch, a rollback, or a settlement. Streams share
the tables; each sees its own rows alone. Also tables that this run has not asked for are undone: a
stream may run without a part of it for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.errors import TableSchemaError
from headwater.targets.base import SideTable
from headwater.targets.duckdb.frames import column_type
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.sql import Fragment, TableName, columns, compose, quote
from headwater.targets.side_rows import (
    KEY,
    PREFIX,
    STREAM,
    check_side_table,
    side_rows,
    with_stream,
)


class SideTables:
    """The side rows of one stream."""

    def __init__(self, session: Session, schema: str, stream_id: str) -> None:
        self._session = session
        self._schema = schema
        self._id = stream_id
        self._tables: dict[str, SideTable] = {}

    def create(self, tables: Sequence[SideTable]) -> None:
        """Create what is missing, and refuse tables of other columns."""
        for table in tables:
            self._tables[table.name] = check_side_table(table)
            fields = [pa.field(STREAM, pa.string()), *table.columns]
            wanted = {field.name: column_type(field) for field in fields}
            parts = [f"{quote(name)} {kind}" for name, kind in wanted.items()]
            parts.append(f"PRIMARY KEY ({columns([STREAM, *KEY])})")
            self._session.run(
                compose(
                    "CREATE TABLE IF NOT EXISTS {table} ({parts})",
                    table=self._name(table.name),
                    parts=Fragment(", ".join(parts)),
                )
            )
            held = self._columns().get(PREFIX + table.name, {})
            if held != wanted:
                raise TableSchemaError(
                    "a table of the stream's own has other columns",
                    table=self._name(table.name),
                    wanted=wanted,
                    found=held,
                )

    def write(self, rows: Mapping[str, Any]) -> None:
        """Add the rows of a batch."""
        for name, frame in rows.items():
            self._insert(name, frame, "")

    def remove_above(self, number: int) -> None:
        """Take out what blocks above a number brought, in every side table that there is."""
        for table, held in self._columns().items():
            if list(held)[:3] == [STREAM, *KEY]:
                self._session.run(
                    compose(
                        "DELETE FROM {table} WHERE stream_id = ? AND block_number > ?",
                        table=TableName(self._schema, table),
                    ),
                    [self._id, number],
                )

    def read(
        self,
        name: str,
        after: tuple[int, int] | None,
        up_to_block: int | None,
        limit: int | None,
    ) -> pa.Table:
        """Return rows in the order of their keys."""
        table = self._tables[name]
        conditions, params = ["stream_id = ?"], list[object]([self._id])
        if after is not None:
            conditions.append("(block_number, ordinal) > (?, ?)")
            params += after
        if up_to_block is not None:
            conditions.append("block_number <= ?")
            params.append(up_to_block)
        rows = self._session.arrow(
            compose(
                "SELECT {names} FROM {table} WHERE {conditions} "
                "ORDER BY block_number, ordinal {limit}",
                names=table.columns.names,
                table=self._name(name),
                conditions=Fragment(" AND ".join(conditions)),
                limit=Fragment("" if limit is None else f"LIMIT {int(limit)}"),
            ),
            params,
        )
        return rows.cast(table.columns)

    def settle(self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]) -> None:
        """Remove rows up to a key, then add rows; those whose key is there stay as they are."""
        self._session.run(
            compose(
                "DELETE FROM {table} WHERE stream_id = ? AND (block_number, ordinal) <= (?, ?)",
                table=self._name(name),
            ),
            [self._id, *up_to],
        )
        for other, rows in moved.items():
            self._insert(other, rows, "ON CONFLICT DO NOTHING")

    def _insert(self, name: str, rows: Any, conflict: str) -> None:
        data = with_stream(self._id, side_rows(self._tables[name], rows))
        if not data.num_rows:
            return
        with self._session.frame(data) as view:
            self._session.run(
                compose(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM {view} {conflict}",
                    table=self._name(name),
                    names=data.schema.names,
                    view=view,
                    conflict=Fragment(conflict),
                )
            )

    def _name(self, name: str) -> TableName:
        return TableName(self._schema, PREFIX + name)

    def _columns(self) -> dict[str, dict[str, str]]:
        """Return the columns with their types of all tables whose name begins like a side table."""
        rows = self._session.rows(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() "
            "WHERE database_name = current_database() AND lower(schema_name) = ? "
            "AND starts_with(table_name, ?) ORDER BY table_name, column_index",
            [self._schema.lower(), PREFIX],
        )
        found: dict[str, dict[str, str]] = {}
        for table, column, kind in rows:
            found.setdefault(table, {})[column] = kind
        return found
