"""Side tables in PostgreSQL: rows are copied into them, or into a temporary table before."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headwater.errors import PostgresTableError
from headwater.targets.postgres.frames import column_type
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.sql import TableName, compose, fitted
from headwater.targets.postgres.sync_table import make_schema
from headwater.targets.postgres.transfer import TemporaryTables, copy_in, plan_transfer
from headwater.targets.side_rows import PREFIX
from headwater.targets.sql.side_tables import SideRows
from headwater.targets.sql.text import QualifiedName


class SideTables(SideRows):
    """The side rows of one stream."""

    refused = PostgresTableError
    _session: Session

    def __init__(
        self, session: Session, temporary: TemporaryTables, schema: str, stream_id: str
    ) -> None:
        super().__init__(session, schema, stream_id)
        self._temporary = temporary

    @property
    def names(self) -> list[TableName]:
        """The tables that this stream writes."""
        return [self._name(name) for name in self._tables]

    def _create(self, name: QualifiedName, types: Mapping[str, str]) -> None:
        make_schema(self._session, self._schema)
        super()._create(name, types)

    def _name(self, name: str) -> TableName:
        return TableName(self._schema, fitted(name, prefix=PREFIX))

    def _type(self, field: pa.Field) -> str:
        return column_type(field)

    def _columns(self) -> list[tuple[str, str, str]]:
        return self._session.rows(
            "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) "
            "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE n.nspname = $1 AND starts_with(c.relname, $2) AND c.relkind = 'r' "
            "ORDER BY c.relname, a.attnum",
            [self._schema, PREFIX],
        )

    def _insert(self, name: str, rows: pa.Table, *, only_new: bool) -> None:
        transfer = plan_transfer(rows.schema, None)
        encoded = transfer.encode(rows.schema, rows.to_batches())
        if not only_new:
            copy_in(self._session, self._name(name), transfer, encoded)
            return
        self._session.run(
            compose(
                "INSERT INTO {table} ({names}) SELECT {values} FROM {source} "
                "ON CONFLICT DO NOTHING",
                table=self._name(name),
                names=transfer.names,
                values=transfer.values(),
                source=self._temporary.fill(transfer, encoded),
            )
        )
