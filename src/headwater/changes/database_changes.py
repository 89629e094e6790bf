"""DatabaseChanges messages of Substreams modules, so that what they put out can be loaded.

All released versions share one message: fields were added (composite keys, upsert, field
operations), `old_value` was dropped. It is ignored here. Messages are read a column at a time, so
no change becomes a Python object. Two points need a decision:

- A draft of the fourth version numbered the field operations from set = 0; the released one has
  unspecified = 0, set = 1. The bytes do not tell which; the module's package does, and gives the
  names by number. Without one the released numbers are assumed.
- Protobuf cannot tell null from the empty text. Empty is null in columns that are declared and not
  text, and the empty text elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.declaration import TableSchema
from headwater.changes.model import (
    ANONYMOUS,
    CHANGES_SCHEMA,
    FIELD_CHANGES,
    FIELDS_TYPE,
    FOLDED_OPERATIONS,
    KEY_TYPE,
    NUMERIC,
    ROW_OPERATIONS,
    Codes,
    Mask,
    codes_of,
    combine,
    lists_of,
    sorted_by,
)
from headwater.decode.columns.protobuf import (
    BYTES,
    VARINT,
    Found,
    MalformedMessage,
    Messages,
    scan,
    scattered,
    spread,
    texts,
)
from headwater.errors import DatabaseChangesError, UnsetOperationError

FieldNumbering = Literal["released", "draft"]

_OPERATIONS = {
    operation.wire: at for at, operation in enumerate(ROW_OPERATIONS) if operation.wire is not None
}
_CODES = np.array([_OPERATIONS.get(wire, -1) for wire in range(max(_OPERATIONS) + 1)])
_FIELD_OPERATIONS: dict[str, dict[int, str]] = {
    "released": {number: change.name for change in FIELD_CHANGES for number in change.released},
    "draft": {number: change.name for change in FIELD_CHANGES for number in change.draft},
}
_CHANGE = {"table": 1, "pk": 2, "ordinal": 3, "operation": 4, "fields": 5, "composite_pk": 6}
_FIELD = {"name": 1, "value": 2, "update_op": 4}


def read_database_changes(
    messages: Iterable[tuple[int, bytes]],
    *,
    tables: Sequence[TableSchema] = (),
    numbering: FieldNumbering | Mapping[int, str] = "released",
) -> pa.Table:
    """Return the changes of messages, each given with its block's number, in `CHANGES_SCHEMA`.

    The order within a block is that of the message: modules of every version fill `ordinal`, but
    the sinks they were written for go by position. The same messages give the same changes again.

    Raises:
        DatabaseChangesError: bytes are no DatabaseChanges message.
        UnsetOperationError: a change has no operation, or an unknown one.
    """
    pairs = list(messages)
    reader = _Reader([block for block, _ in pairs], Messages.of(data for _, data in pairs))
    names = _FIELD_OPERATIONS[numbering] if isinstance(numbering, str) else dict(numbering)
    try:
        return reader.read(names, tables)
    except MalformedMessage as error:
        block = reader.blocks[min(reader.top.index_of(error.at), len(pairs) - 1)]
        raise DatabaseChangesError(str(error), block=block) from error


class _Reader:
    """Reads the messages of many blocks together."""

    def __init__(self, blocks: list[int], top: Messages) -> None:
        self.blocks = blocks
        self.top = top

    def read(self, names: Mapping[int, str], tables: Sequence[TableSchema]) -> pa.Table:
        top = _typed(scan(self.top, (1,))[1], BYTES, "table_changes")
        self.counts = top.counts(len(self.top))
        self.block_of = np.repeat(np.array(self.blocks, np.int64), self.counts)
        starts = np.cumsum(self.counts) - self.counts
        self.ordinals = np.arange(len(top)) - np.repeat(starts, self.counts)
        changes = top.within(self.top)
        rows = len(changes)
        scanned = scan(changes, _CHANGE.values())
        kinds = {"ordinal": VARINT, "operation": VARINT}
        parts = {
            name: _typed(scanned[number], kinds.get(name, BYTES), name)
            for name, number in _CHANGE.items()
        }
        table = spread(_texts(changes, parts["table"]), parts["table"].last().rows, rows, "")
        operation = self._operations(parts["operation"], table)
        keys = self._keys(changes, parts["pk"], parts["composite_pk"])
        self._refuse_nameless(table, keys)
        fields = self._fields(changes, parts["fields"], table, names, tables)
        columns = [table, keys, operation, fields, pa.array(self.ordinals), pa.array(self.block_of)]
        return pa.table(columns, schema=CHANGES_SCHEMA)

    def where(self, row: int) -> dict[str, int]:
        """Return which change this is, for an error."""
        return {"block": int(self.block_of[row]), "change": int(self.ordinals[row])}

    def _operations(self, operations: Found, table: pa.Array) -> pa.Array:
        last = operations.last()
        codes = scattered(last.values, last.rows, len(table))
        known = np.isin(codes, np.array(list(_OPERATIONS), np.uint64))
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            raise UnsetOperationError(
                "a change has no known operation",
                table=table[row].as_py(),
                operation=int(codes[row]),
                **self.where(row),
            )
        return pa.array(FOLDED_OPERATIONS).take(pa.array(_CODES[codes.astype(np.int64)]))

    def _refuse_nameless(self, table: pa.Array, keys: pa.Array) -> None:
        odd = pc.or_(pc.equal(table, ""), pc.equal(pc.list_value_length(keys), 0))
        if pc.any(odd, min_count=0).as_py():
            row = int(np.flatnonzero(np.asarray(odd))[0])
            raise DatabaseChangesError(
                "a change has no table or no key", table=repr(table[row].as_py()), **self.where(row)
            )

    def _keys(self, changes: Messages, single: Found, composite: Found) -> pa.Array:
        """Return keys: of what a message holds of both kinds, the later counts."""
        rows = len(changes)
        single, composite = single.last(), composite.last()
        if not len(composite):
            counts = single.counts(rows)
            names = pa.repeat(pa.scalar(ANONYMOUS), len(single))
            return lists_of(counts, [names, texts(changes, single)], KEY_TYPE)
        places = [scattered(part.starts + 1, part.rows, rows) for part in (single, composite)]
        single = single.take((places[0] > places[1])[single.rows])
        composite = composite.take((places[1] > places[0])[composite.rows])
        maps = composite.within(changes)
        entries = _typed(scan(maps, (1,))[1], BYTES, "keys")
        pairs = entries.within(maps)
        scanned = scan(pairs, (1, 2))
        names, values = (
            spread(_texts(pairs, part), part.last().rows, len(pairs), "")
            for part in (_typed(scanned[1], BYTES, "key"), _typed(scanned[2], BYTES, "value"))
        )
        if pc.any(pc.equal(names, ""), min_count=0).as_py():
            row = int(composite.rows[entries.rows[pc.index(names, "").as_py()]])
            raise DatabaseChangesError("a column of a composite key has no name", **self.where(row))
        kept = _last_by_name(entries.rows, names)
        owners = np.concatenate([single.rows, composite.rows[entries.rows[kept]]])
        order = np.argsort(owners, kind="stable")
        taken = pa.array(order)
        anonymous = pa.repeat(pa.scalar(ANONYMOUS), len(single))
        columns = [
            pa.concat_arrays([anonymous, names.take(pa.array(kept))]).take(taken),
            pa.concat_arrays([texts(changes, single), values.take(pa.array(kept))]).take(taken),
        ]
        return lists_of(np.bincount(owners, minlength=rows), columns, KEY_TYPE)

    def _fields(
        self,
        changes: Messages,
        entries: Found,
        table: pa.Array,
        operations: Mapping[int, str],
        tables: Sequence[TableSchema],
    ) -> pa.Array:
        fields, size = entries.within(changes), len(entries)
        parts = scan(fields, _FIELD.values())
        name, value = (
            spread(_texts(fields, part), part.last().rows, size, "")
            for part in (_typed(parts[1], BYTES, "name"), _typed(parts[2], BYTES, "value"))
        )
        last = _typed(parts[4], VARINT, "update_op").last()
        codes = scattered(last.values, last.rows, size)
        if pc.any(pc.equal(name, ""), min_count=0).as_py():
            row = int(entries.rows[pc.index(name, "").as_py()])
            raise DatabaseChangesError("a field has no name", **self.where(row))
        known = np.array(sorted(operations), np.uint64)
        odd = ~np.isin(codes, known)
        if odd.any():
            at = int(np.flatnonzero(odd)[0])
            raise UnsetOperationError(
                "a field has no known operation",
                column=name[at].as_py(),
                operation=int(codes[at]),
                **self.where(int(entries.rows[at])),
            )
        spelt = pa.array([operations[number] for number in known.tolist()], pa.string())
        operation = spelt.take(pa.array(np.searchsorted(known, codes)))
        value = self._with_nulls(entries.rows, table, name, value, operation, tables)
        return lists_of(entries.counts(len(changes)), [name, value, operation], FIELDS_TYPE)

    def _with_nulls(
        self,
        rows: Codes,
        table: pa.Array,
        name: pa.Array,
        value: pa.Array,
        operation: pa.Array,
        tables: Sequence[TableSchema],
    ) -> pa.Array:
        """Make empty values null where their column is declared and not text."""
        empty = np.asarray(pc.equal(value, ""))
        if not empty.any():
            return value
        places = np.flatnonzero(empty)
        numeric = pc.is_in(operation.take(pa.array(places)), value_set=pa.array(sorted(NUMERIC)))
        if pc.any(numeric).as_py():
            at = int(places[np.flatnonzero(np.asarray(numeric))[0]])
            raise DatabaseChangesError(
                "a number is needed and the value is empty",
                table=table[int(rows[at])].as_py(),
                column=name[at].as_py(),
                **self.where(int(rows[at])),
            )
        declared = {table.name: table.columns for table in tables}
        table_codes, table_names = codes_of(table.take(pa.array(rows[places])))
        name_codes, names = codes_of(name.take(pa.array(places)))
        pairs = combine(table_codes, name_codes)
        null: Mask = np.zeros(len(value), np.bool_)
        for first in np.unique(pairs, return_index=True)[1].tolist():
            columns: Any = declared.get(table_names[int(table_codes[first])].as_py(), {})
            if columns.get(names[int(name_codes[first])].as_py(), "text") != "text":
                null[places[pairs == pairs[first]]] = True
        return pc.if_else(pa.array(null), pa.scalar(None, pa.string()), value)


def _typed(part: Found, wire: int, what: str) -> Found:
    if not part.only(wire):
        raise MalformedMessage(
            f"field {what} has the wrong wire type",
            int(part.starts[np.flatnonzero(part.wires != wire)[0]]) - 1,
        )
    return part


def _texts(messages: Messages, part: Found) -> pa.Array:
    return texts(messages, part.last())


def _last_by_name(rows: Codes, names: pa.Array) -> Codes:
    """Return the entries that count, in the order of rows and names: of equal names the last."""
    ranked = pc.rank(names, tiebreaker="dense").to_numpy().astype(np.int64)
    codes = combine(rows, ranked)
    order = sorted_by(codes)
    inorder = codes[order]
    return order[np.append(inorder[1:] != inorder[:-1], True)] if len(order) else order
