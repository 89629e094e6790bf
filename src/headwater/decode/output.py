"""Defines what a stream needs of an output, and decodes one batch for all outputs at once.

Each entity (logs, transactions, …) that some output needs is read once however many outputs there
are. Each output re-checks its own filters and its own ranges, because the lines answer the union of
what all outputs asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from headwater.core import BlockRange, RangeSpec
from headwater.decode.columns.malformed import MalformedRowsError, OnError
from headwater.decode.lines.entities import BLOCK, Entities, Wanted, read_entities
from headwater.errors import DecodeError, HeadwaterError
from headwater.query import Field, Query
from headwater.query.query import Selection


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one output, and how many items it left out as they could not be decoded.

    `unlike` counts logs that have the topic of the event and other indexed parameters, where there
    is no row: then the signature may be wrong.
    """

    table: pa.Table
    skipped: int = 0
    unlike: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """All outputs of one batch, by name: their tables, what each left out, and `unlike` logs."""

    tables: dict[str, pa.Table]
    skipped: dict[str, int]
    unlike: dict[str, int]


def decode_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    decode: Callable[[pa.RecordBatch], list[pa.Array]],
    on_error: OnError,
    explain: Callable[[pa.RecordBatch, MalformedRowsError], DecodeError],
) -> DecodedRows:
    """Return the columns of an output's own rows. Called by outputs, wherever they decode.

    Malformed rows are left out and counted with "skip"; with "raise", the first of them becomes the
    error that `explain` makes. A function is called with the error of each, and what it does not
    raise for is left out.
    """
    decoded, skipped = [], 0
    for batch in batches:
        rest, columns = batch, None
        while columns is None:
            try:
                columns = decode(rest)
            except MalformedRowsError as error:
                if on_error == "raise":
                    raise explain(rest, error) from None
                if callable(on_error):
                    for row in np.unique(error.rows):
                        on_error(explain(rest, MalformedRowsError(np.array([row]), error.reason)))
                keep = np.ones(rest.num_rows, bool)
                keep[error.rows] = False
                rest = rest.filter(pa.array(keep))
        skipped += batch.num_rows - rest.num_rows
        decoded.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return DecodedRows(pa.Table.from_batches(decoded, schema=schema), skipped)


class Output(Protocol):
    """A table that a stream fills: what to ask for, where, and how to read the answer.

    Outputs are values: made on the driver, pickled to executors, never changed.
    """

    @property
    def query(self) -> Query:
        """What to ask the portal for; it decodes from the entities whose fields it selects."""
        ...

    @property
    def ranges(self) -> tuple[RangeSpec, ...]:
        """Which blocks the user wants, not yet resolved."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        ...

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return this output's rows among the items of a batch; `ranges` are the resolved ones."""
        ...


def decode_outputs(
    outputs: Mapping[str, Output],
    lines: Sequence[bytes],
    ranges_by_output: Mapping[str, Sequence[BlockRange]],
) -> Decoded:
    """Return the table of every output for these block lines.

    Called once per batch, on the driver near the head and on executors far behind it. The same
    lines give the same tables again, so a retried task writes the same rows.

    Raises:
        BlockContentError: a line is no block, or an item in it is malformed.
        HeadwaterError: an item is not what an output's types allow, and it does not skip them.
    """
    entities = read_outputs(
        [(output, ranges_by_output[name]) for name, output in outputs.items()], lines
    )
    return decode_entities(outputs, entities, ranges_by_output)


def decode_blocks(
    outputs: Mapping[str, Output],
    blocks: Mapping[int, bytes],
    ranges_by_output: Mapping[str, Sequence[BlockRange]],
) -> list[Decoded] | None:
    """Return what `decode_outputs` makes of each block line, by number; None if it may differ.

    Called on the driver for hot blocks that arrived together. All are decoded at once, which takes
    a tenth of the time, and the tables are cut by block. That is not done if an item is left out,
    because it counts for its block, or if one cannot be decoded. As in a span, `unlike` logs count
    only where no block has a row of the output.
    """
    try:
        whole = decode_outputs(outputs, list(blocks.values()), ranges_by_output)
    except HeadwaterError:
        return None
    if whole.unlike or any(whole.skipped.values()):
        return None
    numbers = np.array(list(blocks))
    cut: list[dict[str, pa.Table]] = [{} for _ in blocks]
    for name, table in whole.tables.items():
        if "block_number" not in table.column_names:
            return None
        keys = table.column("block_number").to_numpy()
        ends = np.searchsorted(keys, numbers, "right")
        starts = np.searchsorted(keys, numbers, "left")
        if (keys[1:] < keys[:-1]).any() or int((ends - starts).sum()) != len(keys):
            return None
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            cut[place][name] = table.slice(start, end - start)
    return [Decoded(tables, dict(whole.skipped), {}) for tables in cut]


def read_outputs(
    outputs: Sequence[tuple[Output, Sequence[BlockRange]]], lines: Sequence[bytes]
) -> Entities:
    """Return what these outputs decode from: each entity read once, in the blocks they want.

    Raises:
        BlockContentError: a line is no block, or an item in it is malformed.
    """
    for output, _ in outputs:
        return read_entities(lines, output.query.network, _wanted(outputs))
    return {}


def decode_entities(
    outputs: Mapping[str, Output],
    entities: Entities,
    ranges_by_output: Mapping[str, Sequence[BlockRange]],
) -> Decoded:
    """Return the table of every output, given what `read_outputs` has read for all of them.

    Raises:
        HeadwaterError: an item is not what an output's types allow, and it does not skip them.
    """
    rows = {
        name: output.decode(entities, ranges_by_output[name]) for name, output in outputs.items()
    }
    return Decoded(
        tables={name: decoded.table for name, decoded in rows.items()},
        skipped={name: decoded.skipped for name, decoded in rows.items()},
        unlike={name: decoded.unlike for name, decoded in rows.items() if decoded.unlike},
    )


def decoded_from(output: Output) -> Selection:
    """Return the entities that an output decodes from, with fields, in the wire's names.

    Of blocks every query selects some fields; only a table of blocks decodes from them.
    """
    others = tuple(item for item in output.query.fields if item[0] != BLOCK)
    return others or output.query.fields


def _wanted(outputs: Sequence[tuple[Output, Sequence[BlockRange]]]) -> dict[str, Wanted]:
    """Return what all outputs together want of each entity."""
    fields: dict[str, set[str]] = {}
    ranges: dict[str, list[BlockRange]] = {}
    known: dict[str, tuple[Field, ...]] = {}
    for output, wanted in outputs:
        for entity, names in decoded_from(output):
            fields.setdefault(entity, set()).update(names)
            ranges.setdefault(entity, []).extend(wanted)
            known[entity] = output.query.network.entity(entity).fields
    return {
        entity: Wanted(
            tuple(field for field in known[entity] if field.wire in names),
            tuple(dict.fromkeys(ranges[entity])),
        )
        for entity, names in fields.items()
    }
