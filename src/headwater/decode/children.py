"""Children of a factory: which addresses they are, and since when each counts.

Made on the driver as creations are found, pickled to executors as a few compact arrays (40 bytes a
child), never changed: adding gives a new value. Looking up is one binary search per row over sorted
64-bit numbers, so fifty thousand children cost a row little more than fifty do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.hex_text import hex_mask, is_lower_hex, numbers_of

Integers: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.uint64]

FOUND_FIELDS = (
    pa.field("block_number", pa.int64()),
    pa.field("transaction_index", pa.int32()),
    pa.field("log_index", pa.int32()),
    pa.field("address", pa.string()),
)
"""What is known of a creation, before the columns that were asked for: its place and the child."""

_TEXT = 42  # 0x and 40 digits


class Since(Enum):
    """From where on a child's rows count: the column that orders them, by which place, inclusive?

    LOG: behind the log that announces the child. LATER: in later transactions. TRANSACTION: in the
    same transaction too, for what no log index orders.
    """

    LOG = ("log_index", 2, False)
    LATER = ("transactionIndex", 1, False)
    TRANSACTION = ("transactionIndex", 1, True)


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """The children of one factory, each with the place of its first creation.

    `places` holds block, transaction and log index in the order of creation; `details` the columns
    that were asked for, in the same order. `keys` holds the addresses as three numbers, sorted by
    the first; `rows` says which row of the others each is. `run` is the longest run of equal first
    numbers: 1, unless somebody made addresses that begin alike.
    """

    places: Integers
    details: pa.Table
    keys: Numbers
    rows: Integers
    run: int

    @staticmethod
    def none(columns: pa.Schema) -> Children:
        """Return no children yet; `columns` are those that were asked for."""
        empty = np.zeros((3, 0))
        return Children(
            empty.astype(np.int64),
            columns.empty_table(),
            empty.astype(np.uint64),
            np.zeros(0, np.int64),
            1,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, found: pa.Table) -> Children:
        """Return these and those children; an address that is known already stays what it is.

        `found` has `FOUND_FIELDS` and the asked columns, and lies behind all that is known: finders
        go through blocks in order. Its own rows may be in any order.
        """
        if not found.num_rows:
            return self
        found = found.sort_by([("block_number", "ascending"), ("log_index", "ascending")])
        fresh = self.find(found["address"].combine_chunks()) < 0
        found = found.filter(pa.array(fresh & _is_first(found["address"])))
        keys, valid = _keys_of(found["address"].combine_chunks())
        assert valid is None, "decoded addresses are well-formed"
        order = np.argsort(keys[0], kind="stable")
        at = np.searchsorted(self.keys[0], keys[0][order])
        merged = np.insert(self.keys, at, keys[:, order], axis=1)
        columns = [found[name].to_numpy() for name in ("block_number", "transaction_index")]
        places = np.stack([*columns, found["log_index"].to_numpy()]).astype(np.int64)
        details = found.select(self.details.schema.names).cast(self.details.schema)
        return Children(
            np.concatenate([self.places, places], axis=1),
            pa.concat_tables([self.details, details]),
            merged,
            np.insert(self.rows, at, len(self) + order),
            _longest_run(merged[0]),
        )

    def up_to(self, block: int) -> Children:
        """Return the children that were created in this block or earlier."""
        count = int(np.searchsorted(self.places[0], block, "right"))
        if count == len(self):
            return self
        kept = self.rows < count
        details = self.details.slice(0, count).combine_chunks()
        keys = self.keys[:, kept]
        return Children(
            self.places[:, :count], details, keys, self.rows[kept], _longest_run(keys[0])
        )

    def found(self, first: int, last: int) -> pa.Table:
        """Return the creations in the blocks from `first` to `last`, as `add` takes them."""
        bounds = np.searchsorted(self.places[0], [first, last + 1])
        low, high = (int(one) for one in bounds)
        inside = np.flatnonzero((self.rows >= low) & (self.rows < high))
        texts = [""] * (high - low)
        for row, key in zip(self.rows[inside] - low, self.keys[:, inside].T.tolist(), strict=True):
            texts[row] = "0x{:016x}{:016x}{:08x}".format(*key)
        columns = [*(self.places[:, low:high]), texts]
        own = [pa.array(one, field.type) for one, field in zip(columns, FOUND_FIELDS, strict=True)]
        table = pa.table(own, schema=pa.schema(FOUND_FIELDS))
        details = self.details.slice(low, high - low)
        for field, column in zip(details.schema, details.columns, strict=True):
            table = table.append_column(field, column)
        return table

    def find(self, addresses: pa.StringArray) -> Integers:
        """Return the row of each address, -1 where it is none of the children."""
        found = np.full(len(addresses), -1, np.int64)
        if not len(self) or not len(addresses):
            return found
        keys, valid = _keys_of(addresses)
        hits = found if valid is None else np.full(keys.shape[1], -1, np.int64)
        left = np.searchsorted(self.keys[0], keys[0])
        for step in range(self.run):
            at = np.minimum(left + step, len(self) - 1)
            same = (self.keys[:, at] == keys).all(axis=0)
            hits[same] = self.rows[at[same]]
        if valid is not None:
            found[valid] = hits
        return found

    def own_rows(self, batch: pa.RecordBatch, address: str, since: Since) -> pa.RecordBatch:
        """Return the rows of children since their creation, with the asked columns appended."""
        rows = self.find(batch.column(address))
        own = np.flatnonzero(rows >= 0)
        batch, rows = batch.take(pa.array(own)), rows[own]
        created = self.places[:, rows]
        blocks = batch.column("block_number").to_numpy()
        column, which, inclusive = since.value
        places = pc.fill_null(batch.column(column).cast(pa.int64()), 0).to_numpy()
        behind = places > created[which] - inclusive
        counts = (blocks > created[0]) | ((blocks == created[0]) & behind)
        if not counts.all():
            batch, rows = batch.filter(pa.array(counts)), rows[counts]
        details = self.details.take(pa.array(rows))
        for field, column in zip(details.schema, details.columns, strict=True):
            batch = batch.append_column(field, column.combine_chunks())
        return batch


def _keys_of(addresses: pa.StringArray) -> tuple[Numbers, npt.NDArray[np.bool_] | None]:
    """Return addresses as columns of 64, 64 and 32 bits, and which are well-formed; None for all.

    Only the well-formed ones have a column: 42 characters, of which the last 40 are hex digits.
    """
    well = pc.fill_null(pc.equal(pc.binary_length(addresses), _TEXT), False)
    mask = None
    if not pc.all(well, min_count=0).as_py():
        mask = well.to_numpy(zero_copy_only=False)
        addresses = addresses.filter(well)
    count = len(addresses)
    _, offsets, data = addresses.buffers()
    if not count:
        return np.zeros((3, 0), np.uint64), mask
    first = int(np.frombuffer(offsets, np.int32)[addresses.offset])
    text = np.frombuffer(data, np.uint8)[first : first + _TEXT * count].reshape(count, _TEXT)
    digits = np.ascontiguousarray(text[:, 2:])
    if not is_lower_hex(digits):
        hexes = hex_mask(digits).all(axis=1)
        digits = digits[hexes]
        mask = np.ones(count, bool) if mask is None else mask
        mask[np.flatnonzero(mask)[~hexes]] = False
    parts = numbers_of(digits.view("<u8"))
    shift = np.uint64(32)
    keys = [parts[:, 0] << shift | parts[:, 1], parts[:, 2] << shift | parts[:, 3], parts[:, 4]]
    return np.stack(keys), mask


def _is_first(addresses: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Whether each address is the first of its kind in the column."""
    codes = addresses.combine_chunks().dictionary_encode().indices.to_numpy()
    mask = np.zeros(len(codes), bool)
    mask[np.unique(codes, return_index=True)[1]] = True
    return mask


def _longest_run(values: Numbers) -> int:
    """Return how often the most frequent of sorted values occurs, 1 at the least."""
    if len(values) < 2 or (values[1:] != values[:-1]).all():
        return 1
    return int(np.unique(values, return_counts=True)[1].max())
