"""The way back where others have rewritten files: rows of orphaned blocks, taken out one by one.

Another engine may compact a table while its newest blocks are hot: then files of orphaned rows are
not there to be removed, and their rows lie in others, among rows that stay. Which rows those are is
known exactly, since the files that were rewritten are still on disk; if they are not, by the block
of each row, as long as their number agrees. Runs on the driver, for forks of such tables alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import LakeUndoError
from headwater.targets.delta.changes import DataFile, Net
from headwater.targets.lake.authors import Author, blocks_of, window_stem
from headwater.targets.lake.table import BLOCK_NUMBER, ROWS

if TYPE_CHECKING:
    from headwater.targets.delta.stream_table import StreamTable

logger = logging.getLogger("headwater.targets.delta")


class OrphanRows:
    """Rows to be found and taken out, each as often as it is there."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._left: Counter[str] = Counter()
        for table in tables:
            self._left.update(_texts(table))

    @property
    def missing(self) -> int:
        """How many rows have not been found yet."""
        return self._left.total()

    def take_out(self, rows: pa.Table, near: pa.ChunkedArray | None = None) -> pa.Table | None:
        """Return the rows that stay; None if all of them do. `near` is true where one may not."""
        if near is None:
            places: Sequence[int] = range(rows.num_rows)
        else:
            places = pc.indices_nonzero(near).to_pylist()
        gone = []
        chosen = rows.take(pa.array(places, pa.int64()))
        for place, text in zip(places, _texts(chosen), strict=True):
            if self._left[text] > 0:
                self._left[text] -= 1
                gone.append(place)
        if not gone:
            return None
        return _without(rows, gone)


class OrphanBlocks:
    """Rows above a block, of which the number is known, to be found and taken out."""

    def __init__(self, column: str, number: int, rows: int) -> None:
        self._column, self._number, self.missing = column, number, rows

    def take_out(self, rows: pa.Table, near: pa.ChunkedArray | None = None) -> pa.Table | None:
        """Return the rows that stay; None if all of them do."""
        above = pc.greater(rows.column(self._column), self._number)
        gone = pc.indices_nonzero(pc.fill_null(above, False)).to_pylist()
        self.missing -= len(gone)
        return _without(rows, gone) if gone else None


def _without(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    everything = pa.array(range(rows.num_rows), pa.int64())
    return rows.filter(pc.invert(pc.is_in(everything, pa.array(places, pa.int64()))))


def _texts(rows: pa.Table) -> Iterable[str]:
    """Yield a text per row, the same for the same values: NaN equals itself, 0.0 is not -0.0."""
    columns = [rows.column(name) for name in sorted(rows.column_names)]
    for batch in pa.table(columns, names=sorted(rows.column_names)).to_batches(50_000):
        values = [column.to_pylist() for column in batch.columns]
        yield from map(repr, zip(*values, strict=True))


def by_row(
    table: StreamTable, net: Net, lost: Sequence[DataFile], number: int, author: Author
) -> Net:
    """Add to a way back that rows of files which others have rewritten are taken out."""
    orphans: OrphanRows | OrphanBlocks
    by_block = BLOCK_NUMBER in table.columns.names
    if all(table.is_there(one.path) for one in lost):
        orphans = OrphanRows(table.read([one]) for one in lost)
    elif by_block and not net.added:
        orphans = OrphanBlocks(BLOCK_NUMBER, number, sum(one.rows for one in lost))
    else:
        raise LakeUndoError(
            "others have rewritten files of blocks that are not final, and deleted what they were",
            table=table.name,
            block=number,
        )
    ends = [end for one in lost for end in one.ends(BLOCK_NUMBER)]
    known = by_block and all(type(end) is int for end in ends)
    wanted = (min(ends), max(ends)) if known else None
    added, removed = dict(net.added), dict(net.removed)
    stays = {path: one for path, one in table.live().items() if path not in removed}
    for path, file in {**stays, **added}.items():
        if not orphans.missing:
            break
        if wanted is not None and not table.may_hold(file, {BLOCK_NUMBER: wanted}):
            continue
        rows = table.read([file])
        near = None
        if wanted is not None:
            block = rows.column(BLOCK_NUMBER)
            near = pc.and_(pc.greater_equal(block, wanted[0]), pc.less_equal(block, wanted[1]))
        others = orphans.take_out(rows, near)
        if others is None:
            continue
        if added.pop(path, None) is None:
            removed[path] = file
        if others.num_rows:
            stem = window_stem(author, max(blocks_of(path)[0], 0), number)
            plan = table.plan(table.columns, stem)
            added |= map(table.data_file, plan.write(others.to_batches(ROWS)))
    if orphans.missing:
        raise LakeUndoError(
            "rows of blocks that are not final have been rewritten, and are not found",
            table=table.name, block=number, rows=orphans.missing,
        )  # fmt: skip
    logger.warning("table.back_by_row table=%s block=%d files=%d", table.name, number, len(lost))
    return Net(added, removed)
