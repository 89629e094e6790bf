"""`evm.events`: one event of EVM contracts as a table.

    evm.events("erc20.Transfer", contracts=["0xa0b8…"], params={"to": "0x28c6…"}, range="latest")

Defined on the driver, pickled to executors, never changed. Decoding is a pure function of the logs:
the same batch gives the same rows, whoever decodes it and however often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from headwater.core import BlockRange, RangeSpec, parse_ranges
from headwater.decode.abi import Event, Parameter, parse_event
from headwater.decode.addresses import check_address
from headwater.decode.event_filter import select_logs
from headwater.decode.logs import LOG_SCHEMA
from headwater.decode.malformed import MalformedRowsError
from headwater.decode.output import DecodedRows
from headwater.decode.payload import Payload
from headwater.decode.topic_filters import TopicFilters, make_topic_filters
from headwater.decode.types import Array, Elementary, Kind, Tuple, arrow_type, is_dynamic, is_wide
from headwater.decode.word_text import PARTS, WordText
from headwater.decode.words import decode_words
from headwater.errors import (
    AddressError,
    InvalidOptionError,
    ParameterError,
    SignatureError,
    UndecodableLogError,
)
from headwater.query import EvmQuery, Query

OnError = Literal["raise", "skip"]

_BASE = LOG_SCHEMA.names[: LOG_SCHEMA.get_field_index("topic0")]
_HASH = Elementary(Kind.FIXED_BYTES, 32)


@dataclass(frozen=True, slots=True)
class EventsOutput:
    """The table of one event. Made by `evm.events`.

    Columns: block_number, block_hash, timestamp, transaction_hash, transaction_index, log_index,
    address, then one per parameter, by its name. A parameter called like one of these is prefixed
    with `arg_`.
    """

    event: Event
    query: Query
    ranges: tuple[RangeSpec, ...]
    contracts: tuple[str, ...] | None = None
    topics: TopicFilters = ()
    on_error: OnError = "raise"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table; `headwater.decode.types` says which ABI type becomes which."""
        columns = [
            pa.field(name, arrow_type(_column_type(one)))
            for name, one in zip(_column_names(self.event), self.event.parameters, strict=True)
        ]
        return pa.schema([*(LOG_SCHEMA.field(name) for name in _BASE), *columns])

    def decode(self, logs: pa.Table, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the rows of this event among all logs of a batch, in their order.

        Filters and ranges are checked here again: a batch holds what other outputs asked for too.

        Raises:
            UndecodableLogError: a log has the event's topics but not its content, and `on_error`
                is "raise". With "skip" such logs are left out and counted in the result.
        """
        schema = self.schema
        batches, skipped = [], 0
        for batch in logs.to_batches():
            chosen = select_logs(batch, self.event, self.contracts, self.topics, ranges)
            if chosen.num_rows:
                columns, lost = self._decode_batch(chosen)
                skipped += lost
                batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return DecodedRows(pa.Table.from_batches(batches, schema=schema), skipped)

    def _decode_batch(self, logs: pa.RecordBatch) -> tuple[list[pa.Array], int]:
        skipped = 0
        while True:
            try:
                return self._columns(logs), skipped
            except MalformedRowsError as error:
                if self.on_error == "raise":
                    raise self._explain(logs, error) from None
                keep = np.ones(logs.num_rows, bool)
                keep[error.rows] = False
                skipped += int(logs.num_rows - keep.sum())
                logs = logs.filter(pa.array(keep))

    def _columns(self, logs: pa.RecordBatch) -> list[pa.Array]:
        rows = np.arange(logs.num_rows, dtype=np.int64)
        by_name = {
            one.name: decode_words(
                _topic_type(one), _topic_words(logs.column(f"topic{slot}")), f"'{one.name}'", rows
            )
            for slot, one in enumerate(self.event.indexed, start=1)
        }
        in_data = self.event.unindexed
        columns = Payload(logs.column("data")).decode(in_data) if in_data else []
        by_name.update(zip((one.name for one in in_data), columns, strict=True))
        return [
            *(logs.column(name) for name in _BASE),
            *(by_name[one.name] for one in self.event.parameters),
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


def events(
    event: str | Mapping[str, object] | Event,
    *,
    contracts: str | Iterable[str] | None = None,
    params: Mapping[str, object] | None = None,
    range: object = None,
    on_error: OnError = "raise",
    decimals: Iterable[str] = (),
) -> EventsOutput:
    """Return the output that holds one event as a table.

    Args:
        event: Solidity text, a JSON ABI entry, or a built-in name such as "erc20.Transfer".
        contracts: the addresses to take the event from; None for all contracts.
        params: values of indexed parameters to keep: `{"to": "0x…"}` or `{"to": ["0x…", "0x…"]}`.
        range: the blocks to read, as `headwater.core.parse_ranges` understands them.
        on_error: what to do with a log that has the event's topics but not its content.
        decimals: parameters wider than 120 bits to deliver as decimal(38, 0) instead of text; a
            value of more digits is then an undecodable log.

    Raises:
        SignatureError: the event cannot be understood.
        AddressError: a contract is no address, or there is none in the list.
        ParameterError: `params` or `decimals` name a parameter that cannot serve.
        InvalidRangeError: the range cannot be understood.
        InvalidOptionError: `on_error` is something else.
    """
    if on_error not in ("raise", "skip"):
        raise InvalidOptionError("on_error is 'raise' or 'skip'", got=repr(on_error))
    parsed = _ask_decimals(parse_event(event), decimals)
    _column_names(parsed)
    addresses = _check_contracts(contracts)
    topics = make_topic_filters(parsed, params or {})
    return EventsOutput(
        event=parsed,
        query=_make_query(parsed, addresses, topics),
        ranges=parse_ranges(range),
        contracts=addresses,
        topics=topics,
        on_error=on_error,
    )


def _check_contracts(contracts: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if contracts is None:
        return None
    listed = [contracts] if isinstance(contracts, str) else list(contracts)
    if not listed:
        raise AddressError("contracts is an empty list; leave it out to take all contracts")
    return tuple(dict.fromkeys(check_address(one, "contracts") for one in listed))


def _ask_decimals(event: Event, decimals: Iterable[str]) -> Event:
    asked = {decimals} if isinstance(decimals, str) else set(decimals)
    able = {one.name for one in event.parameters if is_wide(one.type)}
    for name in sorted(asked - able):
        raise ParameterError(
            f"{name!r} cannot be asked for as a decimal; of {event.name} these can: "
            f"{', '.join(sorted(able)) or 'none'}"
        )
    return replace(
        event,
        parameters=tuple(
            replace(one, type=replace(one.type, as_decimal=True))
            if one.name in asked and isinstance(one.type, Elementary)
            else one
            for one in event.parameters
        ),
    )


def _make_query(event: Event, contracts: tuple[str, ...] | None, topics: TopicFilters) -> Query:
    keys: dict[str, object] = {} if contracts is None else {"address": contracts}
    keys["topic0"] = [event.topic0]
    keys.update({f"topic{slot}": values for slot, values in topics})
    fields = ["log_index", "transaction_index", "transaction_hash", "address", "topics", "data"]
    return EvmQuery().add_fields(log=fields).add_filter("logs", **keys)


def _column_names(event: Event) -> list[str]:
    names = [f"arg_{one.name}" if one.name.lower() in _BASE else one.name
             for one in event.parameters]  # fmt: skip
    if len({name.lower() for name in names}) < len(names):
        raise SignatureError(
            "a parameter is called like a column and its replacement is taken too; names do not "
            "change the event, so rename one",
            columns=", ".join(names),
        )
    return names


def _column_type(parameter: Parameter) -> Elementary | Array | Tuple:
    return _topic_type(parameter) if parameter.indexed else parameter.type


def _topic_type(parameter: Parameter) -> Elementary:
    """A topic holds one word: of anything larger, its hash."""
    if isinstance(parameter.type, Elementary) and not is_dynamic(parameter.type):
        return parameter.type
    return _HASH


def _topic_words(topics: pa.BinaryArray) -> WordText:
    """Return topics as words without a copy; every one has 64 digits, as `parse_logs` checked."""
    _, offsets, digits = topics.buffers()
    first = int(np.frombuffer(offsets, np.int32)[topics.offset])
    text = np.frombuffer(digits, np.uint8)[first : first + 8 * PARTS * len(topics)]
    return text.view("<u8").reshape(len(topics), PARTS)
