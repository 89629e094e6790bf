"""Folding: what the changes of a batch come to, one row per table, key and hot block.

A hot block may be undone alone, so changes are never folded across hot blocks; final blocks are
folded together. What a key's changes come to follows from few facts, which are found for all keys
at once: where it is first created or deleted, where it is last deleted, and what comes after that.

    insert, update …            insert with all fields        delete, insert     replace
    insert, delete              transient: nothing            update, insert     insert
    update …                    update                        … , delete         delete
    upsert, update …            upsert                        insert, insert     an error

Fields are folded a column at a time. Entries are sorted by row, name and order, so that what
happens to one column of one row stands together: a run. Of a run only what follows its last `set`
counts. If that is all of one kind, it is reduced with the others of its kind; the changes of any
other row are folded one after the other, as `Chain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import (
    ADD,
    DELETE,
    FIELD_OPERATIONS,
    FIELDS_TYPE,
    FOLDED_OPERATIONS,
    FOLDED_SCHEMA,
    FRESH_TYPE,
    INSERT,
    MAX,
    MIN,
    OPERATIONS,
    REPLACE,
    SET,
    SET_IF_NULL,
    SUB,
    TRANSIENT,
    UPDATE,
    UPSERT,
    Codes,
    Mask,
    codes_of,
    column,
    combine,
    conform,
    key_codes,
    lengths_of,
    lists_of,
    sorted_by,
    taken,
)
from headwater.changes.numbers import (
    REDUCTIONS,
    canonical,
    format_number,
    negated,
    opposites,
    parse_number,
    reduce_numbers,
)
from headwater.errors import DuplicateInsertError


def fold(changes: Any, *, finalized: int | None = None) -> pa.Table:
    """Return what the changes come to, in `FOLDED_SCHEMA`, in the order of the first touch.

    Takes a table of changes, or anything with `toArrow()`. Blocks up to `finalized` are final; if
    it is None, all are hot. Called once per batch, wherever the batch is; the same changes give the
    same rows again. Folding and then applying leaves the same rows as applying one by one.

    Raises:
        ChangeFormError: not a table of changes.
        DuplicateInsertError: a row is inserted while it is there, within these changes.
        ChangeNumberError: a number is needed, and a value is none.
    """
    table = conform(changes)
    if not table.num_rows:
        return FOLDED_SCHEMA.empty_table()
    groups = _group(table, finalized)
    runs = _fold_fields(table, groups)
    mixed = runs.mixed | groups.divergent
    folded = _assemble(table, groups, runs, ~mixed)
    if not mixed.any():
        return folded
    rest = _fold_mixed(table, groups, mixed)
    firsts = np.concatenate([groups.firsts[~mixed], groups.firsts[mixed]])
    return pa.concat_tables([folded, rest]).take(pa.array(np.argsort(firsts))).combine_chunks()


@dataclass(frozen=True, slots=True)
class _Groups:
    """The changes of each key and hot block, numbered in the order of the first touch."""

    of_row: Codes  # for each change: its group
    counts: Mask  # for each change: whether its fields have an effect
    firsts: Codes  # for each group: its first change
    operations: Codes  # for each group: what its changes come to
    divergent: Mask  # for each group: updates come before the first upsert


def _group(table: pa.Table, finalized: int | None) -> _Groups:
    rows, new = _rows_by_key(table, finalized)
    starts = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    names = column(table, "operation")
    codes = pc.index_in(names, value_set=pa.array(OPERATIONS)).to_numpy()[rows]
    places = np.arange(len(rows))
    _refuse_duplicates(table, rows, codes, starts[group])
    end = len(rows)
    decisive = np.minimum.reduceat(np.where(codes != UPDATE, places, end), starts)
    deleted = np.maximum.reduceat(np.where(codes == DELETE, places, -1), starts)
    creates = ((codes == INSERT) | (codes == UPSERT)) & (places > deleted[group])
    created = np.minimum.reduceat(np.where(creates, places, end), starts)
    first_code = np.where(decisive < end, codes[np.minimum(decisive, end - 1)], UPDATE)
    was_absent, had_delete, ends_there = first_code == INSERT, deleted >= 0, created < end
    operations = np.select(
        [had_delete & ends_there & ~was_absent, had_delete & ~ends_there & ~was_absent,
         had_delete & ~ends_there, was_absent],
        [REPLACE, DELETE, TRANSIENT, INSERT],
        first_code,
    )  # fmt: skip
    begins = np.where(had_delete | was_absent, created, starts)
    divergent = (operations == UPSERT) & (decisive > starts)
    order = sorted_by(rows[starts])
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    of_row, counts = np.empty(end, np.int64), np.empty(end, np.bool_)
    of_row[rows] = number[group]
    counts[rows] = (places >= begins[group]) & (codes != DELETE)
    return _Groups(of_row, counts, rows[starts][order], operations[order], divergent[order])


def _rows_by_key(table: pa.Table, finalized: int | None) -> tuple[Codes, Mask]:
    """Return the changes sorted by key and hot block, and where a new one begins."""
    blocks = column(table, "block_number").to_numpy()
    floor = int(blocks.min()) - 1 if finalized is None else finalized
    zones = np.maximum(blocks, floor)
    zones = np.searchsorted(np.unique(zones), zones)
    codes = combine(key_codes(table), zones)
    rows = sorted_by(codes)
    inorder = codes[rows]
    return rows, np.append(True, inorder[1:] != inorder[:-1])


def _refuse_duplicates(table: pa.Table, rows: Codes, codes: Codes, starts: Codes) -> None:
    """Refuse an insert where the last that created or deleted the row has created it."""
    places = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(codes != UPDATE, places, -1))
    before = np.append(-1, before[:-1])
    previous = np.where(before >= starts, codes[before], DELETE)
    twice = rows[(codes == INSERT) & (previous != DELETE)]
    if len(twice):
        change = table.slice(int(twice.min()), 1).to_pylist()[0]
        key = ", ".join(f"{part['name'] or 'key'}={part['value']}" for part in change["pk"])
        raise DuplicateInsertError(
            "a row is inserted while it is there",
            table=change["table"],
            key=key,
            block=change["block_number"],
        )


def _fold_fields(table: pa.Table, groups: _Groups) -> Runs:
    fields = column(table, "fields")
    lengths = lengths_of(fields)
    parents = np.repeat(np.arange(len(lengths)), lengths)
    entries = fields.flatten()
    used = groups.counts[parents] & ~groups.divergent[groups.of_row[parents]]
    if not used.all():
        entries, parents = entries.filter(pa.array(used)), parents[used]
    return fold_runs(entries, groups.of_row[parents], len(groups.firsts))


def _assemble(table: pa.Table, groups: _Groups, runs: Runs, chosen: Mask) -> pa.Table:
    """Build the folded rows of the chosen groups; fields and fresh share names and values."""
    kept = chosen[runs.rows]
    numbers = np.cumsum(chosen) - 1
    entry_rows = numbers[runs.rows[kept]]
    names, values = runs.names, runs.values
    if not kept.all():
        names, values = names.filter(pa.array(kept)), values.filter(pa.array(kept))
    operations = groups.operations[chosen]
    lengths = np.bincount(entry_rows, minlength=len(operations))
    steps = _named(FIELD_OPERATIONS, runs.operations[kept])
    changes_row = np.isin(operations, (UPDATE, UPSERT))
    makes_row = np.isin(operations, (INSERT, UPSERT, REPLACE))
    first = taken(table.select(["table", "pk", "ordinal", "block_number"]), groups.firsts[chosen])
    columns = {
        "table": first["table"],
        "pk": first["pk"],
        "operation": _named(FOLDED_OPERATIONS, operations),
        "fields": lists_of(lengths, [names, values, steps], FIELDS_TYPE, pa.array(~changes_row)),
        "fresh": lists_of(lengths, [names, values], FRESH_TYPE, pa.array(~makes_row)),
        "ordinal": first["ordinal"],
        "block_number": first["block_number"],
    }
    return pa.table(columns, schema=FOLDED_SCHEMA)


def _named(names: tuple[str, ...], codes: Codes) -> pa.Array:
    return pa.array(names).take(pa.array(codes))


def _fold_mixed(table: pa.Table, groups: _Groups, mixed: Mask) -> pa.Table:
    """Fold the changes of the groups that are truly mixed, each on its own."""
    rows = np.flatnonzero(mixed[groups.of_row])
    changes: dict[int, list[dict[str, Any]]] = {int(group): [] for group in np.flatnonzero(mixed)}
    taken = table.take(pa.array(rows)).to_pylist()
    for group, change in zip(groups.of_row[rows].tolist(), taken, strict=True):
        changes[group].append(change)
    folded = [{**every[0], **fold_one_key(every)} for every in changes.values()]
    return pa.Table.from_pylist(folded, schema=FOLDED_SCHEMA)


# --- fields, a column at a time -------------------------------------------------------------------


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
    new = opposites(values.filter(pa.array(mask)))
    return pc.replace_with_mask(values, pa.array(mask), new), np.where(mask, ADD, operations)


# --- fields, one after the other ------------------------------------------------------------------
# Columns leave two kinds of keys: those where one column has different field operations, and those
# where updates come before the first upsert, so that a row that is there and a new one get
# different fields.

Step = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Chain:
    """The operations of one column, folded. Immutable; `then` returns the longer chain.

    Applied one after the other, any chain is either one `set`, or

        take `first` if the column is null; add; then at least `lowest`; then at most `highest`

    because a sum that is clamped and then added to or clamped again is again a clamped sum. Null:
    adding to null gives the value, min and max ignore it, set-if-null fills it.

    `fixed` says that it began with a set: then `first` is the value, whatever was there before, and
    the rest is not used.
    """

    fixed: bool = False
    first: str | None = None
    added: Decimal | None = None
    lowest: Decimal | None = None
    highest: Decimal | None = None

    def then(self, operation: str, value: str | None) -> Chain:
        """Return the chain with one more operation. Called per change of a key that is mixed."""
        if operation == "sub":
            operation, value = "add", negated(value or "")
        if operation == "set":
            return Chain(True, value)
        if self.fixed:
            return Chain(True, _applied([(operation, value)], self.first))
        begun = self.first is not None or any(
            number is not None for number in (self.added, self.lowest, self.highest)
        )
        if operation == "set_if_null":
            return self if begun else Chain(False, value)
        number = parse_number(value or "")
        first = self.first if begun else "0" if operation == "add" else format_number(number)
        return self._compute(operation, number, first)

    def on(self, value: str | None) -> str | None:
        """Return what the column holds afterwards, if it held `value` before."""
        return _applied(self.steps(), value)

    def steps(self) -> list[Step]:
        """Return the shortest list of operations that does the same, in this order."""
        if self.fixed:
            return [("set", self.first)]
        numbers = (("add", self.added), ("max", self.lowest), ("min", self.highest))
        steps: list[Step] = [
            (operation, format_number(number))
            for operation, number in numbers
            if number is not None
        ]
        is_implied = bool(steps) and _applied(steps, None) == _applied(steps, self.first)
        fill: list[Step] = [] if self.first is None else [("set_if_null", self.first)]
        return steps if is_implied else [*fill, *steps]

    def _compute(self, operation: str, number: Decimal, first: str | None) -> Chain:
        def joined(earlier: Decimal | None, *, begins: bool) -> Decimal | None:
            return (number if begins else None) if earlier is None else join(earlier, number)

        join = REDUCTIONS[FIELD_OPERATIONS.index(operation)].exact
        added, low, high = self.added, self.lowest, self.highest
        if operation == "add":
            added = joined(added, begins=True)
        if operation in ("add", "max"):
            low = joined(low, begins=operation == "max")
        return Chain(False, first, added, low, joined(high, begins=operation == "min"))


def _applied(steps: Iterable[Step], current: str | None) -> str | None:
    """Return what a column that held `current` holds after some operations.

    Raises:
        ChangeNumberError: a number is needed and one of the two is none.
    """
    for operation, value in steps:
        if operation == "set" or (operation == "set_if_null" and current is None):
            current = value
        elif operation != "set_if_null" and value is not None:
            join, number = REDUCTIONS[FIELD_OPERATIONS.index(operation)].exact, parse_number(value)
            current = format_number(
                number if current is None else join(parse_number(current), number)
            )
    return current


Chains = dict[str, Chain]


def fold_one_key(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return operation, fields and fresh of the changes of one key, given in order.

    Called by `fold`, where it runs; that no insert meets a row was checked before. The same
    changes give the same result again.
    """
    there: Chains = {}  # what a row gets that was there before the first change
    fresh: Chains | None = None  # the row, if none was there before; None while there is none
    new_only = gone = False  # an insert says that none was there; a delete ends what was there
    for change in changes:
        operation, fields = change["operation"], change["fields"] or ()
        if operation == "delete":
            gone, fresh = True, None
            continue
        if operation == "insert":
            new_only = new_only or not gone
        creates = operation in ("insert", "upsert")
        if fresh is None and creates:
            fresh = {}
        for field in fields:
            step = (field["operation"], field["value"])
            if fresh is not None:
                fresh[field["name"]] = fresh.get(field["name"], Chain()).then(*step)
            if not gone:
                there[field["name"]] = there.get(field["name"], Chain()).then(*step)
    return _folded(there, fresh, new_only=new_only, gone=gone)


def _folded(there: Chains, fresh: Chains | None, *, new_only: bool, gone: bool) -> dict[str, Any]:
    if fresh is None and (gone or new_only):
        return {"operation": "transient" if new_only else "delete", "fields": None, "fresh": None}
    row = None if fresh is None else _row(fresh)
    if new_only or gone:
        return {"operation": "insert" if new_only else "replace", "fields": None, "fresh": row}
    fields = [
        {"name": name, "value": value, "operation": operation}
        for name in sorted(there)
        for operation, value in there[name].steps()
    ]
    return {"operation": "update" if row is None else "upsert", "fields": fields, "fresh": row}


def _row(chains: Chains) -> list[dict[str, Any]]:
    return [{"name": name, "value": chains[name].on(None)} for name in sorted(chains)]
