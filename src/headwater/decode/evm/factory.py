"""Factories: contracts whose events announce other contracts. Made by `evm.factory`.

A factory is a value: made on the driver, pickled to executors, never changed. What it finds is kept
by the stream (`headwater.stream.factories`), because it must survive forks and restarts.

`Children` are added on the driver as creations are found, and pickled to executors as a few arrays
of 56 bytes a child. Looking up is one binary search per row over sorted 64-bit numbers: nothing is
built per batch, so a single block costs the same however many there are
(benchmarks/bench_factory.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import RangeSpec
from headwater.decode.columns.buffers import text_of
from headwater.decode.columns.bytes_text import hex_mask, numbers_of
from headwater.decode.columns.malformed import OnError, said_of
from headwater.decode.evm.abi import Event
from headwater.decode.evm.topics import TopicFilters
from headwater.errors import InvalidOptionError
from headwater.query import Filter, Query

Bound = TypeVar("Bound")
PREFIX = "factory_"
Since: TypeAlias = Literal["transaction", "block", "log"]
"""From where on the rows of a child count: the start of the transaction that announces it, the
start of that block, or the log itself."""

Integers: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.uint64]

FOUND_FIELDS = (
    pa.field("block_number", pa.int64()),
    pa.field("transaction_index", pa.int64()),
    pa.field("log_index", pa.int64()),
    pa.field("address", pa.string()),
)
"""What is known of a creation, before the columns that were asked for: its place and the child."""

_TEXT, _WORDS = 42, 5  # characters: 0x and 40 digits; the digits, eight to a word
_CHUNKS = 32


@dataclass(frozen=True, slots=True)
class Factory:
    """Contracts that announce their children with an event.

    `contracts` announce, or the children of the factory `parent`. `child` is the parameter that
    holds the new address; `fields` are the columns that rows of children get. Creations before
    `start` are not looked for. `since` says from where on rows of children count, among them what
    children announce in turn.
    """

    event: Event
    child: str
    start: RangeSpec
    contracts: tuple[str, ...] | None = None
    parent: Factory | None = None
    topics: TopicFilters = ()
    columns: tuple[str, ...] = ()
    fields: tuple[pa.Field, ...] = ()
    on_error: OnError = "raise"
    since: Since = "transaction"

    @property
    def key(self) -> str:
        """What the children are stored under: it follows from all that defines the children.

        `since` counts only where it decides who is a child, in a factory above this one. "log" is
        left out, because releases that knew nothing else have stored keys without it.
        """
        above = None if self.parent is None else self.parent.key
        if self.parent is not None and self.parent.since != "log":
            above = f"{above}/{self.parent.since}"
        said: tuple[object, ...] = (
            (
                self.event.signature,
                [parameter.indexed for parameter in self.event.parameters],
                self.child,
            ),
            (sorted(self.contracts or ()), above, self.topics, self.columns, self.start),
        )
        if self.on_error != "raise":
            said = (*said, said_of(self.on_error))
        return hashlib.sha256(repr(said).encode()).hexdigest()[:16]

    def counting_from(self, since: Since) -> Factory:
        """Return the same factory, and the same ones above it, with another `since`."""
        above = None if self.parent is None else self.parent.counting_from(since)
        return replace(self, parent=above, since=since)

    @property
    def depth(self) -> int:
        """0, or how many factories stand above this one."""
        return 0 if self.parent is None else 1 + self.parent.depth

    def none(self) -> Children:
        """Return no children of this factory."""
        return Children.none(pa.schema(self.fields))


@dataclass(frozen=True, slots=True)
class ChildScope:
    """Restricts an output to the children of a factory; `children` are those known so far.

    `address` is the column of rows that holds the contract, `condition` the portal's name of it.
    The children are None until a stream knows them.
    """

    factory: Factory
    address: str
    condition: str
    begin: Begin
    children: Children | None = None

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of children that count, with the asked columns appended.

        Raises:
            InvalidOptionError: no stream has looked for the children.
        """
        if self.children is None:
            raise InvalidOptionError("only a stream knows the children of a factory")
        return self.children.own_rows(batch, self.address, self.begin)

    def narrow(self, query: Query, addresses: Sequence[str]) -> Query:
        """Return the query for these addresses alone; for nothing if there are none."""
        if not addresses:
            return replace(query, filters=())
        listed = (self.condition, tuple(addresses))
        return replace(
            query,
            filters=tuple(
                Filter(old.family, (listed, *old.conditions), old.relations)
                for old in query.filters
            ),
        )


def with_children(output: Bound, children: Children) -> Bound:
    """Return an output that has a scope, restricted to these children. Called by streams."""
    changed: Any = output
    changed = replace(changed, scope=replace(changed.scope, children=children))
    return cast("Bound", changed)


class Begin(NamedTuple):
    """Where in the announcing block the rows of a child begin to count.

    `column` orders the rows of a block, `place` says which of `Children.places` it is compared
    with, and `inclusive` whether a row of the same value counts.
    """

    column: str
    place: int
    inclusive: bool


def scope_in(factory: Factory, source: Literal["logs", "transactions", "traces"]) -> ChildScope:
    """Return the scope of logs, or of calls, which no log index orders.

    With "log", transactions count behind the announcing one, which is not sent to a child as a
    rule; all traces of it count, because some of them may lie behind the log.
    """
    address = {"logs": "address", "transactions": "to", "traces": "callTo"}[source]
    index = "transaction_index" if source == "logs" else "transactionIndex"
    of_log = Begin("log_index", 2, False)
    begins: dict[Since, Begin] = {
        "block": Begin("block_number", 0, True),
        "transaction": Begin(index, 1, True),
        "log": of_log if source == "logs" else Begin(index, 1, source == "traces"),
    }
    return ChildScope(factory, address, address, begins[factory.since])


def check_since(value: object) -> Since:
    """Return the point that is meant; refuse anything unknown."""
    for since in get_args(Since):
        if value == since:
            return cast("Since", since)
    known = ", ".join(map(repr, get_args(Since)))
    raise InvalidOptionError(f"since is one of {known}", got=repr(value))


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """The children of one factory, each with the place of its first creation.

    `places` holds block, transaction and log index in the order of creation; `details` the columns
    that were asked for, in the same order. `keys` holds the addresses as three numbers, sorted;
    `rows` says which row of the others each is. `alike` says that some have the same first number:
    hardly ever, unless a contract announces such addresses on purpose.
    """

    places: Integers
    details: pa.Table
    keys: Numbers
    rows: Integers
    alike: bool

    @staticmethod
    def none(columns: pa.Schema) -> Children:
        """Return no children yet; `columns` are those that were asked for."""
        empty = np.zeros((3, 0))
        return Children(
            empty.astype(np.int64),
            columns.empty_table(),
            empty.astype(np.uint64),
            np.zeros(0, np.int64),
            False,
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
        words, _ = _words_of(found["address"].combine_chunks())
        keys = np.stack([_first_numbers(words), *_other_numbers(words)])
        order = np.lexsort(keys[::-1])
        at = self._positions(keys[0][order], words[order], exact=True)
        merged = np.insert(self.keys, at, keys[:, order], axis=1)
        columns = [found[name].to_numpy() for name in ("block_number", "transaction_index")]
        places = np.stack([*columns, found["log_index"].to_numpy()]).astype(np.int64)
        details = found.select(self.details.schema.names).cast(self.details.schema)
        return Children(
            np.concatenate([self.places, places], axis=1),
            _joined(self.details, details),
            merged,
            np.insert(self.rows, at, len(self) + order),
            _any_alike(merged[0]),
        )

    def up_to(self, block: int) -> Children:
        """Return the children that were created in this block or earlier."""
        count = int(np.searchsorted(self.places[0], block, "right"))
        if count == len(self):
            return self
        kept = self.rows < count
        details = self.details.slice(0, count).combine_chunks()
        keys = self.keys[:, kept]
        return Children(self.places[:, :count], details, keys, self.rows[kept], _any_alike(keys[0]))

    def found(self, first: int, last: int) -> pa.Table:
        """Return the creations in the blocks from `first` to `last`, as `add` takes them."""
        bounds = np.searchsorted(self.places[0], [first, last + 1])
        low, high = (int(bound) for bound in bounds)
        inside = np.flatnonzero((self.rows >= low) & (self.rows < high))
        texts = [""] * (high - low)
        for row, key in zip(self.rows[inside] - low, self.keys[:, inside].T.tolist(), strict=True):
            texts[row] = "0x{:016x}{:016x}{:08x}".format(*key)
        columns = [*(self.places[:, low:high]), texts]
        own = [
            pa.array(values, field.type)
            for values, field in zip(columns, FOUND_FIELDS, strict=True)
        ]
        table = pa.table(own, schema=pa.schema(FOUND_FIELDS))
        details = self.details.slice(low, high - low)
        for field, column in zip(details.schema, details.columns, strict=True):
            table = table.append_column(field, column)
        return table

    def find(self, addresses: pa.StringArray) -> Integers:
        """Return the row of each address, -1 where it is none of the children."""
        rows = np.full(len(addresses), -1, np.int64)
        if not len(self) or not len(addresses):
            return rows
        words, places = _words_of(addresses)
        first = _first_numbers(words)
        at = np.minimum(self._positions(first, words, exact=self.alike), len(self) - 1)
        begins = np.flatnonzero(self.keys[0][at] == first)
        at, text = at[begins], words[begins]
        same = (self.keys[1:, at] == _other_numbers(text)).all(axis=0)
        same &= hex_mask(text.view(np.uint8)).all(axis=1)
        begins = begins[same]
        rows[begins if places is None else places[begins]] = self.rows[at[same]]
        return rows

    def _positions(self, first: Numbers, words: Numbers, *, exact: bool) -> Integers:
        """Return where each address is, or belongs; by its first number alone if not `exact`."""
        low = np.searchsorted(self.keys[0], first)
        if not exact:
            return low
        high = np.searchsorted(self.keys[0], first, "right")
        begins = np.flatnonzero(high > low)
        second, third = _other_numbers(words[begins])
        left, right = low[begins], high[begins]
        while (between := left < right).any():
            middle = np.minimum((left + right) // 2, len(self) - 1)
            known = self.keys[:, middle]
            below = (known[1] < second) | ((known[1] == second) & (known[2] < third))
            left = np.where(between & below, middle + 1, left)
            right = np.where(between & ~below, middle, right)
        low[begins] = left
        return low

    def own_rows(self, batch: pa.RecordBatch, address: str, begin: Begin) -> pa.RecordBatch:
        """Return the rows of children from where they count, with the asked columns appended."""
        rows = self.find(batch.column(address))
        own = np.flatnonzero(rows >= 0)
        batch, rows = batch.take(pa.array(own)), rows[own]
        created = self.places[:, rows]
        blocks = batch.column("block_number").to_numpy()
        places = pc.fill_null(batch.column(begin.column).cast(pa.int64()), 0).to_numpy()
        behind = places > created[begin.place] - begin.inclusive
        counts = (blocks > created[0]) | ((blocks == created[0]) & behind)
        if not counts.all():
            batch, rows = batch.filter(pa.array(counts)), rows[counts]
        details = self.details.take(pa.array(rows))
        for field, column in zip(details.schema, details.columns, strict=True):
            batch = batch.append_column(field, column.combine_chunks())
        return batch


def _words_of(addresses: pa.StringArray) -> tuple[Numbers, Integers | None]:
    """Return the digits of addresses, eight to a word, and their places; None if all are there.

    What has not 42 characters is none. Whether they are digits is not looked at.
    """
    places = None
    sized = pc.fill_null(pc.equal(pc.binary_length(addresses), _TEXT), False)
    if not pc.all(sized, min_count=0).as_py():
        places = np.flatnonzero(sized.to_numpy(zero_copy_only=False))
        addresses = addresses.filter(sized)
    if not len(addresses):
        return np.zeros((0, _WORDS), np.uint64), places
    digits = np.ascontiguousarray(text_of(addresses).reshape(-1, _TEXT)[:, 2:])
    return digits.view("<u8"), places


def _first_numbers(words: Numbers) -> Numbers:
    """Return the first 64 bits of addresses."""
    parts = numbers_of(words[:, :2])
    return parts[:, 0] << np.uint64(32) | parts[:, 1]


def _other_numbers(words: Numbers) -> Numbers:
    """Return the other 64 and 32 bits of addresses."""
    parts = numbers_of(words[:, 2:])
    return np.stack([parts[:, 0] << np.uint64(32) | parts[:, 1], parts[:, 2]])


def _is_first(addresses: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Whether each address is the first of its kind in the column."""
    codes = addresses.combine_chunks().dictionary_encode().indices.to_numpy()
    mask = np.zeros(len(codes), bool)
    mask[np.unique(codes, return_index=True)[1]] = True
    return mask


def _joined(known: pa.Table, more: pa.Table) -> pa.Table:
    """Return both, in a bounded number of chunks: each batch near the head adds one."""
    joined = pa.concat_tables([known, more])
    many = joined.num_columns and joined.column(0).num_chunks > _CHUNKS
    return joined.combine_chunks() if many else joined


def _any_alike(values: Numbers) -> bool:
    """Whether some of these sorted values are equal."""
    return bool((values[1:] == values[:-1]).any())
