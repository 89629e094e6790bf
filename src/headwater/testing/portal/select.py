"""What a portal answers to a request: which blocks match, and what their lines hold.

A request is judged from its raw JSON body, independent of `headwater.query`, as a server would: an
unknown name is refused, a filter is AND over its keys and OR inside a list, filters are OR-ed, and
relation flags pull in what belongs to the matched rows. Each row appears once, in block order, with
the selected fields alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.testing.chain.content import FAMILIES, content_of
from headwater.testing.chain.content.block import BlockContent
from headwater.testing.chain.settings import Network
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.portal.request import BadRequest, FilterObject, read_request
from headwater.testing.portal.surface import (
    ABOVE,
    BELOW,
    TRACE_FIELDS,
    TRANSACTION,
    Relation,
    Surface,
)
from headwater.testing.portal.surfaces import SURFACES

__all__ = ["BadRequest", "Selection"]

Row = dict[str, Any]

_LINKS = {
    "number": "number",
    "hash": "hash",
    "parentHash": "parent_hash",
    "parentNumber": "parent_number",
    "height": "height",
    "timestamp": "timestamp",
}

_encode = msgspec.json.Encoder().encode


class Selection:
    """A request body, read once: tells of any block whether it matches and what its line is.

    `key` is the same for bodies that differ only in position (`fromBlock`, `toBlock`,
    `parentBlockHash`), in spelling or in order, so finished lines can be kept by (key, block hash).
    """

    def __init__(self, network: Network, body: Mapping[str, Any]) -> None:
        request = read_request(network, body)
        self._surface = SURFACES[network]
        self.network = network
        self.key = request.key
        self.include_all_blocks = request.include_all_blocks
        self._filters = request.filters
        self._header_fields = request.fields["block"]
        known_early = network in (Network.EVM, Network.SOLANA)  # others count time otherwise
        self._linked_header = known_early and _LINKS.keys() >= set(self._header_fields)
        self._projections = {
            family: _Projection.of(
                family, network, request.fields[self._surface.families[family].entity]
            )
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
