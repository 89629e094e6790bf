"""The shape of a network's catalogue: what can be selected, filtered and joined.

A network is data (`EVM`, `SOLANA`); builders, validation, documentation, the portal simulator and
the decoders all read the same data. Adding a network is adding a catalogue. All names here are the
wire's; `name` gives ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headwater.query.names import argument_name, snake_name


class WireType(StrEnum):
    """How a value is written in the portal's JSON."""

    NUMBER = "number"  # a JSON integer, not negative, exact in a double
    HEX = "hex"  # "0x…", whole bytes
    QUANTITY = "quantity"  # "0x…", an integer of up to 256 bits
    DECIMAL = "decimal"  # an integer as a decimal string
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
    """

    wire: str
    type: WireType
    presence: Presence = Presence.REQUIRED
    is_list: bool = False
    members: tuple[Field, ...] = ()
    nested: tuple[str, ...] = ()
    variant: str | None = None

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

    `forced` fields are selected whenever any field of the entity is.
    """

    wire: str
    collection: str
    fields: tuple[Field, ...]
    forced: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Our spelling."""
        return snake_name(self.wire)


class ValueKind(StrEnum):
    """What a filter compares with."""

    HEX = "hex"  # "0x…" of exactly `width` bytes, or one of `choices`
    PUBKEY = "pubkey"  # base58 of 32 bytes
    NUMBER = "number"
    CHOICE = "choice"  # one of `choices`
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a filter: a list of accepted values or, with `is_list` false, a single value."""

    wire: str
    kind: ValueKind
    width: int = 0
    choices: tuple[str, ...] = ()
    is_list: bool = True

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


@dataclass(frozen=True, slots=True)
class Family:
    """Filters over one entity. A filter is AND over its keys; the filters of a family are OR-ed.

    `discriminators` are the keys of which one filter may use only one.
    """

    wire: str
    entity: str
    conditions: tuple[Condition, ...]
    relations: tuple[Relation, ...] = ()
    discriminators: tuple[str, ...] = ()

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
