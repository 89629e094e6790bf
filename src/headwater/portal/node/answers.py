"""From a node's answers to what a portal sends: headers, logs, and items field by field.

Pure. A node writes every number as a hex quantity; a portal writes some as JSON numbers. Which ones
is said by the catalogue (`headwater.query.networks.evm`), so the two cannot drift apart. A field
that a node does not have is null, as on a portal: chains differ in their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from Crypto.Hash import keccak

from headwater.errors import MalformedAnswerError
from headwater.query.catalog import WireType
from headwater.query.networks.evm import EVM

Item = dict[str, Any]
Convert = Callable[[Any], Any]

RECEIPT_FIELDS = frozenset(
    [
        "contractAddress",
        "gasUsed",
        "cumulativeGasUsed",
        "effectiveGasPrice",
        "status",
        "logsBloom",
        "l1Fee",
        "l1FeeScalar",
        "l1GasPrice",
        "l1GasUsed",
        "l1BlobBaseFee",
        "l1BlobBaseFeeScalar",
        "l1BaseFeeScalar",
    ]
)
"""The fields of a transaction that stand in its receipt."""

_EXACT = 2**53  # larger numbers are no JSON numbers everywhere
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class Header(msgspec.Struct, rename="camel", gc=False):
    """What is checked of a block; the rest of it is read where it is sent."""

    number: str
    hash: str
    parent_hash: str
    logs_bloom: str | None = None

    @property
    def place(self) -> int:
        """The number, as one."""
        return int(self.number, 16)


class Log(msgspec.Struct, rename="camel", gc=False):
    """One log, as a node sends it."""

    block_number: str
    block_hash: str
    transaction_hash: str
    transaction_index: str
    log_index: str
    address: str
    topics: list[str]
    data: str
    removed: bool = False

    @property
    def place(self) -> int:
        """The number of its block."""
        return int(self.block_number, 16)


_decode_header = msgspec.json.Decoder(Header | None).decode
_decode_logs = msgspec.json.Decoder(list[Log]).decode
_decode_item = msgspec.json.Decoder(dict[str, Any]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def read_header(raw: msgspec.Raw) -> Header | None:
    """Return a block's header; None: the node does not have the block."""
    return _read(_decode_header, raw, "a block")  # type: ignore[no-any-return]


def read_logs(raw: msgspec.Raw) -> list[Log]:
    """Return logs. Nothing instead of a list is no answer."""
    return _read(_decode_logs, raw, "logs")  # type: ignore[no-any-return]


def read_item(raw: msgspec.Raw) -> Item:
    """Return one object as it is."""
    return _read(_decode_item, raw, "a block")  # type: ignore[no-any-return]


def read_items(raw: msgspec.Raw) -> list[Item] | None:
    """Return a list of objects, or None."""
    return _read(_decode_items, raw, "receipts")  # type: ignore[no-any-return]


def _read(decode: Callable[[msgspec.Raw], Any], raw: msgspec.Raw, what: str) -> Any:
    try:
        return decode(raw)
    except _UNREADABLE as error:
        raise MalformedAnswerError(
            f"the node's answer to a request for {what} cannot be read: {error}",
            excerpt=bytes(raw[:80]).decode(errors="replace"),
        ) from None


# --- fields ---------------------------------------------------------------------------------------


def _number(value: Any) -> Any:
    return int(value, 16) if isinstance(value, str) else value


def _number_or_decimal(value: Any) -> Any:
    number = _number(value)
    return str(number) if isinstance(number, int) and number >= _EXACT else number


def _float(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


_CONVERSIONS: Mapping[WireType, Convert] = {
    WireType.NUMBER: _number,
    WireType.INDEX: _number,
    WireType.SECONDS: _number,
    WireType.NUMBER_OR_DECIMAL: _number_or_decimal,
    WireType.FLOAT: _float,
}


@cache
def _conversions(entity: str) -> dict[str, Convert | None]:
    return {
        field.wire: None if field.is_list else _CONVERSIONS.get(field.type)
        for field in EVM.entity(entity).fields
    }


def item_of(entity: str, source: Mapping[str, Any], names: tuple[str, ...]) -> Item:
    """Return these fields of a node's object, written as a portal writes them."""
    conversions = _conversions(entity)
    item: Item = {}
    for name in names:
        value, convert = source.get(name), conversions[name]
        item[name] = value if convert is None or value is None else convert(value)
    return item


def complete(transaction: Item, receipt: Item | None) -> Item:
    """Return a transaction with what a portal adds to it: selector, and fields of the receipt."""
    text = transaction.get("input")
    has_selector = isinstance(text, str) and len(text) >= 10 and transaction.get("to") is not None
    whole = {**transaction, "sighash": text[:10] if has_selector and text else None}
    if receipt is not None:
        whole |= {name: receipt[name] for name in RECEIPT_FIELDS & receipt.keys()}
    return whole


def log_item(log: Log) -> Item:
    """Return a log with all of its fields, written as a portal writes them."""
    return {
        "logIndex": int(log.log_index, 16),
        "transactionIndex": int(log.transaction_index, 16),
        "transactionHash": log.transaction_hash,
        "address": log.address.lower(),
        "data": log.data,
        "topics": log.topics,
    }


# --- blooms ---------------------------------------------------------------------------------------


def bloom_mask(value: str) -> int:
    """Return the three bits of an address or topic, as they stand in a block's bloom."""
    digest = keccak.new(digest_bits=256, data=bytes.fromhex(value.removeprefix("0x"))).digest()
    mask = 0
    for start in (0, 2, 4):
        mask |= 1 << (int.from_bytes(digest[start : start + 2]) & 2047)
    return mask


def read_bloom(header: Header) -> int | None:
    """Return a block's bloom; None where the chain has none."""
    text = header.logs_bloom
    return int(text, 16) if text is not None and len(text) > 2 else None
