"""What batches change of a Delta table: files that come, files that go, and the way back. Pure.

Every commit carries the changes of its batches in its metadata, so a rollback needs nothing but the
newest commits of the log: it removes the files that came and adds those that went, in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import pyarrow.parquet as pq

from headwater.errors import StoredStateError

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
        found = json.loads(self.stats or "{}")
        return found.get("minValues", {}).get(column), found.get("maxValues", {}).get(column)


@dataclass(frozen=True, slots=True)
class Undo:
    """What one batch, up to a block, added to a table and removed from it; kept for its undo."""

    block: int
    added: Mapping[str, DataFile]
    removed: Mapping[str, DataFile]


@dataclass(frozen=True, slots=True)
class Net:
    """What several changes come to: each file is added, or removed, or neither."""

    added: Mapping[str, DataFile]
    removed: Mapping[str, DataFile]

    @classmethod
    def of(cls, changes: Iterable[Undo]) -> Net:
        """Return what changes come to, one after the other."""
        added: dict[str, DataFile] = {}
        removed: dict[str, DataFile] = {}
        for one in changes:
            for path, file in one.removed.items():
                if added.pop(path, None) is None:
                    removed[path] = file
            for path, file in one.added.items():
                if removed.pop(path, None) is None:
                    added[path] = file
        return cls(added, removed)

    def undone(self) -> Net:
        """Return the way back."""
        return Net(self.removed, self.added)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def dump_changes(changes: Sequence[Undo]) -> str:
    """Write changes for the metadata of a commit."""

    def rows(files: Mapping[str, DataFile]) -> list[list[object]]:
        return [[*astuple(one)] for one in files.values()]

    found = [[one.block, rows(one.added), rows(one.removed)] for one in changes]
    return json.dumps(found, separators=(",", ":"))


def load_changes(text: str) -> list[Undo]:
    """Read what `dump_changes` wrote."""

    def files(rows: Iterable[Any]) -> dict[str, DataFile]:
        return {one[0]: DataFile(*one) for one in rows}

    try:
        return [
            Undo(int(block), files(added), files(removed))
            for block, added, removed in json.loads(text)
        ]
    except (ValueError, TypeError) as error:
        raise StoredStateError("the changes of a commit cannot be read", got=text[:80]) from error


def file_statistics(footer: pq.FileMetaData) -> str:
    """Return what the log keeps of a file's columns: counts, and the ends of numbers and texts."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    unknown: set[str] = set()
    nulls: dict[str, int] = {}
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            name, found = column.path_in_schema, column.statistics
            if "." in name:
                continue
            if found is None or not found.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.num_values:
                    unknown.add(name)
                continue
            ends = (found.min, found.max)
            if not all(
                type(one) is int or (type(one) is str and len(one) <= _TEXT) for one in ends
            ):
                unknown.add(name)
                continue
            low[name] = min(low.get(name, ends[0]), ends[0])
            high[name] = max(high.get(name, ends[1]), ends[1])
    found_stats = {
        "numRecords": footer.num_rows,
        "minValues": {name: one for name, one in low.items() if name not in unknown},
        "maxValues": {name: one for name, one in high.items() if name not in unknown},
        "nullCount": {name: one for name, one in nulls.items() if name not in unknown},
    }
    return json.dumps(found_stats, separators=(",", ":"))


def flat_statistics(row: Mapping[str, Any]) -> str:
    """Return statistics as the log has them, from the columns of `get_add_actions`."""
    found: dict[str, Any] = {"numRecords": row.get("num_records")}
    for prefix, name in (
        ("min.", "minValues"),
        ("max.", "maxValues"),
        ("null_count.", "nullCount"),
    ):
        found[name] = {
            column[len(prefix) :]: one
            for column, one in row.items()
            if column.startswith(prefix) and type(one) in (int, str)
        }
    return json.dumps(found, separators=(",", ":"))
