"""Several events, of one ABI or of several, in one table. Made by `evm.union`.

A value, made on the driver and pickled to executors; the same lines give the same rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from headwater.core import BlockRange, RangeSpec
from headwater.decode.evm.events import BASE_COLUMNS, EventsOutput
from headwater.decode.lines.entities import Entities
from headwater.decode.output import DecodedRows
from headwater.errors import ParameterError
from headwater.query import Query, merge_queries

EVENT = "event"


@dataclass(frozen=True, slots=True)
class UnionOutput:
    """One table of several events, in the order of the chain; each may follow its own factory.

    Columns: those that all events have, `event` with the signature, then one per name of a
    parameter and of what is asked of a factory; null in the rows of events that have none of it.
    """

    entities: ClassVar[tuple[str, ...]] = ("log",)

    parts: tuple[EventsOutput, ...]

    @property
    def query(self) -> Query:
        """The union of what the events ask for."""
        return merge_queries(part.query for part in self.parts)

    @property
    def ranges(self) -> tuple[RangeSpec, ...]:
        """The range, which all of them have."""
        return self.parts[0].ranges

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        fields = {one.name: one for part in self.parts for one in part.schema}
        base = [fields.pop(name) for name in BASE_COLUMNS]
        return pa.schema([*base, pa.field(EVENT, pa.string()), *fields.values()])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the rows of all these events, in the order of the chain.

        Each event's own filters are checked again. A log that two of them match gives two rows.

        Raises:
            UndecodableLogError: as `EventsOutput.decode`.
        """
        schema, tables, skipped = self.schema, [], 0
        for part in self.parts:
            rows = part.decode(entities, ranges)
            skipped += rows.skipped
            tables.append(_widen(rows.table, part.event.signature, schema))
        order = [("block_number", "ascending"), ("log_index", "ascending")]
        return DecodedRows(pa.concat_tables(tables).sort_by(order).combine_chunks(), skipped)


def make_union(parts: Sequence[EventsOutput]) -> UnionOutput:
    """Check that some events fit into one table. Called by `evm.union`, on the driver.

    Raises:
        ParameterError: there is none, or ranges or types differ.
    """
    if not parts:
        raise ParameterError("a union needs one event at least")
    kinds: dict[str, tuple[pa.DataType, str]] = {}
    for part in parts:
        if part.ranges != parts[0].ranges:
            raise ParameterError("the events of a union have one range", event=part.event.signature)
        for one in part.schema:
            known, owner = kinds.setdefault(one.name.lower(), (one.type, part.event.signature))
            if known != one.type or one.name.lower() == EVENT:
                raise ParameterError(
                    f"the events of a union have one column {one.name!r}, but its types differ or "
                    "the name is taken; rename a parameter, which does not change what is decoded",
                    events=f"{owner}, {part.event.signature}",
                    types=f"{known}, {one.type}",
                )
    return UnionOutput(tuple(parts))


def _widen(table: pa.Table, signature: str, schema: pa.Schema) -> pa.Table:
    held = table.append_column(EVENT, pa.array([signature] * table.num_rows, pa.string()))
    columns = [
        held[one.name] if one.name in held.schema.names else pa.nulls(table.num_rows, one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
