"""Borsh: its types, the Arrow type that each becomes, and decoding a column at a time.

u8, u16, i8 … i32   int32                 u32, i64     int64
u64                 decimal128(38, 0)     u128 … i256  exact decimal text
f32, f64            float32, float64      bool         bool
string              string                pubkey       string, base58
bytes, vec<u8>, [u8; N]     binary        vec<T>, [T; N]       list
option<T>           T, or null            struct               struct
enum                the variant's name; if some variants have fields, a struct of `variant` and one
                    member per variant that has fields, null unless it is the one

A value is a vector of positions, one per element, and decoding returns the column and the positions
behind the values. Items of fixed size lie at known places, so a list of them is one longer vector;
items of variable size are read in rounds: all first items, then all second ones. No step loops over
rows. Nothing is trusted: every read must stay inside its own row, so a length can never claim more
than the row has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.columns.buffers import (
    column_of,
    fixed_width_array,
    lists_of,
    offsets_of,
    spread,
    text_parts,
)
from headwater.decode.columns.bytes_text import encode_base58
from headwater.decode.columns.integers import (
    DECIMAL,
    Integer,
    format_integers,
    integer_field,
    negate,
)
from headwater.decode.columns.malformed import Rows, refuse, refuse_unless_utf8
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
    def integer(self) -> Integer | None:
        """The integers that it holds; None if it holds anything else."""
        match = _INTEGER.fullmatch(self.name)
        return Integer(int(match[2]), signed=match[1] == "i") if match else None


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
    if len({member.name.lower() for member in members}) < len(members):
        raise LayoutError(f"{where}: two members have the same name")
    return Struct(tuple(members))


def arrow_type(borsh: BorshType) -> pa.DataType:
    """Return the type of the column; the table is in the module's text."""
    match borsh:
        case Scalar(name):
            return _PLAIN[name][0] if borsh.integer is None else borsh.integer.column
        case FixedBytes():
            return pa.binary()
        case Option(item):
            return arrow_type(item)
        case Sequence(item):
            return pa.list_(arrow_type(item))
        case Struct(members):
            return pa.struct([pa.field(member.name, arrow_type(member.type)) for member in members])
        case Enum(variants):
            with_content = [variant for variant in variants if variant.content is not None]
            if not with_content:
                return pa.string()
            fields = [
                pa.field(variant.name, arrow_type(variant.content))
                for variant in with_content
                if variant.content
            ]
            return pa.struct([pa.field("variant", pa.string()), *fields])


def arrow_field(name: str, borsh: BorshType) -> pa.Field:
    """Return the field of the column that holds such values."""
    inner = borsh.item if isinstance(borsh, Option) else borsh
    if isinstance(inner, Scalar) and inner.integer is not None:
        return integer_field(name, inner.integer)
    return pa.field(name, arrow_type(borsh))


def fixed_size(borsh: BorshType) -> int | None:
    """Return how many bytes every value takes; None if that depends on the value."""
    match borsh:
        case Scalar(name):
            return _PLAIN[name][1] if borsh.integer is None else borsh.integer.bits // 8
        case FixedBytes(size):
            return size
        case Sequence(item, length) if length is not None:
            each = fixed_size(item)
            return None if each is None else each * length
        case Struct(members):
            sizes = [fixed_size(member.type) for member in members]
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
            return sum(least_size(member.type) for member in members)
        case _:
            return fixed_size(borsh) or 0


def is_wide(borsh: BorshType) -> bool:
    """Whether the column is text unless the user asks for a decimal."""
    return isinstance(borsh, Scalar) and borsh.integer is not None and borsh.integer.is_wide


Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Read = tuple[pa.Array, Positions]


class BorshReader:
    """The bytes of some instructions or events: `data` holds all, `ends` where each row's end."""

    def __init__(self, column: pa.BinaryArray) -> None:
        self.starts, self.ends, self.data = text_parts(column)

    def decode(self, layout: Struct, skip: int) -> list[pa.Array]:
        """Return the columns of the members, which begin behind the first `skip` bytes.

        Bytes behind the last member are allowed, as programs allow them.

        Raises:
            MalformedRowsError: some rows do not hold such values.
        """
        at, columns = self.starts + skip, []
        rows = np.arange(len(at), dtype=np.int64)
        for member in layout.members:
            column, at = self._read(member.type, at, rows, f"'{member.name}'")
            columns.append(column)
        return columns

    def _read(self, borsh: BorshType, at: Positions, owners: Rows, where: str) -> Read:
        match borsh:
            case Scalar("string" | "bytes" | "long_string"):
                return self._stretch(borsh, at, owners, where)
            case Scalar():
                return self._scalar(borsh, at, owners, where)
            case FixedBytes(size):
                raw = self._window(at, size, owners, where)
                return fixed_width_array(pa.binary(), raw), at + size
            case Option(item):
                return self._option(item, at, owners, where)
            case Sequence(item, length):
                return self._sequence(item, length, at, owners, where)
            case Struct(members):
                columns = []
                for member in members:
                    column, at = self._read(member.type, at, owners, f"{where}.{member.name}")
                    columns.append(column)
                return _struct(columns, arrow_type(borsh), len(at)), at
            case Enum():
                return self._enum(borsh, at, owners, where)

    # --- values without parts ---------------------------------------------------------------------

    def _window(self, at: Positions, size: int, owners: Rows, where: str) -> Bytes:
        """Return so many bytes from each position on, as a matrix."""
        refuse(at + size > self.ends[owners], f"{where} is cut off", owners)
        if not len(at) or not size:
            return np.zeros((len(at), size), np.uint8)
        every = len(self.data) - size + 1
        windows = np.ndarray((every,), f"V{size}", self.data.data, strides=(1,))
        return windows[at].view(np.uint8).reshape(len(at), size)

    def _scalar(self, borsh: Scalar, at: Positions, owners: Rows, where: str) -> Read:
        size = fixed_size(borsh) or 0
        raw = self._window(at, size, owners, where)
        if borsh.name == "pubkey":
            return encode_base58(raw), at + size
        if borsh.name == "bool":
            refuse(raw[:, 0] > 1, f"{where} is neither 0 nor 1", owners)
            return pa.array(raw[:, 0] == 1), at + size
        if borsh.integer is None:
            return pa.array(raw.view(f"<f{size}").reshape(-1)), at + size
        return _integers(borsh.integer, raw), at + size

    def _stretch(self, borsh: Scalar, at: Positions, owners: Rows, where: str) -> Read:
        """Return text or bytes, whose length stands before them."""
        size = 8 if borsh.name == "long_string" else 4
        lengths = self._length(at, size, 1, owners, where)
        at = at + size
        flat = np.repeat(at - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        column = column_of(pa.binary(), offsets_of(lengths), self.data[flat])
        if arrow_type(borsh) == pa.string():
            refuse_unless_utf8(column, where, owners)
            column = column.cast(pa.string())
        return column, at + lengths

    def _length(self, at: Positions, size: int, unit: int, owners: Rows, where: str) -> Positions:
        """Return the lengths that stand here; as many units of bytes must follow."""
        raw = self._window(at, size, owners, where).view(f"<u{size}").reshape(-1)
        room = ((self.ends[owners] - at - size) // unit).astype(np.uint64)
        refuse(raw > room, f"the length of {where} exceeds the data", owners)
        return raw.astype(np.int64)

    # --- values with parts ------------------------------------------------------------------------

    def _option(self, item: BorshType, at: Positions, owners: Rows, where: str) -> Read:
        tags = self._window(at, 1, owners, where)[:, 0]
        refuse(tags > 1, f"{where} is neither absent (0) nor present (1)", owners)
        at = at + 1
        present = tags == 1
        return self._some(item, at, present, owners, where)

    def _some(
        self,
        item: BorshType,
        at: Positions,
        present: npt.NDArray[np.bool_],
        owners: Rows,
        where: str,
    ) -> Read:
        """Read the item where it is present; null elsewhere."""
        column, after = self._read(item, at[present], owners[present], where)
        following = at.copy()
        following[present] = after
        if not present.any():
            return pa.nulls(len(at), arrow_type(item)), following
        return spread(column, present), following

    def _sequence(
        self, item: BorshType, length: int | None, at: Positions, owners: Rows, where: str
    ) -> Read:
        if length is None:
            lengths = self._length(at, 4, least_size(item), owners, where)
            at = at + 4
        else:
            lengths = np.full(len(at), length, np.int64)
            room = self.ends[owners] - at
            refuse(lengths * least_size(item) > room, f"{where} is cut off", owners)
        place = f"an item of {where}"
        size = fixed_size(item)
        if size is None:
            items, after = self._rounds(item, lengths, at, owners, place)
        else:
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            firsts = np.repeat(at, lengths)
            items, _ = self._read(item, firsts + size * within, np.repeat(owners, lengths), place)
            after = at + size * lengths
        return lists_of(items, lengths), after

    def _rounds(
        self, item: BorshType, lengths: Positions, at: Positions, owners: Rows, where: str
    ) -> Read:
        """Read items of variable size: the first of every list, then the second, and so on."""
        at, parts, places = at.copy(), [], []
        firsts = np.cumsum(lengths) - lengths
        for turn in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > turn)
            column, at[rows] = self._read(item, at[rows], owners[rows], where)
            parts.append(column)
            places.append(firsts[rows] + turn)
        if not parts:
            return pa.array([], arrow_type(item)), at
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order)), at

    def _enum(self, borsh: Enum, at: Positions, owners: Rows, where: str) -> Read:
        tags = self._window(at, 1, owners, where)[:, 0]
        refuse(tags >= len(borsh.variants), f"{where} is no known variant", owners)
        names = pa.array([variant.name for variant in borsh.variants], pa.string())
        chosen = names.take(pa.array(tags))
        at, kind = at + 1, arrow_type(borsh)
        if pa.types.is_string(kind):
            return chosen, at
        columns = [chosen]
        for tag, variant in enumerate(borsh.variants):
            if variant.content is not None:
                place = f"{where}.{variant.name}"
                column, at = self._some(variant.content, at, tags == tag, owners, place)
                columns.append(column)
        return _struct(columns, kind, len(at)), at


def _integers(kind: Integer, raw: Bytes) -> pa.Array:
    column, size, signed = kind.column, kind.bits // 8, kind.signed
    if pa.types.is_string(column):
        words = raw.view("<u4").reshape(len(raw), size // 4)[:, ::-1]
        limbs = [words[:, at].astype(np.uint64) for at in range(size // 4)]
        if not signed:
            return format_integers(limbs)
        negative = limbs[0] >> np.uint64(31) == 1
        return format_integers(negate(limbs, negative), negative)
    values = raw.view(f"<{'i' if signed else 'u'}{size}").reshape(-1)
    if column == DECIMAL:
        pairs = np.zeros((len(values), 2), np.uint64)
        pairs[:, 0] = values
        return pa.Array.from_buffers(DECIMAL, len(values), [None, pa.py_buffer(pairs.reshape(-1))])
    return pa.array(values.astype(np.int64)).cast(column)


def _struct(columns: list[pa.Array], kind: pa.DataType, rows: int) -> pa.StructArray:
    if not columns:
        return pa.array([{}] * rows, kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind))
