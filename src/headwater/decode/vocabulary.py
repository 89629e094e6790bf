"""One vocabulary: what columns are called.

The same thing has the same name in every table of every network: `block_number` (a slot on Solana),
`block_hash`, `timestamp`, `transaction_hash` or `signature`, `transaction_index`, `log_index`,
`trace_address`, `instruction_address`. docs/schema.md is written from this.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.query import BITCOIN, SOLANA, SUBSTRATE, Network

HEADER = ("block_number", "block_hash", "timestamp")

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


@dataclass(frozen=True, slots=True)
class TransactionName:
    """What names a transaction: the column, and the field of which entity it is taken from.

    `own_index` is its place in the block; items name it by `item_index`. All in wire names but for
    the column.
    """

    column: str
    field: str
    entity: str = "transaction"
    own_index: str = "transactionIndex"
    item_index: str = "transactionIndex"


_NAMES = {
    SOLANA.type: TransactionName("signature", "signatures"),
    BITCOIN.type: TransactionName("transaction_hash", "txid"),
    SUBSTRATE.type: TransactionName(
        "transaction_hash", "hash", "extrinsic", "index", "extrinsicIndex"
    ),
}


def transaction_name(network: Network) -> TransactionName:
    """Return what names a transaction of a network."""
    return _NAMES.get(network.type, TransactionName("transaction_hash", "hash"))
