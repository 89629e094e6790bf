"""Tables `headwater_<name>` beside the state: rows that the stream keeps for itself.

Runs on the driver, inside the transaction of a batch, a rollback, or a settlement. Streams share
the tables; each sees its own rows alone. Also tables that this run has not asked for are undone: a
stream may run without a part of it for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.errors import PostgresTableError
from headwater.targets.base import SideTable
from headwater.targets.postgres.frames import column_type
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.sql import Fragment, TableName, columns, compose, fitted, quote
from headwater.targets.postgres.statements import to_table
from headwater.targets.postgres.sync_table import make_schema
from headwater.targets.postgres.transfer import TemporaryTables, copy_in, plan_transfer
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

    def __init__(
        self, session: Session, temporary: TemporaryTables, schema: str, stream_id: str
    ) -> None:
        self._session = session
        self._temporary = temporary
        self._schema = schema
        self._id = stream_id
        self._tables: dict[str, SideTable] = {}

    @property
    def names(self) -> list[TableName]:
        """The tables that this stream writes."""
        return [self._name(name) for name in self._tables]

    def create(self, tables: Sequence[SideTable]) -> None:
        """Create what is missing, and refuse tables of other columns."""
        if not tables:
            return
        held = self._columns()
        for table in tables:
            self._tables[table.name] = check_side_table(table)
            name = self._name(table.name)
            fields = [pa.field(STREAM, pa.string()), *table.columns]
            wanted = {field.name: column_type(field) for field in fields}
            if name.name not in held:
                self._create(name, wanted)
            elif held[name.name] != wanted:
                raise PostgresTableError(
                    "a table of the stream's own has other columns",
                    table=name,
                    wanted=wanted,
                    found=held[name.name],
                )

    def write(self, rows: Mapping[str, Any]) -> None:
        """Add the rows of a batch."""
        for name, frame in rows.items():
            data = with_stream(self._id, side_rows(self._tables[name], frame))
            if data.num_rows:
                transfer = plan_transfer(data.schema, None)
                encoded = transfer.encode(data.schema, data.to_batches())
                copy_in(self._session, self._name(name), transfer, encoded)

    def remove_above(self, number: int) -> None:
        """Take out what blocks above a number brought, in every side table that there is."""
        for table, held in self._columns().items():
            if list(held)[:3] == [STREAM, *KEY]:
                self._session.run(
                    compose(
                        "DELETE FROM {table} WHERE stream_id = $1 AND block_number > $2",
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
        conditions, params = ["stream_id = $1"], list[object]([self._id])
        if after is not None:
            conditions.append("(block_number, ordinal) > ($2, $3)")
            params += after
        if up_to_block is not None:
            params.append(up_to_block)
            conditions.append(f"block_number <= ${len(params)}")
        found = self._session.result(
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
        return to_table(found).cast(table.columns)

    def settle(self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]) -> None:
        """Remove rows up to a key, then add rows; those whose key is there stay as they are."""
        self._session.run(
            compose(
                "DELETE FROM {table} WHERE stream_id = $1 AND (block_number, ordinal) <= ($2, $3)",
                table=self._name(name),
            ),
            [self._id, *up_to],
        )
        for other, rows in moved.items():
            data = with_stream(self._id, side_rows(self._tables[other], rows))
            if data.num_rows:
                transfer = plan_transfer(data.schema, None)
                encoded = transfer.encode(data.schema, data.to_batches())
                self._session.run(
                    compose(
                        "INSERT INTO {table} ({names}) SELECT {values} FROM {source} "
                        "ON CONFLICT DO NOTHING",
                        table=self._name(other),
                        names=transfer.names,
                        values=transfer.values(),
                        source=self._temporary.fill(transfer, encoded),
                    )
                )

    def _create(self, name: TableName, types: Mapping[str, str]) -> None:
        make_schema(self._session, self._schema)
        parts = [f"{quote(column)} {kind}" for column, kind in types.items()]
        parts.append(f"PRIMARY KEY ({columns([STREAM, *KEY])})")
        self._session.run(
            compose("CREATE TABLE {table} ({parts})", table=name, parts=Fragment(", ".join(parts)))
        )

    def _name(self, name: str) -> TableName:
        return TableName(self._schema, fitted(name, prefix=PREFIX))

    def _columns(self) -> dict[str, dict[str, str]]:
        """Return the columns with their types of all tables whose name begins like a side table."""
        rows = self._session.rows(
            "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) "
            "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE n.nspname = $1 AND starts_with(c.relname, $2) AND c.relkind = 'r' "
            "ORDER BY c.relname, a.attnum",
            [self._schema, PREFIX],
        )
        found: dict[str, dict[str, str]] = {}
        for table, column, kind in rows:
            found.setdefault(table, {})[column] = kind
        return found
