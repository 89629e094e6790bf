"""The catalogue of Tron, and `TronQuery`.

Hex has no `0x` here, times are milliseconds. Addresses have 21 bytes and begin with 41, but those
of logs have 20 and lack it. What a transaction does is in its `parameter`, whose form follows from
its `type`; three types have filters of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self, TypedDict, Unpack

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, Relation
from headwater.query.query import Query
from headwater.query.values import Condition, ValueKind

_NUMBER, _HEX, _STRING = WireType.NUMBER, WireType.BARE_HEX, WireType.STRING
_DECIMAL, _JSON, _MILLISECONDS = WireType.DECIMAL, WireType.JSON, WireType.MILLISECONDS
_OPTIONAL = Presence.OPTIONAL

_CONTRACTS = (
    "AccountCreate Transfer TransferAsset VoteAsset VoteWitness WitnessCreate AssetIssue "
    "WitnessUpdate ParticipateAssetIssue AccountUpdate FreezeBalance UnfreezeBalance "
    "WithdrawBalance UnfreezeAsset UpdateAsset ProposalCreate ProposalApprove ProposalDelete "
    "SetAccountId Custom Get UpdateSetting ExchangeCreate ExchangeInject ExchangeWithdraw "
    "ExchangeTransaction UpdateEnergyLimit AccountPermissionUpdate ClearABI UpdateBrokerage "
    "ShieldedTransfer MarketSellAsset MarketCancelOrder FreezeBalanceV2 UnfreezeBalanceV2 "
    "WithdrawExpireUnfreeze DelegateResource UnDelegateResource CancelAllUnfreezeV2 "
    "CreateSmart TriggerSmart"
)
CONTRACT_TYPES = tuple(f"{name}Contract" for name in _CONTRACTS.split())
"""The kinds of transactions, in the names of Tron's own protocol."""

_BLOCK = (
    Field("number", _NUMBER),
    *fields("hash parentHash txTrieRoot", _HEX),
    Field("version", WireType.INTEGER, _OPTIONAL),
    Field("timestamp", _MILLISECONDS),
    Field("witnessAddress", _HEX),
    Field("witnessSignature", _HEX, _OPTIONAL),
)

_TRANSACTION = (
    Field("transactionIndex", WireType.INDEX),
    Field("hash", _HEX),
    Field("ret", _JSON, _OPTIONAL),
    Field("signature", _HEX, _OPTIONAL, is_list=True),
    Field("type", _STRING),
    Field("parameter", _JSON),
    Field("permissionId", WireType.INTEGER, _OPTIONAL),
    *fields("refBlockBytes refBlockHash", _HEX, _OPTIONAL),
    Field("feeLimit", _DECIMAL, _OPTIONAL),
    *fields("expiration timestamp", _MILLISECONDS, _OPTIONAL),
    Field("rawDataHex", _HEX),
    Field("fee", _DECIMAL, _OPTIONAL),
    *fields("contractResult contractAddress resMessage", _HEX, _OPTIONAL),
    *fields("withdrawAmount unfreezeAmount withdrawExpireAmount", _DECIMAL, _OPTIONAL),
    Field("cancelUnfreezeV2Amount", _JSON, _OPTIONAL),
    Field("result", _STRING, _OPTIONAL),
    *fields("energyFee energyUsage energyUsageTotal netUsage netFee", _DECIMAL, _OPTIONAL),
    *fields("originEnergyUsage energyPenaltyTotal", _DECIMAL, _OPTIONAL),
)

_LOG = (
    *fields("transactionIndex logIndex", WireType.INDEX),
    Field("address", _HEX, prefix="41"),
    Field("data", _HEX, _OPTIONAL),
    Field("topics", _HEX, _OPTIONAL, is_list=True),
)

_INTERNAL_TRANSACTION = (
    Field("transactionIndex", WireType.INDEX),
    Field("internalTransactionIndex", _NUMBER),
    *fields("hash callerAddress", _HEX),
    Field("transferToAddress", _HEX, _OPTIONAL),
    Field("callValueInfo", _JSON),
    Field("note", _HEX),
    Field("rejected", WireType.BOOL, _OPTIONAL),
    Field("extra", _HEX, _OPTIONAL),
)


def _account(*place: str) -> Condition:
    """Return the filter on an address at a place of an item."""
    return Condition(ValueKind.TRON_ADDRESS, width=21, at=(place,))


def _topic(at: int) -> Condition:
    return Condition(ValueKind.BARE_HEX, width=32, at=(("topics", str(at)),))


_Owners = Annotated[Iterable[str], _account("parameter", "value", "owner_address")]
_Receivers = Annotated[Iterable[str], _account("parameter", "value", "to_address")]
_Contracts = Annotated[Iterable[str], _account("parameter", "value", "contract_address")]
_Transaction = Annotated[bool, Relation("transaction")]
_VALUE = ("parameter", "value")


class _OfTheTransaction(TypedDict, total=False):
    logs: Annotated[bool, Relation("log")]
    internal_transactions: Annotated[bool, Relation("internalTransaction")]


class TronTransactions(_OfTheTransaction, total=False):
    """Keys of `add_transactions` on Tron."""

    type: Annotated[Iterable[str], Condition(ValueKind.CHOICE, choices=CONTRACT_TYPES)]


class TronTransferTransactions(_OfTheTransaction, total=False):
    """Keys of `add_transfer_transactions`."""

    owner: _Owners
    to: _Receivers


class TronTransferAssetTransactions(_OfTheTransaction, total=False):
    """Keys of `add_transfer_asset_transactions`."""

    owner: _Owners
    to: _Receivers
    asset: Annotated[Iterable[str], Condition(ValueKind.TEXT, at=((*_VALUE, "asset_name"),))]


class TronTriggerSmartContractTransactions(_OfTheTransaction, total=False):
    """Keys of `add_trigger_smart_contract_transactions`."""

    owner: _Owners
    contract: _Contracts
    sighash: Annotated[
        Iterable[str],
        Condition(ValueKind.BARE_HEX, width=4, at=((*_VALUE, "data"),), is_prefix=True),
    ]


class TronLogs(TypedDict, total=False):
    """Keys of `add_logs` on Tron."""

    address: Annotated[Iterable[str], Condition(ValueKind.TRON_ADDRESS, width=20)]
    topic0: Annotated[Iterable[str], _topic(0)]
    topic1: Annotated[Iterable[str], _topic(1)]
    topic2: Annotated[Iterable[str], _topic(2)]
    topic3: Annotated[Iterable[str], _topic(3)]
    transaction: _Transaction


class TronInternalTransactions(TypedDict, total=False):
    """Keys of `add_internal_transactions`."""

    caller: Annotated[Iterable[str], _account("callerAddress")]
    transfer_to: Annotated[Iterable[str], _account("transferToAddress")]
    transaction: _Transaction


TRON = Network(
    "tron",
    (
        header(_BLOCK),
        Entity("transaction", "transactions", _TRANSACTION, key=("transactionIndex",)),
        Entity("log", "logs", _LOG, key=("transactionIndex", "logIndex")),
        Entity(
            "internalTransaction",
            "internalTransactions",
            _INTERNAL_TRANSACTION,
            key=("transactionIndex", "internalTransactionIndex"),
        ),
    ),
    (
        Family.of("transactions", "transaction", TronTransactions),
        Family.of(
            "transferTransactions",
            "transaction",
            TronTransferTransactions,
            implied=("type", ("TransferContract",)),
        ),
        Family.of(
            "transferAssetTransactions",
            "transaction",
            TronTransferAssetTransactions,
            implied=("type", ("TransferAssetContract",)),
        ),
        Family.of(
            "triggerSmartContractTransactions",
            "transaction",
            TronTriggerSmartContractTransactions,
            implied=("type", ("TriggerSmartContract",)),
        ),
        Family.of("logs", "log", TronLogs),
        Family.of("internalTransactions", "internalTransaction", TronInternalTransactions),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TronQuery(Query):
    """A query of Tron."""

    network: ClassVar[Network] = TRON

    def add_transactions(self, **keys: Unpack[TronTransactions]) -> Self:
        """Add a filter on transactions of any type."""
        return self.add_filter("transactions", **keys)

    def add_transfer_transactions(self, **keys: Unpack[TronTransferTransactions]) -> Self:
        """Add a filter on transfers of TRX."""
        return self.add_filter("transfer_transactions", **keys)

    def add_transfer_asset_transactions(
        self, **keys: Unpack[TronTransferAssetTransactions]
    ) -> Self:
        """Add a filter on transfers of TRC-10 tokens."""
        return self.add_filter("transfer_asset_transactions", **keys)

    def add_trigger_smart_contract_transactions(
        self, **keys: Unpack[TronTriggerSmartContractTransactions]
    ) -> Self:
        """Add a filter on calls of contracts."""
        return self.add_filter("trigger_smart_contract_transactions", **keys)

    def add_logs(self, **keys: Unpack[TronLogs]) -> Self:
        """Add a filter on event logs."""
        return self.add_filter("logs", **keys)

    def add_internal_transactions(self, **keys: Unpack[TronInternalTransactions]) -> Self:
        """Add a filter on what contracts send and call."""
        return self.add_filter("internal_transactions", **keys)
