"""ABI types as a tree, and the Arrow type that each becomes.

address           string, "0x" and 40 lower-case digits      bool          bool
bytesN, bytes     binary                                     string        string
int8 … int32, uint8 … uint24      int32                      int40 … int64, uint32 … uint56  int64
int72 … int120, uint64 … uint120  decimal128(38, 0)          wider         exact decimal text
T[k], T[]         list                                       tuple         struct
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from headwater.decode.columns.integers import Integer, integer_field


class Kind(Enum):
    """What an elementary type holds."""

    ADDRESS = "address"
    BOOL = "bool"
    UINT = "uint"
    INT = "int"
    FIXED_BYTES = "bytesN"
    BYTES = "bytes"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Elementary:
    """A type without parts. `size` counts bits of an integer, bytes of a `bytesN`, else is 0.

    `as_decimal` is the user's wish to have a wide integer as decimal128(38, 0) instead of text.
    """

    kind: Kind
    size: int = 0
    as_decimal: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """`item[length]`, or `item[]` when the length is None."""

    item: AbiType
    length: int | None


@dataclass(frozen=True, slots=True)
class Tuple:
    """A struct: named members, in order."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tuple."""

    name: str
    type: AbiType


AbiType: TypeAlias = Elementary | Array | Tuple


def canonical(abi_type: AbiType) -> str:
    """Return the type as it stands in the text that topic0 is the hash of."""
    match abi_type:
        case Elementary(Kind.UINT | Kind.INT, size):
            return f"{abi_type.kind.value}{size}"
        case Elementary(Kind.FIXED_BYTES, size):
            return f"bytes{size}"
        case Elementary(kind):
            return kind.value
        case Array(item, length):
            return f"{canonical(item)}[{'' if length is None else length}]"
        case Tuple(members):
            return f"({','.join(canonical(member.type) for member in members)})"


def is_dynamic(abi_type: AbiType) -> bool:
    """Whether the encoding is an offset in the head and the value elsewhere."""
    match abi_type:
        case Elementary(kind):
            return kind in (Kind.BYTES, Kind.STRING)
        case Array(item, length):
            return length is None or is_dynamic(item)
        case Tuple(members):
            return any(is_dynamic(member.type) for member in members)


def head_words(abi_type: AbiType) -> int:
    """Return how many 32-byte words the type takes in the head it is part of."""
    match abi_type:
        case Array(item, length) if length is not None and not is_dynamic(abi_type):
            return length * head_words(item)
        case Tuple(members) if not is_dynamic(abi_type):
            return sum(head_words(member.type) for member in members)
        case _:
            return 1


def arrow_type(abi_type: AbiType) -> pa.DataType:
    """Return the type of the column that holds such values; the table is in the module's text."""
    match abi_type:
        case Elementary():
            return _elementary_arrow_type(abi_type)
        case Array(item, _):
            return pa.list_(arrow_type(item))
        case Tuple(members):
            return pa.struct([pa.field(member.name, arrow_type(member.type)) for member in members])


def arrow_field(name: str, abi_type: AbiType) -> pa.Field:
    """Return the field of the column that holds such values."""
    if isinstance(abi_type, Elementary) and abi_type.kind in (Kind.UINT, Kind.INT):
        return integer_field(name, integer(abi_type))
    return pa.field(name, arrow_type(abi_type))


def integer(abi_type: Elementary) -> Integer:
    """Return the integers of `uintN` or `intN`."""
    return Integer(abi_type.size, abi_type.kind is Kind.INT, abi_type.as_decimal)


def is_wide(abi_type: AbiType) -> bool:
    """Whether the type is an integer that becomes text unless the user asks for a decimal."""
    return (
        isinstance(abi_type, Elementary)
        and abi_type.kind in (Kind.UINT, Kind.INT)
        and integer(abi_type).is_wide
    )


def _elementary_arrow_type(abi_type: Elementary) -> pa.DataType:
    match abi_type.kind:
        case Kind.BOOL:
            return pa.bool_()
        case Kind.ADDRESS | Kind.STRING:
            return pa.string()
        case Kind.BYTES | Kind.FIXED_BYTES:
            return pa.binary()
        case Kind.UINT | Kind.INT:
            return integer(abi_type).column
