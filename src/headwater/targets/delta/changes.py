"""What batches change of a Delta table: files that come, files that go, and the way back. Pure.

Every commit carries the changes of its batches in its metadata, so a rollback needs nothing but the
newest commits of the log: it removes the files that came and adds those that went, in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from headwater.errors import StoredStateError


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
    def first_block(self) -> int:
        """The first block that the file may hold rows of, as its name tells; -1 for none."""
        return self._blocks[0]

    @property
    def last_block(self) -> int:
        """The last block that the file may hold rows of, as its name tells; -1 for none."""
        return self._blocks[1]

    @property
    def _blocks(self) -> tuple[int, int]:
        parts = self.path.rpartition("/")[2].split("-", 2)
        known = len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit()
        return (int(parts[0]), int(parts[1])) if known else (-1, -1)

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
