"""Children of factories as rows of a side table: committed with their batch, undone with it.

A factory's rows stand under its key. Marks among them, rows without an address, say that all
creations up to their block are stored. So nothing is missed by a stream that ran without a factory
for a while, or whose cursor was moved by hand: what lies behind the last mark is read again. Pure;
runs on the driver.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode import Factory
from headwater.decode.evm.factory.children import FOUND_FIELDS
from headwater.targets.contract import SideTable

CHILDREN = SideTable(
    "factory_children",
    pa.schema(
        [
            ("block_number", pa.int64()),
            ("ordinal", pa.int64()),
            ("factory", pa.string()),
            ("address", pa.string()),
            ("transaction_index", pa.int32()),
            ("log_index", pa.int32()),
            ("details", pa.string()),
        ]
    ),
)

MARK_EVERY = 1000  # blocks, about: what a restart reads again at most
_MARK = 0xFFFF_FFFF  # in place of a log index: no log has it


def to_rows(factory: Factory, found: pa.Table) -> pa.Table:
    """Return creations as rows of the side table; the same creation has the same key every time."""
    first = _first_ordinal(factory)
    count = found.num_rows
    columns = [
        found["block_number"],
        pc.add(found["log_index"].cast(pa.int64()), first),
        pa.array([factory.key] * count, pa.string()),
        *(found[name] for name in ("address", "transaction_index", "log_index")),
        _details(found.select([field.name for field in factory.fields])),
    ]
    return pa.table(columns, schema=CHILDREN.columns)


def mark(factory: Factory, block: int) -> pa.Table:
    """Return the row that says: all creations up to this block are stored."""
    row = [block, _first_ordinal(factory) + _MARK, factory.key, "", -1, -1, None]
    columns = [pa.array([one], kind) for one, kind in zip(row, CHILDREN.columns.types, strict=True)]
    return pa.table(columns, schema=CHILDREN.columns)


def from_rows(factory: Factory, rows: pa.Table) -> tuple[pa.Table, int]:
    """Return a factory's creations among stored rows, and its last mark; -1 if it has none."""
    own = rows.filter(pc.equal(rows["factory"], factory.key))
    is_mark = pc.equal(own["address"], "")
    marked = pc.max(own.filter(is_mark)["block_number"]).as_py()
    own = own.filter(pc.invert(is_mark))
    names = [field.name for field in FOUND_FIELDS]
    columns = [own[field.name].cast(field.type) for field in FOUND_FIELDS]
    texts = [json.loads(one) for one in own["details"].to_pylist()] if factory.fields else []
    for at, field in enumerate(factory.fields):
        columns.append(_typed([row[at] for row in texts], field.type))
        names.append(field.name)
    return pa.table(columns, names=names), -1 if marked is None else marked


def _first_ordinal(factory: Factory) -> int:
    """Factories of one stream must not share keys: each has the ordinals of its own 2^32."""
    return (int(factory.key[:8], 16) >> 1) << 32


def _details(columns: pa.Table) -> pa.Array:
    """Return the values of each row as a JSON list of text; null without columns."""
    if not columns.num_columns:
        return pa.nulls(columns.num_rows, pa.string())
    texts = [_texts(column) for column in columns.columns]
    return pa.array([json.dumps(row) for row in zip(*texts, strict=True)], pa.string())


def _texts(column: pa.ChunkedArray) -> Sequence[Any]:
    if pa.types.is_binary(column.type):
        return [one.hex() for one in column.to_pylist()]
    texts: list[Any] = column.cast(pa.string()).to_pylist()
    return texts


def _typed(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array([bytes.fromhex(one) for one in texts], kind)
    return pa.array(texts, pa.string()).cast(kind)
