"""`Query` says what to ask a portal, as an immutable value.

A query knows no block range; `body` joins the two, so one query serves every request of a stream.
Outputs of one stream share requests: `merge_queries` unites what they ask for, `plan_requests` says
where each union applies, so that each block is fetched once however many outputs want it. An output
sees what the others asked for too, so it re-checks its own filters and its own range.

Runs on the driver and on executors alike; queries pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from headwater.core import BlockRange, segment_ranges
from headwater.errors import QueryError, QueryLimitError
from headwater.query.catalog import Entity, Field, Network
from headwater.query.filters import Family, Filter, join_lists, make_filter
from headwater.query.values import unknown_name

MAX_BODY_BYTES = 256 * 1024
MAX_FILTERS = 100

Selection = tuple[tuple[str, tuple[str, ...]], ...]

EVENT_KEY = "topic0"  # by which a log names its event


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Query:
    """Fields to select and filters to match, on one type of network.

    Begin with `EvmQuery()` or `SolanaQuery()` and add to it; every `add_…` returns a new query.
    The fields that link a block to its predecessor are always selected. Two queries are equal when
    they ask for the same, in whatever order it was added.

    `fields` (entity, names) and `filters` hold the wire's names, checked by the `add_…` methods.
    """

    network: ClassVar[Network]

    fields: Selection = ()
    filters: tuple[Filter, ...] = ()
    include_all_blocks: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", _with_forced(self.network, self.fields))
        object.__setattr__(self, "filters", _distinct(self.filters))

    def add_fields(self, **entities: Iterable[str]) -> Self:
        """Select fields by entity: `add_fields(log=["address", "topics"], block=["miner"])`."""
        added: list[tuple[str, tuple[str, ...]]] = []
        for name, fields in entities.items():
            entity = self._entity(name)
            if isinstance(fields, (str, bytes)) or not isinstance(fields, Iterable):
                raise QueryError(f"fields of {name} must be a list of names", got=repr(fields))
            added.append((entity.wire, tuple(_find_field(entity, field) for field in fields)))
        return replace(self, fields=(*self.fields, *added))

    def add_filter(self, family: str, /, **arguments: object) -> Self:
        """Add one filter to a family: its keys are AND-ed, filters of a family are OR-ed.

        The typed forms (`add_logs`, …) call this. A filter without keys matches every item.
        """
        added = make_filter(self._family(family), arguments)
        return replace(self, filters=(*self.filters, added))

    def headers_only(self) -> Self:
        """Return the query for the headers of blocks alone, which no filter chose."""
        return replace(self, fields=(), filters=())

    def selected(self, entity: str) -> tuple[Field, ...]:
        """Return the selected fields of an entity, in catalogue order."""
        known = self._entity(entity)
        wanted = dict(self.fields).get(known.wire, ())
        return tuple(field for field in known.fields if field.wire in wanted)

    def filters_of(self, family: str) -> tuple[Filter, ...]:
        """Return the filters of one family, in the order they were added."""
        wire = self._family(family).wire
        return tuple(item for item in self.filters if item.family == wire)

    def body(
        self, from_block: int, to_block: int | None = None, parent_block_hash: str | None = None
    ) -> bytes:
        """Return the request for these blocks, both ends included; the same input, the same bytes.

        Raises:
            InvalidRangeError: the range is inverted or negative.
            QueryLimitError: the request is larger than a portal accepts.
        """
        blocks = BlockRange(from_block, to_block)
        position: dict[str, object] = {"fromBlock": blocks.from_block}
        if blocks.to_block is not None:
            position["toBlock"] = blocks.to_block
        if parent_block_hash is not None:
            position["parentBlockHash"] = parent_block_hash
        body = encode({**self._head(), **position, **self._tail(self.filters)})
        check_limits(body, len(self.filters))
        return body

    @property
    def query_hash(self) -> str:
        """The SHA-256 of what is asked, whatever the range and the order of adding."""
        filters = (item.canonical() for item in self.filters)
        canonical = sorted(filters, key=lambda item: encode({item.family: item.document()}))
        return hash_document({**self._head(), **self._tail(canonical)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self.query_hash == other.query_hash

    def __hash__(self) -> int:
        return hash(self.query_hash)

    def _head(self) -> dict[str, object]:
        fields = {entity: dict.fromkeys(names, True) for entity, names in self.fields}
        return {"type": self.network.type, "fields": fields}

    def _tail(self, filters: Iterable[Filter]) -> dict[str, object]:
        tail: dict[str, object] = {"includeAllBlocks": True} if self.include_all_blocks else {}
        by_family: dict[str, list[dict[str, object]]] = {}
        for item in filters:
            by_family.setdefault(item.family, []).append(item.document())
        order = [family.wire for family in self.network.families]
        return tail | {wire: by_family[wire] for wire in order if wire in by_family}

    def _entity(self, name: str) -> Entity:
        entities = {entity.name: entity for entity in self.network.entities}
        if name not in entities:
            raise unknown_name(f"{self.network.type} entity", name, entities)
        return entities[name]

    def _family(self, name: str) -> Family:
        families = {family.name: family for family in self.network.families}
        if name not in families:
            raise unknown_name(f"{self.network.type} filter family", name, families)
        return families[name]


def _find_field(entity: Entity, name: object) -> str:
    fields = {field.name: field.wire for field in entity.fields}
    if not isinstance(name, str) or name not in fields:
        raise unknown_name(f"{entity.name} field", name, sorted(fields))
    return fields[name]


def _with_forced(network: Network, fields: Selection) -> Selection:
    """Unite selections, add the forced fields, and sort, so that equal queries have equal text."""
    chosen: dict[str, set[str]] = {network.entities[0].wire: set()}
    for entity, names in fields:
        if names:
            chosen.setdefault(entity, set()).update(names)
    return tuple(
        (entity, tuple(sorted(names.union(network.entity(entity).forced))))
        for entity, names in sorted(chosen.items())
    )


def _distinct(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Drop filters that repeat an earlier one."""
    first: dict[Filter, Filter] = {}
    for item in filters:
        first.setdefault(item.canonical(), item)
    return tuple(first.values())


def _joined(filters: Sequence[Filter]) -> tuple[Filter, ...]:
    """Join filters that differ in their events alone: those of one contract become one filter.

    Filters of a family are OR-ed, so the joined one matches what they match, and nothing else.
    """
    groups: dict[Filter, list[Filter]] = {}
    for item in _distinct(filters):
        groups.setdefault(item.without(EVENT_KEY).canonical(), []).append(item)
    return tuple(item for group in groups.values() for item in join_lists(group, EVENT_KEY))


# --- several outputs, one request per block -------------------------------------------------------


def merge_queries(queries: Iterable[Query]) -> Query:
    """Return the query that asks for all that these ask for; repeated filters are sent once.

    Raises:
        QueryError: there is no query, or they are for different types of network.
    """
    merged = list(queries)
    if not merged:
        raise QueryError("there is no query to merge")
    _refuse_other_networks(merged)
    return replace(
        merged[0],
        fields=tuple(item for query in merged for item in query.fields),
        filters=tuple(item for query in merged for item in query.filters),
        include_all_blocks=any(query.include_all_blocks for query in merged),
    )


def merge_requests(queries: Iterable[Query]) -> Query:
    """Return what `merge_queries` does, with filters joined that differ in their events alone.

    For requests only: a stored definition has the hash of what is asked for, filter by filter.
    """
    merged = merge_queries(queries)
    return replace(merged, filters=_joined(merged.filters))


def plan_requests(outputs: Sequence[tuple[BlockRange, Query]]) -> list[tuple[BlockRange, Query]]:
    """Return what to ask for where: ascending ranges, each with the union of what applies there.

    Blocks that no output wants are in none of them. Neighbours that ask for the same are joined,
    and so are filters that differ in their events alone.
    """
    _refuse_other_networks([query for _, query in outputs])
    plan: list[tuple[BlockRange, Query]] = []
    for block_range, applying in segment_ranges(outputs):
        query = merge_requests(applying)
        if plan and _touches(plan[-1][0], block_range) and plan[-1][1] == query:
            plan[-1] = (BlockRange(plan[-1][0].from_block, block_range.to_block), query)
        else:
            plan.append((block_range, query))
    return plan


def _touches(lower: BlockRange, upper: BlockRange) -> bool:
    return lower.to_block is not None and lower.to_block + 1 == upper.from_block


def _refuse_other_networks(queries: Iterable[Query]) -> None:
    types = sorted({query.network.type for query in queries})
    if len(types) > 1:
        raise QueryError("one stream reads one type of network", got=", ".join(types))


# --- requests as bytes ----------------------------------------------------------------------------


def encode(document: Mapping[str, object]) -> bytes:
    """Write compact JSON, keys in the order of the document."""
    return json.dumps(document, separators=(",", ":")).encode()


def hash_document(document: Mapping[str, object]) -> str:
    """Return the SHA-256 of the compact JSON in hex; it depends on the order of the keys."""
    return hashlib.sha256(encode(document)).hexdigest()


def check_limits(body: bytes, filters: int) -> None:
    """Refuse what a portal would refuse, before it is sent.

    Raises:
        QueryLimitError: more than 256 KiB, or more than 100 filters over all families.
    """
    if filters > MAX_FILTERS:
        raise QueryLimitError("too many filters in one query", filters=filters, limit=MAX_FILTERS)
    if len(body) > MAX_BODY_BYTES:
        raise QueryLimitError("the query is too large", bytes=len(body), limit=MAX_BODY_BYTES)
