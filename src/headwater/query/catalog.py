"""The shape of a network's catalogue: what can be selected, filtered and joined.

A network is data (`EVM`, `SOLANA`, `BITCOIN`, …); builders, validation, documentation and the
decoders all read the same data. Adding a network is adding a catalogue. All names here are the
wire's; `name` gives ours, which follows from it, so the two cannot drift apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from keyword import iskeyword

from headwater.errors import QueryError

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_name(wire: str) -> str:
    """Return the Python spelling: `transactionIndex` is `transaction_index`."""
    return _HUMP.sub("_", wire).lower()


def argument_name(wire: str) -> str:
    """Return the Python spelling as a keyword argument: `from` is `from_`."""
    name = snake_name(wire)
    return f"{name}_" if iskeyword(name) else name


def unknown_name(what: str, name: object, valid: Iterable[str]) -> QueryError:
    """Return the error for a name that is not in the catalogue; it lists those that are."""
    names = list(valid)
    close = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return QueryError(f"{what} {name!r} is not known{hint}", valid=", ".join(names))


class WireType(StrEnum):
    """How a value is written in the portal's JSON."""

    NUMBER = "number"  # a JSON integer, not negative, exact in a double
    INTEGER = "integer"  # a JSON integer, negative or not
    SECONDS = "seconds"  # a JSON integer: a time, counted from 1970
    MILLISECONDS = "milliseconds"  # likewise
    FLOAT = "float"  # a JSON number, a double on the server
    BITCOINS = "bitcoins"  # a JSON number with at most 8 decimals
    HEX = "hex"  # "0x…", whole bytes
    BARE_HEX = "bare hex"  # hex without 0x, whole bytes
    QUANTITY = "quantity"  # "0x…", an integer of up to 256 bits
    DECIMAL = "decimal"  # an integer of up to 64 bits as a decimal string
    WIDE_DECIMAL = "wide decimal"  # an integer of up to 128 bits as a decimal string
    NUMBER_OR_DECIMAL = "number or decimal"  # a JSON integer or a decimal string
    NUMBER_OR_STRING = "number or string"  # Solana's transaction version: 0 or "legacy"
    BASE58 = "base58"
    STRING = "string"
    BOOL = "bool"
    JSON = "json"  # anything
    OBJECT = "object"  # an object of the field's `members`


class Presence(StrEnum):
    """Whether a selected field is there."""

    REQUIRED = "required"
    OPTIONAL = "optional"  # may be absent or null
    NULLABLE = "nullable"  # there, but may be null


@dataclass(frozen=True, slots=True)
class Field:
    """One selectable field.

    A trace is selected by flat keys but arrives nested, and what `action` holds depends on the
    trace's `type`: `nested` is the path in the result, `variant` the type that has the field.
    `prefix` is what columns put before the wire's text, where the wire leaves it out.
    """

    wire: str
    type: WireType
    presence: Presence = Presence.REQUIRED
    is_list: bool = False
    members: tuple[Field, ...] = ()
    nested: tuple[str, ...] = ()
    variant: str | None = None
    prefix: str = ""

    @property
    def name(self) -> str:
        """Our spelling."""
        return snake_name(self.wire)

    @property
    def path(self) -> tuple[str, ...]:
        """Where the value stands in an item of the result."""
        return self.nested or (self.wire,)


@dataclass(frozen=True, slots=True)
class Entity:
    """One kind of item: the key that selects its fields and the key that holds its items.

    `forced` fields are selected whenever any field of the entity is. `key` fields are numbers that
    no two items of a block share.
    """

    wire: str
    collection: str
    fields: tuple[Field, ...]
    forced: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Our spelling."""
        return snake_name(self.wire)


def fields(
    wires: str, type: WireType, presence: Presence = Presence.REQUIRED, *, is_list: bool = False
) -> tuple[Field, ...]:
    """Return several fields of one type; their names have spaces between them."""
    return tuple(Field(wire, type, presence, is_list) for wire in wires.split())


def header(block: tuple[Field, ...]) -> Entity:
    """Return the entity `block`; the fields that prove that blocks follow each other are forced.

    Where slots are skipped, only `parentNumber` tells a gap from a missing block.
    """
    links = {"number", "hash", "parentNumber", "parentHash", "timestamp"}
    forced = tuple(field.wire for field in block if field.wire in links)
    return Entity("block", "header", block, forced)


class ValueKind(StrEnum):
    """What a filter compares with."""

    HEX = "hex"  # "0x…" of exactly `width` bytes, or one of `choices`
    BARE_HEX = "bare hex"  # the same, sent without 0x
    PUBKEY = "pubkey"  # base58 of 32 bytes
    BITCOIN_ADDRESS = "bitcoin address"  # base58 or bech32, both with a checksum
    TRON_ADDRESS = "tron address"  # "T…" or hex, sent as hex of `width` bytes: 21 with 41, or 20
    QUALIFIED_NAME = "qualified name"  # "Pallet.name"
    TEXT = "text"  # any text but none
    NUMBER = "number"
    CHOICE = "choice"  # one of `choices`
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a filter: a list of accepted values or, with `is_list` false, a single value.

    `at` says where the value stands that it compares with, if that is not the field of the same
    name: the field, then keys inside its JSON. Of several places the first that there is counts.
    With `is_prefix` the value need only begin with the one given.
    """

    wire: str
    kind: ValueKind
    width: int = 0
    choices: tuple[str, ...] = ()
    is_list: bool = True
    at: tuple[tuple[str, ...], ...] = ()
    is_prefix: bool = False

    @property
    def name(self) -> str:
        """Our spelling, as a keyword argument."""
        return argument_name(self.wire)


@dataclass(frozen=True, slots=True)
class Relation:
    """A flag that also brings the related items of another entity."""

    wire: str
    entity: str

    @property
    def name(self) -> str:
        """Our spelling, as a keyword argument."""
        return argument_name(self.wire)


def related(**flags: str) -> tuple[Relation, ...]:
    """Return the flags of a family, each with the entity that it brings."""
    return tuple(Relation(wire, entity) for wire, entity in flags.items())


@dataclass(frozen=True, slots=True)
class Family:
    """Filters over one entity. A filter is AND over its keys; the filters of a family are OR-ed.

    `discriminators` are the keys of which one filter may use only one. `implied` is a field and the
    values that the portal itself demands of it, where a family serves some items of its entity.
    """

    wire: str
    entity: str
    conditions: tuple[Condition, ...]
    relations: tuple[Relation, ...] = ()
    discriminators: tuple[str, ...] = ()
    implied: tuple[str, tuple[str, ...]] | None = None

    @property
    def name(self) -> str:
        """Our spelling."""
        return snake_name(self.wire)


@dataclass(frozen=True, slots=True)
class Network:
    """Everything one type of network can be asked. The entity `block` comes first, always."""

    type: str
    entities: tuple[Entity, ...]
    families: tuple[Family, ...]

    def entity(self, wire: str) -> Entity:
        """Return the entity of this wire name."""
        return next(entity for entity in self.entities if entity.wire == wire)

    def family(self, wire: str) -> Family:
        """Return the family of this wire name."""
        return next(family for family in self.families if family.wire == wire)
