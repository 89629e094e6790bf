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
from typing import ClassVar, Literal, Self, TypedDict, Unpack

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, LogKeys, related
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


def _addresses(wire: str) -> Condition:
    return Condition(wire, ValueKind.HEX, width=20)


_LOGS = Family(
    "logs",
    "log",
    (
        _addresses("address"),
        *(Condition(f"topic{index}", ValueKind.HEX, width=32) for index in range(4)),
    ),
    related(
        transaction="transaction",
        transactionTraces="trace",
        transactionLogs="log",
        transactionStateDiffs="stateDiff",
    ),
)

_TRANSACTIONS = Family(
    "transactions",
    "transaction",
    (
        _addresses("to"),
        _addresses("from"),
        Condition("sighash", ValueKind.HEX, width=4),
        Condition("type", ValueKind.NUMBER),
        Condition("firstNonce", ValueKind.NUMBER, is_list=False),  # known to servers, not to
        Condition("lastNonce", ValueKind.NUMBER, is_list=False),  # the SDK: nonces, both included
    ),
    related(logs="log", traces="trace", stateDiffs="stateDiff"),
)

_TRACES = Family(
    "traces",
    "trace",
    (
        Condition("type", ValueKind.CHOICE, choices=("create", "call", "suicide", "reward")),
        _addresses("createFrom"),
        _addresses("createResultAddress"),  # known to servers, not to the SDK
        _addresses("callTo"),
        _addresses("callFrom"),
        Condition("callSighash", ValueKind.HEX, width=4),
        Condition("callCallType", ValueKind.TEXT),  # these two as well
        _addresses("suicideAddress"),
        _addresses("suicideRefundAddress"),
        _addresses("rewardAuthor"),
    ),
    related(
        transaction="transaction",
        transactionLogs="log",
        transactionTraces="trace",
        subtraces="trace",
        parents="trace",
    ),
)

_STATE_DIFFS = Family(
    "stateDiffs",
    "stateDiff",
    (
        _addresses("address"),
        Condition("key", ValueKind.HEX, width=32, choices=("balance", "code", "nonce")),
        Condition("kind", ValueKind.CHOICE, choices=("+", "-", "*", "=")),
    ),
    related(transaction="transaction"),
)

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
    (_LOGS, _TRANSACTIONS, _TRACES, _STATE_DIFFS),
)


class EvmLogs(LogKeys, total=False):
    """Keys of `add_logs` on EVM."""

    transaction: bool
    transaction_traces: bool
    transaction_logs: bool
    transaction_state_diffs: bool


class EvmTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on EVM."""

    to: Iterable[str]
    from_: Iterable[str]
    sighash: Iterable[str]
    type: Iterable[int]
    first_nonce: int
    last_nonce: int
    logs: bool
    traces: bool
    state_diffs: bool


class EvmTraces(TypedDict, total=False):
    """Keys of `add_traces`."""

    type: Iterable[Literal["create", "call", "suicide", "reward"]]
    create_from: Iterable[str]
    create_result_address: Iterable[str]
    call_to: Iterable[str]
    call_from: Iterable[str]
    call_sighash: Iterable[str]
    call_call_type: Iterable[str]
    suicide_address: Iterable[str]
    suicide_refund_address: Iterable[str]
    reward_author: Iterable[str]
    transaction: bool
    transaction_logs: bool
    transaction_traces: bool
    subtraces: bool
    parents: bool


class EvmStateDiffs(TypedDict, total=False):
    """Keys of `add_state_diffs`."""

    address: Iterable[str]
    key: Iterable[str]
    kind: Iterable[Literal["+", "-", "*", "="]]
    transaction: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EvmQuery(Query):
    """What to ask of an EVM network."""

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
