"""The fields of many rows, folded a column at a time.

Entries are sorted by row, name and order, so that what happens to one column of one row stands
together: a run. Of a run only what follows its last `set` counts. If that is all of one kind, it is
reduced with the others of its kind; the row of any other run goes to `one_key`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.grouping import codes_of, sorted_by, taken
from headwater.changes.model import (
    ADD,
    FIELD_OPERATIONS,
    MAX,
    MIN,
    SET,
    SET_IF_NULL,
    SUB,
    Codes,
    Mask,
)
from headwater.changes.numbers import canonical, reduce_numbers


@dataclass(frozen=True, slots=True)
class Runs:
    """One entry per row and name, by row: the folded operation and its value.

    `mixed` marks the rows that could not be folded this way; their entries are to be ignored.
    """

    rows: Codes
    names: pa.Array
    values: pa.Array
    operations: Codes
    mixed: Mask


def fold_runs(entries: pa.Array, rows: Codes, count: int) -> Runs:
    """Fold entries (name, value, operation) that belong to `rows`, numbered below `count`.

    Entries of a row come in the order in which they happen. Called by `fold`, once per batch.

    Raises:
        ChangeNumberError: a number is needed, and a value is none.
    """
    names, known = codes_of(entries.field(0))
    operations = _operation_codes(entries.field(2))
    if _ascend(rows * max(len(known), 1) + names):
        if not operations.any():  # each column of a row is set once, as almost everywhere
            columns = entries.field(0), entries.field(1)
            return Runs(rows, *columns, operations, np.zeros(count, np.bool_))
    else:
        names, known = _ranked(names, known)
    order = sorted_by(rows * max(len(known), 1) + names)
    rows, names = rows[order], names[order]
    operations = operations[order]
    values = taken(entries.field(1), order)
    values, operations = _without_sub(values, operations)
    places = np.arange(len(rows), dtype=np.int64)
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rows[1:] != rows[:-1]) | (names[1:] != names[:-1])
    starts = np.flatnonzero(new)
    run = np.cumsum(new) - 1
    last_set = np.maximum.reduceat(np.where(operations == SET, places, -1), starts)
    begins = np.maximum(starts, last_set)
    kinds, uniform = _kinds(operations, places, starts, begins[run], last_set)
    result = operations[begins].copy()
    mixed = np.zeros(count, np.bool_)
    mixed[rows[starts[~uniform]]] = True
    ends = np.append(starts[1:], len(rows))
    texts = _reduce(values, operations, begins, ends, kinds, uniform)
    return Runs(rows[starts], known.take(pa.array(names[starts])), texts, result, mixed)


def _kinds(
    operations: Codes, places: Codes, starts: Codes, begins: Codes, last_set: Codes
) -> tuple[Codes, Mask]:
    """Return the one operation that follows the set of each run (SET if none), and if it is one."""
    counts = (places >= begins) & (operations != SET)
    lowest = np.minimum.reduceat(np.where(counts, operations, len(FIELD_OPERATIONS)), starts)
    highest = np.maximum.reduceat(np.where(counts, operations, SET), starts)
    return highest, (highest == SET) | (lowest == highest)


def _reduce(
    values: pa.Array, operations: Codes, begins: Codes, ends: Codes, kinds: Codes, uniform: Mask
) -> pa.Array:
    """Return the value of each run: what stands at its beginning, unless it must be computed."""
    alone = ends - begins == 1
    computed = [values]
    source = begins.copy()  # for each run: where its value stands among all that were computed
    size = len(values)
    for kind in (ADD, MIN, MAX):
        of_kind = uniform & (kinds == kind)
        single, several = np.flatnonzero(of_kind & alone), np.flatnonzero(of_kind & ~alone)
        if len(single):
            computed.append(canonical(values.take(pa.array(begins[single]))))
            source[single] = size + np.arange(len(single))
            size += len(single)
        if len(several):
            computed.append(reduce_numbers(values, begins[several], ends[several], kind))
            source[several] = size + np.arange(len(several))
            size += len(several)
    filled = np.flatnonzero(uniform & (kinds == SET_IF_NULL) & ~alone)
    if len(filled):
        present = np.asarray(pc.is_valid(values))
        source[filled] = _first_present(present, begins[filled], ends[filled])
    texts = pa.concat_arrays(computed) if len(computed) > 1 else values
    return taken(texts, source)


def _first_present(present: Mask, begins: Codes, ends: Codes) -> Codes:
    """Return the first place in each range that holds a value; the range's beginning if none."""
    following = np.append(np.flatnonzero(present), len(present))
    firsts = following[np.searchsorted(following, begins)]
    return np.where(firsts < ends, firsts, begins)


def _ascend(codes: Codes) -> bool:
    """Tell whether entries are in order as they come: most modules name fields in one order."""
    return bool((codes[1:] > codes[:-1]).all())


def _ranked(codes: Codes, known: pa.Array) -> tuple[Codes, pa.Array]:
    """Return codes that ascend with the names, so that their order does not depend on the batch."""
    order = pc.sort_indices(known).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], known.take(pa.array(order))


def _operation_codes(operations: pa.Array) -> Codes:
    codes: Codes = (
        pc.index_in(operations, value_set=pa.array(FIELD_OPERATIONS)).to_numpy().astype(np.int64)
    )
    return codes


def _without_sub(values: pa.Array, operations: Codes) -> tuple[pa.Array, Codes]:
    """Turn subtractions into additions of the negative number."""
    mask = operations == SUB
    if not mask.any():
        return values, operations
    old = canonical(values.filter(pa.array(mask)))
    minus = pc.starts_with(old, "-")
    bare = pc.utf8_slice_codeunits(old, 1)
    new = pc.if_else(minus, bare, pc.binary_join_element_wise("-", old, ""))
    new = pc.if_else(pc.equal(old, "0"), old, new)
    return pc.replace_with_mask(values, pa.array(mask), new), np.where(mask, ADD, operations)
