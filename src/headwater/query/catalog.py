"""Defines the shape of a network's catalogue: what can be selected, filtered and joined.

A network is data (`EVM`, `SOLANA`, `BITCOIN`, …); builders, validation, documentation and the
decoders all read the same data. Adding a network is adding a catalogue. All names here are the
wire's; `name` gives ours, which follows from it, so the two cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headwater.query.filters import Family
from headwater.query.values import snake_name


class WireType(StrEnum):
    """How a value is written in the portal's JSON."""

    NUMBER = "number"  # a JSON integer, not negative, exact in a double
    INTEGER = "integer"  # a JSON integer, negative or not
    INDEX = "index"  # a JSON integer of 32 bits without a sign: a place in a block
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

    `forced` fields are selected whenever any field of the entity is. No two items of a
    block share their `key` fields.
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
