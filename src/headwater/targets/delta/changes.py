"""What batches change of a Delta table, and the way back.

Every commit carries the changes of its batches in its metadata, so a rollback needs nothing but the
newest commits of the log: it removes the files that came and adds those that went, in one commit.

Another engine may compact a table while its newest blocks are hot: then files of orphaned rows are
not there to be removed, and their rows lie in others, among rows that stay (`by_row`). Which rows
those are is known exactly, since the files that were rewritten are still on disk; if they are not,
by the block of each row, as long as their number agrees. Runs on the driver.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import LakeUndoError, StoredStateError
from headwater.targets.lake.state import Author, blocks_of, window_stem
from headwater.targets.lake.table import BLOCK_NUMBER, ROWS

if TYPE_CHECKING:
    from headwater.targets.delta.stream_table import StreamTable

logger = logging.getLogger("headwater.targets.delta")
_TEXT = 64  # characters of a text that is worth a place in statistics


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its path in it, its size, and the statistics that Delta keeps of it.

    `partition` are the values of the columns that the table is partitioned by, as texts.
    """

    path: str
    size: int
    stats: str
    partition: dict[str, str | None] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return int(json.loads(self.stats)["numRecords"])

    def ends(self, column: str) -> tuple[Any, Any]:
        """Return the smallest and the largest value of a column; None where it is not known."""
        statistics = json.loads(self.stats or "{}")
        return statistics.get("minValues", {}).get(column), statistics.get("maxValues", {}).get(
            column
        )


@dataclass(frozen=True, slots=True)
class Net:
    """Files that come and files that go: of the batch up to a `block`, or of several changes."""

    added: Mapping[str, DataFile]
    removed: Mapping[str, DataFile]
    block: int = -1

    @classmethod
    def of(cls, changes: Iterable[Net]) -> Net:
        """Return what changes come to: each file is added, or removed, or neither."""
        added: dict[str, DataFile] = {}
        removed: dict[str, DataFile] = {}
        for change in changes:
            for path, file in change.removed.items():
                if added.pop(path, None) is None:
                    removed[path] = file
            for path, file in change.added.items():
                if removed.pop(path, None) is None:
                    added[path] = file
        return cls(added, removed)

    def undone(self) -> Net:
        """Return the way back."""
        return Net(self.removed, self.added)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def dump_changes(changes: Sequence[Net]) -> str:
    """Write changes for the metadata of a commit."""

    def rows(files: Mapping[str, DataFile]) -> list[list[object]]:
        return [[*astuple(file)] for file in files.values()]

    entries = [[change.block, rows(change.added), rows(change.removed)] for change in changes]
    return json.dumps(entries, separators=(",", ":"))


def load_changes(text: str) -> list[Net]:
    """Read what `dump_changes` wrote."""

    def files(rows: Iterable[Any]) -> dict[str, DataFile]:
        return {row[0]: DataFile(*row) for row in rows}

    try:
        return [
            Net(files(added), files(removed), int(block))
            for block, added, removed in json.loads(text)
        ]
    except (ValueError, TypeError) as error:
        raise StoredStateError("the changes of a commit cannot be read", got=text[:80]) from error


def file_statistics(footer: pq.FileMetaData) -> str:
    """Return what the log keeps of a file's columns: counts, and the ends of numbers and texts."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    for index in range(footer.num_columns if groups else 0):
        name = groups[0].column(index).path_in_schema
        statistics = [group.column(index).statistics for group in groups]
        if "." in name or not all(
            stats is not None and stats.has_null_count for stats in statistics
        ):
            continue
        ends = [end for stats in statistics if stats.has_min_max for end in (stats.min, stats.max)]
        if any(stats.num_values and not stats.has_min_max for stats in statistics) or not all(
            type(end) is int or (type(end) is str and len(end) <= _TEXT) for end in ends
        ):
            continue
        nulls[name] = sum(stats.null_count for stats in statistics)
        if ends:
            low[name], high[name] = min(ends), max(ends)
    said = {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return json.dumps(said, separators=(",", ":"))


def flat_statistics(row: Mapping[str, Any]) -> str:
    """Return statistics as the log has them, from the columns of `get_add_actions`."""
    statistics: dict[str, Any] = {"numRecords": row.get("num_records")}
    for prefix, name in (
        ("min.", "minValues"),
        ("max.", "maxValues"),
        ("null_count.", "nullCount"),
    ):
        statistics[name] = {
            column[len(prefix) :]: value
            for column, value in row.items()
            if column.startswith(prefix) and type(value) in (int, str)
        }
    return json.dumps(statistics, separators=(",", ":"))


# --- rows of files that others have rewritten -----------------------------------------------------


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
    if all(table.is_there(file.path) for file in lost):
        orphans = OrphanRows(table.read([file]) for file in lost)
    elif by_block and not net.added:
        orphans = OrphanBlocks(BLOCK_NUMBER, number, sum(file.rows for file in lost))
    else:
        raise LakeUndoError(
            "others have rewritten files of blocks that are not final, and deleted what they were",
            table=table.name,
            block=number,
        )
    ends = [end for file in lost for end in file.ends(BLOCK_NUMBER)]
    known = by_block and all(type(end) is int for end in ends)
    wanted = (min(ends), max(ends)) if known else None
    added, removed = dict(net.added), dict(net.removed)
    stays = {path: file for path, file in table.live().items() if path not in removed}
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
