"""Compares the rows of a table with the rows that it should hold, by block or by key. Pure.

Called by `verify`. Rows of an output are bags: order does not matter, how often a row occurs does.
Rows of an aggregate have a key, which is there once. All of it is Arrow's columns; no row becomes a
Python object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

COUNT = "headwater_count"  # how often a stored row counts
IDENTITY = ("block_hash", "transaction_index", "log_index", "trace_address", "instruction_address")
_BLOCK, _WANTED, _FOUND, _MISSING, _EXTRA = "block", "wanted", "found", "missing", "extra"
_CHANGED = "changed"


@dataclass(slots=True)
class BlockFinding:
    """What differs in one block, in rows.

    `holes` are missing; `duplicates` occur more often than they should; `orphans` are not on the
    portal's chain; `changed` are there with other values, in `columns`.
    """

    block: int
    expected: int = 0
    stored: int = 0
    holes: int = 0
    duplicates: int = 0
    orphans: int = 0
    changed: int = 0
    columns: list[str] = field(default_factory=list)


@dataclass(slots=True)
class KeyFinding:
    """What differs in one row of an aggregate: it is missing (a hole), it is of no row that stands
    (an orphan), or `columns` of it have other values.
    """

    key: dict[str, str]
    hole: bool = False
    orphan: bool = False
    columns: list[str] = field(default_factory=list)


def counted(rows: pa.Table) -> pa.Table:
    """Return rows that count once each, as `compare_blocks` takes the stored ones."""
    return rows.append_column(COUNT, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))


def shared_columns(expected: Sequence[str], stored: Sequence[str]) -> dict[str, str]:
    """Return the columns that both sides have: the expected name, and the stored spelling."""
    spelled = {name.casefold(): name for name in stored if name != COUNT}
    return {name: spelled[name.casefold()] for name in expected if name.casefold() in spelled}


def compare_blocks(expected: pa.Table, stored: pa.Table, block_column: str) -> list[BlockFinding]:
    """Return the blocks whose rows differ, in order; columns that one side lacks do not count.

    A stored row that is not expected is a changed one where a missing row has the same identity
    (block, its hash, the place in it, as far as there are such columns), else an orphan.
    """
    both = _joined(expected, stored, block_column)
    values = [name for name in both.column_names if name not in (_WANTED, _FOUND)]
    rows = _sums(both, values, _WANTED, _FOUND)
    rows = rows.filter(pc.not_equal(rows[_WANTED], rows[_FOUND]))
    if rows.num_rows == 0:
        return []
    zero = pa.scalar(0, pa.int64())
    is_known = pc.greater(rows[_WANTED], zero)
    above = pc.max_element_wise(pc.subtract(rows[_FOUND], rows[_WANTED]), zero)
    missing = pc.max_element_wise(pc.subtract(rows[_WANTED], rows[_FOUND]), zero)
    rows = rows.append_column("duplicates", pc.if_else(is_known, above, zero))
    rows = rows.append_column(_EXTRA, pc.if_else(is_known, zero, above))
    rows = rows.append_column(_MISSING, missing)
    identity = [_BLOCK, *(_value(name) for name in IDENTITY if _value(name) in values)]
    pairs = _sums(rows, identity, "duplicates", _MISSING, _EXTRA)
    changed = pc.min_element_wise(pairs[_MISSING], pairs[_EXTRA])
    pairs = pairs.append_column(_CHANGED, changed)
    pairs = pairs.append_column("holes", pc.subtract(pairs[_MISSING], changed))
    pairs = pairs.append_column("orphans", pc.subtract(pairs[_EXTRA], changed))
    kinds = ("holes", "duplicates", "orphans", _CHANGED)
    counts = {row.pop(_BLOCK): row for row in _sums(pairs, [_BLOCK], *kinds).to_pylist()}
    totals = _sums(both, [_BLOCK], _WANTED, _FOUND)
    totals = totals.filter(pc.is_in(totals[_BLOCK], pa.array(list(counts), pa.int64())))
    columns = _changed_columns(rows, pairs, identity, values)
    return sorted(
        (
            BlockFinding(
                row[_BLOCK],
                row[_WANTED],
                row[_FOUND],
                columns=columns.get(row[_BLOCK], []),
                **counts[row[_BLOCK]],
            )
            for row in totals.to_pylist()
        ),
        key=lambda finding: finding.block,
    )


def compare_keys(expected: pa.Table, stored: pa.Table, key: Sequence[str]) -> list[KeyFinding]:
    """Return the keys whose rows differ, in order. All columns are texts, those of `expected`."""
    values = [name for name in expected.column_names if name not in key]
    stored = stored.select([*key, *values]).rename_columns([*key, *map(_value, values)])
    sides = [
        side.append_column(name, pa.repeat(True, side.num_rows))
        for side, name in ((expected, _WANTED), (stored, _FOUND))
    ]
    both = sides[0].join(sides[1], keys=list(key), join_type="full outer")
    differs = {name: _differs(both[name], both[_value(name)]) for name in values}
    alone = pc.or_(pc.is_null(both[_WANTED]), pc.is_null(both[_FOUND]))
    rows = alone
    for unequal in differs.values():
        rows = pc.or_(rows, unequal)
    marked = both.select([*key, _WANTED, _FOUND])
    for name, column in differs.items():
        marked = marked.append_column(_value(name), column)
    return [
        KeyFinding(
            {name: row[name] for name in key},
            hole=row[_FOUND] is None,
            orphan=row[_WANTED] is None,
            columns=[name for name in values if row[_value(name)] and row[_WANTED] and row[_FOUND]],
        )
        for row in marked.filter(rows).sort_by([(name, "ascending") for name in key]).to_pylist()
    ]


def _differs(left: Any, right: Any) -> Any:
    """Return where two columns differ; null equals null alone."""
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    return pc.or_(unequal, pc.xor(pc.is_null(left), pc.is_null(right)))


def _changed_columns(
    rows: pa.Table, pairs: pa.Table, identity: list[str], values: list[str]
) -> dict[int, list[str]]:
    """Return, by block, the columns in which rows of one identity differ."""
    pairs = pairs.filter(pc.greater(pairs[_CHANGED], 0)).select(identity)
    if pairs.num_rows == 0:
        return {}
    rows = rows.join(pairs, keys=identity, join_type="inner")
    differing_columns: dict[int, list[str]] = {}
    for column in values:
        if column in identity:
            continue
        sums = _sums(rows, [*identity, column], _MISSING, _EXTRA)
        differing = sums.filter(pc.not_equal(sums[_MISSING], sums[_EXTRA]))[_BLOCK]
        for number in pc.unique(differing).to_pylist():
            differing_columns.setdefault(number, []).append(column.removeprefix("value."))
    return differing_columns


def _joined(expected: pa.Table, stored: pa.Table, block_column: str) -> pa.Table:
    """Return the rows of both sides below each other, in common types, with how often each is."""
    columns: dict[str, Any] = {}
    for name, spelled in shared_columns(expected.column_names, stored.column_names).items():
        if name.casefold() == block_column.casefold():
            sides = [side.cast(pa.int64()) for side in (expected[name], stored[spelled])]
            columns[_BLOCK] = _below(*sides)
        else:
            columns[_value(name)] = _below(*_alike(expected[name], stored[spelled]))
    once = pa.repeat(pa.scalar(1, pa.int64()), expected.num_rows)
    never = pa.repeat(pa.scalar(0, pa.int64()), expected.num_rows)
    unwanted = pa.repeat(pa.scalar(0, pa.int64()), stored.num_rows)
    columns[_WANTED] = _below(once, unwanted)
    columns[_FOUND] = _below(never, stored[COUNT].cast(pa.int64()))
    return pa.table(columns)


def _value(name: str) -> str:
    return f"value.{name}"


def _below(upper: Any, lower: Any) -> Any:
    chunks = [
        chunk
        for side in (upper, lower)
        for chunk in (side.chunks if isinstance(side, pa.ChunkedArray) else [side])
    ]
    return pa.chunked_array(chunks, upper.type)


def _sums(rows: pa.Table, keys: list[str], *numbers: str) -> pa.Table:
    """Add numbers up by keys; the sums keep the names."""
    sums = rows.group_by(keys).aggregate([(number, "sum") for number in numbers])
    return sums.select([*keys, *(f"{number}_sum" for number in numbers)]).rename_columns(
        [*keys, *numbers]
    )


# --- types ----------------------------------------------------------------------------------------


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two columns in a type in which equal values are equal, whatever a database stores."""
    left, right = _plain(left), _plain(right)
    kinds = {_kind(left.type), _kind(right.type)}
    if "nested" in kinds:
        return _json_text(left), _json_text(right)
    if kinds == {"float"} or kinds == {"float", "number"}:
        return left.cast(pa.float64()), right.cast(pa.float64())
    if "bytes" in kinds and kinds <= {"bytes", "text"}:
        return left.cast(pa.binary()), right.cast(pa.binary())
    if pa.types.is_decimal(left.type) and pa.types.is_decimal(right.type):
        exact = pa.decimal256(76, max(left.type.scale, right.type.scale))
        left, right = left.cast(exact), right.cast(exact)
    return _text(left), _text(right)


def _kind(kind: Any) -> str:
    if pa.types.is_nested(kind):
        return "nested"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_binary(kind):
        return "bytes"
    return "text"


def _plain(column: Any) -> Any:
    """Return a column without encodings and widths that say nothing about its values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    return column


def _text(column: Any) -> Any:
    return column.cast(pa.string())


def _json_text(column: Any) -> Any:
    """Return nested values as JSON; a database may hold them as such a text already."""
    documents = [
        json.loads(value) if isinstance(value, str) else value for value in column.to_pylist()
    ]
    texts = [
        None if document is None else json.dumps(document, sort_keys=True, default=str)
        for document in documents
    ]
    return pa.chunked_array([pa.array(texts, pa.string())])
