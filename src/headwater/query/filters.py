"""Filters: conditions that must all hold, and the related items to bring along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_type_hints

from headwater.errors import DiscriminatorError, QueryError
from headwater.query.values import (
    Condition,
    Item,
    Value,
    argument_name,
    check_value,
    snake_name,
    unknown_name,
    wire_name,
)


@dataclass(frozen=True, slots=True)
class Relation:
    """A flag that also brings the related items of another entity."""

    entity: str
    wire: str = ""

    @property
    def name(self) -> str:
        """Our spelling, as a keyword argument."""
        return argument_name(self.wire)


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

    @classmethod
    def of(
        cls,
        wire: str,
        entity: str,
        keys: type,
        *,
        discriminators: tuple[str, ...] = (),
        implied: tuple[str, tuple[str, ...]] | None = None,
    ) -> Family:
        """Return the family whose filters have these keys: a TypedDict of annotated types.

        Each key is annotated with the `Condition` that its values meet, or with a `Relation`; the
        wire's name follows from that of the key.
        """
        conditions, relations = list[Condition](), list[Relation]()
        for name, hint in get_type_hints(keys, include_extras=True).items():
            mark = hint.__metadata__[0]
            if isinstance(mark, Relation):
                relations.append(replace(mark, wire=wire_name(name)))
            else:
                conditions.append(replace(mark, wire=wire_name(name)))
        return cls(wire, entity, tuple(conditions), tuple(relations), discriminators, implied)

    @property
    def name(self) -> str:
        """Our spelling."""
        return snake_name(self.wire)


@dataclass(frozen=True, slots=True)
class Filter:
    """A checked filter in the wire's names, keys in catalogue order. Made by `make_filter`."""

    family: str
    conditions: tuple[tuple[str, Value], ...] = ()
    relations: tuple[str, ...] = ()

    def condition(self, wire: str) -> Value | None:
        """Return what this filter demands of a key, or None if anything goes."""
        return dict(self.conditions).get(wire)

    def canonical(self) -> Filter:
        """Return the filter of the same meaning whose lists are sorted."""
        return replace(
            self, conditions=tuple((wire, _sorted(value)) for wire, value in self.conditions)
        )

    def without(self, wire: str) -> Filter:
        """Return the filter without one of its keys."""
        kept = tuple(item for item in self.conditions if item[0] != wire)
        return replace(self, conditions=kept)

    def document(self) -> dict[str, object]:
        """Return the JSON object of the request."""
        return {
            **{
                wire: list(value) if isinstance(value, tuple) else value
                for wire, value in self.conditions
            },
            **dict.fromkeys(self.relations, True),
        }


def join_lists(filters: Sequence[Filter], wire: str) -> list[Filter]:
    """Join those that have a list of this key into one with all of it; others stay as they are.

    The filters are equal in all other keys and relations.
    """
    lists = [joined for joined in filters if isinstance(joined.condition(wire), tuple)]
    if len(lists) < 2:
        return list(filters)
    values: dict[Item, None] = {}
    for joined in lists:
        value = joined.condition(wire)
        assert isinstance(value, tuple), "chosen for it"
        values.update(dict.fromkeys(value))
    first = lists[0]
    conditions = tuple(
        (key, tuple(values) if key == wire else value) for key, value in first.conditions
    )
    others = [joined for joined in filters if joined not in lists]
    return [replace(first, conditions=conditions), *others]


def make_filter(family: Family, arguments: Mapping[str, object]) -> Filter:
    """Check what a person wrote, `{"program_id": […], "transaction": True}`, against the catalogue.

    Raises:
        QueryError: a key is unknown, or a value is of the wrong kind.
        DiscriminatorError: Solana discriminators of several widths, or a malformed one.
    """
    known = [
        *(condition.name for condition in family.conditions),
        *(relation.name for relation in family.relations),
    ]
    for name in arguments:
        if name not in known:
            raise unknown_name(f"{family.name} filter", name, known)
    _refuse_mixed_widths(family, arguments)
    conditions = tuple(
        (condition.wire, _check(family, condition.name, arguments[condition.name]))
        for condition in family.conditions
        if condition.name in arguments
    )
    relations = tuple(
        relation.wire
        for relation in family.relations
        if _check_flag(family, relation.name, arguments.get(relation.name, False))
    )
    return Filter(family.wire, conditions, relations)


def _refuse_mixed_widths(family: Family, arguments: Mapping[str, object]) -> None:
    widths = [name for name in family.discriminators if name in arguments]
    if len(widths) > 1:
        raise DiscriminatorError(
            f"one {family.name} filter uses several discriminator widths", got=", ".join(widths)
        )


def _check(family: Family, name: str, value: object) -> Value:
    condition = next(item for item in family.conditions if item.name == name)
    try:
        return check_value(f"{family.name}.{name}", condition, value)
    except QueryError as error:
        if name in family.discriminators:
            raise DiscriminatorError(error.message, **error.facts) from error
        raise


def _check_flag(family: Family, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise QueryError(f"{family.name}.{name} takes True or False", got=repr(value))
    return value


def _sorted(value: Value) -> Value:
    if not isinstance(value, tuple):
        return value
    return tuple(sorted(value, key=_sort_key))


def _sort_key(item: Item) -> tuple[int, str]:
    return (item, "") if isinstance(item, int) else (0, item)
