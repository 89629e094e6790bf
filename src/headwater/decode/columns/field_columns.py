"""Gives each field of the catalogue the name and the type of its column.

The same thing has the same name in every table of every network: `block_number` (a slot on Solana),
`block_hash`, `timestamp`, `transaction_hash` or `signature`, `transaction_index`, `log_index`,
`trace_address`, `instruction_address`. docs/schema.md is written from this.

| wire | column |
|---|---|
| number, integer | int32 for indexes, counts and kinds; else int64 |
| seconds, milliseconds | timestamp in microseconds |
| float | float64; decimal128(38, 18) on request |
| bitcoins | int64: satoshis |
| quantity of gas, of a withdrawal | int64 |
| quantity that is a price or a fee, `v` | decimal128(38, 0) |
| any other quantity (values, balances, difficulties) | exact decimal text |
| decimal of lamports, compute units, sun or energy | int64 |
| decimal of a token amount, nonce | decimal128(38, 0), as both may use 64 bits |
| wide decimal | decimal128(38, 0) |
| hex and base58 of contents (input, data, code, bloom, scripts) | binary |
| other hex, base58, string | text as it arrives; addresses of Tron always with their 41 |
| json | its text |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import pyarrow as pa

from headwater.decode.columns.integers import DECIMAL, Integer, integer_field
from headwater.decode.lines.block_lines import TIMESTAMP
from headwater.errors import ParameterError, SignatureError
from headwater.query import BITCOIN, Field, Network, WireType

EXACT_DECIMAL = pa.decimal128(38, 18)
"""What prices and sizes become on request; a double has at most 17 digits of its own."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PAYLOADS = _words(
    "extraData logsBloom input data createInit createResultCode callInput callResultOutput "
    "hex scriptSigHex coinbase txInWitness scriptPubKeyHex prevoutScriptPubKeyHex "
    "rawDataHex contractResult resMessage note extra"
)
_GAS = frozenset(
    ("gas", "gasLimit", "gasUsed", "cumulativeGasUsed", "blobGasUsed", "excessBlobGas")
) | {"createGas", "createResultGasUsed", "callGas", "callResultGasUsed", "l1GasUsed"}
_WITHDRAWN = frozenset(("index", "validatorIndex", "amount"))
_PRICES = frozenset(
    ("baseFeePerGas", "gasPrice", "maxFeePerGas", "maxPriorityFeePerGas", "effectiveGasPrice")
) | {"v", "l1Fee", "l1GasPrice", "l1BlobBaseFee"}
_AMOUNTS = frozenset(("preAmount", "postAmount", "nonce"))
_LONG = _words(
    "number height parentNumber size l1BlockNumber chainId l1BlobBaseFeeScalar l1BaseFeeScalar "
    "version nonce strippedSize weight vsize locktime sequence prevoutHeight specVersion "
    "implVersion oid tid twapId"
)


def column_type(field: Field) -> pa.DataType:
    """Return the type of the column that holds a field."""
    if field.members:
        kind: pa.DataType = pa.struct(
            [pa.field(member.name, column_type(member)) for member in field.members]
        )
    else:
        kind = scalar_type(field)
    return pa.list_(kind) if field.is_list else kind


def column_field(name: str, field: Field, *, as_decimal: bool) -> pa.Field:
    """Return the field of the column that holds a field of the wire."""
    if as_decimal:
        return pa.field(name, decimal_type(field))
    kind = column_type(field)
    if kind == pa.string() and field.type is WireType.QUANTITY:
        return integer_field(name, Integer(256))
    return pa.field(name, kind)


def decimal_type(field: Field) -> pa.DataType | None:
    """Return the decimal that a column can be asked for as, or None if it cannot.

    Some are text only because a quantity may use 256 bits; others are doubles.
    """
    if field.type is WireType.FLOAT:
        return EXACT_DECIMAL
    is_wide = field.type is WireType.QUANTITY and scalar_type(field) == pa.string()
    return DECIMAL if is_wide else None


def check_decimals(decimals: Iterable[str], able: AbstractSet[str], whose: str) -> frozenset[str]:
    """Return the names that are asked for as decimals; `whose` names the able ones in errors.

    Raises:
        ParameterError: one is not among those that can.
    """
    asked = frozenset([decimals] if isinstance(decimals, str) else decimals)
    for name in sorted(asked - able):
        raise ParameterError(
            f"{name!r} cannot be asked for as a decimal; of {whose} can: "
            f"{', '.join(sorted(able)) or 'none'}"
        )
    return asked


def scalar_type(field: Field) -> pa.DataType:
    """Return the type of one value of a field that has no members."""
    match field.type:
        case WireType.NUMBER | WireType.INTEGER:
            return pa.int64() if field.wire in _LONG else pa.int32()
        case WireType.INDEX:
            return pa.int64()
        case WireType.SECONDS | WireType.MILLISECONDS:
            return TIMESTAMP
        case WireType.FLOAT:
            return pa.float64()
        case WireType.BITCOINS:
            return pa.int64()
        case WireType.QUANTITY:
            if field.wire in _PRICES:
                return DECIMAL
            return pa.int64() if field.wire in _GAS | _WITHDRAWN else pa.string()
        case WireType.DECIMAL | WireType.NUMBER_OR_DECIMAL:
            return DECIMAL if field.wire in _AMOUNTS else pa.int64()
        case WireType.WIDE_DECIMAL:
            return DECIMAL
        case WireType.BOOL:
            return pa.bool_()
        case WireType.HEX | WireType.BARE_HEX | WireType.BASE58:
            return pa.binary() if field.wire in _PAYLOADS else pa.string()
        case _:
            return pa.string()


HEADER = ("block_number", "block_hash", "timestamp")


def known_columns(schema: pa.Schema) -> pa.Schema:
    """Return columns as stored definitions spell them, so that those of releases up to 0.2 hold.

    These kept `transaction_index` and `log_index` in 32 bits with a sign. A `log_index` that does
    not stand behind a `transaction_index` is a parameter of that name, whose type is its own.
    """
    before = ("", *schema.names)
    for at, field in enumerate(schema):
        if field.name == "transaction_index" or (before[at], field.name) == _LOG_PLACE:
            schema = schema.set(at, field.with_type(pa.int32()))
    return schema


_LOG_PLACE = ("transaction_index", "log_index")

_RENAMED = {
    ("block", "number"): "block_number",
    ("block", "hash"): "block_hash",
    ("transaction", "hash"): "transaction_hash",
    ("transaction", "timestamp"): "transaction_timestamp",
    ("fill", "hash"): "transaction_hash",
    ("extrinsic", "hash"): "transaction_hash",
    ("extrinsic", "index"): "transaction_index",
    ("event", "index"): "event_index",
    ("event", "extrinsic_index"): "transaction_index",
    ("call", "extrinsic_index"): "transaction_index",
    ("call", "address"): "call_address",
}
_BITCOIN_RENAMED = {
    ("transaction", "txid"): "transaction_hash",
    ("transaction", "hash"): "witness_hash",
}


def column_name(network: Network, entity: str, field: str) -> str:
    """Return the column of a field: its own name, unless the same thing has one elsewhere."""
    if network is BITCOIN and (entity, field) in _BITCOIN_RENAMED:
        return _BITCOIN_RENAMED[entity, field]
    return _RENAMED.get((entity, field), field)


def name_columns(taken: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a column name for each member of the groups, in order.

    A name that is taken, by the columns before or by an earlier group, gets its group's name as a
    prefix: a parameter `address` of an event becomes `arg_address`. Spark does not tell capitals
    apart, so neither does this. Called when outputs are defined.

    Raises:
        SignatureError: the replacement is taken too.
    """
    used = {name.lower() for name in taken}
    columns: list[str] = []
    for prefix, names in groups.items():
        chosen = [f"{prefix}_{name}" if name.lower() in used else name for name in names]
        lowered = {name.lower() for name in chosen}
        if len(lowered) < len(chosen) or lowered & used:
            raise SignatureError(
                "a parameter is called like a column and its replacement is taken too; names do "
                "not change what is decoded, so rename one",
                columns=", ".join([*columns, *chosen]),
            )
        used |= lowered
        columns.extend(chosen)
    return columns
