"""Events of EVM contracts as tables: one event, several events in one table, and creations.

Made by `evm.events`, `evm.union` and factories on the driver, pickled to executors, never changed.
Decoding is a pure function of the logs: the same batch gives the same rows, wherever and however
often it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange, RangeSpec
from headwater.decode.columns.buffers import text_of
from headwater.decode.columns.field_columns import name_columns
from headwater.decode.columns.integers import PARTS, WordText
from headwater.decode.columns.malformed import MalformedRowsError, OnError
from headwater.decode.columns.row_filter import in_ranges, is_one_of, keep_rows
from headwater.decode.evm.abi import Event
from headwater.decode.evm.factory import FOUND_FIELDS, ChildScope, Factory, scope_in
from headwater.decode.evm.payload import Payload, decode_words
from headwater.decode.evm.topics import TopicFilters
from headwater.decode.evm.types import (
    Array,
    Elementary,
    Kind,
    Parameter,
    Tuple,
    arrow_field,
    is_dynamic,
)
from headwater.decode.lines.entities import Entities
from headwater.decode.lines.logs import LOG_SCHEMA, TOPICS
from headwater.decode.output import DecodedRows, decode_rows
from headwater.errors import ParameterError, UndecodableLogError
from headwater.query import EvmQuery, Query, merge_queries

BASE_COLUMNS = LOG_SCHEMA.names[: LOG_SCHEMA.get_field_index("topic0")]
"""What every row of every event begins with."""

_PLACE = [field.name for field in FOUND_FIELDS[:-1]]
_HASH = Elementary(Kind.FIXED_BYTES, 32)


@dataclass(frozen=True, slots=True)
class EventsOutput:
    """The table of one event. Made by `evm.events`.

    Columns: block_number, block_hash, timestamp, transaction_hash, transaction_index, log_index,
    address, then one per parameter, by its name. A parameter called like one of these is prefixed
    with `arg_`. Last, what `scope` asks for of the factory's event.
    """

    event: Event
    query: Query
    ranges: tuple[RangeSpec, ...]
    contracts: tuple[str, ...] | None = None
    topics: TopicFilters = ()
    on_error: OnError = "raise"
    scope: ChildScope | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table; `evm.types` says which ABI type becomes which."""
        return self._event_schema

    @property
    def _event_schema(self) -> pa.Schema:
        columns = [
            arrow_field(name, column_type(parameter))
            for name, parameter in zip(
                event_columns(self.event), self.event.parameters, strict=True
            )
        ]
        details = self.scope.factory.fields if self.scope is not None else ()
        return pa.schema([*(LOG_SCHEMA.field(name) for name in BASE_COLUMNS), *columns, *details])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the rows of this event among all logs of a batch, in their order.

        Filters and ranges are checked here again: a batch holds what other outputs asked for too.

        Raises:
            UndecodableLogError: a log has the event's topics but not its content, and `on_error`
                is "raise". With "skip" such logs are left out and counted in the result.
        """
        own = self._own_rows(entities, ranges)
        rows = decode_rows(own, self._event_schema, self._columns, self.on_error, self._explain)
        is_enough = rows.table.num_rows or rows.skipped or self.event.anonymous
        return rows if is_enough else replace(rows, unlike=self._count_unlike(entities, ranges))

    def _own_rows(
        self, entities: Entities, ranges: Sequence[BlockRange]
    ) -> Iterator[pa.RecordBatch]:
        for batch in entities["log"].to_batches():
            chosen = select_logs(batch, self.event, self.contracts, self.topics, ranges)
            if self.scope is not None:
                chosen = self.scope.select(chosen)
            if chosen.num_rows:
                yield chosen

    def _count_unlike(self, entities: Entities, ranges: Sequence[BlockRange]) -> int:
        """Count logs of these contracts with this topic and another number of topics."""
        count = 0
        for batch in entities["log"].to_batches():
            logs = select_logs(batch, self.event, self.contracts, (), ranges, unlike=True)
            count += (logs if self.scope is None else self.scope.select(logs)).num_rows
        return count

    def _columns(self, logs: pa.RecordBatch) -> list[pa.Array]:
        rows = np.arange(logs.num_rows, dtype=np.int64)
        by_name = {
            parameter.name: decode_words(
                _topic_type(parameter),
                _topic_words(logs.column(f"topic{slot}")),
                f"'{parameter.name}'",
                rows,
            )
            for slot, parameter in enumerate(self.event.indexed, start=self.event.first_topic)
        }
        in_data = self.event.unindexed
        columns = Payload(logs.column("data")).decode(in_data) if in_data else []
        by_name.update(zip((parameter.name for parameter in in_data), columns, strict=True))
        return [
            *(logs.column(name) for name in BASE_COLUMNS),
            *(by_name[parameter.name] for parameter in self.event.parameters),
            *logs.columns[len(LOG_SCHEMA) :],
        ]

    def _explain(self, logs: pa.RecordBatch, error: MalformedRowsError) -> UndecodableLogError:
        row = logs.slice(int(error.rows.min()), 1).to_pylist()[0]
        return UndecodableLogError(
            f"a log is no {self.event.signature}: {error.reason}",
            block=row["block_number"],
            log_index=row["log_index"],
            transaction=row["transaction_hash"],
            contract=row["address"],
        )


def event_columns(event: Event) -> list[str]:
    """Return the names of the columns that hold the parameters.

    Raises:
        SignatureError: a parameter is called like a column, and its replacement is taken too.
    """
    return name_columns(BASE_COLUMNS, {"arg": [parameter.name for parameter in event.parameters]})


def event_query(event: Event, contracts: tuple[str, ...] | None, topics: TopicFilters) -> Query:
    """Return what to ask for: the logs of an event, from these contracts or from all."""
    keys: dict[str, object] = {} if contracts is None else {"address": contracts}
    if not event.anonymous:
        keys["topic0"] = [event.topic0]
    keys.update({f"topic{slot}": values for slot, values in topics})
    fields = ["log_index", "transaction_index", "transaction_hash", "address", "topics", "data"]
    return EvmQuery().add_fields(log=fields).add_filter("logs", **keys)


def column_type(parameter: Parameter) -> Elementary | Array | Tuple:
    """Return the type of a parameter's column: of a topic, what one word can hold."""
    return _topic_type(parameter) if parameter.indexed else parameter.type


def _topic_type(parameter: Parameter) -> Elementary:
    """A topic holds one word: of anything larger, its hash."""
    if isinstance(parameter.type, Elementary) and not is_dynamic(parameter.type):
        return parameter.type
    return _HASH


def _topic_words(topics: pa.BinaryArray) -> WordText:
    """Return topics as words without a copy; every one has 64 digits, as `parse_logs` checked."""
    return text_of(topics).view("<u8").reshape(len(topics), PARTS)


def select_logs(
    batch: pa.RecordBatch,
    event: Event,
    contracts: tuple[str, ...] | None,
    topics: TopicFilters,
    ranges: Sequence[BlockRange],
    *,
    unlike: bool = False,
) -> pa.RecordBatch:
    """Return the logs of this event, these contracts, these topics and these blocks.

    The number of topics must be the event's too: ERC-20 and ERC-721 share a Transfer signature and
    differ only in what is indexed. `unlike` asks for those of other numbers. Called by
    `EventsOutput.decode`.
    """
    alike = _has_topics(batch, len(event.indexed) + event.first_topic)
    checks = [
        *in_ranges(batch.column("block_number"), ranges),
        *([pc.invert(reduce(pc.and_, alike))] if unlike else alike),
        *(
            is_one_of(batch.column(f"topic{slot}"), [value[2:].encode() for value in values])
            for slot, values in topics
        ),
    ]
    if not event.anonymous:
        checks.append(is_one_of(batch.column("topic0"), [event.topic0[2:].encode()]))
    if contracts is not None:
        checks.append(is_one_of(batch.column("address"), contracts))
    return keep_rows(batch, checks)


def _has_topics(batch: pa.RecordBatch, count: int) -> list[pa.BooleanArray]:
    """Topics fill their slots from the first on, so the last one and its successor tell."""
    checks = [pc.is_valid(batch.column(f"topic{count - 1}"))] if count else []
    if count < TOPICS:
        checks.append(pc.is_null(batch.column(f"topic{count}")))
    return checks


EVENT = "event"


@dataclass(frozen=True, slots=True)
class UnionOutput:
    """One table of several events, in the order of the chain; each may follow its own factory.

    Columns: those that all events have, `event` with the signature, then one per name of a
    parameter and of what is asked of a factory; null in the rows of events that have none of it.
    """

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
        """The columns of the table; which integers a text holds only where all events agree."""
        fields: dict[str, pa.Field] = {}
        for part in self.parts:
            for field in part.schema:
                same = fields.setdefault(field.name, field).equals(field, check_metadata=True)
                fields[field.name] = field if same else field.remove_metadata()
        base = [fields.pop(name) for name in BASE_COLUMNS]
        return pa.schema([*base, pa.field(EVENT, pa.string()), *fields.values()])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the rows of all these events, in the order of the chain.

        Each event's own filters are checked again. A log that two of them match gives two rows.

        Raises:
            UndecodableLogError: as `EventsOutput.decode`.
        """
        schema, tables, skipped, unlike = self.schema, [], 0, 0
        for part in self.parts:
            rows = part.decode(entities, ranges)
            skipped, unlike = skipped + rows.skipped, unlike + rows.unlike
            tables.append(_widen(rows.table, part.event.signature, schema))
        order = [("block_number", "ascending"), ("log_index", "ascending")]
        table = pa.concat_tables(tables).sort_by(order).combine_chunks()
        return DecodedRows(table, skipped, 0 if table.num_rows else unlike)


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
        for field in part.schema:
            known, owner = kinds.setdefault(field.name.lower(), (field.type, part.event.signature))
            if known != field.type or field.name.lower() == EVENT:
                raise ParameterError(
                    f"the events of a union have one column {field.name!r}, but its types differ "
                    "or the name is taken; rename a parameter, which does not change what is "
                    "decoded",
                    events=f"{owner}, {part.event.signature}",
                    types=f"{known}, {field.type}",
                )
    return UnionOutput(tuple(parts))


def _widen(table: pa.Table, signature: str, schema: pa.Schema) -> pa.Table:
    extended = table.append_column(EVENT, pa.array([signature] * table.num_rows, pa.string()))
    columns = [
        extended[field.name]
        if field.name in extended.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class CreationsOutput(EventsOutput):
    """The creations of a factory: the place of each, the child, and the asked columns.

    An output like any other, so that creations are fetched, decoded and read in parallel as events
    are; users never see it. `child` and `details` are columns of the announcing event.
    """

    child: str = ""
    details: tuple[str, ...] = ()
    fields: tuple[pa.Field, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """`FOUND_FIELDS`, then the columns that were asked for."""
        return pa.schema([*FOUND_FIELDS, *self.fields])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the creations among all logs of a batch.

        Raises:
            UndecodableLogError: a factory's log has the event's topics but not its content, and
                the factory's `on_error` is "raise".
        """
        rows = EventsOutput.decode(self, entities, ranges)
        columns = [rows.table[name] for name in (*_PLACE, self.child, *self.details)]
        return DecodedRows(pa.Table.from_arrays(columns, schema=self.schema), rows.skipped)


def creations_of(factory: Factory) -> CreationsOutput:
    """Return the output that finds a factory's children. Called by streams on the driver."""
    event = factory.event
    parameters = (parameter.name for parameter in event.parameters)
    columns = dict(zip(parameters, event_columns(event), strict=True))
    return CreationsOutput(
        event=event,
        query=event_query(event, factory.contracts, factory.topics),
        ranges=(factory.start,),
        contracts=factory.contracts,
        topics=factory.topics,
        on_error=factory.on_error,
        scope=None if factory.parent is None else scope_in(factory.parent, "logs"),
        child=columns[factory.child],
        details=tuple(columns[name] for name in factory.columns),
        fields=factory.fields,
    )
