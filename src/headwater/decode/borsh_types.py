"""Borsh types as a tree, what users may write for them, and the Arrow type that each becomes.

u8, u16, i8 … i32   int32                 u32, i64     int64
u64                 decimal128(38, 0)     u128 … i256  exact decimal text
f32, f64            float32, float64      bool         bool
string              string                pubkey       string, base58
bytes, vec<u8>, [u8; N]     binary        vec<T>, [T; N]       list
option<T>           T, or null            struct               struct
enum                the variant's name; if some variants have fields, a struct of `variant` and one
                    member per variant that has fields, null unless it is the one
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from headwater.decode.types import DECIMAL
from headwater.errors import LayoutError

_INTEGER = re.compile(r"([ui])(8|16|32|64|128|256)")
_GENERIC = re.compile(r"(option|vec)\s*<(.*)>", re.DOTALL)
_ARRAY = re.compile(r"\[(.*);\s*(\d{1,9})\s*\]", re.DOTALL)
_PLAIN = {
    "bool": (pa.bool_(), 1),
    "f32": (pa.float32(), 4),
    "f64": (pa.float64(), 8),
    "string": (pa.string(), None),
    "long_string": (pa.string(), None),  # bincode's: a length of eight bytes instead of four
    "bytes": (pa.binary(), None),
    "pubkey": (pa.string(), 32),
}
_MAX_DEPTH = 32
_MAX_SIZE = 1 << 20  # far beyond what an instruction can hold


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts, by its name."""

    name: str

    @property
    def bits(self) -> int:
        """The width of an integer; 0 for anything else."""
        found = _INTEGER.fullmatch(self.name)
        return int(found[2]) if found else 0


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """`[u8; size]`."""

    size: int


@dataclass(frozen=True, slots=True)
class Option:
    """A byte that is 0 or 1, then the item if it is 1."""

    item: BorshType


@dataclass(frozen=True, slots=True)
class Sequence:
    """`vec<item>`, or `[item; length]` when there is a length."""

    item: BorshType
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct."""

    name: str
    type: BorshType


@dataclass(frozen=True, slots=True)
class Struct:
    """Members, one behind the other."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One alternative of an enum."""

    name: str
    content: Struct | None = None


@dataclass(frozen=True, slots=True)
class Enum:
    """A byte that says which variant it is, then what the variant holds."""

    variants: tuple[Variant, ...]


BorshType: TypeAlias = Scalar | FixedBytes | Option | Sequence | Struct | Enum


def make_scalar(name: str) -> Scalar | None:
    """Return the scalar of this name, if there is one."""
    name = "pubkey" if name in ("publicKey", "PublicKey", "Pubkey") else name
    return Scalar(name) if name in _PLAIN or _INTEGER.fullmatch(name) else None


def make_sequence(item: BorshType, length: int | None, where: str) -> BorshType:
    """Return a list of items, or bytes if the items are.

    Raises:
        LayoutError: the items take no room, so any length would fit, or all too much.
    """
    if item == Scalar("u8"):
        return Scalar("bytes") if length is None else FixedBytes(length)
    if least_size(item) == 0:
        raise LayoutError(f"{where}: items that take no bytes cannot be counted")
    if (length or 0) * least_size(item) > _MAX_SIZE:
        raise LayoutError(f"{where}: larger than any instruction")
    return Sequence(item, length)


def parse_type(source: object, where: str, depth: int = 0) -> BorshType:
    """Understand a type of a plain layout: text, or a mapping of names to types for a struct.

    Raises:
        LayoutError: there is no such type.
    """
    if depth > _MAX_DEPTH:
        raise LayoutError(f"{where}: nested too deeply")
    if isinstance(source, Mapping):
        return parse_struct(source, where, depth)
    if not isinstance(source, str):
        raise LayoutError(f"{where}: a type is text or a mapping", got=repr(source)[:80])
    text = source.strip()
    if generic := _GENERIC.fullmatch(text):
        item = parse_type(generic[2], where, depth + 1)
        return Option(item) if generic[1] == "option" else make_sequence(item, None, where)
    if array := _ARRAY.fullmatch(text):
        return make_sequence(parse_type(array[1], where, depth + 1), int(array[2]), where)
    scalar = make_scalar(text)
    if scalar is None:
        raise LayoutError(f"{where}: unknown type {text[:80]!r}")
    return scalar


def parse_struct(members: Mapping[object, object], where: str, depth: int = 0) -> Struct:
    """Understand `{"amount": "u64", …}`."""
    parsed = [
        Member(str(name), parse_type(kind, f"{where}.{name}", depth + 1))
        for name, kind in members.items()
    ]
    return make_struct(parsed, where)


def make_struct(members: list[Member], where: str) -> Struct:
    """Return a struct; Spark does not tell capitals apart, so names must differ in more."""
    if len({one.name.lower() for one in members}) < len(members):
        raise LayoutError(f"{where}: two members have the same name")
    return Struct(tuple(members))


def arrow_type(borsh: BorshType) -> pa.DataType:
    """Return the type of the column; the table is in the module's text."""
    match borsh:
        case Scalar(name):
            return _PLAIN[name][0] if name in _PLAIN else _integer_type(borsh)
        case FixedBytes():
            return pa.binary()
        case Option(item):
            return arrow_type(item)
        case Sequence(item):
            return pa.list_(arrow_type(item))
        case Struct(members):
            return pa.struct([pa.field(one.name, arrow_type(one.type)) for one in members])
        case Enum(variants):
            held = [one for one in variants if one.content is not None]
            if not held:
                return pa.string()
            fields = [pa.field(one.name, arrow_type(one.content)) for one in held if one.content]
            return pa.struct([pa.field("variant", pa.string()), *fields])


def fixed_size(borsh: BorshType) -> int | None:
    """Return how many bytes every value takes; None if that depends on the value."""
    match borsh:
        case Scalar(name):
            return _PLAIN[name][1] if name in _PLAIN else borsh.bits // 8
        case FixedBytes(size):
            return size
        case Sequence(item, length) if length is not None:
            each = fixed_size(item)
            return None if each is None else each * length
        case Struct(members):
            sizes = [fixed_size(one.type) for one in members]
            return None if None in sizes else sum(size or 0 for size in sizes)
        case _:
            return None


def least_size(borsh: BorshType) -> int:
    """Return how many bytes a value takes at least."""
    match borsh:
        case Scalar("string" | "bytes"):
            return 4
        case Scalar("long_string"):
            return 8
        case Option() | Enum():
            return 1
        case Sequence(item, length):
            return 4 if length is None else length * least_size(item)
        case Struct(members):
            return sum(least_size(one.type) for one in members)
        case _:
            return fixed_size(borsh) or 0


def is_wide(borsh: BorshType) -> bool:
    """Whether the column is text unless the user asks for a decimal."""
    return isinstance(borsh, Scalar) and borsh.bits > 64


def _integer_type(borsh: Scalar) -> pa.DataType:
    signed_bits = borsh.bits + (borsh.name[0] == "u")
    if signed_bits <= 32:
        return pa.int32()
    if signed_bits <= 64:
        return pa.int64()
    return DECIMAL if borsh.bits == 64 else pa.string()
