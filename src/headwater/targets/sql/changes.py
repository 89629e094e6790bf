"""Folded changes as wide frames: one row per key, one column per table column and step.

A frame has `place` (the order), `block`, `kind`, the key as `key_0`, `key_1`, …, and for column
number i of the table one column per step: `set_<i>` the value that is set, `given_<i>` whether it
is set at all, and the value of each field operation: `add_<i>`, `min_<i>`, `max_<i>`,
`set_if_null_<i>`. One statement over such a frame applies any mixture.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.declaration import ColumnType, TableSchema
from headwater.changes.model import (
    FIELD_CHANGES,
    FOLDED_OPERATIONS,
    NEW_ONLY,
    ROW_OPERATIONS,
    Codes,
    Mask,
    column,
    first_places,
    key_codes,
    lengths_of,
    sorted_by,
    taken,
)
from headwater.changes.values import one_spelling
from headwater.errors import ChangeNumberError, TableMismatchError

INSERT, UPDATE, UPSERT, DELETE, REPLACE, TRANSIENT = KINDS = tuple(
    operation.letter for operation in ROW_OPERATIONS
)
ABSENT = NEW_ONLY.letter
_ALL = (*ROW_OPERATIONS, NEW_ONLY)
DELETING = frozenset(operation.letter for operation in _ALL if operation.deletes)
CHANGING = frozenset(operation.letter for operation in _ALL if operation.changes)
MAKING = frozenset(operation.letter for operation in _ALL if operation.makes == "always")
MAKING_ABSENT = frozenset(operation.letter for operation in _ALL if operation.makes == "absent")
SET, GIVEN, FILL, ADD, RAISE, LOWER = "set", "given", "set_if_null", "add", "max", "min"
APPLIED = (FILL, ADD, RAISE, LOWER)  # in this order
_SQL = {change.name: change.sql for change in FIELD_CHANGES}
_OPERATIONS = list(_SQL)

Steps = dict[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table in a database.

    `kind` says what changes may do with it, `scale` how many places of a fraction it keeps (None:
    any), `default` the SQL that gives a value where a new row has none.
    """

    name: str
    type: str
    kind: ColumnType
    scale: int | None = None
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A table: `name` as changes spell it, `full_name` with its schema, its stored columns.

    `ambiguous`: the database may take two spellings of a key for the same.
    """

    name: str
    full_name: str
    key: tuple[str, ...]
    columns: Mapping[str, Column]
    ambiguous: bool = False

    def schema(self) -> TableSchema:
        """Return the declaration that changes are checked with."""
        kinds = {column.name: column.kind for column in self.columns.values()}
        return TableSchema(self.name, self.key, kinds)

    def agreed(self, declared: str | TableSchema) -> Shape:
        """Return a table as it is, with what its declaration says of it.

        Raises:
            TableMismatchError: the two contradict each other; the table's names are listed.
        """
        if isinstance(declared, str):
            return self
        if set(declared.key) != set(self.key):
            raise TableMismatchError(
                "the table's primary key is not the declared one",
                table=self.name,
                declared=", ".join(declared.key),
                key=", ".join(self.key) or "none",
            )
        columns = dict(self.columns)
        for name, kind in declared.columns.items():
            stored = columns.get(name)
            wider = stored is not None and (stored.kind, kind) == ("decimal", "integer")
            if stored is None or not (stored.kind == kind or wider):
                raise TableMismatchError(
                    "the table lacks a declared column"
                    if stored is None
                    else "a column holds another kind of values than declared",
                    table=self.name,
                    column=name,
                    declared=kind,
                    found=", ".join(self.columns) if stored is None else stored.type,
                )
            columns[name] = replace(stored, kind=kind)
        return replace(self, columns=columns)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of one table in one round.

    `steps` are those in use, by column; a column in `always` is set by every row that writes.
    `sorted`: the rows lie in the order in which the database takes them best.
    """

    shape: Shape
    frame: pa.Table
    kinds: frozenset[str]
    steps: Steps
    always: frozenset[str]
    sorted: bool = False

    @property
    def newest(self) -> int:
        """The highest block among the changes."""
        return int(pc.max(self.frame["block"]).as_py())

    def operand(self, name: str, step: str) -> str:
        """Return the frame's column that says what a step does to a table's column."""
        return f"{step}_{list(self.shape.columns).index(name)}"

    def value(self, name: str, held: str | None) -> str:
        """Return SQL for a column after its steps; `held` is what it holds now, None in a new row.

        A new row has the column's default, unless something was said.
        """
        steps = [step for step in APPLIED if step in self.steps[name]]
        if name in self.always or (held is None and not steps):
            value = self._operand(name, SET)
        else:
            value = "NULL" if held is None else held
            for step in steps:
                operand = self._operand(name, step)
                is_sum_of_one = (step, value) == (ADD, "NULL")
                value = operand if is_sum_of_one else _SQL[step].format(held=value, value=operand)
            if SET in self.steps[name]:
                is_given, fixed = self._operand(name, GIVEN), self._operand(name, SET)
                value = f"CASE WHEN {is_given} THEN {fixed} ELSE {value} END"
        default = self.shape.columns[name].default
        if held is not None or default is None or name in self.always:
            return value
        told = [f"{self._operand(name, step)} IS NOT NULL" for step in sorted(steps)]
        told += [self._operand(name, GIVEN)] if SET in self.steps[name] else []
        return f"CASE WHEN {' OR '.join(told)} THEN {value} ELSE {default} END"

    def _operand(self, name: str, step: str) -> str:
        return f"s.{self.operand(name, step)}"

    def place_of(self, field: str) -> tuple[str, Column] | None:
        """Return the step and the table's column that a column of the frame is about, if any."""
        step, _, number = field.rpartition("_")
        if step == "key":
            return step, self.shape.columns[self.shape.key[int(number)]]
        known = step == GIVEN or step in _SQL
        return (step, list(self.shape.columns.values())[int(number)]) if known else None


class Rounds:
    """Splits folded changes into rounds. It remembers which steps a table ever needed, so that the
    columns of its frames repeat. It may be used in two threads at once.
    """

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._shapes = shapes
        self._steps: dict[str, dict[tuple[str, str], None]] = {}

    def by_block(self, folded: pa.Table, floor: int) -> Iterator[list[TableChanges]]:
        """Yield what may be applied at once: whole blocks, in order, no key twice in a round.

        After each round the tables are as some block has left them.
        """
        if not folded.num_rows:
            return
        bounds = _round_bounds(folded, floor)
        for begin, end in itertools.pairwise(bounds):
            yield self._all(folded.slice(begin, end - begin), np.arange(begin, end))

    def by_key(self, folded: pa.Table) -> Iterator[list[TableChanges]]:
        """Yield the first change of each key, then the second of each that has one, and so on.

        That makes the fewest rounds. Between them the tables are as no block has left them, so it
        is for tables whose rows do not depend on each other.
        """
        codes = key_codes(folded)
        order = sorted_by(codes)
        starts = np.flatnonzero(np.append(True, codes[order][1:] != codes[order][:-1]))
        sizes = np.diff(np.append(starts, len(codes)))
        ranks = np.empty(len(codes), np.int64)
        ranks[order] = np.arange(len(codes)) - np.repeat(starts, sizes)
        for places in np.split(sorted_by(ranks), np.cumsum(np.bincount(ranks))[:-1]):
            yield self._all(taken(folded, places), places)

    def _all(self, folded: pa.Table, places: Codes) -> list[TableChanges]:
        encoded = folded["table"].combine_chunks().dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        changes = []
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            mine = folded if len(rows) == folded.num_rows else folded.take(pa.array(rows))
            changes.append(self._one(self._shapes[name], mine.combine_chunks(), places[rows]))
        return changes

    def _one(self, shape: Shape, rows: pa.Table, places: Codes) -> TableChanges:
        names = column(rows, "operation")
        operations = pc.index_in(names, value_set=pa.array(FOLDED_OPERATIONS)).to_numpy()
        kinds = np.array(list(KINDS))[operations]
        fields, fresh = column(rows, "fields"), column(rows, "fresh")
        twins = _divergent(fields, fresh, kinds)
        kinds[twins] = UPDATE
        size = len(kinds)
        whole = np.isin(kinds, list(MAKING))
        parts = [
            _entries(fields, np.flatnonzero(np.isin(kinds, list(CHANGING)))),
            _entries(fresh, np.flatnonzero(whole)),
            _entries(fresh, twins, size),
        ]
        origin = np.concatenate([np.arange(size), twins])
        kinds = np.concatenate([kinds, np.full(len(twins), ABSENT)])
        columns = _scatter(shape, parts, len(origin))
        known = {**self._steps.get(shape.name, {}), **dict.fromkeys(columns)}
        self._steps[shape.name] = known  # never changed, since another thread may read it
        codes = np.concatenate([operations, np.full(len(twins), len(KINDS))])
        codes[twins] = KINDS.index(UPDATE)
        frame = {
            "place": pa.array(places[origin], pa.int64()),
            "block": taken(column(rows, "block_number"), origin),
            "kind": pa.array([*KINDS, ABSENT]).take(pa.array(codes)),
        }
        for index, values in enumerate(_keys(shape, column(rows, "pk"))):
            frame[f"key_{index}"] = taken(values, origin)
        numbers = {name: index for index, name in enumerate(shape.columns)}
        for name, step in known:
            kind = pa.bool_() if step == GIVEN else pa.string()
            values = columns.get((name, step))
            frame[f"{step}_{numbers[name]}"] = (
                pa.nulls(len(origin), kind) if values is None else values
            )
        used: Steps = {}
        for name, step in columns:
            used[name] = used.get(name, frozenset()) | {step}
        writes = ~np.isin(kinds, (DELETE, TRANSIENT))
        always = [
            name
            for (name, step), values in columns.items()
            if step == GIVEN and np.asarray(values)[writes].all()
        ]
        kept = frozenset(np.unique(kinds).tolist())
        return TableChanges(shape, pa.table(frame), kept, used, frozenset(always))


def _round_bounds(folded: pa.Table, floor: int) -> list[int]:
    """Return where rounds begin, and the end: a block whose keys came up before begins a new one.

    Final blocks were folded together and count as one.
    """
    blocks = np.maximum(column(folded, "block_number").to_numpy(), floor)
    if (blocks == blocks[0]).all():
        return [0, len(blocks)]
    starts = np.flatnonzero(np.append(True, blocks[1:] != blocks[:-1]))
    zones = np.cumsum(np.append(True, blocks[1:] != blocks[:-1])) - 1
    codes = key_codes(folded)
    order = sorted_by(codes)
    same = np.append(False, codes[order][1:] == codes[order][:-1])
    before = np.full(len(codes), -1)
    before[order[1:]] = np.where(same[1:], zones[order[:-1]], -1)
    newest = np.maximum.reduceat(before, starts).tolist()
    bounds, first = [0], 0
    for zone, touched in enumerate(newest):
        if touched >= first:
            first = zone
            bounds.append(int(starts[zone]))
    return [*bounds, len(codes)]


def _divergent(fields: pa.Array, fresh: pa.Array, kinds: Any) -> Codes:
    """Return the upserts that do different things to a row that is there and to a new one."""
    upserts: Codes = np.flatnonzero(kinds == UPSERT)
    there, new = (lists.take(pa.array(upserts)) for lists in (fields, fresh))
    lengths = lengths_of(there)
    odd: Mask = lengths != lengths_of(new)
    alike = np.flatnonzero(~odd)
    left, right = (lists.take(pa.array(alike)).flatten() for lists in (there, new))
    if not len(left):
        return upserts[odd]
    values = pc.fill_null(pc.equal(left.field(1), right.field(1)), False)
    nulls = pc.and_(pc.is_null(left.field(1)), pc.is_null(right.field(1)))
    equal = pc.and_(pc.equal(left.field(0), right.field(0)), pc.or_(values, nulls))
    parents = np.repeat(alike, lengths[alike])
    odd[parents[~np.asarray(equal)]] = True
    return upserts[odd]


def _entries(lists: pa.Array, rows: Codes, shift: int = 0) -> tuple[Codes, pa.Array]:
    """Return the entries of some rows' lists, and to which row of the frame each belongs."""
    chosen = taken(lists, rows)
    lengths = lengths_of(chosen)
    places = rows if not shift else np.arange(len(rows)) + shift
    return np.repeat(places, lengths), chosen.flatten()


def _scatter(
    shape: Shape, parts: list[tuple[Codes, pa.Array]], size: int
) -> dict[tuple[str, str], pa.Array]:
    """Return a column for each step that is in use."""
    rows = np.concatenate([places for places, _ in parts])
    if not len(rows):
        return {}
    names = pa.concat_arrays([entries.field(0) for _, entries in parts])
    values = pa.concat_arrays([entries.field(1) for _, entries in parts])
    known = list(shape.columns)
    columns = pc.index_in(names, value_set=pa.array(known)).to_numpy()
    steps = pa.concat_arrays(
        [
            entries.field(2) if entries.type.num_fields > 2 else pa.repeat("set", len(entries))
            for _, entries in parts
        ]
    )
    operations = pc.index_in(steps, value_set=pa.array(_OPERATIONS)).to_numpy().astype(np.int64)
    codes = columns * len(_OPERATIONS) + operations
    by_step: dict[tuple[str, str], pa.Array] = {}
    for code in codes[first_places(codes)].tolist():
        name, operation = known[code // len(_OPERATIONS)], _OPERATIONS[code % len(_OPERATIONS)]
        entries = np.flatnonzero(codes == code)
        texts = _spell(shape, name, taken(values, entries))
        source = np.full(size, -1, np.int64)
        source[rows[entries]] = np.arange(len(entries))
        full = (source >= 0).all()
        by_step[name, operation] = (
            taken(texts, source) if full else texts.take(pa.array(source, mask=source < 0))
        )
        if operation == SET:
            by_step[name, GIVEN] = pa.array(source >= 0)
    return by_step


def _spell(shape: Shape, name: str, values: pa.Array) -> pa.Array:
    """Give values their one spelling, and refuse fractions that the column would round."""
    place = shape.columns[name]
    values = one_spelling(values, place.kind, name)
    if place.kind == "decimal" and place.scale is not None:
        fraction = pc.utf8_length(pc.replace_substring_regex(values, r"^[^.]*\.?", ""))
        long = pc.fill_null(pc.greater(fraction, place.scale), False)
        if pc.any(long, min_count=0).as_py():
            raise ChangeNumberError(
                "more places than the column keeps",
                table=shape.name,
                column=name,
                type=place.type,
                got=values.filter(long)[0].as_py(),
            )
    return values


def _keys(shape: Shape, keys: pa.Array) -> list[pa.Array]:
    """Return the columns of the key; each row has all of them, in any order."""
    parts = keys.flatten()
    which = pc.index_in(parts.field(0), value_set=pa.array(shape.key)).to_numpy()
    return [taken(parts.field(1), np.flatnonzero(which == at)) for at in range(len(shape.key))]
