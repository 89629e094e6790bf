"""Parses the text form of events and functions, with tuples and arrays.

    [event] Name(type [indexed] [name], …) [anonymous]
    [function] name(type [name], …) [view …] [returns (type [name], …)]

A mistake is an error that names the position, because signatures are long and copied by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from headwater.decode.evm.types import AbiType, Array, Elementary, Kind, Member, Tuple
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


@dataclass(frozen=True, slots=True)
class ParsedEvent:
    """An event as written."""

    name: str
    parameters: tuple[Parameter, ...]
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class ParsedFunction:
    """A function as written."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]


def parse_elementary(name: str) -> Elementary | None:
    """Return the type of this name, or None if there is none that logs can hold."""
    if name in _PLAIN:
        return _PLAIN[name]
    found = _SIZED.fullmatch(name)
    if found is None:
        return None
    size = int(found[2])
    if found[1] == "bytes":
        return Elementary(Kind.FIXED_BYTES, size) if size <= 32 else None
    return Elementary(Kind(found[1]), size) if size % 8 == 0 and size <= 256 else None


def parse_text(text: str) -> ParsedEvent:
    """Understand an event written as in Solidity. Called by `abi.parse_event`.

    Raises:
        SignatureError: the text is not an event; the message names the position.
    """
    return _Parser(text, "event").event()


def parse_function_text(text: str) -> ParsedFunction:
    """Understand a function written as in Solidity. Called by `functions.parse_function`.

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

    def event(self) -> ParsedEvent:
        name = self._title()
        parameters = self._parameters(0, in_tuple=False)
        anonymous = self.token == "anonymous"
        if anonymous:
            self._advance()
        self._finish("the parameters")
        return ParsedEvent(name, tuple(parameters), anonymous)

    def function(self) -> ParsedFunction:
        name = self._title()
        inputs = self._parameters(0, in_tuple=False)
        while self.token in _MODIFIERS:
            self._advance()
        outputs: list[Parameter] = []
        if self.token == "returns":
            self._advance()
            outputs = self._parameters(0, in_tuple=False)
        self._finish("the function")
        return ParsedFunction(name, tuple(inputs), tuple(outputs))

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

    def _parameters(self, depth: int, *, in_tuple: bool) -> list[Parameter]:
        self._expect("(")
        parameters: list[Parameter] = []
        if self.token == ")" and not in_tuple:
            self._advance()
            return parameters
        while True:
            parameters.append(self._parameter(depth, in_tuple=in_tuple))
            if self.token == ")":
                self._advance()
                return parameters
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
            Member(one.name or f"arg{index}", one.type)
            for index, one in enumerate(self._parameters(depth + 1, in_tuple=True))
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
        found = _TOKEN.match(self.text, self._end)
        self.token = found[1] if found else ""
        self.position = found.start(1) if found else len(self.text)
        self._end = found.end() if found else len(self.text)

    def _shown(self) -> str:
        return repr(self.token) if self.token else "the end"

    def _fail(self, reason: str) -> NoReturn:
        marked = f"{self.text[: self.position]} >>> {self.text[self.position :]}"
        facts = {self._kind: marked.strip()}
        raise SignatureError(f"position {self.position}: {reason}", **facts)
