"""Rows of side tables in the form that every target stores: checked, typed, in order of keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidOptionError
from headwater.targets.contract import SideTable

STREAM = "stream_id"
KEY = ("block_number", "ordinal")
PREFIX = "headwater_"


class SideStatus(NamedTuple):
    """How many rows a side table holds of a stream, and the oldest block of them."""

    rows: int
    oldest: int | None


def stored_id(state_table: str, stream_id: str) -> str:
    """Return the id that side rows carry: it tells streams of two tables of state apart."""
    return stream_id if state_table == "sync" else f"{state_table}/{stream_id}"


def check_side_table(table: SideTable) -> SideTable:
    """Return a side table whose columns begin with the key; refuse any other."""
    first = [(field.name, field.type) for field in table.columns][:2]
    if first != [(name, pa.int64()) for name in KEY]:
        raise InvalidOptionError(
            "the columns of a side table begin with block_number and ordinal, both int64",
            table=table.name,
            columns=", ".join(table.columns.names),
        )
    return table


def side_rows(table: SideTable, rows: Any) -> pa.Table:
    """Return rows with exactly the columns of their table, in its types."""
    if not isinstance(rows, pa.Table):
        rows = rows.toArrow()
    return rows.select(table.columns.names).cast(table.columns)


def with_stream(stream_id: str, rows: pa.Table) -> pa.Table:
    """Return rows as they are stored where several streams share a table: the id comes first."""
    ids = pa.repeat(pa.scalar(stream_id, pa.string()), rows.num_rows)
    return rows.add_column(0, pa.field(STREAM, pa.string()), ids)


def without_keys(rows: pa.Table, known: pa.Table) -> pa.Table:
    """Return the rows whose key is not among known ones."""
    kept = rows.join(known.select(KEY), list(KEY), join_type="left anti")
    return kept.select(rows.column_names).cast(rows.schema)


def in_key_order(rows: pa.Table) -> pa.Table:
    """Sort rows by block number and ordinal."""
    return rows.sort_by([(name, "ascending") for name in KEY])


def after_key(rows: pa.Table, key: tuple[int, int]) -> Any:
    """Return which rows have a key above this one."""
    number, ordinal = (rows.column(name) for name in KEY)
    same = pc.and_(pc.equal(number, key[0]), pc.greater(ordinal, key[1]))
    return pc.or_(pc.greater(number, key[0]), same)
