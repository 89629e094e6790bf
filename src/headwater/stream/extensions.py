"""Extensions of a stream keep rows beside the user's, in side tables of the target.

What an extension stores is committed with the batch it comes from and undone with it, so after a
crash, a fork or a replay it is what the canonical chain says, like everything else. One of them is
here: the count of blocks that a stream had to leave out. Runs on the driver, in the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal, Protocol

import pyarrow as pa

from headwater.core import Batch, BlockRange, PipeState, block_count, merge_ranges
from headwater.effects.outbox import Depth, Outbox
from headwater.errors import SideTablesError
from headwater.metrics import StreamRecord
from headwater.portal import NoticeKind, PortalClient
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable, Target


class Extension(Protocol):
    """One extension, made anew for each run. All calls come from one thread of the driver.

    The order is: `start`; then for each batch `rows` and, once it is committed, `advanced`; after a
    fork `rolled_back`; when the range is read `finish`; in the end, on every exit path, `stop`. The
    target may be read and settled in all of them but `rows` and `stop`. A class that derives from
    this one leaves out what it has no use for.
    """

    @property
    def tables(self) -> Sequence[SideTable]:
        """The side tables that it needs."""
        ...

    def start(self, target: KeepsSideTables, state: PipeState) -> None:
        """Read what is stored. Called after `recover`, before anything is asked of the portal."""
        ...

    def rows(self, batch: Batch[Delivery]) -> Mapping[str, pa.Table]:
        """Return the rows that a batch adds, by table. The same batch always gives the same."""
        ...

    def advanced(self, state: PipeState) -> None:
        """Take note that a state was committed: a batch arrived, or finality may have moved."""
        return

    def rolled_back(self, state: PipeState) -> None:
        """Take note that everything above the state's cursor is gone, also from the tables."""
        return

    def finish(self, state: PipeState) -> None:
        """Do what is left to do: the range is read. The target is still open."""
        return

    def stop(self) -> None:
        """Release what is held. The target may be closed already."""
        return


ExtensionMaker = Callable[[str], Extension]  # is given the stream's id


class Extensions:
    """All extensions of one run. Without any, every target will do."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self._extensions = tuple(extensions)
        self._target: KeepsSideTables | None = None

    def __bool__(self) -> bool:
        return bool(self._extensions)

    def open(self, target: Target[Delivery], optional: Sequence[Extension] = ()) -> None:
        """Have the target create the tables. Called before `recover`.

        Those that are `optional` join if the target can keep their tables.

        Raises:
            SideTablesError: the target cannot keep any.
        """
        keeps = target.capabilities.side_tables
        if keeps is not None:
            self._extensions = (*self._extensions, *optional)
        tables = {table.name: table for extension in self._extensions for table in extension.tables}
        if not tables:
            return
        if keeps is None:
            raise SideTablesError(
                "the target cannot keep what extensions of the stream need to store",
                target=type(target).__name__,
                tables=", ".join(sorted(tables)),
            )
        self._target = keeps
        keeps.open_side_tables(list(tables.values()))

    def start(self, state: PipeState) -> None:
        """Start all of them."""
        if self._target is not None:
            for extension in self._extensions:
                extension.start(self._target, state)

    def add_rows(self, batch: Batch[Delivery]) -> Batch[Delivery]:
        """Return a batch with the rows that the extensions add to it."""
        side: dict[str, pa.Table] = {}
        for extension in self._extensions:
            side.update(extension.rows(batch))
        return batch.with_data(replace(batch.data, side=side)) if side else batch

    def advanced(self, state: PipeState) -> None:
        """Tell all of them that a state was committed."""
        for extension in self._extensions:
            extension.advanced(state)

    def outboxes(self, state: PipeState) -> list[Depth]:
        """Return how much the outboxes hold."""
        return [
            extension.depth(state)
            for extension in self._extensions
            if isinstance(extension, Outbox)
        ]

    def rolled_back(self, state: PipeState) -> None:
        """Tell all of them that a fork was undone."""
        for extension in self._extensions:
            extension.rolled_back(state)

    def finish(self, state: PipeState) -> None:
        """Let all of them end their work."""
        for extension in self._extensions:
            extension.finish(state)

    def stop(self) -> None:
        """Stop all of them, the last first, also if one fails."""
        extensions, self._extensions = self._extensions, ()
        with ExitStack() as stack:
            for extension in extensions:
                stack.callback(extension.stop)


# --- blocks that a stream had to leave out --------------------------------------------------------


OnMissing = Literal["error", "skip"]
MISSING = SideTable(
    "missing_blocks",
    pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64())]),
    settles=False,
)
"""A row for each run of blocks that was left out: the last one, and the first one as `ordinal`."""


def missing_ranges(rows: pa.Table) -> tuple[BlockRange, ...]:
    """Return the blocks that stored rows say were left out, each once."""
    ends = zip(rows["ordinal"].to_pylist(), rows["block_number"].to_pylist(), strict=True)
    return merge_ranges(BlockRange(first, last) for first, last in ends)


def count_missing(rows: pa.Table) -> int:
    """Return how many blocks stored rows say were left out."""
    return sum(map(block_count, missing_ranges(rows)))


class MissingBlocks(Extension):
    """Keeps what one run leaves out; a target of the user's stores none.

    A portal's real-time service keeps a window of blocks that moves on, so what a stream wants next
    may be gone. Where the user gives such blocks up (`missing_blocks="skip"`), each run of them is
    a row of a side table: it is committed with the batch that follows, undone with it, and read by
    `headwater status`. The same reading misses the same blocks, so nothing counts twice.
    """

    def __init__(self, client: PortalClient, record: StreamRecord) -> None:
        self._client = client
        self._record = record
        self._stored: tuple[BlockRange, ...] = ()
        self._waiting: tuple[BlockRange, ...] = ()
        self._told = -1
        self._cursors: list[int] = []

    def open(self, cursors: Iterable[int]) -> None:
        """Take note of how far each target of the stream is: it has what others may miss."""
        self._cursors = sorted(set(cursors))

    def leave_out(self, blocks: Sequence[BlockRange]) -> None:
        """Note blocks that are given up. Called before the batch that follows them is made."""
        known = merge_ranges((*self._waiting, *blocks))
        if known == self._waiting:
            return
        self._waiting = known
        self._client.tell(
            NoticeKind.LEFT_OUT,
            "the portal does not have these blocks any more, and no row of them will be written",
            blocks=", ".join(map(str, blocks)),
            count=sum(map(block_count, blocks)),
        )

    def before(self, last: int) -> tuple[BlockRange, ...]:
        """Return what is left out before the batch that ends with this block; of each run, once."""
        due = self._due(last)
        untold = tuple(gap for gap in due if (gap.to_block or 0) > self._told)
        self._told = max(self._told, last)
        return untold

    def _due(self, last: int) -> tuple[BlockRange, ...]:
        return tuple(gap for gap in self._waiting if (gap.to_block or 0) < last)

    @property
    def tables(self) -> Sequence[SideTable]:
        """The table of missing blocks."""
        return (MISSING,)

    def start(self, target: KeepsSideTables, state: PipeState) -> None:
        """Read what is stored."""
        self._stored = missing_ranges(
            target.read_side_table(MISSING.name, up_to_block=state.number)
        )
        self._show()

    def rows(self, batch: Batch[Delivery]) -> Mapping[str, pa.Table]:
        """Return the blocks that were left out before this batch."""
        due = self._due(batch.headers[-1].number)
        if not due:
            return {}
        self._waiting = tuple(gap for gap in self._waiting if gap not in due)
        self._stored = merge_ranges((*self._stored, *due))
        parts = [part for gap in due for part in _cut(gap, self._cursors)]
        columns = [[part.to_block for part in parts], [part.from_block for part in parts]]
        arrays = [pa.array(numbers, pa.int64()) for numbers in columns]
        return {MISSING.name: pa.table(arrays, schema=MISSING.columns)}

    def advanced(self, state: PipeState) -> None:
        """Show what is committed."""
        self._show()

    def rolled_back(self, state: PipeState) -> None:
        """Forget what lies above the cursor: the next reading misses it again, or finds it."""
        self._waiting, self._told = (), state.number
        self._stored = tuple(gap for gap in self._stored if (gap.to_block or 0) <= state.number)
        self._show()

    def _show(self) -> None:
        self._record.missing(sum(map(block_count, self._stored)))


def _cut(blocks: BlockRange, cursors: Sequence[int]) -> list[BlockRange]:
    """Cut blocks behind the cursors of targets: one that is ahead takes what it misses itself."""
    starts = [blocks.from_block, *(number + 1 for number in cursors if number + 1 in blocks)]
    starts = sorted(set(starts))
    ends = [*(start - 1 for start in starts[1:]), blocks.to_block]
    return [BlockRange(first, last) for first, last in zip(starts, ends, strict=True)]


def check_keeps(target: Target[Delivery], *, is_owned: bool) -> None:
    """Refuse a target of ours that could not keep the count.

    Raises:
        SideTablesError: it keeps no side tables.
    """
    if target.capabilities.side_tables is None and not is_owned:
        raise SideTablesError(
            "missing_blocks='skip' stores what is left out, and the target cannot keep it",
            target=type(target).__name__,
            tables=MISSING.name,
        )
