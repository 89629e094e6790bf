"""ABI types as a tree, the Arrow type that each becomes, and the text form of events and functions.

address           string, "0x" and 40 lower-case digits      bool          bool
bytesN, bytes     binary                                     string        string
int8 … int32, uint8 … uint24      int32                      int40 … int64, uint32 … uint56  int64
int72 … int120, uint64 … uint120  decimal128(38, 0)          wider         exact decimal text
T[k], T[]         list                                       tuple         struct

    [event] Name(type [indexed] [name], …) [anonymous]
    [function] name(type [name], …) [view …] [returns (type [name], …)]

A mistake in a text is an error that names the position, because signatures are long and copied by
hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, TypeAlias

import pyarrow as pa

from headwater.decode.columns.integers import Integer, integer_field
from headwater.errors import SignatureError

MAX_INDEXED = 3

_MODIFIERS = frozenset(
    ("external", "public", "payable", "nonpayable", "view", "pure", "virtual", "override")
)
_LOCATIONS = frozenset(("calldata", "memory", "storage"))
_TOKEN = re.compile(r"\s*([A-Za-z_$][\w$]*|\d+|[(),;\[\]]|\S|$)", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_SIZED = re.compile(r"(uint|int|bytes)([1-9]\d{0,2})?")
_MAX_DEPTH = 32


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

    @property
    def integer(self) -> Integer | None:
        """The integers that it holds; None if it holds anything else."""
        if self.kind not in (Kind.UINT, Kind.INT):
            return None
        return Integer(self.size, self.kind is Kind.INT, self.as_decimal)


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
        case Elementary(kind):
            integer = abi_type.integer
            return _COLUMNS[kind] if integer is None else integer.column
        case Array(item, _):
            return pa.list_(arrow_type(item))
        case Tuple(members):
            return pa.struct([pa.field(member.name, arrow_type(member.type)) for member in members])


def arrow_field(name: str, abi_type: AbiType) -> pa.Field:
    """Return the field of the column that holds such values."""
    if isinstance(abi_type, Elementary) and abi_type.integer is not None:
        return integer_field(name, abi_type.integer)
    return pa.field(name, arrow_type(abi_type))


def is_wide(abi_type: AbiType) -> bool:
    """Whether the type is an integer that becomes text unless the user asks for a decimal."""
    integer = abi_type.integer if isinstance(abi_type, Elementary) else None
    return integer is not None and integer.is_wide


_COLUMNS = {
    Kind.BOOL: pa.bool_(),
    Kind.ADDRESS: pa.string(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.FIXED_BYTES: pa.binary(),
}


# --- text form of events and functions ------------------------------------------------------------


_PLAIN = {
    "address": Elementary(Kind.ADDRESS),
    "bool": Elementary(Kind.BOOL),
    "string": Elementary(Kind.STRING),
    "bytes": Elementary(Kind.BYTES),
    "uint": Elementary(Kind.UINT, 256),
    "int": Elementary(Kind.INT, 256),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. As written its name may be empty; `abi` calls such a one arg0, arg1, …"""

    name: str
    type: AbiType
    indexed: bool


def parse_elementary(name: str) -> Elementary | None:
    """Return the type of this name, or None if there is none that logs can hold."""
    if name in _PLAIN:
        return _PLAIN[name]
    match = _SIZED.fullmatch(name)
    if match is None:
        return None
    size = int(match[2])
    if match[1] == "bytes":
        return Elementary(Kind.FIXED_BYTES, size) if size <= 32 else None
    return Elementary(Kind(match[1]), size) if size % 8 == 0 and size <= 256 else None


def parse_event_text(text: str) -> tuple[str, tuple[Parameter, ...], bool]:
    """Return name and parameters of an event written as in Solidity, and whether it is anonymous.

    Raises:
        SignatureError: the text is not an event; the message names the position.
    """
    return _Parser(text, "event").event()


def parse_function_text(
    text: str,
) -> tuple[str, tuple[Parameter, ...], tuple[Parameter, ...]]:
    """Return name, inputs and outputs of a function written as in Solidity.

    Raises:
        SignatureError: the text is not a function; the message names the position.
    """
    return _Parser(text, "function").function()


class _Parser:
    """One pass over one text; `token` is the next one and stands at `position`."""

    __slots__ = ("_end", "_kind", "position", "text", "token")

    def __init__(self, text: str, kind: str) -> None:
        self.text, self._end, self.position, self.token = text, 0, 0, ""
        self._kind = kind
        self._advance()

    def event(self) -> tuple[str, tuple[Parameter, ...], bool]:
        name = self._title()
        parameters = self._parameters(0, in_tuple=False)
        anonymous = self.token == "anonymous"
        if anonymous:
            self._advance()
        self._finish("the parameters")
        return name, parameters, anonymous

    def function(self) -> tuple[str, tuple[Parameter, ...], tuple[Parameter, ...]]:
        name = self._title()
        inputs = self._parameters(0, in_tuple=False)
        while self.token in _MODIFIERS:
            self._advance()
        outputs: tuple[Parameter, ...] = ()
        if self.token == "returns":
            self._advance()
            outputs = self._parameters(0, in_tuple=False)
        self._finish("the function")
        return name, inputs, outputs

    def _title(self) -> str:
        article = "an" if self._kind == "event" else "a"
        name = self._word(f"{article} {self._kind} name")
        if name == self._kind and self.token != "(":
            name = self._word(f"{article} {self._kind} name")
        return name

    def _finish(self, what: str) -> None:
        if self.token == ";":
            self._advance()
        if self.token:
            self._fail(f"unexpected {self.token!r} after {what}")

    def _parameters(self, depth: int, *, in_tuple: bool) -> tuple[Parameter, ...]:
        self._expect("(")
        parameters: list[Parameter] = []
        if self.token == ")" and not in_tuple:
            self._advance()
            return ()
        while True:
            parameters.append(self._parameter(depth, in_tuple=in_tuple))
            if self.token == ")":
                self._advance()
                return tuple(parameters)
            if self.token != ",":
                self._fail(f"expected ',' or ')', got {self._shown()}")
            self._advance()

    def _parameter(self, depth: int, *, in_tuple: bool) -> Parameter:
        parsed = self._type(depth)
        indexed = self.token == "indexed"
        if indexed and in_tuple:
            self._fail("a member of a tuple cannot be indexed")
        if indexed and self._kind == "function":
            self._fail("parameters of functions are not indexed")
        if indexed or (self.token in _LOCATIONS and self._kind == "function"):
            self._advance()
        return Parameter(self._name(), parsed, indexed)

    def _name(self) -> str:
        name = self.token if _WORD.fullmatch(self.token) else ""
        if name == "indexed":
            self._fail("'indexed' stands twice")
        if name:
            self._advance()
        return name

    def _type(self, depth: int) -> AbiType:
        if depth > _MAX_DEPTH:
            self._fail("nested too deeply")
        parsed: AbiType
        if self.token == "tuple":
            self._advance()
            if self.token != "(":
                self._fail(f"expected '(' after 'tuple', got {self._shown()}")
        if self.token == "(":
            parsed = self._tuple(depth)
        else:
            elementary = parse_elementary(self.token)
            if elementary is None:
                self._fail(f"expected a type, got {self._shown()}")
            self._advance()
            parsed = elementary
        while self.token == "[":
            depth += 1
            if depth > _MAX_DEPTH:
                self._fail("nested too deeply")
            parsed = Array(parsed, self._length())
        return parsed

    def _tuple(self, depth: int) -> Tuple:
        start = self.position
        members = [
            Member(parameter.name or f"arg{index}", parameter.type)
            for index, parameter in enumerate(self._parameters(depth + 1, in_tuple=True))
        ]
        if len({member.name.lower() for member in members}) < len(members):
            self.position = start
            self._fail("two members of this tuple have the same name")
        return Tuple(tuple(members))

    def _length(self) -> int | None:
        self._expect("[")
        length: int | None = None
        if self.token.isdigit():
            length = int(self.token[:20])
            if length == 0:
                self._fail("an array of length 0 holds nothing")
            self._advance()
        self._expect("]")
        return length

    def _word(self, what: str) -> str:
        if not _WORD.fullmatch(self.token):
            self._fail(f"expected {what}, got {self._shown()}")
        word = self.token
        self._advance()
        return word

    def _expect(self, token: str) -> None:
        if self.token != token:
            self._fail(f"expected {token!r}, got {self._shown()}")
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self.text, self._end)
        self.token = match[1] if match else ""
        self.position = match.start(1) if match else len(self.text)
        self._end = match.end() if match else len(self.text)

    def _shown(self) -> str:
        return repr(self.token) if self.token else "the end"

    def _fail(self, reason: str) -> NoReturn:
        marked = f"{self.text[: self.position]} >>> {self.text[self.position :]}"
        facts = {self._kind: marked.strip()}
        raise SignatureError(f"position {self.position}: {reason}", **facts)
