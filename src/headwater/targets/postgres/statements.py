"""What SQL of the user's must not do: end the batch's transaction. Read from its text.

Everything else is left to triggers and to the locks that a transaction holds, which cannot be
deceived by the way a statement is written.
"""

from __future__ import annotations

import psycopg
import pyarrow as pa
from psycopg import RawCursor

from headwater.errors import PostgresStatementError
from headwater.targets.sql.tokens import STANDARD, shortened

_ENDS = {"COMMIT", "END", "ABORT", "ROLLBACK", "BEGIN", "START"}
_DDL = {"CREATE", "ALTER", "DROP", "ATTACH", "DETACH"}


def refuse_transaction_control(sql: str, where: str = "inside on_data") -> None:
    """Refuse SQL that would begin or end a transaction; savepoints are free."""
    statements = [[one.text for one in each] for each in STANDARD.statements(sql)]
    if any("ATOMIC" in words for words in statements):
        return  # the body of a function, whose END ends nothing else
    for words in statements:
        two = words[:2]
        ends = words[0] in _ENDS and not ("ROLLBACK" in two and "TO" in words[:3])
        if ends or two == ["PREPARE", "TRANSACTION"]:
            raise PostgresStatementError(f"{words[0]} is not allowed {where}", sql=shortened(sql))


def may_change_tables(sql: str) -> bool:
    """Tell whether SQL may create or alter tables, so that what is known of them is stale."""
    return any(one.text in _DDL for one in STANDARD.tokens(sql))


def to_table(cursor: RawCursor[tuple[object, ...]]) -> pa.Table:
    """Return the rows of a query as Arrow; numbers too wide for Arrow come as decimal text."""
    if cursor.description is None:
        return pa.table({})
    rows = cursor.fetchall()
    columns = []
    for index, column in enumerate(cursor.description):
        kind, text = _arrow_type(column)
        values = [row[index] for row in rows]
        if text:
            values = [one if one is None or isinstance(one, str) else _text(one) for one in values]
        columns.append(pa.array(values, kind))
    names = [column.name for column in cursor.description]
    return pa.Table.from_arrays(columns, names=names)


_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp": pa.timestamp("us"),
}


def _arrow_type(column: psycopg.Column) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of a result's column, and whether its values must be made text."""
    info = psycopg.adapters.types.get(column.type_code)
    if info is not None and info.array_oid == column.type_code and info.oid != column.type_code:
        inner = _TYPES.get(info.name)
        if inner is not None:
            return pa.list_(inner), False
        return (pa.list_(pa.string()), False) if info.name in ("text", "varchar") else _FALLBACK
    name = info.name if info is not None else ""
    if name == "numeric" and column.precision is not None and column.precision <= 38:
        return pa.decimal128(column.precision, column.scale or 0), False
    return (_TYPES[name], False) if name in _TYPES else _FALLBACK


_FALLBACK = (pa.string(), True)


def _text(value: object) -> str:
    return format(value, "f") if type(value).__name__ == "Decimal" else str(value)
