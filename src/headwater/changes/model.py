"""The form of changes: their operations, the columns of a table of changes, and its check.

Values are text, because text is exact for every type there is: a 78-digit integer, a decimal, an
address. Null is null. The table's declaration says what a text means. Tables of changes come from
the collector, from Spark or from protobuf; `conform` checks them once, before anything else. What
concerns the same row is found without building a row: keys become integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ChangeFormError

Operation = Literal["insert", "update", "upsert", "delete"]
FieldOperationName = Literal["set", "add", "sub", "min", "max", "set_if_null"]


class RowOperation(NamedTuple):
    """An operation on a row; its place in `ROW_OPERATIONS` is its code.

    `letter` is how statements call it, `wire` its number in a DatabaseChanges message; operations
    that only folding makes have none. A row that is there is removed if it `deletes`, and changed
    if it `changes`. A row is made if it `makes` one, in any case or where none is there.
    """

    name: str
    letter: str
    wire: int | None = None
    deletes: bool = False
    changes: bool = False
    makes: Literal["always", "absent", "never"] = "never"


ROW_OPERATIONS = (
    RowOperation("insert", "I", wire=1, makes="always"),
    RowOperation("update", "U", wire=2, changes=True),
    RowOperation("upsert", "S", wire=4, changes=True, makes="absent"),
    RowOperation("delete", "D", wire=3, deletes=True),
    RowOperation("replace", "R", deletes=True, makes="always"),
    RowOperation("transient", "T"),
)
NEW_ONLY = RowOperation("absent", "A", makes="absent")
"""How a merge calls the half of an upsert that does something else to a new row."""
INSERT, UPDATE, UPSERT, DELETE, REPLACE, TRANSIENT = range(len(ROW_OPERATIONS))
OPERATIONS = tuple(operation.name for operation in ROW_OPERATIONS if operation.wire is not None)
FOLDED_OPERATIONS = tuple(operation.name for operation in ROW_OPERATIONS)


class FieldChange(NamedTuple):
    """An operation on a column; its place in `FIELD_CHANGES` is its code.

    `released` and `draft` are its numbers in a DatabaseChanges message, by the version. `sql` is
    the column afterwards, where it holds `held` and `value` is given. Null: adding to null gives
    the value, min and max ignore it (`LEAST` and `GREATEST` leave it out), set-if-null replaces it.
    """

    name: str
    numeric: bool = False
    released: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    sql: str = ""


_SUM = "CASE WHEN {value} IS NULL THEN {held} ELSE COALESCE({held} + {value}, {value}) END"
FIELD_CHANGES = (
    FieldChange("set", released=(0, 1), draft=(0,), sql="{value}"),
    FieldChange("add", numeric=True, released=(2,), draft=(1,), sql=_SUM),
    FieldChange("sub", numeric=True),
    FieldChange("min", numeric=True, released=(4,), draft=(3,), sql="LEAST({held}, {value})"),
    FieldChange("max", numeric=True, released=(3,), draft=(2,), sql="GREATEST({held}, {value})"),
    FieldChange("set_if_null", released=(5,), draft=(4,), sql="COALESCE({held}, {value})"),
)
SET, ADD, SUB, MIN, MAX, SET_IF_NULL = range(len(FIELD_CHANGES))
FIELD_OPERATIONS = tuple(change.name for change in FIELD_CHANGES)
NUMERIC = frozenset(change.name for change in FIELD_CHANGES if change.numeric)

ANONYMOUS = ""
"""The name of a key column that only the table's declaration knows."""

KEY_TYPE = pa.list_(
    pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.string(), False)])
)
FIELDS_TYPE = pa.list_(
    pa.struct(
        [
            pa.field("name", pa.string(), False),
            pa.field("value", pa.string()),
            pa.field("operation", pa.string(), False),
        ]
    )
)
FRESH_TYPE = pa.list_(
    pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.string())])
)

CHANGES_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), False),
        pa.field("pk", KEY_TYPE, False),
        pa.field("operation", pa.string(), False),
        pa.field("fields", FIELDS_TYPE),
        pa.field("ordinal", pa.int64(), False),
        pa.field("block_number", pa.int64(), False),
    ]
)
"""One row per change. Within a block, changes happen in the order of their ordinals; those with
the same ordinal in the order of the rows."""

FOLDED_SCHEMA = CHANGES_SCHEMA.insert(4, pa.field("fresh", FRESH_TYPE))
"""One row per table, key and hot block, in the order in which the keys were first touched.

`fields` says what happens to a row that is there (update, upsert), `fresh` what a row holds that
was not there (insert, upsert) or takes the place of another (replace). `transient`: the row came
and went; there was none before and there is none after."""

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Held = TypeVar("Held", pa.Array, pa.Table)
_ROOM = 2**62


def conform(changes: Any) -> pa.Table:
    """Return the changes as one chunk in `CHANGES_SCHEMA`, in the order in which they happen.

    Takes an Arrow table or anything with `toArrow()`. Called by `fold` and `check`.

    Raises:
        ChangeFormError: a column is missing or of another type; a key is empty or null; an
            operation is unknown; a number is null.
    """
    table = changes if isinstance(changes, pa.Table) else _to_arrow(changes)
    missing = [name for name in CHANGES_SCHEMA.names if name not in table.column_names]
    if missing:
        raise ChangeFormError("columns are missing", missing=", ".join(missing))
    for name in ("table", "pk", "operation", "ordinal", "block_number"):
        if table[name].null_count:
            raise ChangeFormError("a column has nulls", column=name)
    try:
        table = table.select(CHANGES_SCHEMA.names).cast(CHANGES_SCHEMA).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
        raise ChangeFormError("columns are not of their types", reason=error) from error
    _check_known(column(table, "operation"), OPERATIONS, "operation")
    _check_keys(column(table, "pk"))
    _check_fields(column(table, "fields"))
    return _in_order(table)


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a column of a table of changes as one array."""
    return one_array(table[name])


def one_array(chunked: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, also if it has no chunk."""
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def lists_of(
    lengths: Codes, children: Sequence[pa.Array], kind: pa.DataType, mask: pa.Array | None = None
) -> pa.Array:
    """Return lists of structures: how many entries each row has, and the columns of all entries."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    entries = pa.StructArray.from_arrays(list(children), fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=kind, mask=mask)


def lengths_of(lists: pa.Array) -> Codes:
    """Return how many entries each row has; null has none."""
    lengths: Codes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    return lengths


def _to_arrow(frame: Any) -> pa.Table:
    to_arrow = getattr(frame, "toArrow", None)
    if to_arrow is None:
        raise ChangeFormError("not a table of changes", kind=type(frame).__name__)
    return to_arrow()


def _check_known(names: pa.Array, known: Sequence[str], what: str) -> None:
    is_known = pc.is_in(names, value_set=pa.array(known))
    if not pc.all(is_known, min_count=0).as_py():
        odd = names.filter(pc.invert(is_known))[0].as_py()
        raise ChangeFormError(f"unknown {what}", got=repr(odd), known=", ".join(known))


def _check_keys(keys: pa.Array) -> None:
    if pc.any(pc.equal(pc.list_value_length(keys), 0), min_count=0).as_py():
        raise ChangeFormError("a key needs at least one column")
    parts = keys.flatten()
    if parts.null_count or any(parts.field(at).null_count for at in range(2)):
        raise ChangeFormError("a key cannot be null")


def _check_fields(fields: pa.Array) -> None:
    entries = fields.flatten()
    names, values, operations = (entries.field(at) for at in range(3))
    if entries.null_count or names.null_count or operations.null_count:
        raise ChangeFormError("a field needs a name and an operation")
    _check_known(operations, FIELD_OPERATIONS, "field operation")
    if values.null_count:
        numeric = pc.is_in(operations, value_set=pa.array(sorted(NUMERIC)))
        odd = names.filter(pc.and_(numeric, pc.is_null(values)))
        if len(odd):
            raise ChangeFormError("a number is needed, not null", column=odd[0].as_py())


def _in_order(table: pa.Table) -> pa.Table:
    """Sort by block and ordinal, unless it is so; what is equal keeps its place."""
    blocks = column(table, "block_number").to_numpy()
    ordinals = column(table, "ordinal").to_numpy()
    later = blocks[1:] > blocks[:-1]
    if bool(np.all(later | ((blocks[1:] == blocks[:-1]) & (ordinals[1:] >= ordinals[:-1])))):
        return table
    return table.take(pa.array(np.lexsort((ordinals, blocks)))).combine_chunks()


# --- keys as integers -----------------------------------------------------------------------------
# Columns are dictionary-encoded and their codes combined, so that no separator is needed and none
# can collide: ("a/b", "c") and ("a", "b/c") are two keys.


def key_codes(table: pa.Table) -> Codes:
    """Return a number for each change: the same for the same table and key, and only then.

    `table` has passed `conform`. Called by `fold`.
    """
    keys = column(table, "pk")
    lengths = lengths_of(keys)
    parts = keys.flatten()
    names, values = codes_of(parts.field(0))[0], codes_of(parts.field(1))[0]
    codes = codes_of(column(table, "table"))[0]
    if not len(lengths) or int(lengths.max()) == 1:
        return combine(combine(codes, names), values)
    names, values = _ordered(lengths, names, values)
    starts = np.cumsum(lengths) - lengths
    for at in range(int(lengths.max())):
        has = lengths > at
        places = np.where(has, starts + at, 0)
        for part in (names, values):
            codes = combine(codes, np.where(has, part[places] + 1, 0))
    return codes


def codes_of(texts: pa.Array) -> tuple[Codes, pa.Array]:
    """Return the code of each text, and the texts by code. Null has none: it must not occur."""
    encoded = texts.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, encoded.dictionary


def first_places(codes: Codes) -> Codes:
    """Return where each distinct code occurs first, in the order of the codes."""
    if not len(codes):
        return codes
    lowest, highest = int(codes.min()), int(codes.max())
    if highest - lowest > 4 * len(codes):
        return np.unique(codes, return_index=True)[1]
    firsts = np.full(highest - lowest + 1, -1, np.int64)
    firsts[codes[::-1] - lowest] = np.arange(len(codes) - 1, -1, -1)
    return firsts[firsts >= 0]


def combine(one: Codes, other: Codes) -> Codes:
    """Return codes of pairs; they stay below 2^62, being made dense when they would not."""
    if not len(one):
        return one
    width = int(other.max()) + 1
    if (int(one.max()) + 1) * width >= _ROOM:
        one = np.unique(one, return_inverse=True)[1].astype(np.int64)
    return one * width + other


def sorted_by(codes: Codes) -> Codes:
    """Return the places of the codes in ascending order, equal ones as they come.

    Code and place are sorted as one number, which is faster than a stable sort of places.
    """
    count = max(len(codes), 1)
    if (codes[1:] >= codes[:-1]).all():
        return np.arange(len(codes))
    if len(codes) and (int(codes.max()) + 1) >= 2 * _ROOM // count:
        return np.argsort(codes, kind="stable")
    packed = codes * count + np.arange(len(codes))
    packed.sort()
    return packed % count


def taken(values: Held, places: Codes) -> Held:
    """Return what stands at the places; the same values if these are all places, in order."""
    if len(places) == len(values) and (places == np.arange(len(places))).all():
        return values
    return values.take(pa.array(places))


def _ordered(lengths: Codes, names: Codes, values: Codes) -> tuple[Codes, Codes]:
    """Return the parts of each key in the order of their names' codes, so that order is no part."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = sorted_by(combine(rows, names))
    return names[order], values[order]
