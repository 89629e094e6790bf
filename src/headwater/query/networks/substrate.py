"""The catalogue of Substrate networks, and `SubstrateQuery`.

Times are milliseconds; a block that sets none (the first one) has none. Names are qualified by the
pallet: `Balances.Transfer`. Some families are of one event or call, and look into its `args`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self, TypedDict, Unpack

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, LogKeys, related
from headwater.query.query import Query
from headwater.query.values import Condition, ValueKind

_NUMBER, _HEX, _STRING, _JSON = WireType.NUMBER, WireType.HEX, WireType.STRING, WireType.JSON
_WIDE, _BOOL, _OPTIONAL = WireType.WIDE_DECIMAL, WireType.BOOL, Presence.OPTIONAL

_BLOCK = (
    Field("number", _NUMBER),
    *fields("hash parentHash stateRoot extrinsicsRoot", _HEX),
    Field("digest", _JSON),
    Field("specName", _STRING),
    Field("specVersion", _NUMBER),
    Field("implName", _STRING),
    Field("implVersion", _NUMBER),
    Field("timestamp", WireType.MILLISECONDS, _OPTIONAL),
    Field("validator", _HEX, _OPTIONAL),
)

_EXTRINSIC = (
    Field("index", WireType.INDEX),
    Field("version", _NUMBER),
    Field("success", _BOOL, _OPTIONAL),
    Field("hash", _HEX, _OPTIONAL),
    *fields("fee tip", _WIDE, _OPTIONAL),
    *fields("signature error", _JSON, _OPTIONAL),
)

_CALL = (
    Field("extrinsicIndex", WireType.INDEX),
    Field("address", _NUMBER, is_list=True),
    Field("name", _STRING),
    Field("success", _BOOL, _OPTIONAL),
    *fields("args origin error", _JSON, _OPTIONAL),
)

_EVENT = (
    Field("index", _NUMBER),
    Field("extrinsicIndex", WireType.INDEX, _OPTIONAL),
    *fields("name phase", _STRING),
    Field("callAddress", _NUMBER, _OPTIONAL, is_list=True),
    Field("topics", _HEX, _OPTIONAL, is_list=True),
    Field("args", _JSON, _OPTIONAL),
)

_OF_AN_EVENT = related(extrinsic="extrinsic", call="call", stack="call")
_OF_A_CALL = related(extrinsic="extrinsic", stack="call", events="event")


def _in_args(wire: str, width: int, *places: str, is_prefix: bool = False) -> Condition:
    """Return the filter on a value inside `args`; places are keys with dots between them."""
    at = tuple(("args", *place.split(".")) for place in places)
    return Condition(wire, ValueKind.HEX, width=width, at=at, is_prefix=is_prefix)


def _topics(*places: str) -> tuple[Condition, ...]:
    return tuple(
        _in_args(f"topic{at}", 32, *(f"{place}.{at}" for place in places)) for at in range(4)
    )


_ACTIONS = ("transaction.value.action", "transaction.value.destination", "transaction.action")
_INPUTS = ("transaction.value.input", "transaction.value.data", "transaction.input")


def _events(wire: str, names: tuple[str, ...], *conditions: Condition) -> Family:
    return Family(wire, "event", conditions, _OF_AN_EVENT, implied=("name", names))


SUBSTRATE = Network(
    "substrate",
    (
        header(_BLOCK),
        Entity("extrinsic", "extrinsics", _EXTRINSIC, key=("index",)),
        Entity("call", "calls", _CALL, key=("extrinsicIndex", "address")),
        Entity("event", "events", _EVENT, key=("index",)),
    ),
    (
        Family("events", "event", (Condition("name", ValueKind.QUALIFIED_NAME),), _OF_AN_EVENT),
        Family(
            "calls",
            "call",
            (Condition("name", ValueKind.QUALIFIED_NAME),),
            (*related(subcalls="call"), *_OF_A_CALL),
        ),
        _events(
            "evmLogs",
            ("EVM.Log",),
            _in_args("address", 20, "log.address", "address"),
            *_topics("log.topics", "topics"),
        ),
        Family(
            "ethereumTransactions",
            "call",
            (
                _in_args("to", 20, *(f"{place}.value" for place in _ACTIONS)),
                _in_args("sighash", 4, *_INPUTS, is_prefix=True),
            ),
            _OF_A_CALL,
            implied=("name", ("Ethereum.transact",)),
        ),
        _events(
            "contractsEvents",
            ("Contracts.ContractEmitted",),
            _in_args("contractAddress", 32, "contract"),
        ),
        _events(
            "gearMessagesEnqueued",
            ("Gear.MessageQueued", "Gear.UserMessageEnqueued"),
            _in_args("programId", 32, "destination"),
        ),
        _events(
            "gearUserMessagesSent",
            ("Gear.UserMessageSent",),
            _in_args("programId", 32, "message.source"),
        ),
        _events(
            "reviveContractEmitted",
            ("Revive.ContractEmitted",),
            _in_args("contract", 20, "contract"),
            *_topics("topics"),
        ),
    ),
)


class SubstrateEvents(TypedDict, total=False):
    """Keys of `add_events`."""

    name: Iterable[str]
    extrinsic: bool
    call: bool
    stack: bool


class SubstrateCalls(TypedDict, total=False):
    """Keys of `add_calls`."""

    name: Iterable[str]
    subcalls: bool
    extrinsic: bool
    stack: bool
    events: bool


class SubstrateEvmLogs(LogKeys, total=False):
    """Keys of `add_evm_logs`."""

    extrinsic: bool
    call: bool
    stack: bool


class SubstrateEthereumTransactions(TypedDict, total=False):
    """Keys of `add_ethereum_transactions`."""

    to: Iterable[str]
    sighash: Iterable[str]
    extrinsic: bool
    stack: bool
    events: bool


class SubstrateContractsEvents(TypedDict, total=False):
    """Keys of `add_contracts_events`."""

    contract_address: Iterable[str]
    extrinsic: bool
    call: bool
    stack: bool


class SubstrateGearMessagesEnqueued(TypedDict, total=False):
    """Keys of `add_gear_messages_enqueued`."""

    program_id: Iterable[str]
    extrinsic: bool
    call: bool
    stack: bool


class SubstrateGearUserMessagesSent(SubstrateGearMessagesEnqueued, total=False):
    """Keys of `add_gear_user_messages_sent`."""


class SubstrateReviveContractEmitted(TypedDict, total=False):
    """Keys of `add_revive_contract_emitted`."""

    contract: Iterable[str]
    topic0: Iterable[str]
    topic1: Iterable[str]
    topic2: Iterable[str]
    topic3: Iterable[str]
    extrinsic: bool
    call: bool
    stack: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SubstrateQuery(Query):
    """What to ask of a Substrate network. Extrinsics come with the flag `extrinsic` alone."""

    network: ClassVar[Network] = SUBSTRATE

    def add_events(self, **keys: Unpack[SubstrateEvents]) -> Self:
        """Add a filter on events."""
        return self.add_filter("events", **keys)

    def add_calls(self, **keys: Unpack[SubstrateCalls]) -> Self:
        """Add a filter on calls, outer and inner alike."""
        return self.add_filter("calls", **keys)

    def add_evm_logs(self, **keys: Unpack[SubstrateEvmLogs]) -> Self:
        """Add a filter on `EVM.Log` events."""
        return self.add_filter("evm_logs", **keys)

    def add_ethereum_transactions(self, **keys: Unpack[SubstrateEthereumTransactions]) -> Self:
        """Add a filter on `Ethereum.transact` calls."""
        return self.add_filter("ethereum_transactions", **keys)

    def add_contracts_events(self, **keys: Unpack[SubstrateContractsEvents]) -> Self:
        """Add a filter on `Contracts.ContractEmitted` events."""
        return self.add_filter("contracts_events", **keys)

    def add_gear_messages_enqueued(self, **keys: Unpack[SubstrateGearMessagesEnqueued]) -> Self:
        """Add a filter on messages that wait for a Gear program."""
        return self.add_filter("gear_messages_enqueued", **keys)

    def add_gear_user_messages_sent(self, **keys: Unpack[SubstrateGearUserMessagesSent]) -> Self:
        """Add a filter on messages that a Gear program sent."""
        return self.add_filter("gear_user_messages_sent", **keys)

    def add_revive_contract_emitted(self, **keys: Unpack[SubstrateReviveContractEmitted]) -> Self:
        """Add a filter on `Revive.ContractEmitted` events."""
        return self.add_filter("revive_contract_emitted", **keys)
