"""`missing_blocks="skip"`: the blocks that a stream had to leave out, counted beside its state.

A portal's real-time service keeps a window of blocks that moves on, so what a stream wants next may
be gone. Where the user gives such blocks up, each run of them is a row of a side table: it is
committed with the batch that follows, undone with it, and read by `headwater status`. Runs on the
driver, in the loop's thread. The same reading misses the same blocks, so nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import pyarrow as pa

from headwater.core import Batch, BlockRange, PipeState, block_count, merge_ranges
from headwater.errors import InvalidOptionError, SideTablesError
from headwater.metrics import StreamRecord
from headwater.portal import NoticeKind, PortalClient
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable, Target

OnMissing = Literal["error", "skip"]
MISSING = SideTable(
    "missing_blocks",
    pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64())]),
    settles=False,
)
"""A row for each run of blocks that was left out: the last one, and the first one as `ordinal`."""


def check_missing(given: object) -> OnMissing:
    """Return what to do about missing blocks; refuse anything unknown."""
    for one in get_args(OnMissing):
        if given == one:
            return one  # type: ignore[no-any-return]
    raise InvalidOptionError('missing_blocks is "error" or "skip"', got=repr(given))


def missing_ranges(rows: pa.Table) -> tuple[BlockRange, ...]:
    """Return the blocks that stored rows say were left out, each once."""
    ends = zip(rows["ordinal"].to_pylist(), rows["block_number"].to_pylist(), strict=True)
    return merge_ranges(BlockRange(first, last) for first, last in ends)


def count_missing(rows: pa.Table) -> int:
    """Return how many blocks stored rows say were left out."""
    return sum(map(block_count, missing_ranges(rows)))


class MissingBlocks:
    """Keeps what one run leaves out. Implements `Extension`; a target of the user's stores none."""

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
        found = self._due(last)
        untold = tuple(one for one in found if (one.to_block or 0) > self._told)
        self._told = max(self._told, last)
        return untold

    def _due(self, last: int) -> tuple[BlockRange, ...]:
        return tuple(one for one in self._waiting if (one.to_block or 0) < last)

    # --- an extension of the stream ---------------------------------------------------------------

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
        found = self._due(batch.headers[-1].number)
        if not found:
            return {}
        self._waiting = tuple(one for one in self._waiting if one not in found)
        self._stored = merge_ranges((*self._stored, *found))
        parts = [part for one in found for part in _cut(one, self._cursors)]
        columns = [[one.to_block for one in parts], [one.from_block for one in parts]]
        arrays = [pa.array(one, pa.int64()) for one in columns]
        return {MISSING.name: pa.table(arrays, schema=MISSING.columns)}

    def advanced(self, state: PipeState) -> None:
        """Show what is committed."""
        self._show()

    def rolled_back(self, state: PipeState) -> None:
        """Forget what lies above the cursor: the next reading misses it again, or finds it."""
        self._waiting, self._told = (), state.number
        self._stored = tuple(one for one in self._stored if (one.to_block or 0) <= state.number)
        self._show()

    def finish(self, state: PipeState) -> None:
        """Do nothing: all is stored."""

    def stop(self) -> None:
        """Hold nothing."""

    def _show(self) -> None:
        self._record.missing(sum(map(block_count, self._stored)))


def _cut(blocks: BlockRange, cursors: Sequence[int]) -> list[BlockRange]:
    """Cut blocks behind the cursors of targets: one that is ahead takes what it misses itself."""
    starts = [blocks.from_block, *(one + 1 for one in cursors if one + 1 in blocks)]
    starts = sorted(set(starts))
    ends = [*(one - 1 for one in starts[1:]), blocks.to_block]
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
