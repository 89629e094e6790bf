"""Turns the rows of a frame into inserts: fits columns, adds marks, cuts rows into pieces.

A plan is made on the driver, and carried out there near the head or by executors, which need to
reach the server; it pickles. A piece holds the rows of one insert: the body of the request, mostly
compressed, and not the rows. Only the columns that tell rows apart are kept until it is whole.

A piece is stored whole or not at all, and has a token: the server stores what has the same token
once, so a task that is tried again, or runs twice, adds nothing. The rows of a partition may come
in another order the second time: then pieces differ, and a partition of several pieces must not be
a mixture of two attempts. So each attempt of such a partition stores its name first, and the driver
writes the batch again if it finds two.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.rooms import Policy, clickhouse_room
from headwater.errors import ClickHouseRowsError, ClickHouseTableError
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.layout import Family, Layout
from headwater.targets.clickhouse.sql import TableName, into
from headwater.targets.clickhouse.types import fit
from headwater.targets.contract import NEW_COLUMN, Scope
from headwater.targets.frames import block_range
from headwater.targets.text import Fragment
from headwater.targets.values import Fitting, Tally

if TYPE_CHECKING:
    from headwater.spark.executors import ExecutorRows

PIECE_BYTES = 128 << 20  # of rows as they come
_STEP_ROWS, _STEP_BYTES = 32_768, 8 << 20  # fewer at a time cost more than their own work
_COUNTS = ("partition", "pieces", "rows")
_ALTERED = "altered"  # what was done to values, as text
_RECEIPT = pa.schema([*((name, pa.int64()) for name in _COUNTS), (_ALTERED, pa.string())])


@dataclass(frozen=True, slots=True)
class Transfer:
    """A plan: how the columns of one frame fill those of one table."""

    table: str
    types: Mapping[str, str]
    constants: Mapping[str, tuple[object, pa.DataType, str]]
    unique: tuple[str, ...]
    block_column: str
    blocks: tuple[int, int] | None
    deduplicates: bool
    fitting: Fitting

    def target(self, condition: str) -> str:
        """Return what follows INSERT INTO, if the server shall refuse without a condition."""
        added = {name: kind for name, (_, _, kind) in self.constants.items()}
        return into(self.table, {**self.types, **added}, condition)

    def fitted(self, frame: pa.Table, tally: Tally) -> pa.Table:
        """Return rows whose values have a place in the table."""
        return self.fitting.apply(frame, tally) if self.fitting else frame

    def apply(self, frame: pa.Table) -> pa.Table:
        """Return rows as they are sent; raise a coded error if they could not be undone."""
        if self.blocks is not None and self.block_column in self.types:
            self._check_blocks(frame)
        columns = {name: fit(frame.column(name), kind, name) for name, kind in self.types.items()}
        for name, (value, kind, _) in self.constants.items():
            columns[name] = pa.repeat(pa.scalar(value, kind), frame.num_rows)
        return pa.table(columns)

    def _check_blocks(self, frame: pa.Table) -> None:
        assert self.blocks is not None, "asked for with a scope only"
        ends, nulls = block_range(frame.column(self.block_column))
        first, last = self.blocks
        if frame.num_rows and (nulls or ends[0] < first or ends[1] > last):
            raise ClickHouseRowsError(
                "rows whose block number is not one of the batch's",
                table=self.table,
                column=self.block_column,
                rows=f"{ends[0]}..{ends[1]}" if ends else "null",
                batch=f"{first}..{last}",
            )


def plan_transfer(
    schema: pa.Schema,
    layout: Layout,
    stream_id: str,
    scope: Scope | None,
    version: int,
    policy: Policy = Policy.REPLACE,
) -> Transfer:
    """Plan how a frame is written.

    Raises:
        ClickHouseTableError: the table lacks a column of the frame, or has one of another type.
    """
    lacking = [name for name in schema.names if name not in layout.columns]
    if lacking:
        raise ClickHouseTableError(
            f"the table lacks columns of the frame; {NEW_COLUMN}",
            table=layout.name,
            columns=lacking,
        )
    if layout.version in schema.names:
        raise ClickHouseTableError(
            "the version is set by the target", table=layout.name, column=layout.version
        )
    filled: dict[str, tuple[object, pa.DataType]] = {}
    if layout.sign and layout.sign not in schema.names:
        filled[layout.sign] = (1, pa.int8())
    if layout.version:
        filled[layout.version] = (version, pa.int64())
        filled[layout.deleted] = (0, pa.uint8())
    if layout.stream_column:
        filled[layout.stream_column] = (stream_id, pa.string())
    if scope is not None and layout.block_column not in schema.names:
        filled[layout.block_column] = (scope.block, pa.int64())
    constants = {name: (*typed, layout.columns[name]) for name, typed in filled.items()}
    types = {name: layout.columns[name] for name in schema.names if name not in constants}
    for name, kind in types.items():  # types are compared before a row is sent
        fit(pa.chunked_array([], schema.field(name).type), kind, name)
    rooms = {name: clickhouse_room(kind) for name, kind in types.items()}
    block = -1 if scope is None else scope.block
    fitting = Fitting.plan(schema, rooms, policy, ClickHouseTableError, layout.block_column, block)
    known = all(name in types or name in constants for name in layout.sorting_key)
    merges = layout.family is not Family.OTHER and layout.sign not in schema.names
    return Transfer(
        str(layout.name),
        types,
        constants,
        tuple(column for column in layout.sorting_key if column in types)
        if known and merges
        else (),
        layout.block_column,
        None if scope is None else (scope.after + 1, scope.block),
        layout.deduplicates,
        fitting,
    )


class Piece:
    """Takes rows until it is sealed; then its body can be sent any number of times."""

    def __init__(self, transfer: Transfer, compression: str | None, tally: Tally) -> None:
        self.rows = 0
        self._tally = tally
        self.size = 0
        self._transfer = transfer
        self._options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._keys = _Keys(transfer)
        self._sink = pa.BufferOutputStream()
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Take rows that follow those before them.

        Raises:
            ClickHouseRowsError: a block number is not one of the batch's.
            ClickHouseTableError: a value has no place, and the policy is to stop.
        """
        kept = self._transfer.fitted(rows, self._tally)
        fitted = self._transfer.apply(kept)
        self._keys.add(kept)
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._sink, fitted.schema, options=self._options)
        self._writer.write_table(fitted)
        self.rows, self.size = self.rows + rows.num_rows, self.size + rows.nbytes

    def seal(self) -> pa.Buffer:
        """Return the body of the insert.

        Raises:
            ClickHouseRowsError: the engine would merge some of the rows into one.
        """
        self._keys.check()
        if self._writer is not None:
            self._writer.close()
        return self._sink.getvalue()


def pieces_of(
    batches: Iterable[pa.RecordBatch],
    transfer: Transfer,
    limit: int,
    compression: str | None,
    tally: Tally,
) -> Iterator[tuple[pa.Buffer, int]]:
    """Cut the rows of a partition into bodies and their rows; always after the same rows."""
    piece = Piece(transfer, compression, tally)
    for rows in _steps(batches, min(limit, _STEP_ROWS)):
        while rows.num_rows:
            room = limit - piece.rows
            part, rows = rows.slice(0, room), rows.slice(room)
            piece.add(part)
            if piece.rows >= limit or piece.size >= PIECE_BYTES:
                yield piece.seal(), piece.rows
                piece = Piece(transfer, compression, tally)
    if piece.rows:
        yield piece.seal(), piece.rows


def _steps(batches: Iterable[pa.RecordBatch], enough: int) -> Iterator[pa.Table]:
    """Join small batches, so that work per batch does not count."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= enough or size >= _STEP_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


class _Keys:
    """The columns that tell rows apart. Mostly each row is higher than the one before."""

    def __init__(self, transfer: Transfer) -> None:
        self._names = list(transfer.unique)
        self._table = transfer.table
        self._held: list[pa.Table] = []
        self._ascend = True

    def add(self, rows: pa.Table) -> None:
        """Take a copy of the keys of rows; the rows themselves are not kept."""
        if not self._names or not rows.num_rows:
            return
        keys = pa.table({name: _copied(_groupable(rows.column(name))) for name in self._names})
        if self._ascend:
            last = self._held[-1].slice(self._held[-1].num_rows - 1) if self._held else None
            self._ascend = _ascend(keys if last is None else pa.concat_tables([last, keys]))
        self._held.append(keys)

    def check(self) -> None:
        """Refuse rows that the engine would merge into one."""
        if self._ascend:
            return
        keys = pa.concat_tables(self._held)
        if keys.group_by(self._names).aggregate([]).num_rows < keys.num_rows:
            raise ClickHouseRowsError(
                "rows of a frame agree in all columns of ORDER BY, and would become one",
                table=self._table,
                order_by=self._names,
            )


def _ascend(keys: pa.Table) -> bool:
    """Tell whether each row is higher than the one before."""
    higher: Any = None
    equal: Any = None
    for column in keys.columns:
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        more = pc.less(before, after)
        higher = more if equal is None else pc.or_(higher, pc.and_(equal, more))
        same = pc.equal(before, after)
        equal = same if equal is None else pc.and_(equal, same)
    return bool(pc.all(pc.fill_null(higher, False)).as_py())


def _groupable(column: Any) -> Any:
    """Return values that can be told apart in groups: lists and structures become bytes."""
    if pa.types.is_null(column.type):
        return column.cast(pa.int8())
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([_spelled(chunk) for chunk in column.chunks], pa.binary())


def _spelled(values: pa.Array) -> pa.Array:
    """Return values as bytes, each behind its length, so that no two values are spelled alike."""
    if pa.types.is_map(values.type):
        pair = pa.struct([values.type.key_field, values.type.item_field])
        values = values.cast(pa.list_(pair))
    if pa.types.is_struct(values.type):
        parts = [_spelled(child) for child in values.flatten()]
        spelled = pc.binary_join_element_wise(b"", *parts, b"")
    elif pa.types.is_nested(values.type):
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        ends = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
        items = _spelled(values.flatten())
        spelled = pc.binary_join(pa.ListArray.from_arrays(ends, items), b"")
    elif pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        spelled = values.cast(pa.binary())
    else:
        spelled = values.cast(pa.string()).cast(pa.binary())
    lengths = pc.binary_length(spelled).cast(pa.string()).cast(pa.binary())
    whole = pc.binary_join_element_wise(lengths, spelled, b":")
    return pc.if_else(pc.is_valid(values), whole, pa.scalar(b"n", pa.binary()))


def _copied(column: Any) -> pa.Array:
    """Return the values in memory of their own."""
    return pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])


# --- on executors ---------------------------------------------------------------------------------


class TryAgain(Exception):  # noqa: N818 - not an error: the batch is written again
    """What was written cannot be trusted; it is removed and written again."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Stores the names of attempts, in a table next to the state."""

    client: ClickHouseClient
    name: TableName

    def create(self) -> None:
        """Create the table; what is in it is of no use after a week."""
        self.client.run(
            "CREATE TABLE IF NOT EXISTS <all> (token String, attempt String, "
            "at DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY token "
            "TTL at + INTERVAL 7 DAY",
            all=self.name,
        )

    def note(self, token: str, condition: str) -> None:
        """Note that an attempt is about to insert pieces."""
        self.client.run(
            "INSERT INTO <all> (token, attempt) SELECT {token:String}, {name:String} "
            "WHERE <condition>",
            {"token": token, "name": secrets.token_hex(8)},
            all=self.name,
            condition=Fragment(condition),
        )

    def are_single(self, tokens: list[str]) -> bool:
        """Tell whether each of these was attempted once."""
        return not self.client.rows(
            "SELECT uniqExact(attempt) AS n FROM <all> "
            "WHERE token IN {tokens:Array(String)} GROUP BY token HAVING n > 1",
            {"tokens": tokens},
            all=self.name,
        )


@dataclass(frozen=True, slots=True)
class Writer:
    """Inserts the rows of a partition, as long as a condition of the driver's holds. It pickles."""

    client: ClickHouseClient
    transfer: Transfer
    attempts: Attempts
    condition: str
    token: str
    piece_rows: int

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Insert, and yield the receipt."""
        pieces, rows, tally = 0, 0, Tally()
        token = f"{self.token}/{part}"
        compression = self.client.compression
        sealed = pieces_of(batches, self.transfer, self.piece_rows, compression, tally)
        ready = deque(islice(sealed, 2))
        if len(ready) > 1:
            self.attempts.note(token, self.condition)
        target = self.transfer.target(self.condition)
        while ready:  # a piece that was sent is let go
            body, count = ready.popleft()
            self.client.insert_body(target, body, f"{token}/{pieces}")
            pieces, rows = pieces + 1, rows + count
            del body
            ready.extend(islice(sealed, 1))
        self.client.close()
        facts = {**dict(zip(_COUNTS, (part, pieces, rows), strict=True)), _ALTERED: tally.dump()}
        yield pa.RecordBatch.from_pylist([facts], schema=_RECEIPT)


def insert_distributed(rows: ExecutorRows, writer: Writer) -> Tally:
    """Have the tasks insert rows that lie on executors; return what was done to values.

    Runs on the driver.

    Raises:
        TryAgain: a partition may be a mixture of two attempts.
    """
    receipts = rows.run(writer, _RECEIPT).to_pylist()
    several = [
        f"{writer.token}/{receipt['partition']}" for receipt in receipts if receipt["pieces"] > 1
    ]
    if several and not writer.attempts.are_single(several):
        raise TryAgain("a task of several inserts was attempted twice")
    altered = Tally()
    for receipt in receipts:
        altered.add(Tally.load(receipt[_ALTERED]))
    return altered
