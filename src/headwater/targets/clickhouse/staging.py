"""Folded changes as rows of the log of a table: what each block does to each of its rows.

A frame holds the columns that its changes set, and no others: the rest of a new row has the
defaults of the table. Runs on the driver, over columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import ANONYMOUS, Codes, codes_of, column
from headwater.errors import InsertOnlyError
from headwater.targets.clickhouse.versioned import (
    ALWAYS,
    BLOCK,
    DELETED,
    IF_ABSENT,
    IF_PRESENT,
    KIND,
    MUST_BE_ABSENT,
    NAMED,
    NOTHING,
    VERSION,
    WHEN,
    WHOLE,
)

_BETWEEN = "\x1f"
_NONE = ""


def refuse_computed(folded: pa.Table) -> None:
    """Refuse changes whose result depends on what a row holds, before anything is written.

    Raises:
        InsertOnlyError: a field is added to, raised, lowered or filled.
    """
    fields = column(folded, "fields")
    computed = pc.not_equal(fields.flatten().field(2), "set")
    if pc.any(computed, min_count=0).as_py():
        row = pc.list_parent_indices(fields).filter(computed)[0].as_py()
        entry = fields.flatten().filter(computed)[0].as_py()
        raise InsertOnlyError(
            "a field is computed from the one that is stored",
            table=folded["table"][row].as_py(),
            column=entry["name"],
            operation=entry["operation"],
            block=folded["block_number"][row].as_py(),
        )


def staged_frames(folded: pa.Table, block: int, version: int) -> Iterator[pa.Table]:
    """Yield what changes of one table and one block do, as rows of the log."""
    operations = column(folded, "operation")
    fields, fresh = _names(folded, "fields"), _names(folded, "fresh")
    is_upsert, alike = pc.equal(operations, "upsert"), pc.equal(fields, fresh)
    apart = pc.and_(is_upsert, pc.invert(alike))
    for chosen, source, when, whole, deleted in (
        (pc.equal(operations, "insert"), "fresh", MUST_BE_ABSENT, 0, 0),
        (pc.equal(operations, "update"), "fields", IF_PRESENT, 0, 0),
        (pc.and_(is_upsert, alike), "fields", ALWAYS, 0, 0),
        (apart, "fields", IF_PRESENT, 0, 0),
        (apart, "fresh", IF_ABSENT, 0, 0),
        (pc.equal(operations, "replace"), "fresh", ALWAYS, 1, 0),
        (pc.equal(operations, "delete"), _NONE, IF_PRESENT, 0, 1),
        (pc.equal(operations, "transient"), _NONE, NOTHING, 0, 0),
    ):
        marks = {BLOCK: block, VERSION: version, KIND: 0, WHEN: when, WHOLE: whole}
        for rows in _alike(folded.filter(chosen), source):
            entries = column(rows, source) if source else None
            frame = pivot(column(rows, "pk"), rows.num_rows, ())
            if entries is not None:
                frame |= pivot(entries, rows.num_rows, ())
            for name, value in (marks | {DELETED: deleted}).items():
                frame[name] = pa.array(np.full(rows.num_rows, value, np.int64))
            frame[NAMED] = _name_lists(entries, rows.num_rows)
            yield pa.table(frame)


def _names(folded: pa.Table, source: str) -> pa.Array:
    """Return the names that each row sets, as one text."""
    lists = _name_lists(column(folded, source), folded.num_rows)
    return pc.binary_join(lists, _BETWEEN)


def _name_lists(lists: pa.Array | None, rows: int) -> pa.Array:
    """Return the names of each row; none for a row that has no entries."""
    kind = pa.list_(pa.string())
    if lists is None:
        return pa.array([[]], kind).take(pa.array(np.zeros(rows, np.int64)))
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(_lengths(lists), out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), lists.flatten().field(0)).cast(kind)


def _lengths(lists: pa.Array) -> Codes:
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)


def _alike(rows: pa.Table, source: str) -> Iterator[pa.Table]:
    """Split rows into those that set the same columns."""
    if not rows.num_rows or not source:
        yield from [rows] if rows.num_rows else []
        return
    codes, names = codes_of(_names(rows, source))
    for code in range(len(names)):
        yield rows.take(pa.array(np.flatnonzero(codes == code))).combine_chunks()


def pivot(lists: pa.Array, rows: int, key: Sequence[str]) -> dict[str, pa.Array]:
    """Return a column per name; a key that has no name is that of the table's one key column."""
    entries = lists.flatten()
    owners = np.repeat(np.arange(rows), _lengths(lists))
    codes, names = codes_of(entries.field(0))
    made: dict[str, pa.Array] = {}
    for code, name in enumerate(names.to_pylist()):
        if name == ANONYMOUS:
            if len(key) != 1:
                raise InsertOnlyError(
                    "a key without a name is for a table with one key column", key=", ".join(key)
                )
            name = key[0]
        places = np.flatnonzero(codes == code)
        source = np.full(rows, -1, np.int64)
        source[owners[places]] = places
        made[name] = entries.field(1).take(pa.array(source, mask=source < 0))
    return made
