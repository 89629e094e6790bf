"""Outputs of EVM networks: events, calls and raw tables.

    evm.events("erc20.Transfer", contracts=["0xa0b8…"], params={"to": "0x28c6…"}, range="latest")
    evm.calls("transfer(address to, uint256 amount) returns (bool)", source="traces")
    evm.transactions(fields=["from", "to", "value"], to=["0xa0b8…"], range=20_000_000)
    evm.events("Swap(…)", contracts=evm.factory("0x1f98…", "PoolCreated(…)", child="pool"))

All of these are values: made on the driver, pickled to executors, never changed. Decoding is a pure
function of the lines, so a retried task gives the same rows. Raw tables raise `QueryError` if a
field or filter is not known or a value of the wrong kind, `ParameterError` if `decimals` names a
column that cannot be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import Unpack

from headwater.core import Ranges, RangeSpec, parse_ranges
from headwater.decode.columns.field_columns import check_decimals
from headwater.decode.columns.malformed import OnError, check_on_error
from headwater.decode.evm.abi import Event, Function, parse_event, parse_function
from headwater.decode.evm.abi import load_abi as abi
from headwater.decode.evm.calls import CallsOutput, Source, call_columns
from headwater.decode.evm.events import (
    EventsOutput,
    UnionOutput,
    column_type,
    event_columns,
    event_query,
    make_union,
)
from headwater.decode.evm.factory import (
    PREFIX,
    Factory,
    Since,
    check_since,
    scope_in,
)
from headwater.decode.evm.topics import check_address, make_topic_filters
from headwater.decode.evm.types import Elementary, Kind, Parameter, arrow_field, is_wide
from headwater.decode.tables.raw_table import Fields, TableOutput, make_table
from headwater.errors import AddressError, InvalidOptionError, InvalidRangeError, ParameterError
from headwater.query import EvmQuery, Query
from headwater.query.networks.evm import EvmLogs, EvmStateDiffs, EvmTraces, EvmTransactions

__all__ = [
    "CallsOutput",
    "EventsOutput",
    "Factory",
    "TableOutput",
    "UnionOutput",
    "abi",
    "blocks",
    "calls",
    "events",
    "factory",
    "logs",
    "state_diffs",
    "traces",
    "transactions",
    "union",
]


def events(
    event: str | Mapping[str, object] | Event,
    *,
    contracts: str | Iterable[str] | Factory | None = None,
    params: Mapping[str, object] | None = None,
    range: Ranges = None,
    on_error: OnError = "raise",
    decimals: Iterable[str] = (),
) -> EventsOutput:
    """Return the output that holds one event as a table.

    Args:
        event: Solidity text, a JSON ABI entry, an event of `evm.abi`, or a built-in name such as
            "erc20.Transfer".
        contracts: the addresses to take the event from, or the `evm.factory` whose children to take
            it from; None for all contracts. An anonymous event needs them, because nothing in its
            logs names the event.
        params: values of indexed parameters to keep: `{"to": "0x…"}` or `{"to": ["0x…", "0x…"]}`.
        range: the blocks to read, as `headwater.core.parse_ranges` understands them.
        on_error: what to do with a log that has the event's topics but not its content:
            "raise", "skip", or a function of the error, which leaves out what it does not raise
            for. It runs where rows are decoded, on executors too.
        decimals: parameters wider than 120 bits to deliver as decimal(38, 0) instead of text; a
            value of more digits is then an undecodable log.

    Raises:
        SignatureError: the event cannot be understood.
        AddressError: a contract is no address, or there is none in the list.
        ParameterError: `params` or `decimals` name a parameter that cannot serve.
        InvalidRangeError: the range cannot be understood.
        InvalidOptionError: `on_error` is something else.
    """
    check_on_error(on_error)
    parsed = parse_event(event)
    parsed = replace(parsed, parameters=_ask_decimals(parsed.name, parsed.parameters, decimals))
    addresses, parent = _check_contracts(contracts)
    _refuse_taken(event_columns(parsed), parent)
    if parsed.anonymous and contracts is None:
        raise AddressError(
            f"{parsed.name} is anonymous: nothing in its logs names it, so give contracts"
        )
    topics = make_topic_filters(parsed, params or {})
    return EventsOutput(
        event=parsed,
        query=event_query(parsed, addresses, topics),
        ranges=parse_ranges(range),
        contracts=addresses,
        topics=topics,
        on_error=on_error,
        scope=None if parent is None else scope_in(parent, "logs"),
    )


def union(*outputs: EventsOutput) -> UnionOutput:
    """Return the output that holds several events, of one ABI or several, in one table.

    `evm.union(evm.events(v2.event("Swap")), evm.events(v3.event("Swap")))` has a column per name of
    a parameter, null where an event has none of it, and the signature in `event`. Each event may be
    of the children of another factory.

    Raises:
        ParameterError: types of the same name differ, or ranges do.
    """
    return make_union(outputs)


def calls(
    function: str | Mapping[str, object] | Function,
    *,
    contracts: str | Iterable[str] | Factory | None = None,
    source: Source = "transactions",
    range: Ranges = None,
    on_error: OnError = "raise",
    decimals: Iterable[str] = (),
) -> CallsOutput:
    """Return the output that holds the calls of one function as a table.

    Args:
        function: Solidity text, a JSON ABI entry, or a function of `evm.abi`.
        contracts: the addresses that are called, or the `evm.factory` whose children are; None for
            all contracts.
        source: "transactions" for calls from outside; "traces" for all, with what they returned.
        range: the blocks to read, as `headwater.core.parse_ranges` understands them.
        on_error: what to do with a call that has the function's sighash but not its content:
            "raise", "skip", or a function of the error, which leaves out what it does not raise
            for. It runs where rows are decoded, on executors too.
        decimals: inputs and outputs wider than 120 bits to deliver as decimal(38, 0).

    Raises:
        SignatureError: the function cannot be understood.
        AddressError: a contract is no address, or there is none in the list.
        ParameterError: `decimals` names a parameter that cannot serve.
        InvalidRangeError: the range cannot be understood.
        InvalidOptionError: `on_error` or `source` is something else.
    """
    check_on_error(on_error)
    if source not in ("transactions", "traces"):
        raise InvalidOptionError("source is 'transactions' or 'traces'", got=repr(source))
    parsed = parse_function(function)
    both = _ask_decimals(parsed.name, (*parsed.inputs, *parsed.outputs), decimals)
    split = len(parsed.inputs)
    parsed = replace(parsed, inputs=both[:split], outputs=both[split:])
    addresses, parent = _check_contracts(contracts)
    _refuse_taken(call_columns(parsed, source), parent)
    return CallsOutput(
        function=parsed,
        source=source,
        query=_make_calls_query(parsed, addresses, source),
        ranges=parse_ranges(range),
        on_error=on_error,
        scope=None if parent is None else scope_in(parent, source),
    )


def factory(
    address: str | Iterable[str] | Factory,
    event: str | Mapping[str, object] | Event,
    *,
    child: str,
    params: Mapping[str, object] | None = None,
    columns: str | Iterable[str] = (),
    start: int | str | date = 0,
    since: Since = "transaction",
    on_error: OnError = "raise",
) -> Factory:
    """Return contracts that create others, to be given as `contracts` to `events` and `calls`.

    The rows of a child count from the start of the transaction that announces it: many contracts
    log their own set-up before their factory announces them. The first creation of an address
    counts.

    Args:
        address: the contracts that announce; another factory if its children do.
        event: the event that announces a child, written as in `events`.
        child: the parameter of the event that holds the child's address.
        params: values of indexed parameters: creations with others are left out.
        columns: parameters of the event that rows of children get too, as `factory_<name>`.
        start: the first block to look for creations in: a number or a date.
        since: from where on rows of a child count: the start of the "transaction" that announces
            it, the start of that "block", or the "log" itself. With "log", what a child logs before
            it is left out, and so are transactions to it up to that one; all of its traces count.
        on_error: what to do with a log that has the event's topics but not its content: "raise",
            "skip" or a function of the error. A creation that is left out has no child.

    Raises:
        SignatureError: the event cannot be understood.
        AddressError: `address` is none, or an empty list.
        ParameterError: `child`, `params` or `columns` name a parameter that cannot serve.
        InvalidRangeError: `start` is no beginning.
        InvalidOptionError: `since` or `on_error` is something else.
    """
    check_on_error(on_error)
    parsed = parse_event(event)
    addresses, parent = _check_contracts(address)
    if addresses is None and parent is None:
        raise AddressError(
            "a factory needs the address of the contract that announces the children"
        )
    by_name = {parameter.name: parameter for parameter in parsed.parameters}
    if child not in by_name or by_name[child].type != Elementary(Kind.ADDRESS):
        able = [
            parameter.name
            for parameter in parsed.parameters
            if parameter.type == Elementary(Kind.ADDRESS)
        ]
        raise ParameterError(
            f"{child!r} holds no address; of {parsed.name} these do: {', '.join(able) or 'none'}"
        )
    asked = (columns,) if isinstance(columns, str) else tuple(dict.fromkeys(columns))
    simple = {
        parameter.name: column_type(parameter)
        for parameter in parsed.parameters
        if isinstance(column_type(parameter), Elementary)
    }
    for name in asked:
        if name not in simple:
            raise ParameterError(
                f"{name!r} cannot become a column; of {parsed.name} these can: {', '.join(simple)}"
            )
    return Factory(
        event=parsed,
        child=child,
        start=_check_start(start),
        contracts=addresses,
        parent=parent,
        topics=make_topic_filters(parsed, params or {}),
        columns=asked,
        fields=tuple(arrow_field(PREFIX + name, simple[name]) for name in asked),
        on_error=on_error,
        since=check_since(since),
    )


# --- raw tables -----------------------------------------------------------------------------------


def blocks(
    *, fields: Fields = None, range: Ranges = None, decimals: Iterable[str] = ()
) -> TableOutput:
    """Return the table of all blocks. docs/schema.md lists the fields and their types."""
    return make_table(EvmQuery, "blocks", fields, {}, range, decimals)


def transactions(
    *,
    fields: Fields = None,
    range: Ranges = None,
    decimals: Iterable[str] = (),
    **filters: Unpack[EvmTransactions],
) -> TableOutput:
    """Return the table of transactions that match the filters of `EvmQuery.add_transactions`."""
    return make_table(EvmQuery, "transactions", fields, filters, range, decimals)


def logs(*, fields: Fields = None, range: Ranges = None, **filters: Unpack[EvmLogs]) -> TableOutput:
    """Return the table of logs, not decoded, that match the filters of `EvmQuery.add_logs`."""
    return make_table(EvmQuery, "logs", fields, filters, range)


def traces(
    *,
    fields: Fields = None,
    range: Ranges = None,
    decimals: Iterable[str] = (),
    **filters: Unpack[EvmTraces],
) -> TableOutput:
    """Return the table of traces that match the filters of `EvmQuery.add_traces`.

    A trace has the columns of its own `type`; those of the other types are null.
    """
    return make_table(EvmQuery, "traces", fields, filters, range, decimals)


def state_diffs(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[EvmStateDiffs]
) -> TableOutput:
    """Return the table of state changes that match the filters of `EvmQuery.add_state_diffs`."""
    return make_table(EvmQuery, "state_diffs", fields, filters, range)


# --- checks ---------------------------------------------------------------------------------------


def _check_contracts(
    contracts: str | Iterable[str] | Factory | None,
) -> tuple[tuple[str, ...] | None, Factory | None]:
    """Return addresses, or the factory whose children are meant, or neither for all contracts."""
    if contracts is None or isinstance(contracts, Factory):
        return None, contracts
    listed = [contracts] if isinstance(contracts, str) else list(contracts)
    if not listed:
        raise AddressError("contracts is an empty list; leave it out to take all contracts")
    return tuple(dict.fromkeys(check_address(contract, "contracts") for contract in listed)), None


def _check_start(start: object) -> RangeSpec:
    specs = parse_ranges(start)
    if len(specs) != 1 or specs[0].end is not None or specs[0].needs_head:
        raise InvalidRangeError("a factory starts at a block number or a date", got=repr(start))
    return specs[0]


def _refuse_taken(names: list[str], parent: Factory | None) -> None:
    """Columns of a factory must not be called like the output's own."""
    taken = {name.lower() for name in names}
    for field in parent.fields if parent is not None else ():
        if field.name.lower() in taken:
            raise ParameterError(f"the output has a column {field.name!r} of its own; rename it")


def _ask_decimals(
    owner: str, parameters: tuple[Parameter, ...], decimals: Iterable[str]
) -> tuple[Parameter, ...]:
    able = {parameter.name for parameter in parameters if is_wide(parameter.type)}
    asked = check_decimals(decimals, able, f"{owner} these")
    return tuple(
        replace(parameter, type=replace(parameter.type, as_decimal=True))
        if parameter.name in asked and isinstance(parameter.type, Elementary)
        else parameter
        for parameter in parameters
    )


def _make_calls_query(
    function: Function, contracts: tuple[str, ...] | None, source: Source
) -> Query:
    if source == "transactions":
        fields = ["transaction_index", "hash", "from", "to", "input", "sighash", "status"]
        keys = {} if contracts is None else {"to": contracts}
        query = EvmQuery().add_fields(transaction=fields)
        return query.add_filter("transactions", sighash=[function.sighash], **keys)
    fields = ["transaction_index", "trace_address", "type", "error", "call_from", "call_to"]
    fields += ["call_input", "call_sighash"]
    if function.outputs:
        fields.append("call_result_output")
    keys = {} if contracts is None else {"call_to": contracts}
    query = EvmQuery().add_fields(trace=fields, transaction=["transaction_index", "hash"])
    return query.add_filter(
        "traces", type=["call"], call_sighash=[function.sighash], transaction=True, **keys
    )
