"""Children of factories as rows of a side table: committed with their batch, undone with it.

A factory's rows stand under its key. One more row per factory, of block 0 and without an address,
says that its creations are known from its start up to the stream's cursor, whatever that is: it is
written with the first batch, together with what was found before it. Pure; runs on the driver.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode import Factory
from headwater.decode.children import FOUND_FIELDS
from headwater.targets.base import SideTable

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


def mark(factory: Factory) -> pa.Table:
    """Return the row that says: all creations up to the cursor are known."""
    row = [0, _first_ordinal(factory) + _MARK, factory.key, "", -1, -1, None]
    columns = [pa.array([one], kind) for one, kind in zip(row, CHILDREN.columns.types, strict=True)]
    return pa.table(columns, schema=CHILDREN.columns)


def from_rows(factory: Factory, rows: pa.Table) -> pa.Table | None:
    """Return a factory's creations among stored rows; None if it has no mark."""
    own = rows.filter(pc.equal(rows["factory"], factory.key))
    marked = pc.equal(own["address"], "")
    if not pc.any(marked, min_count=0).as_py():
        return None
    own = own.filter(pc.invert(marked))
    names = [field.name for field in FOUND_FIELDS]
    columns = [own[field.name].cast(field.type) for field in FOUND_FIELDS]
    texts = [json.loads(one) for one in own["details"].to_pylist()] if factory.fields else []
    for at, field in enumerate(factory.fields):
        columns.append(_typed([row[at] for row in texts], field.type))
        names.append(field.name)
    return pa.table(columns, names=names)


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
