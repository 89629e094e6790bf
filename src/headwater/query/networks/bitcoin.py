"""The catalogue of Bitcoin, and `BitcoinQuery`.

Hex has no `0x` here. Amounts are numbers of bitcoins, times are seconds. A coinbase input spends
nothing, so it has no `txid`, `vout` and `prevout…`; an output that no address can spend has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypedDict, Unpack

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, related
from headwater.query.query import Query
from headwater.query.values import Condition, ValueKind

_NUMBER, _HEX, _STRING = WireType.NUMBER, WireType.BARE_HEX, WireType.STRING
_OPTIONAL = Presence.OPTIONAL

ScriptType = Literal[
    "pubkey", "pubkeyhash", "scripthash", "multisig", "nulldata", "witness_v0_keyhash",
    "witness_v0_scripthash", "witness_v1_taproot", "witness_unknown", "anchor", "nonstandard",
]  # fmt: skip
_SCRIPT_TYPES = ScriptType.__args__  # type: ignore[attr-defined]

_BLOCK = (
    Field("number", _NUMBER),
    *fields("hash parentHash", _HEX),
    *fields("timestamp medianTime", WireType.SECONDS),
    Field("version", WireType.INTEGER),  # 32 bits, which some read with a sign
    Field("merkleRoot", _HEX),
    Field("nonce", _NUMBER),
    *fields("target bits", _HEX),
    Field("difficulty", WireType.FLOAT),
    Field("chainWork", _HEX),
    *fields("strippedSize size weight", _NUMBER),
)

_TRANSACTION = (
    Field("transactionIndex", WireType.INDEX),
    *fields("hex txid", _HEX),
    Field("hash", _HEX),  # of the transaction with its witness: not the one that others refer to
    *fields("size vsize weight", _NUMBER),
    Field("version", WireType.INTEGER),
    Field("locktime", _NUMBER),
)

_INPUT = (
    Field("transactionIndex", WireType.INDEX),
    Field("inputIndex", _NUMBER),
    Field("type", _STRING),
    Field("txid", _HEX, _OPTIONAL),
    Field("vout", _NUMBER, _OPTIONAL),
    Field("scriptSigHex", _HEX, _OPTIONAL),
    Field("scriptSigAsm", _STRING, _OPTIONAL),
    Field("sequence", _NUMBER),
    Field("coinbase", _HEX, _OPTIONAL),
    Field("txInWitness", _HEX, _OPTIONAL, is_list=True),
    Field("prevoutGenerated", WireType.BOOL, _OPTIONAL),
    Field("prevoutHeight", _NUMBER, _OPTIONAL),
    Field("prevoutValue", WireType.BITCOINS, _OPTIONAL),
    Field("prevoutScriptPubKeyHex", _HEX, _OPTIONAL),
    *fields("prevoutScriptPubKeyAsm prevoutScriptPubKeyDesc", _STRING, _OPTIONAL),
    *fields("prevoutScriptPubKeyType prevoutScriptPubKeyAddress", _STRING, _OPTIONAL),
)

_OUTPUT = (
    Field("transactionIndex", WireType.INDEX),
    Field("outputIndex", _NUMBER),
    Field("value", WireType.BITCOINS),
    Field("scriptPubKeyHex", _HEX),
    *fields("scriptPubKeyAsm scriptPubKeyDesc", _STRING, _OPTIONAL),
    *fields("scriptPubKeyType scriptPubKeyAddress", _STRING, _OPTIONAL),
)

_OF_THE_TRANSACTION = related(
    transaction="transaction", transactionInputs="input", transactionOutputs="output"
)

BITCOIN = Network(
    "bitcoin",
    (
        header(_BLOCK),
        Entity("transaction", "transactions", _TRANSACTION, key=("transactionIndex",)),
        Entity("input", "inputs", _INPUT, key=("transactionIndex", "inputIndex")),
        Entity("output", "outputs", _OUTPUT, key=("transactionIndex", "outputIndex")),
    ),
    (
        Family("transactions", "transaction", (), related(inputs="input", outputs="output")),
        Family(
            "inputs",
            "input",
            (
                Condition("type", ValueKind.CHOICE, choices=("tx", "coinbase")),
                Condition("prevoutScriptPubKeyAddress", ValueKind.BITCOIN_ADDRESS),
                Condition("prevoutScriptPubKeyType", ValueKind.CHOICE, choices=_SCRIPT_TYPES),
                Condition("prevoutGenerated", ValueKind.BOOL, is_list=False),
            ),
            _OF_THE_TRANSACTION,
        ),
        Family(
            "outputs",
            "output",
            (
                Condition("scriptPubKeyAddress", ValueKind.BITCOIN_ADDRESS),
                Condition("scriptPubKeyType", ValueKind.CHOICE, choices=_SCRIPT_TYPES),
            ),
            _OF_THE_TRANSACTION,
        ),
    ),
)


class BitcoinTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on Bitcoin."""

    inputs: bool
    outputs: bool


class BitcoinInputs(TypedDict, total=False):
    """Keys of `add_inputs`."""

    type: Iterable[Literal["tx", "coinbase"]]
    prevout_script_pub_key_address: Iterable[str]
    prevout_script_pub_key_type: Iterable[ScriptType]
    prevout_generated: bool
    transaction: bool
    transaction_inputs: bool
    transaction_outputs: bool


class BitcoinOutputs(TypedDict, total=False):
    """Keys of `add_outputs`."""

    script_pub_key_address: Iterable[str]
    script_pub_key_type: Iterable[ScriptType]
    transaction: bool
    transaction_inputs: bool
    transaction_outputs: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BitcoinQuery(Query):
    """What to ask of Bitcoin."""

    network: ClassVar[Network] = BITCOIN

    def add_transactions(self, **keys: Unpack[BitcoinTransactions]) -> Self:
        """Add all transactions."""
        return self.add_filter("transactions", **keys)

    def add_inputs(self, **keys: Unpack[BitcoinInputs]) -> Self:
        """Add a filter on what transactions spend."""
        return self.add_filter("inputs", **keys)

    def add_outputs(self, **keys: Unpack[BitcoinOutputs]) -> Self:
        """Add a filter on what transactions pay."""
        return self.add_filter("outputs", **keys)
