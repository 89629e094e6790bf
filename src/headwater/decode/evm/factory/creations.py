"""Finds the creations of a factory: the place of each, the child, and the asked columns.

An output like any other, so that creations are fetched, decoded and read in parallel as events are.
Users never see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.core import BlockRange, RangeSpec
from headwater.decode.evm.events import EventsOutput, event_columns, event_query
from headwater.decode.evm.factory import ChildScope, Factory, events_scope
from headwater.decode.evm.factory.children import FOUND_FIELDS
from headwater.decode.lines.entities import Entities
from headwater.decode.output import DecodedRows
from headwater.query import Query

_PLACE = [field.name for field in FOUND_FIELDS[:-1]]


@dataclass(frozen=True, slots=True)
class CreationsOutput:
    """The place and address of each child. `events` is the table of the announcing event."""

    factory: Factory
    events: EventsOutput

    @property
    def query(self) -> Query:
        """The query for the announcing event."""
        return self.events.query

    @property
    def ranges(self) -> tuple[RangeSpec, ...]:
        """From the factory's start on; a stream decides how far."""
        return (self.factory.start,)

    @property
    def schema(self) -> pa.Schema:
        """`FOUND_FIELDS`, then the columns that were asked for."""
        return pa.schema([*FOUND_FIELDS, *self.factory.fields])

    @property
    def entities(self) -> tuple[str, ...]:
        """Those of events."""
        return self.events.entities

    @property
    def scope(self) -> ChildScope | None:
        """The factory above, if this one is itself a child."""
        return self.events.scope

    def with_scope(self, scope: ChildScope) -> CreationsOutput:
        """Return the same output with other children of the factory above."""
        return replace(self, events=self.events.with_scope(scope))

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the creations among all logs of a batch.

        Raises:
            UndecodableLogError: a factory's log has the event's topics but not its content.
        """
        rows = self.events.decode(entities, ranges).table
        names = dict(
            zip(
                (one.name for one in self.factory.event.parameters),
                event_columns(self.factory.event),
                strict=True,
            )
        )
        wanted = [*_PLACE, names[self.factory.child]]
        wanted += [names[one] for one in self.factory.columns]
        return DecodedRows(
            pa.Table.from_arrays([rows[name] for name in wanted], schema=self.schema)
        )


def creations_of(factory: Factory) -> CreationsOutput:
    """Return the output that finds a factory's children. Called by streams on the driver."""
    events = EventsOutput(
        event=factory.event,
        query=event_query(factory.event, factory.contracts, factory.topics),
        ranges=(factory.start,),
        contracts=factory.contracts,
        topics=factory.topics,
        scope=None if factory.parent is None else events_scope(factory.parent),
    )
    return CreationsOutput(factory, events)
