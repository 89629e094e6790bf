"""Looks up the transaction of each item, and says what names a transaction on each network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.columns.row_filter import list_item
from headwater.decode.columns.wire_columns import check_text
from headwater.query import BITCOIN, SOLANA, SUBSTRATE, Network

Numbers = npt.NDArray[np.int64]

_LIMIT = 1 << 32  # above any index


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


def look_up_transactions(
    batch: pa.RecordBatch,
    transactions: pa.Table,
    wire: str,
    own_index: str = "transactionIndex",
    item_index: str = "transactionIndex",
) -> pa.Array:
    """Return a field of each item's transaction; null where no such transaction is in the block.

    Items and transactions are of `read_entities`, both with their indexes. A reward of a block
    has no transaction. Of a list (the signatures of Solana) it is the first.
    """
    transactions = _nearby(transactions, batch)
    column = transactions[wire].combine_chunks()
    if pa.types.is_list(column.type):
        column = list_item(column, 0)
    if not len(column):
        return pa.nulls(batch.num_rows, column.type)
    numbers = transactions["block_number"].to_numpy()
    blocks = np.unique(numbers)
    keys = _keys(blocks, numbers, transactions[own_index].combine_chunks(), unknown=-1)
    is_sorted = bool((keys[1:] >= keys[:-1]).all())
    order = np.arange(len(keys)) if is_sorted else np.argsort(keys, kind="stable")
    indexes = batch.column(item_index)
    sought = _keys(blocks, batch.column("block_number").to_numpy(), indexes, unknown=-2)
    sorter = None if is_sorted else order
    places = np.minimum(np.searchsorted(keys, sought, sorter=sorter), len(keys) - 1)
    rows = order[places]
    return column.take(pa.array(rows, mask=keys[rows] != sought))


def check_name(network: Network, names: pa.StringArray) -> pa.StringArray:
    """Return what names transactions, once it is known to be hex or base58; nulls stay null.

    Raises:
        MalformedRowsError: some names are neither.
    """
    name = transaction_name(network)
    field = next(field for field in network.entity(name.entity).fields if field.wire == name.field)
    return check_text(field.type, names, name.column, np.arange(len(names), dtype=np.int64))


def _nearby(transactions: pa.Table, batch: pa.RecordBatch) -> pa.Table:
    """Return the transactions around the blocks of a batch, so that many batches cost no more."""
    numbers = transactions["block_number"].to_numpy()
    own = batch.column("block_number").to_numpy()
    if not len(own) or not len(numbers) or not (numbers[1:] >= numbers[:-1]).all():
        return transactions
    first = int(np.searchsorted(numbers, own.min()))
    last = int(np.searchsorted(numbers, own.max(), side="right"))
    return transactions.slice(first, last - first)


def _keys(blocks: Numbers, numbers: Numbers, column: pa.Int64Array, unknown: int) -> Numbers:
    """Return one number per (block, index); `unknown` where there is no such block or index."""
    indexes: Numbers = column.fill_null(-1).to_numpy()
    at = np.minimum(np.searchsorted(blocks, numbers), len(blocks) - 1)
    is_known = (blocks[at] == numbers) & (indexes >= 0) & (indexes < _LIMIT)
    return np.where(is_known, at.astype(np.int64) * _LIMIT + indexes, unknown)
