"""The catalogue of Bitcoin, and `BitcoinQuery`.

Hex has no `0x` here. Amounts are numbers of bitcoins, times are seconds. A coinbase input spends
nothing, so it has no `txid`, `vout` and `prevout…`; an output that no address can spend has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self, TypedDict, Unpack, get_args

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, Relation
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

_Addresses = Annotated[Iterable[str], Condition(ValueKind.BITCOIN_ADDRESS)]
_ScriptTypes = Annotated[Iterable[ScriptType], Condition(ValueKind.CHOICE, choices=_SCRIPT_TYPES)]
_Transaction = Annotated[bool, Relation("transaction")]
_Inputs = Annotated[bool, Relation("input")]
_Outputs = Annotated[bool, Relation("output")]

InputType = Literal["tx", "coinbase"]


class BitcoinTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on Bitcoin."""

    inputs: _Inputs
    outputs: _Outputs


class BitcoinInputs(TypedDict, total=False):
    """Keys of `add_inputs`."""

    type: Annotated[Iterable[InputType], Condition(ValueKind.CHOICE, choices=get_args(InputType))]
    prevout_script_pub_key_address: _Addresses
    prevout_script_pub_key_type: _ScriptTypes
    prevout_generated: Annotated[bool, Condition(ValueKind.BOOL, is_list=False)]
    transaction: _Transaction
    transaction_inputs: _Inputs
    transaction_outputs: _Outputs


class BitcoinOutputs(TypedDict, total=False):
    """Keys of `add_outputs`."""

    script_pub_key_address: _Addresses
    script_pub_key_type: _ScriptTypes
    transaction: _Transaction
    transaction_inputs: _Inputs
    transaction_outputs: _Outputs


BITCOIN = Network(
    "bitcoin",
    (
        header(_BLOCK),
        Entity("transaction", "transactions", _TRANSACTION, key=("transactionIndex",)),
        Entity("input", "inputs", _INPUT, key=("transactionIndex", "inputIndex")),
        Entity("output", "outputs", _OUTPUT, key=("transactionIndex", "outputIndex")),
    ),
    (
        Family.of("transactions", "transaction", BitcoinTransactions),
        Family.of("inputs", "input", BitcoinInputs),
        Family.of("outputs", "output", BitcoinOutputs),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BitcoinQuery(Query):
    """A query of Bitcoin."""

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
