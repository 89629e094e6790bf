"""Block lines to one table per entity: what several outputs need is read once.

Only entities that some output names are read, and only in blocks that such an output wants: beyond
them a line answers other requests and need not have the fields. Runs on the driver and on
executors; the same lines always give the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.core import BlockRange
from headwater.decode.block_lines import Header, Line, line_type, read_lines, slices
from headwater.decode.entity_structs import (
    Fields,
    blocks_batch,
    entity_schema,
    header_type,
    items_batch,
)
from headwater.decode.logs import LOG_SCHEMA, logs_batch
from headwater.query import EVM, Network

Entities = Mapping[str, pa.Table]
"""Tables by the entity's wire name: EVM logs in `LOG_SCHEMA`, others as `entity_schema` says."""

BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What outputs want of one entity: these fields, in these blocks."""

    fields: Fields
    ranges: tuple[BlockRange, ...]


def read_entities(
    lines: Sequence[bytes], network: Network, wanted: Mapping[str, Wanted]
) -> dict[str, pa.Table]:
    """Return the tables of the wanted entities. Called by `decode_outputs`, once per batch.

    Raises:
        BlockContentError: a line is no block, or an item in it is malformed.
    """
    collections = {name: network.entity(name).collection for name in wanted if name != BLOCK}
    header = header_type(_extra(wanted[BLOCK].fields)) if BLOCK in wanted else Header
    shape = line_type(tuple(collections.values()), header)
    timestamp = next(one for one in network.entity(BLOCK).fields if one.wire == "timestamp")
    batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in wanted}
    for part in slices(lines):
        blocks = read_lines(part, shape, timestamp)
        for name, one in wanted.items():
            inside = _inside(blocks, one.ranges)
            if inside:
                batches[name].append(_batch(network, name, one.fields, inside, collections))
    return {
        name: pa.Table.from_batches(
            [one for one in batches[name] if one.num_rows],
            schema=_schema(network, name, one.fields),
        )
        for name, one in wanted.items()
    }


def is_scanned(network: Network, name: str, fields: Fields) -> bool:
    """Whether the fast reader of EVM logs can serve: it needs all their fields."""
    return network is EVM and name == "log" and len(fields) == len(EVM.entity("log").fields)


def _batch(
    network: Network,
    name: str,
    fields: Fields,
    blocks: Sequence[Line],
    collections: Mapping[str, str],
) -> pa.RecordBatch:
    headers = [block.header for block in blocks]
    if name == BLOCK:
        return blocks_batch(headers, _extra(fields))
    arrays = [getattr(block, collections[name]) for block in blocks]
    if is_scanned(network, name, fields):
        return logs_batch(headers, arrays)
    return items_batch(network.entity(name), fields, headers, arrays)


def _schema(network: Network, name: str, fields: Fields) -> pa.Schema:
    if is_scanned(network, name, fields):
        return LOG_SCHEMA
    return entity_schema(_extra(fields) if name == BLOCK else fields)


def _extra(fields: Fields) -> Fields:
    """Return the fields of blocks apart from those that every row repeats."""
    return tuple(one for one in fields if one.wire not in ("number", "hash", "timestamp"))


def _inside(blocks: Sequence[Line], ranges: Sequence[BlockRange]) -> Sequence[Line]:
    """Return the blocks that are in one of the ranges."""
    if not blocks:
        return ()
    numbers = [block.header.number for block in blocks]
    low, high = min(numbers), max(numbers)
    if any(low in one and high in one for one in ranges):
        return blocks
    return [
        block
        for block, number in zip(blocks, numbers, strict=True)
        if any(number in one for one in ranges)
    ]
