"""The protobuf wire format, as far as DatabaseChanges needs it: numbers and lengths, no schema.

Written by hand because it is a page of code, and a dependency on protobuf would bring generated
code and version conflicts with Spark's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.errors import DatabaseChangesError

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
