"""What a portal answers to a request: which blocks match, and what their lines hold.

A request is judged from its raw JSON body, independent of `headwater.query`, as a server would: an
unknown name is refused, a filter is AND over its keys and OR inside a list, filters are OR-ed, and
relation flags pull in what belongs to the matched rows. Each row appears once, in block order, with
the selected fields alone.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from headwater.testing.chain.content import FAMILIES, content_of
from headwater.testing.chain.content.block import BlockContent
from headwater.testing.chain.population import Network
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.portal.surface import (
    ABOVE,
    BELOW,
    BLOOM,
    HIGHEST,
    LOWEST,
    SURFACES,
    TRACE_FIELDS,
    TRANSACTION,
    Family,
    Getter,
    Relation,
    Surface,
)

__all__ = ["BadRequest", "Selection"]

Row = dict[str, Any]

MAX_ITEMS = 100
"""How many filter objects a request may hold, over all families."""

POSITION = ("fromBlock", "toBlock", "parentBlockHash")
_HEX = re.compile(r"0x[0-9a-fA-F]*\Z")
_LINKS = {
    "number": "number",
    "hash": "hash",
    "parentHash": "parent_hash",
    "parentNumber": "parent_number",
    "height": "height",
    "timestamp": "timestamp",
}

_encode = msgspec.json.Encoder().encode


class BadRequest(Exception):  # noqa: N818 - named as the status it becomes
    """The portal refuses the request body; the text is the body of the 400 answer."""


@dataclass(frozen=True, slots=True)
class FilterObject:
    """One filter object: all tests must hold; relations say what else a match pulls in."""

    family: str
    tests: tuple[tuple[Getter, Container[Any]], ...]
    relations: tuple[Relation, ...]


def _read_fields(surface: Surface, fields: Any) -> dict[str, tuple[str, ...]]:
    """Return the selected field names by entity; a block always tells its number and hash."""
    fields = {} if fields is None else fields
    if not isinstance(fields, Mapping):
        raise BadRequest("`fields` must be an object")
    allowed = {"block": surface.block_fields}
    allowed |= {family.entity: family.fields for family in surface.families.values()}
    for entity, chosen in fields.items():
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
        chosen = fields.get(entity, {})
        forced = ("number", "hash") if entity == "block" else ()
        selected[entity] = tuple(
            name for name in names if name in forced or chosen.get(name) is True
        )
    return selected


def _items(family: str, filters: Any) -> list[Any]:
    if filters is None:
        return []
    if not isinstance(filters, list | tuple):
        raise BadRequest(f"`{family}` must be a list of filters")
    return list(filters)


def _read_filter(name: str, family: Family, filter_: Any) -> tuple[FilterObject, dict[str, Any]]:
    """Read one filter object; also return it in canonical form."""
    if not isinstance(filter_, Mapping):
        raise BadRequest(f"a filter in `{name}` must be an object")
    tests: list[tuple[Getter, Container[Any]]] = []
    relations: list[Relation] = []
    text: dict[str, Any] = {}
    for key, value in filter_.items():
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
                tests.append((wanted.get, Bloom(values) if wanted.kind == BLOOM else values))
                text[key] = sorted(values)
    widths = [key for key in ("d1", "d2", "d4", "d8") if key in text]
    if len(widths) > 1:
        raise BadRequest(
            f"a filter in `{name}` mixes discriminators of several widths: {', '.join(widths)}"
        )
    if family.implied is not None:
        tests.append(family.implied)
    return FilterObject(family.items, tuple(tests), tuple(relations)), text


class Bloom(Container[Any]):
    """Holds each list that has one of the values, and some that have none of them."""

    def __init__(self, values: Iterable[str]) -> None:
        self._bits = set(map(_bit, values))

    def __contains__(self, items: object) -> bool:
        assert isinstance(items, Iterable), "a filter of this kind is on lists"
        return any(_bit(item) in self._bits for item in items)


def _bit(value: str) -> int:
    """Return the place of a value in a bloom filter of a byte."""
    return sha256(value.encode()).digest()[0] % 8


def _read_bound(place: str, kind: str, bound: Any) -> range:
    """Read one end of a range of numbers; it belongs to the range."""
    if type(bound) is not int or bound < 0:
        raise BadRequest(f"`{place}` must be a non-negative integer")
    return range(bound, 2**64) if kind == LOWEST else range(bound + 1)


def _read_values(place: str, kind: str, values: Any) -> frozenset[Any]:
    """Read the values of one filter key; an empty list matches nothing."""
    if kind == "flag":
        if not isinstance(values, bool):
            raise BadRequest(f"`{place}` must be true or false")
        return frozenset([values])
    if not isinstance(values, list | tuple):
        raise BadRequest(f"`{place}` must be a list")
    if kind == "number":
        if not all(type(value) is int for value in values):
            raise BadRequest(f"`{place}` must be a list of integers")
        return frozenset(values)
    if not all(isinstance(value, str) for value in values):
        raise BadRequest(f"`{place}` must be a list of strings")
    if kind in ("text", BLOOM):
        return frozenset(values)
    if kind.startswith("bytes"):
        width = int(kind.removeprefix("bytes"))
        for value in values:
            if not _HEX.match(value) or len(value) != 2 + 2 * width:
                raise BadRequest(f"`{place}` must hold `0x` and {2 * width} hex digits: {value!r}")
    return frozenset(value.lower() for value in values)


def _unknown(name: object, place: str, known: Any) -> str:
    return f"unknown name `{name}` in {place}, expected one of {', '.join(sorted(known))}"


class Selection:
    """A request body, read once: tells of any block whether it matches and what its line is.

    `BadRequest` is raised where a server would answer 400; positions are the planner's to judge.
    `key` is the same for bodies that differ only in position (`fromBlock`, `toBlock`,
    `parentBlockHash`), in spelling or in order, so finished lines can be kept by (key, block hash).
    """

    def __init__(self, network: Network, body: Mapping[str, Any]) -> None:
        if not isinstance(body, Mapping):
            raise BadRequest("the request body must be a JSON object")
        if body.get("type") != network.value:
            raise BadRequest(f"unknown query type {body.get('type')!r}, expected `{network.value}`")
        self.network = network
        self._surface = SURFACES[network]
        families = self._surface.families
        asked = [name for name, family in families.items() if family.is_asked]
        known = {"type", "fields", "includeAllBlocks", *POSITION, *asked}
        for name in body:
            if name not in known:
                raise BadRequest(_unknown(name, "the request", known))
        include_all_blocks = body.get("includeAllBlocks")
        if not isinstance(include_all_blocks, bool | None):
            raise BadRequest("`includeAllBlocks` must be true or false")
        self.include_all_blocks = bool(include_all_blocks)
        fields = _read_fields(self._surface, body.get("fields"))
        self._filters: list[FilterObject] = []
        texts: dict[str, list[Any]] = {}
        for name, family in families.items():
            for item in _items(name, body.get(name)):
                wanted, text = _read_filter(name, family, item)
                self._filters.append(wanted)
                texts.setdefault(name, []).append(text)
        if len(self._filters) > MAX_ITEMS:
            raise BadRequest(
                f"the request holds {len(self._filters)} item filters, at most {MAX_ITEMS} are "
                "allowed"
            )
        canonical = [network.value, self.include_all_blocks, fields, texts]
        self.key = msgspec.json.encode(canonical, order="sorted").decode()
        self._header_fields = fields["block"]
        known_early = network in (Network.EVM, Network.SOLANA)  # others count time otherwise
        self._linked_header = known_early and _LINKS.keys() >= set(self._header_fields)
        self._projections = {
            family: _Projection.of(family, network, fields[families[family].entity])
            for family in FAMILIES[network]
        }

    def line(self, chain: ChainSim, block: SimBlock, *, boundary: bool = False) -> bytes | None:
        """Return the NDJSON line of a block, without newline; None if it is left out.

        Left out is a block in which nothing matches, unless it is a boundary of the answer or the
        request includes all blocks: then its header alone is sent.
        """
        content = content_of(chain, block)
        matched = self._match(content)
        if not (matched or boundary or self.include_all_blocks):
            return None
        line: dict[str, Any] = {"header": self._header(content, block)}
        for family, projection in self._projections.items():
            positions = matched.get(family)
            if positions and projection.fields:
                rows = content.rows(family)
                line[family] = [projection.apply(rows[position]) for position in sorted(positions)]
        return _encode(line)

    def _header(self, content: BlockContent, block: SimBlock) -> Row:
        """Return the selected header fields; the usual ones are known without the contents."""
        if self._linked_header:
            return {name: getattr(block, _LINKS[name]) for name in self._header_fields}
        header = content.header
        return {name: header[name] for name in self._header_fields}

    def _match(self, content: BlockContent) -> dict[str, set[int]]:
        """Return the positions of the rows to send, by family; families without any are absent."""
        matched: dict[str, set[int]] = {}
        for wanted in self._filters:
            positions = _positions(wanted, content.rows(wanted.family))
            if not positions:
                continue
            matched.setdefault(wanted.family, set()).update(positions)
            for relation in wanted.relations:
                related = _related(wanted.family, positions, relation, content, self._surface)
                if related:
                    matched.setdefault(relation.target, set()).update(related)
        return matched


@dataclass(frozen=True, slots=True)
class _Projection:
    """How a family's rows are cut to the selected fields; traces nest what is selected flat."""

    fields: tuple[str, ...]
    nested: dict[str, tuple[tuple[str, str, str], ...]]

    @classmethod
    def of(cls, family: str, network: Network, selected: tuple[str, ...]) -> _Projection:
        if family != "traces" or network is not Network.EVM:
            return cls(selected, {})
        nested: dict[str, list[tuple[str, str, str]]] = {}
        for name in selected:
            if name in TRACE_FIELDS:
                kind, *place = TRACE_FIELDS[name]
                nested.setdefault(kind, []).append((place[0], place[1], place[2]))
        return cls(selected, {kind: tuple(places) for kind, places in nested.items()})

    def apply(self, row: Row) -> Row:
        if not self.nested:
            return {name: row[name] for name in self.fields if name in row}
        cut: Row = {name: row[name] for name in self.fields if name not in TRACE_FIELDS}
        for part, name, source in self.nested.get(row["type"], ()):
            cut.setdefault(part, {})[name] = row[part][source]
        return cut


def _positions(wanted: FilterObject, rows: list[Row]) -> set[int]:
    tests = wanted.tests
    if not tests:
        return set(range(len(rows)))
    if len(tests) == 1:
        ((get, values),) = tests
        return {position for position, row in enumerate(rows) if get(row) in values}
    return {
        position
        for position, row in enumerate(rows)
        if all(get(row) in values for get, values in tests)
    }


def _related(
    family: str, positions: set[int], relation: Relation, content: BlockContent, surface: Surface
) -> set[int]:
    """Return the positions, in the relation's target family, of what belongs to matched rows."""
    source, target = content.rows(family), content.rows(relation.target)
    own, other = surface.owner(family), surface.owner(relation.target)
    if relation.by == TRANSACTION:
        owners = {source[position][own] for position in positions} - {None}
        return {position for position, row in enumerate(target) if row[other] in owners}
    addresses = {_address(source[position], own) for position in positions} - {None}
    places = [_address(row, other) for row in target]
    if relation.by == BELOW:
        return {
            position
            for position, place in enumerate(places)
            if place and any(prefix in addresses for prefix in _prefixes(place))
        }
    if relation.by == ABOVE:
        above = {prefix for address in addresses if address for prefix in _prefixes(address)}
        return {position for position, place in enumerate(places) if place in above}
    return {position for position, place in enumerate(places) if place in addresses}


def _address(row: Row, owner: str) -> tuple[int, ...] | None:
    """Return a row's place in its block: its transaction, then the address of its call."""
    for name in ("traceAddress", "instructionAddress", "callAddress", "address"):
        if name in row:
            path = row[name]
            return None if path is None else (row[owner], *path)
    return None


def _prefixes(address: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the addresses strictly above one, within its transaction."""
    return [address[:length] for length in range(1, len(address))]
