"""The catalogue of EVM networks, and `EvmQuery`.

Some columns are younger than their chain: `baseFeePerGas` (London), `blobGasUsed` and
`excessBlobGas` (Cancun), a receipt's `status` (Byzantium). They are optional here, because a stream
may begin before them. Others are not what every chain has: a header without proof of work lacks
`nonce`, `mixHash` and `difficulty`; a transaction that batches several has no `value`, `input` or
signature of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self, TypedDict, Unpack, get_args

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, Relation
from headwater.query.query import Query
from headwater.query.values import Condition, ValueKind

_NUMBER, _HEX, _QUANTITY = WireType.NUMBER, WireType.HEX, WireType.QUANTITY
_STRING, _OBJECT = WireType.STRING, WireType.OBJECT
_OPTIONAL, _NULLABLE = Presence.OPTIONAL, Presence.NULLABLE

_WITHDRAWAL = (
    *fields("index validatorIndex", _QUANTITY),
    Field("address", _HEX),
    Field("amount", _QUANTITY),
)

_BLOCK = (
    Field("number", _NUMBER),
    *fields("hash parentHash", _HEX),
    Field("timestamp", WireType.SECONDS),
    *fields("transactionsRoot receiptsRoot stateRoot logsBloom sha3Uncles", _HEX),
    *fields("extraData miner", _HEX),
    *fields("nonce mixHash", _HEX, _OPTIONAL),
    Field("size", _NUMBER),
    *fields("gasLimit gasUsed", _QUANTITY),
    *fields("difficulty totalDifficulty baseFeePerGas", _QUANTITY, _OPTIONAL),
    *fields("blobGasUsed excessBlobGas", _QUANTITY, _OPTIONAL),
    Field("l1BlockNumber", _NUMBER, _OPTIONAL),
    Field("uncles", _HEX, _OPTIONAL, is_list=True),
    Field("withdrawalsRoot", _HEX, _OPTIONAL),
    Field("withdrawals", _OBJECT, _OPTIONAL, is_list=True, members=_WITHDRAWAL),
    # Known to servers, not to the SDK: Cancun and Prague, then Tempo.
    *fields("parentBeaconBlockRoot requestsHash", _HEX, _OPTIONAL),
    *fields("mainBlockGeneralGasLimit sharedGasLimit timestampMillisPart", _QUANTITY, _OPTIONAL),
)

_ACCESS = (Field("address", _HEX), Field("storageKeys", _HEX, is_list=True))

_AUTHORIZATION = (
    Field("chainId", _QUANTITY),
    Field("address", _HEX),
    Field("nonce", WireType.NUMBER_OR_DECIMAL),
    Field("yParity", _NUMBER),
    *fields("r s", _HEX),
)

_TRANSACTION = (
    Field("transactionIndex", WireType.INDEX),
    Field("hash", _HEX),
    Field("nonce", WireType.NUMBER_OR_DECIMAL),
    Field("from", _HEX),
    Field("to", _HEX, _OPTIONAL),
    Field("input", _HEX, _OPTIONAL),
    Field("value", _QUANTITY, _OPTIONAL),
    Field("gas", _QUANTITY),
    *fields("gasPrice maxFeePerGas maxPriorityFeePerGas", _QUANTITY, _OPTIONAL),
    Field("v", _QUANTITY, _OPTIONAL),
    *fields("r s", _HEX, _OPTIONAL),
    *fields("yParity chainId", _NUMBER, _OPTIONAL),
    *fields("sighash contractAddress", _HEX, _OPTIONAL),
    *fields("gasUsed cumulativeGasUsed", _QUANTITY),
    Field("effectiveGasPrice", _QUANTITY, _OPTIONAL),
    Field("type", _NUMBER, _OPTIONAL),
    Field("status", _NUMBER, _OPTIONAL),
    Field("logsBloom", _HEX, _OPTIONAL),
    Field("blobVersionedHashes", _HEX, _OPTIONAL, is_list=True),
    Field("accessList", _OBJECT, _OPTIONAL, is_list=True, members=_ACCESS),
    Field("l1Fee", _QUANTITY, _OPTIONAL),
    Field("l1FeeScalar", WireType.FLOAT, _OPTIONAL),
    *fields("l1GasPrice l1GasUsed l1BlobBaseFee", _QUANTITY, _OPTIONAL),
    *fields("l1BlobBaseFeeScalar l1BaseFeeScalar", _NUMBER, _OPTIONAL),
    # Known to servers, not to the SDK.
    *fields("maxFeePerBlobGas blobGasUsed blobGasPrice", _QUANTITY, _OPTIONAL),
    Field("authorizationList", _OBJECT, _OPTIONAL, is_list=True, members=_AUTHORIZATION),
)

_LOG = (
    *fields("logIndex transactionIndex", WireType.INDEX),
    *fields("transactionHash address data", _HEX),
    Field("topics", _HEX, is_list=True),
)


def _action(
    variant: str, wire: str, key: str, kind: WireType, presence: Presence = Presence.REQUIRED
) -> Field:
    return Field(wire, kind, presence, nested=("action", key), variant=variant)


def _result(variant: str, wire: str, key: str, kind: WireType, presence: Presence) -> Field:
    return Field(wire, kind, presence, nested=("result", key), variant=variant)


_TRACE = (
    Field("type", _STRING),
    Field("transactionIndex", WireType.INDEX),
    Field("traceAddress", _NUMBER, is_list=True),
    Field("subtraces", _NUMBER),
    Field("error", _STRING, _NULLABLE),
    Field("revertReason", _STRING, _OPTIONAL),
    _action("create", "createFrom", "from", _HEX),
    _action("create", "createValue", "value", _QUANTITY, _OPTIONAL),
    _action("create", "createGas", "gas", _QUANTITY),
    _action("create", "createInit", "init", _HEX),
    _result("create", "createResultGasUsed", "gasUsed", _QUANTITY, _NULLABLE),
    _result("create", "createResultCode", "code", _HEX, _OPTIONAL),
    _result("create", "createResultAddress", "address", _HEX, _NULLABLE),
    # Servers also know `callType`, which puts the same value at action.type; one of them is enough.
    _action("call", "callCallType", "callType", _STRING),
    _action("call", "callFrom", "from", _HEX),
    _action("call", "callTo", "to", _HEX),
    _action("call", "callValue", "value", _QUANTITY, _OPTIONAL),
    _action("call", "callGas", "gas", _QUANTITY),
    _action("call", "callInput", "input", _HEX),
    _action("call", "callSighash", "sighash", _HEX, _OPTIONAL),
    _result("call", "callResultGasUsed", "gasUsed", _QUANTITY, _NULLABLE),
    _result("call", "callResultOutput", "output", _HEX, _OPTIONAL),
    _action("suicide", "suicideAddress", "address", _HEX, _NULLABLE),
    _action("suicide", "suicideRefundAddress", "refundAddress", _HEX, _NULLABLE),
    _action("suicide", "suicideBalance", "balance", _QUANTITY, _NULLABLE),
    _action("reward", "rewardAuthor", "author", _HEX),
    _action("reward", "rewardValue", "value", _QUANTITY),
    _action("reward", "rewardType", "type", _STRING),
)

_STATE_DIFF = (
    Field("transactionIndex", WireType.INDEX),
    Field("address", _HEX),
    Field("key", _STRING),  # "balance", "code", "nonce" or a storage slot
    Field("kind", _STRING),  # "+" created, "-" deleted, "*" changed, "=" the same
    Field("prev", _HEX, _OPTIONAL),  # known to servers, not to the SDK: absent for "+"
    Field("next", _HEX, _OPTIONAL),  # likewise: absent for "-"
)


_Addresses = Annotated[Iterable[str], Condition(ValueKind.HEX, width=20)]
_Sighashes = Annotated[Iterable[str], Condition(ValueKind.HEX, width=4)]
_Transaction = Annotated[bool, Relation("transaction")]
_Logs = Annotated[bool, Relation("log")]
_Traces = Annotated[bool, Relation("trace")]
_StateDiffs = Annotated[bool, Relation("stateDiff")]

TraceType = Literal["create", "call", "suicide", "reward"]
DiffKind = Literal["+", "-", "*", "="]


def _topic(place: int) -> Condition:
    return Condition(ValueKind.HEX, width=32, at=(("topics", str(place)),))


def _nonce(bound: Literal["least", "most"]) -> Condition:
    return Condition(ValueKind.NUMBER, is_list=False, at=(("nonce",),), bound=bound)


class EvmLogs(TypedDict, total=False):
    """Keys of `add_logs` on EVM."""

    address: _Addresses
    topic0: Annotated[Iterable[str], _topic(0)]
    topic1: Annotated[Iterable[str], _topic(1)]
    topic2: Annotated[Iterable[str], _topic(2)]
    topic3: Annotated[Iterable[str], _topic(3)]
    transaction: _Transaction
    transaction_traces: _Traces
    transaction_logs: _Logs
    transaction_state_diffs: _StateDiffs


class EvmTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on EVM."""

    to: _Addresses
    from_: _Addresses
    sighash: _Sighashes
    type: Annotated[Iterable[int], Condition(ValueKind.NUMBER)]
    first_nonce: Annotated[int, _nonce("least")]  # known to servers, not to the SDK
    last_nonce: Annotated[int, _nonce("most")]
    logs: _Logs
    traces: _Traces
    state_diffs: _StateDiffs


class EvmTraces(TypedDict, total=False):
    """Keys of `add_traces`."""

    type: Annotated[Iterable[TraceType], Condition(ValueKind.CHOICE, choices=get_args(TraceType))]
    create_from: _Addresses
    create_result_address: _Addresses  # known to servers, not to the SDK
    call_to: _Addresses
    call_from: _Addresses
    call_sighash: _Sighashes
    call_call_type: Annotated[Iterable[str], Condition(ValueKind.TEXT)]  # these two as well
    suicide_address: _Addresses
    suicide_refund_address: _Addresses
    reward_author: _Addresses
    transaction: _Transaction
    transaction_logs: _Logs
    transaction_traces: _Traces
    subtraces: _Traces
    parents: _Traces


class EvmStateDiffs(TypedDict, total=False):
    """Keys of `add_state_diffs`."""

    address: _Addresses
    key: Annotated[
        Iterable[str], Condition(ValueKind.HEX, width=32, choices=("balance", "code", "nonce"))
    ]
    kind: Annotated[Iterable[DiffKind], Condition(ValueKind.CHOICE, choices=get_args(DiffKind))]
    transaction: _Transaction


EVM = Network(
    "evm",
    (
        header(_BLOCK),
        Entity("transaction", "transactions", _TRANSACTION, key=("transactionIndex",)),
        Entity("log", "logs", _LOG, key=("logIndex",)),
        # `type` says which of the nested fields a trace has, so no trace can be read without it.
        Entity(
            "trace",
            "traces",
            _TRACE,
            forced=("type",),
            key=("transactionIndex", "traceAddress"),
        ),
        Entity("stateDiff", "stateDiffs", _STATE_DIFF, key=("transactionIndex", "address", "key")),
    ),
    (
        Family.of("logs", "log", EvmLogs),
        Family.of("transactions", "transaction", EvmTransactions),
        Family.of("traces", "trace", EvmTraces),
        Family.of("stateDiffs", "stateDiff", EvmStateDiffs),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EvmQuery(Query):
    """A query of an EVM network."""

    network: ClassVar[Network] = EVM

    def add_logs(self, **keys: Unpack[EvmLogs]) -> Self:
        """Add a filter on event logs."""
        return self.add_filter("logs", **keys)

    def add_transactions(self, **keys: Unpack[EvmTransactions]) -> Self:
        """Add a filter on transactions. The sender is `from_`, because `from` is Python's."""
        return self.add_filter("transactions", **keys)

    def add_traces(self, **keys: Unpack[EvmTraces]) -> Self:
        """Add a filter on execution traces."""
        return self.add_filter("traces", **keys)

    def add_state_diffs(self, **keys: Unpack[EvmStateDiffs]) -> Self:
        """Add a filter on state changes."""
        return self.add_filter("state_diffs", **keys)
