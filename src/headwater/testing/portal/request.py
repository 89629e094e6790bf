"""Reading a request body as a portal's server does: strictly, before any block is looked at."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.testing.chain.settings import Network
from headwater.testing.portal.surface import HIGHEST, LOWEST, Family, Getter, Relation, Surface
from headwater.testing.portal.surfaces import SURFACES

MAX_ITEMS = 100
"""How many filter objects a request may hold, over all families."""

_POSITION = ("fromBlock", "toBlock", "parentBlockHash")
_HEX = re.compile(r"0x[0-9a-fA-F]*\Z")


class BadRequest(Exception):  # noqa: N818 - named as the status it becomes
    """The portal refuses the request body; the text is the body of the 400 answer."""


@dataclass(frozen=True, slots=True)
class FilterObject:
    """One filter object: all tests must hold; relations say what else a match pulls in."""

    family: str
    tests: tuple[tuple[Getter, Container[Any]], ...]
    relations: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A request body that was accepted; `fields` holds the selected names, in the wire's order."""

    key: str
    include_all_blocks: bool
    fields: dict[str, tuple[str, ...]]
    filters: tuple[FilterObject, ...]


def read_request(network: Network, body: Mapping[str, Any]) -> Request:
    """Read a request body; raise `BadRequest` where a server would answer 400."""
    if not isinstance(body, Mapping):
        raise BadRequest("the request body must be a JSON object")
    if body.get("type") != network.value:
        raise BadRequest(f"unknown query type {body.get('type')!r}, expected `{network.value}`")
    surface = SURFACES[network]
    asked = [name for name, family in surface.families.items() if family.is_asked]
    known = {"type", "fields", "includeAllBlocks", *_POSITION, *asked}
    for name in body:
        if name not in known:
            raise BadRequest(_unknown(name, "the request", known))
    _check_position(body)
    include_all_blocks = body.get("includeAllBlocks")
    if not isinstance(include_all_blocks, bool | None):
        raise BadRequest("`includeAllBlocks` must be true or false")
    fields = _read_fields(surface, body.get("fields"))
    filters: list[FilterObject] = []
    texts: dict[str, list[Any]] = {}
    for name, family in surface.families.items():
        for item in _items(name, body.get(name)):
            wanted, text = _read_filter(name, family, item)
            filters.append(wanted)
            texts.setdefault(name, []).append(text)
    if len(filters) > MAX_ITEMS:
        raise BadRequest(
            f"the request holds {len(filters)} item filters, at most {MAX_ITEMS} are allowed"
        )
    canonical = [network.value, bool(include_all_blocks), fields, texts]
    key = msgspec.json.encode(canonical, order="sorted").decode()
    return Request(key, bool(include_all_blocks), fields, tuple(filters))


def _check_position(body: Mapping[str, Any]) -> None:
    for name in ("fromBlock", "toBlock"):
        value = body.get(name)
        if value is not None and (type(value) is not int or value < 0):
            raise BadRequest(f"`{name}` must be a non-negative integer")
    if not isinstance(body.get("parentBlockHash"), str | None):
        raise BadRequest("`parentBlockHash` must be a string")
    first, last = body.get("fromBlock"), body.get("toBlock")
    if first is not None and last is not None and last < first:
        raise BadRequest("`toBlock` must not be less than `fromBlock`")


def _read_fields(surface: Surface, given: Any) -> dict[str, tuple[str, ...]]:
    """Return the selected field names by entity; a block always tells its number and hash."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise BadRequest("`fields` must be an object")
    allowed = {"block": surface.block_fields}
    allowed |= {family.entity: family.fields for family in surface.families.values()}
    for entity, chosen in given.items():
        if entity not in allowed:
            raise BadRequest(_unknown(entity, "`fields`", allowed))
        if not isinstance(chosen, Mapping):
            raise BadRequest(f"`fields.{entity}` must be an object")
        for name, wanted in chosen.items():
            if name not in allowed[entity]:
                raise BadRequest(_unknown(name, f"`fields.{entity}`", allowed[entity]))
            if not isinstance(wanted, bool):
                raise BadRequest(f"`fields.{entity}.{name}` must be true or false")
    selected: dict[str, tuple[str, ...]] = {}
    for entity, names in allowed.items():
        chosen = given.get(entity, {})
        forced = ("number", "hash") if entity == "block" else ()
        selected[entity] = tuple(
            name for name in names if name in forced or chosen.get(name) is True
        )
    return selected


def _items(family: str, given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise BadRequest(f"`{family}` must be a list of filters")
    return list(given)


def _read_filter(name: str, family: Family, given: Any) -> tuple[FilterObject, dict[str, Any]]:
    """Read one filter object; also return it in canonical form."""
    if not isinstance(given, Mapping):
        raise BadRequest(f"a filter in `{name}` must be an object")
    tests: list[tuple[Getter, Container[Any]]] = []
    relations: list[Relation] = []
    text: dict[str, Any] = {}
    for key, value in given.items():
        if key in family.relations:
            if not isinstance(value, bool | None):
                raise BadRequest(f"`{name}.{key}` must be true or false")
            if value:
                relations.append(family.relations[key])
                text[key] = True
        elif key not in family.filters:
            raise BadRequest(_unknown(key, f"`{name}`", [*family.filters, *family.relations]))
        elif value is not None:
            place, wanted = f"{name}.{key}", family.filters[key]
            if wanted.kind in (LOWEST, HIGHEST):
                tests.append((wanted.get, _read_bound(place, wanted.kind, value)))
                text[key] = value
            else:
                values = _read_values(place, wanted.kind, value)
                tests.append((wanted.get, values))
                text[key] = sorted(values)
    widths = [key for key in ("d1", "d2", "d4", "d8") if key in text]
    if len(widths) > 1:
        raise BadRequest(
            f"a filter in `{name}` mixes discriminators of several widths: {', '.join(widths)}"
        )
    if family.implied is not None:
        tests.append(family.implied)
    return FilterObject(family.items or name, tuple(tests), tuple(relations)), text


def _read_bound(place: str, kind: str, given: Any) -> range:
    """Read one end of a range of numbers; it belongs to the range."""
    if type(given) is not int or given < 0:
        raise BadRequest(f"`{place}` must be a non-negative integer")
    return range(given, 2**64) if kind == LOWEST else range(given + 1)


def _read_values(place: str, kind: str, given: Any) -> frozenset[Any]:
    """Read the values of one filter key; an empty list matches nothing."""
    if kind == "flag":
        if not isinstance(given, bool):
            raise BadRequest(f"`{place}` must be true or false")
        return frozenset([given])
    if not isinstance(given, list | tuple):
        raise BadRequest(f"`{place}` must be a list")
    if kind == "number":
        if not all(type(value) is int for value in given):
            raise BadRequest(f"`{place}` must be a list of integers")
        return frozenset(given)
    if not all(isinstance(value, str) for value in given):
        raise BadRequest(f"`{place}` must be a list of strings")
    if kind == "text":
        return frozenset(given)
    if kind.startswith("bytes"):
        width = int(kind.removeprefix("bytes"))
        for value in given:
            if not _HEX.match(value) or len(value) != 2 + 2 * width:
                raise BadRequest(f"`{place}` must hold `0x` and {2 * width} hex digits: {value!r}")
    return frozenset(value.lower() for value in given)


def _unknown(name: object, place: str, known: Any) -> str:
    return f"unknown name `{name}` in {place}, expected one of {', '.join(sorted(known))}"
