"""Side tables in DuckDB: rows go from Arrow straight into them."""

from __future__ import annotations

import pyarrow as pa

from headwater.errors import TableSchemaError
from headwater.targets.duckdb.frames import column_type
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.sql import Fragment, TableName, compose
from headwater.targets.side_rows import PREFIX
from headwater.targets.sql.side_tables import SideRows


class SideTables(SideRows):
    """The side rows of one stream."""

    refused = TableSchemaError
    _session: Session

    def _name(self, name: str) -> TableName:
        return TableName(self._schema, PREFIX + name)

    def _type(self, field: pa.Field) -> str:
        return column_type(field)

    def _columns(self) -> list[tuple[str, str, str]]:
        return self._session.rows(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() "
            "WHERE database_name = current_database() AND lower(schema_name) = ? "
            "AND starts_with(table_name, ?) ORDER BY table_name, column_index",
            [self._schema.lower(), PREFIX],
        )

    def _insert(self, name: str, rows: pa.Table, *, only_new: bool) -> None:
        with self._session.frame(rows) as view:
            self._session.run(
                compose(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM {view} {conflict}",
                    table=self._name(name),
                    names=rows.schema.names,
                    view=view,
                    conflict=Fragment("ON CONFLICT DO NOTHING" if only_new else ""),
                )
            )
