"""Tables as they are declared, and changes checked against them before anything is written.

A change of an unknown table, a misspelt column or half a key would otherwise surface as a
database's error in the middle of a batch, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import (
    ANONYMOUS,
    FIELDS_TYPE,
    KEY_TYPE,
    NUMERIC,
    Codes,
    codes_of,
    column,
    combine,
    conform,
    first_places,
    lengths_of,
    lists_of,
)
from headwater.changes.numbers import is_plain_integer, parse_number
from headwater.changes.values import one_spelling
from headwater.errors import (
    ChangeKeyError,
    ChangeNumberError,
    TableDeclarationError,
    UnknownColumnError,
    UnknownTableError,
)

ColumnType = Literal["text", "integer", "decimal", "boolean", "timestamp", "date", "bytes", "json"]
_TYPES = get_args(ColumnType)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table: its name, the columns of its key, and the type of every column, the key's too.

    A value; made in user code, pickled with the pipeline. `integer` has any number of digits.
    """

    name: str
    key: Sequence[str]
    columns: Mapping[str, ColumnType]

    def __post_init__(self) -> None:
        if not self.name or not self.key or isinstance(self.key, str):
            raise TableDeclarationError(
                "a table needs a name and a list of key columns", table=self.name, key=self.key
            )
        object.__setattr__(self, "key", tuple(self.key))
        object.__setattr__(self, "columns", dict(self.columns))
        odd = [name for name in self.key if name not in self.columns]
        if odd or len(set(self.key)) < len(self.key):
            raise TableDeclarationError(
                "the key is not made of columns", table=self.name, key=", ".join(self.key)
            )
        for name, kind in self.columns.items():
            if not name or kind not in _TYPES:
                raise TableDeclarationError(
                    "a column has no name or an unknown type",
                    table=self.name,
                    column=repr(name),
                    type=kind,
                    known=", ".join(_TYPES),
                )


def check(changes: Any, tables: Sequence[TableSchema]) -> pa.Table:
    """Return the changes with the names of all key columns, if they agree with the declarations.

    Keys get their one spelling; fields that repeat them are left out. Takes a table of changes, or
    anything with `toArrow()`. Called once per batch, before `fold`; doing it again changes nothing.

    Raises:
        ChangeFormError: not a table of changes.
        UnknownTableError, UnknownColumnError: a name is not declared; the valid ones are listed.
        ChangeKeyError: a key is not the table's, or a field would change it.
        ChangeNumberError: a number is needed, and a value or a column's type is none.
    """
    table = conform(changes)
    declared = {table.name: table for table in tables}
    codes, names = codes_of(column(table, "table"))
    schemas = [_find(declared, name) for name in names.to_pylist()]
    keys = _check_keys(column(table, "pk"), codes, schemas)
    table = table.set_column(1, table.schema.field("pk"), keys)
    fields = _check_fields(column(table, "fields"), keys, codes, schemas)
    return table.set_column(3, table.schema.field("fields"), fields)


def _find(declared: Mapping[str, TableSchema], name: str) -> TableSchema:
    if name not in declared:
        known = ", ".join(sorted(declared)) or "none"
        raise UnknownTableError("a table is not declared", table=name, known=known)
    return declared[name]


def _check_keys(keys: pa.Array, codes: Codes, schemas: list[TableSchema]) -> pa.Array:
    """Check the distinct shapes of keys, and name the columns of keys given as one value."""
    lengths = lengths_of(keys)
    parts = keys.flatten()
    part_codes, known = codes_of(parts.field(0))
    starts = np.cumsum(lengths) - lengths
    shapes = codes
    for at in range(int(lengths.max(initial=0))):
        has = lengths > at
        shapes = combine(shapes, np.where(has, part_codes[np.where(has, starts + at, 0)] + 1, 0))
    for row in first_places(shapes).tolist():
        schema = schemas[int(codes[row])]
        begin = int(starts[row])
        got = known.take(pa.array(part_codes[begin : begin + int(lengths[row])])).to_pylist()
        if sorted(got) != sorted(schema.key) and not (got == [ANONYMOUS] and len(schema.key) == 1):
            raise ChangeKeyError(
                "a key is not the table's",
                table=schema.name,
                got=", ".join(got) or "one value",
                key=", ".join(schema.key),
            )
    single = pa.array([schema.key[0] for schema in schemas], pa.string())
    names = single.take(pa.array(np.repeat(codes, lengths)))
    names = pc.if_else(pc.equal(parts.field(0), ANONYMOUS), names, parts.field(0))
    values = _spell_keys(parts.field(1), names, np.repeat(codes, lengths), schemas)
    return lists_of(lengths, [names, values], KEY_TYPE)


def _spell_keys(
    values: pa.Array, names: pa.Array, codes: Codes, schemas: list[TableSchema]
) -> pa.Array:
    """Give each value of a key its one spelling: equal keys must be equal texts."""
    for code, schema in enumerate(schemas):
        for name in schema.key:
            kind = schema.columns[name]
            if kind != "text":
                chosen = pc.and_(pa.array(codes == code), pc.equal(names, name))
                spelt = one_spelling(values.filter(chosen), kind, name)
                values = pc.replace_with_mask(values, chosen, spelt)
    return values


def _check_fields(
    fields: pa.Array, keys: pa.Array, codes: Codes, schemas: list[TableSchema]
) -> pa.Array:
    lengths = lengths_of(fields)
    entries = fields.flatten()
    rows = np.repeat(np.arange(len(lengths)), lengths)
    name_codes, names = codes_of(entries.field(0))
    operation_codes, operations = codes_of(entries.field(2))
    combined = combine(combine(codes[rows], name_codes), operation_codes)
    repeats_key = np.zeros(len(rows), np.bool_)
    for entry in first_places(combined).tolist():
        schema = schemas[int(codes[rows[entry]])]
        name = names[int(name_codes[entry])].as_py()
        operation = operations[int(operation_codes[entry])].as_py()
        same = combined == combined[entry]
        _check_column(schema, name, operation)
        if name in schema.key:
            repeats_key |= same
            entries = _spelt(entries, same, schema.columns[name], name)
        elif schema.columns[name] in ("integer", "decimal"):
            _check_numbers(schema, name, entries.field(1).filter(pa.array(same)))
    if repeats_key.any():
        _check_repeated(entries, rows, keys, repeats_key)
        kept = ~repeats_key
        entries = entries.filter(pa.array(kept))
        lengths = np.bincount(rows[kept], minlength=len(lengths))
    return lists_of(lengths, [entries.field(at) for at in range(3)], FIELDS_TYPE)


def _spelt(entries: pa.Array, chosen: Any, kind: str, name: str) -> pa.Array:
    """Return entries with the values of a key's column in their one spelling."""
    old, mask = entries.field(1), pa.array(chosen)
    values = pc.replace_with_mask(old, mask, one_spelling(old.filter(mask), kind, name))
    children = [entries.field(0), values, entries.field(2)]
    return pa.StructArray.from_arrays(children, fields=list(FIELDS_TYPE.value_type))


def _check_column(schema: TableSchema, name: str, operation: str) -> None:
    if name not in schema.columns:
        known = ", ".join(sorted(schema.columns))
        raise UnknownColumnError(
            "a column is not declared", table=schema.name, column=name, known=known
        )
    kind = schema.columns[name]
    if operation in NUMERIC and kind not in ("integer", "decimal"):
        raise ChangeNumberError(
            "the column holds no numbers",
            table=schema.name,
            column=name,
            type=kind,
            operation=operation,
        )


def _check_numbers(schema: TableSchema, name: str, values: pa.Array) -> None:
    odd = ~is_plain_integer(values) & np.asarray(pc.is_valid(values))
    for text in values.filter(pa.array(odd)).to_pylist():
        number = parse_number(text)
        if schema.columns[name] == "integer" and number != number.to_integral_value():
            raise ChangeNumberError("not an integer", table=schema.name, column=name, got=text)


def _check_repeated(entries: pa.Array, rows: Codes, keys: pa.Array, which: Any) -> None:
    """Refuse fields that would change the key; modules that repeat it are common."""
    owners = keys.take(pa.array(rows[which])).to_pylist()
    for entry, key in zip(entries.filter(pa.array(which)).to_pylist(), owners, strict=True):
        key_values = {part["name"]: part["value"] for part in key}
        if entry["operation"] != "set" or key_values[entry["name"]] != entry["value"]:
            raise ChangeKeyError(
                "a field would change the key",
                column=entry["name"],
                key=key_values[entry["name"]],
                got=entry["value"],
            )
