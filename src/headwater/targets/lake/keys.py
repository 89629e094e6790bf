"""Changes by key on files that never change: which rows have a key, and which have none. Pure.

`upsert` and `delete` of lake targets copy on write: a file that holds a key is written anew without
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import LakeKeyError

_PLACE, _OLD = "__headwater_place", "__headwater_old"


def check_key(table: str, key: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the columns of a key; refuse one that the table lacks."""
    if not key or set(key) - set(columns):
        raise LakeKeyError("a key of columns of the table is needed", table=table, got=list(key))
    return list(key)


def distinct_keys(table: str, rows: pa.Table, key: list[str], *, once: bool) -> pa.Table:
    """Return the keys of rows; refuse rows without one, and with `once` two rows of the same."""
    keys = rows.select(key)
    nulls = sum(keys.column(one).null_count for one in key)
    if nulls:
        raise LakeKeyError("rows have no key", table=table, rows=nulls)
    distinct = keys.group_by(key).aggregate([])
    if once and distinct.num_rows < keys.num_rows:
        twice = keys.num_rows - distinct.num_rows
        raise LakeKeyError("two rows have the same key", table=table, rows=twice)
    return distinct


def split_by_key(rows: pa.Table, keys: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that have one of the keys, and the others; both in order."""
    numbered = _numbered(rows.select(keys.column_names), _PLACE)
    joined = numbered.join(keys, keys.column_names, join_type="left semi")
    places = joined.column(_PLACE).combine_chunks().sort()
    everything = pa.array(range(rows.num_rows), pa.int64())
    others = everything.filter(pc.invert(pc.is_in(everything, places)))
    return rows.take(places), rows.take(others)


def filled(rows: pa.Table, before: pa.Table, key: list[str], missing: Sequence[str]) -> pa.Table:
    """Return new rows with the values of the old ones in the columns that they lack."""
    new, old = _numbered(rows.select(key), _PLACE), _numbered(before.select(key), _OLD)
    joined = new.join(old, key, join_type="left outer").sort_by(_PLACE)
    places = joined.column(_OLD).combine_chunks()
    for name in missing:
        at = rows.schema.get_field_index(name)
        values = before.column(name).combine_chunks().take(places)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


def _numbered(rows: pa.Table, name: str) -> pa.Table:
    return rows.append_column(name, pa.array(range(rows.num_rows), pa.int64()))
