"""Which transaction an item is of: looked up by index among the transactions of the same lines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headwater.decode.row_filter import list_item


def look_up(batch: pa.RecordBatch, transactions: pa.Table, wire: str) -> pa.Array:
    """Return a field of each item's transaction; null where no such transaction is in the block.

    Items and transactions are of `read_entities`, both with `transactionIndex`. A reward of a block
    has no transaction. Of a list (the signatures of Solana) it is the first.
    """
    column = transactions[wire].combine_chunks()
    if pa.types.is_list(column.type):
        column = list_item(column, 0)
    if not len(column):
        return pa.nulls(batch.num_rows, column.type)
    numbers = transactions["block_number"].to_numpy()
    blocks = np.unique(numbers)
    keys = _keys(blocks, numbers, transactions["transactionIndex"].to_numpy())
    order = np.argsort(keys, kind="stable")
    sought = _keys(
        blocks,
        batch.column("block_number").to_numpy(),
        batch.column("transactionIndex").to_numpy(zero_copy_only=False),
    )
    places = np.minimum(np.searchsorted(keys, sought, sorter=order), len(keys) - 1)
    found = order[places]
    return column.take(pa.array(found, mask=keys[found] != sought))


def _keys(
    blocks: np.ndarray[tuple[int], np.dtype[np.int64]],
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
    indexes: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return one number per (block, index); of blocks that are not known, one that matches none."""
    at = np.minimum(np.searchsorted(blocks, numbers), len(blocks) - 1)
    keys: np.ndarray[tuple[int], np.dtype[np.int64]] = (at.astype(np.int64) << 32) | indexes.astype(
        np.int64
    )
    return np.where(blocks[at] == numbers, keys, -1)
