"""The catalogue of Substrate networks, and `SubstrateQuery`.

Times are milliseconds; a block that sets none (the first one) has none. Names are qualified by the
pallet: `Balances.Transfer`. Some families are of one event or call, and look into its `args`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self, TypedDict, Unpack

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, Relation
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

_Extrinsic = Annotated[bool, Relation("extrinsic")]
_Call = Annotated[bool, Relation("call")]
_Events = Annotated[bool, Relation("event")]
_Names = Annotated[Iterable[str], Condition(ValueKind.QUALIFIED_NAME)]

_ACTIONS = ("transaction.value.action", "transaction.value.destination", "transaction.action")
_INPUTS = ("transaction.value.input", "transaction.value.data", "transaction.input")


def _in_args(width: int, *places: str, is_prefix: bool = False) -> Condition:
    """Return the filter on a value inside `args`; places are keys with dots between them."""
    at = tuple(("args", *place.split(".")) for place in places)
    return Condition(ValueKind.HEX, width=width, at=at, is_prefix=is_prefix)


def _topic(at: int, *places: str) -> Condition:
    return _in_args(32, *(f"{place}.{at}" for place in places))


class _OfAnEvent(TypedDict, total=False):
    extrinsic: _Extrinsic
    call: _Call
    stack: _Call


class SubstrateEvents(_OfAnEvent, total=False):
    """Keys of `add_events`."""

    name: _Names


class SubstrateCalls(TypedDict, total=False):
    """Keys of `add_calls`."""

    name: _Names
    subcalls: _Call
    extrinsic: _Extrinsic
    stack: _Call
    events: _Events


class SubstrateEvmLogs(_OfAnEvent, total=False):
    """Keys of `add_evm_logs`."""

    address: Annotated[Iterable[str], _in_args(20, "log.address", "address")]
    topic0: Annotated[Iterable[str], _topic(0, "log.topics", "topics")]
    topic1: Annotated[Iterable[str], _topic(1, "log.topics", "topics")]
    topic2: Annotated[Iterable[str], _topic(2, "log.topics", "topics")]
    topic3: Annotated[Iterable[str], _topic(3, "log.topics", "topics")]


class SubstrateEthereumTransactions(TypedDict, total=False):
    """Keys of `add_ethereum_transactions`."""

    to: Annotated[Iterable[str], _in_args(20, *(f"{place}.value" for place in _ACTIONS))]
    sighash: Annotated[Iterable[str], _in_args(4, *_INPUTS, is_prefix=True)]
    extrinsic: _Extrinsic
    stack: _Call
    events: _Events


class SubstrateContractsEvents(_OfAnEvent, total=False):
    """Keys of `add_contracts_events`."""

    contract_address: Annotated[Iterable[str], _in_args(32, "contract")]


class SubstrateGearMessagesEnqueued(_OfAnEvent, total=False):
    """Keys of `add_gear_messages_enqueued`."""

    program_id: Annotated[Iterable[str], _in_args(32, "destination")]


class SubstrateGearUserMessagesSent(_OfAnEvent, total=False):
    """Keys of `add_gear_user_messages_sent`."""

    program_id: Annotated[Iterable[str], _in_args(32, "message.source")]


class SubstrateReviveContractEmitted(_OfAnEvent, total=False):
    """Keys of `add_revive_contract_emitted`."""

    contract: Annotated[Iterable[str], _in_args(20, "contract")]
    topic0: Annotated[Iterable[str], _topic(0, "topics")]
    topic1: Annotated[Iterable[str], _topic(1, "topics")]
    topic2: Annotated[Iterable[str], _topic(2, "topics")]
    topic3: Annotated[Iterable[str], _topic(3, "topics")]


def _events(wire: str, keys: type, *names: str) -> Family:
    return Family.of(wire, "event", keys, implied=("name", names))


SUBSTRATE = Network(
    "substrate",
    (
        header(_BLOCK),
        Entity("extrinsic", "extrinsics", _EXTRINSIC, key=("index",)),
        Entity("call", "calls", _CALL, key=("extrinsicIndex", "address")),
        Entity("event", "events", _EVENT, key=("index",)),
    ),
    (
        Family.of("events", "event", SubstrateEvents),
        Family.of("calls", "call", SubstrateCalls),
        _events("evmLogs", SubstrateEvmLogs, "EVM.Log"),
        Family.of(
            "ethereumTransactions",
            "call",
            SubstrateEthereumTransactions,
            implied=("name", ("Ethereum.transact",)),
        ),
        _events("contractsEvents", SubstrateContractsEvents, "Contracts.ContractEmitted"),
        _events(
            "gearMessagesEnqueued",
            SubstrateGearMessagesEnqueued,
            "Gear.MessageQueued",
            "Gear.UserMessageEnqueued",
        ),
        _events("gearUserMessagesSent", SubstrateGearUserMessagesSent, "Gear.UserMessageSent"),
        _events("reviveContractEmitted", SubstrateReviveContractEmitted, "Revive.ContractEmitted"),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SubstrateQuery(Query):
    """A query of a Substrate network. Extrinsics come with the flag `extrinsic` alone."""

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
