"""DatabaseChanges messages of Substreams modules, so that what they put out can be loaded.

All released versions share one message: fields were added (composite keys, upsert, field
operations), `old_value` was dropped. It is ignored here. Two points need a decision:

- A draft of the fourth version numbered the field operations from set = 0; the released one has
  unspecified = 0, set = 1. The bytes do not tell which; the released one is assumed.
- Protobuf cannot tell null from the empty text. Empty is null in columns that are declared and not
  text, and the empty text elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

from headwater.changes.declaration import TableSchema
from headwater.changes.model import ANONYMOUS, CHANGES_SCHEMA, NUMERIC
from headwater.errors import DatabaseChangesError, UnsetOperationError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}


def read_message(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field number, wire type, value) of one message, in order.

    Values of unknown fields come too, for the caller to leave out.

    Raises:
        DatabaseChangesError: the bytes end early, or are no message.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise DatabaseChangesError("a field has the number 0", at=at)
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise DatabaseChangesError("an unknown wire type", type=kind, field=number, at=at)
        if at + size > len(data):
            raise DatabaseChangesError("the message ends early", field=number, at=at)
        yield number, kind, data[at : at + size]
        at += size


def text_in(value: int | bytes, what: str) -> str:
    """Return a text field.

    Raises:
        DatabaseChangesError: it is a number, or not UTF-8.
    """
    try:
        return bytes_in(value, what).decode()
    except UnicodeDecodeError as error:
        raise DatabaseChangesError("a text is not UTF-8", field=what) from error


def bytes_in(value: int | bytes, what: str) -> bytes:
    """Return an embedded message or text as bytes.

    Raises:
        DatabaseChangesError: it is a number.
    """
    if isinstance(value, int):
        raise DatabaseChangesError("a field has the wrong wire type", field=what)
    return value


def integer_in(value: int | bytes, what: str) -> int:
    """Return a number.

    Raises:
        DatabaseChangesError: it is something else.
    """
    if not isinstance(value, int):
        raise DatabaseChangesError("a field has the wrong wire type", field=what)
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise DatabaseChangesError("the message ends early", at=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise DatabaseChangesError("a number is too long", at=at)
            return value, at
        shift += 7
        if shift > 63:
            raise DatabaseChangesError("a number is too long", at=at)


FieldNumbering = Literal["released", "draft"]

_OPERATIONS = {1: "insert", 2: "update", 3: "delete", 4: "upsert"}
_FIELD_OPERATIONS: dict[FieldNumbering, list[str]] = {
    "released": ["set", "set", "add", "max", "min", "set_if_null"],
    "draft": ["set", "add", "max", "min", "set_if_null"],
}


def read_database_changes(
    messages: Iterable[tuple[int, bytes]],
    *,
    tables: Sequence[TableSchema] = (),
    numbering: FieldNumbering = "released",
) -> pa.Table:
    """Return the changes of messages, each given with its block's number, in `CHANGES_SCHEMA`.

    The order within a block is that of the message: modules of every version fill `ordinal`, but
    the sinks they were written for go by position. The same messages give the same changes again.

    Raises:
        DatabaseChangesError: bytes are no DatabaseChanges message.
        UnsetOperationError: a change has no operation, or an unknown one.
    """
    columns = {table.name: table.columns for table in tables}
    rows: list[dict[str, Any]] = []
    for block, message in messages:
        for at, change in enumerate(_parts(message, 1, "table_changes")):
            row = _change(change, numbering, {"block": block, "change": at})
            known = columns.get(row["table"], {})
            for one in row["fields"]:
                if one["value"] == "" and known.get(one["name"], "text") != "text":
                    one["value"] = None
                if not one["value"] and one["operation"] in NUMERIC:
                    raise DatabaseChangesError(
                        "a number is needed and the value is empty",
                        table=row["table"],
                        column=one["name"],
                        block=block,
                    )
            rows.append({**row, "ordinal": at, "block_number": block})
    return pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA)


def _parts(message: bytes, number: int, what: str) -> list[bytes]:
    return [bytes_in(value, what) for field, _, value in read_message(message) if field == number]


def _change(data: bytes, numbering: FieldNumbering, where: dict[str, int]) -> dict[str, Any]:
    table, operation = "", 0
    key: list[dict[str, str]] = []
    fields: list[dict[str, str | None]] = []
    for number, _, value in read_message(data):
        match number:
            case 1:
                table = text_in(value, "table")
            case 2:
                key = [{"name": ANONYMOUS, "value": text_in(value, "pk")}]
            case 3:
                integer_in(value, "ordinal")
            case 4:
                operation = integer_in(value, "operation")
            case 5:
                fields.append(_field(bytes_in(value, "fields"), numbering, where))
            case 6:
                key = _composite(bytes_in(value, "composite_pk"))
            case _:
                pass  # a field of a later version
    if operation not in _OPERATIONS:
        raise UnsetOperationError(
            "a change has no known operation", table=table, operation=operation, **where
        )
    if not table or not key:
        raise DatabaseChangesError("a change has no table or no key", table=repr(table), **where)
    return {"table": table, "pk": key, "operation": _OPERATIONS[operation], "fields": fields}


def _composite(data: bytes) -> list[dict[str, str]]:
    """Return the entries of a map, by name; a later entry replaces an earlier one."""
    held: dict[str, str] = {}
    for entry in _parts(data, 1, "keys"):
        name = text = ""
        for number, _, value in read_message(entry):
            if number == 1:
                name = text_in(value, "key")
            elif number == 2:
                text = text_in(value, "value")
        if not name:
            raise DatabaseChangesError("a column of a composite key has no name")
        held[name] = text
    return [{"name": name, "value": held[name]} for name in sorted(held)]


def _field(data: bytes, numbering: FieldNumbering, where: dict[str, int]) -> dict[str, str | None]:
    name = text = ""
    operation = 0
    for number, _, value in read_message(data):
        if number == 1:
            name = text_in(value, "name")
        elif number == 2:
            text = text_in(value, "value")
        elif number == 4:
            operation = integer_in(value, "update_op")
    known = _FIELD_OPERATIONS[numbering]
    if operation >= len(known):
        raise UnsetOperationError(
            "a field has no known operation", column=name, operation=operation, **where
        )
    if not name:
        raise DatabaseChangesError("a field has no name", **where)
    return {"name": name, "value": text, "operation": known[operation]}
