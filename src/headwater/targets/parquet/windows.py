"""Windows of blocks: how files are named, and which of them a crash may have left. Pure.

A file is named by the window of blocks that it covers, so its name says what is in it and which
file comes next. The windows of a table follow each other: `coverage` is the first block that no
file of the table covers yet. A table without rows publishes nothing, and its next window stretches
back to its coverage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headwater.errors import ParquetWriterError, UnexplainedFilesError
from headwater.targets.lake.state import Author

_NAME = re.compile(r"(\d{12,})-(\d{12,})(?:-(\d{4,}))?(?:-e(\d{6,}))?\.parquet")
_STAGED = re.compile(r"e(\d{6,})-")  # in names of earlier releases
_HIDDEN = ("_", ".")  # what readers of Parquet folders leave out


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The blocks that a file covers, both ends included."""

    first: int
    last: int

    def file_name(self, part: int = 0, parts: int = 1, epoch: int = 0) -> str:
        """Return the name of a file; a window of several files numbers them.

        `epoch` is that of the writer, where there is no lock that keeps an earlier one out.
        """
        number = f"-{part:04d}" if parts > 1 else ""
        end = f"{number}-e{epoch:06d}" if epoch else number
        return f"{self.first:012d}-{self.last:012d}{end}.parquet"

    def overlaps(self, other: Window) -> bool:
        """Tell whether some block is in both."""
        return self.first <= other.last and other.first <= self.last


def window_of(name: str) -> Window | None:
    """Return the window that a file's name tells, None if it is not such a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    window = Window(int(match[1]), int(match[2]))
    return window if window.first <= window.last else None


def epoch_of(name: str) -> int:
    """Return the epoch of the writer that a file's name tells; 0 if it tells none."""
    match = _NAME.fullmatch(name)
    return 0 if match is None else int(match[4] or 0)


def staged_epoch(name: str) -> int:
    """Return the epoch of the writer of a file that waits; 0 if its name tells none."""
    author = Author.of(name)
    match = None if author is not None else _STAGED.match(name)
    return int(match[1]) if match is not None else 0 if author is None else author.epoch


def leftovers(
    files: Mapping[str, Iterable[str]], cursor: int, coverage: Mapping[str, int], epoch: int = 0
) -> list[tuple[str, str]]:
    """Return the files, as (table, name), that do not count.

    A crash leaves files above the cursor, and at the end of a range a file from where its table
    ended to the cursor. A writer that was paused while another took over may leave one of its own
    epoch among those of the next: it covers blocks that a later epoch covers, too. `coverage` is as
    the state has it: of a table that is not in it, nothing was published. `epoch` is that of who
    asks: it judges files of earlier epochs only; 0 where a lock keeps all others out.

    Raises:
        ParquetWriterError: a later writer has published something.
        UnexplainedFilesError: a file is there that neither the state, nor a crash, nor a writer
            that was replaced explains: of another name, below the cursor without being covered, or
            overlapping another one of its epoch.
    """
    removed: list[tuple[str, str]] = []
    for table, names in sorted(files.items()):
        covered = coverage.get(table, 0)
        windows: dict[Window, list[str]] = {}
        for name in sorted(name for name in names if not name.startswith(_HIDDEN)):
            window = window_of(name)
            if window is None:
                raise UnexplainedFilesError(
                    "the folder of a table holds a file of another name", table=table, file=name
                )
            if epoch and epoch_of(name) >= epoch:
                raise ParquetWriterError("a later writer has published files", table=table)
            if window.first >= covered and (
                window.last > cursor or window == Window(covered, cursor)
            ):
                removed.append((table, name))
            else:
                windows.setdefault(window, []).append(name)
        stale = _replaced(windows)
        removed += [(table, name) for name in stale]
        kept = [window for window in sorted(windows) if not stale.issuperset(windows[window])]
        for window in kept:
            if window.last >= covered:
                raise UnexplainedFilesError(
                    "a file covers blocks that the state does not say are published",
                    table=table,
                    file=windows[window][0],
                    cursor=cursor,
                    covered=covered - 1,
                )
        for earlier, later in pairwise(kept):
            if earlier.overlaps(later):
                raise UnexplainedFilesError(
                    "two files cover the same blocks",
                    table=table,
                    file=windows[earlier][0],
                    other=windows[later][0],
                )
    return removed


def published(names: Iterable[str], covered: int) -> dict[str, Window]:
    """Return the files of a table that count, given the first block that none covers yet."""
    windows: dict[Window, list[str]] = {}
    for name in names:
        window = window_of(name)
        if window is not None and window.last < covered:
            windows.setdefault(window, []).append(name)
    stale = _replaced(windows)
    named = ((name, window) for window, several in windows.items() for name in several)
    return {name: window for name, window in named if name not in stale}


def _replaced(windows: Mapping[Window, Sequence[str]]) -> set[str]:
    """Return the files of an epoch whose blocks a later one has published itself."""
    stale: set[str] = set()
    for several in _meeting(sorted(windows)):
        named = [(window, name, epoch_of(name)) for window in several for name in windows[window]]
        stale |= {
            name
            for window, name, epoch in named
            if epoch and any(epoch < later and window.overlaps(other) for other, _, later in named)
        }
    return stale


def _meeting(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Yield windows in order, those together that share blocks."""
    meeting: list[Window] = []
    for window in windows:
        if meeting and window.first > max(other.last for other in meeting):
            yield meeting
            meeting = []
        meeting.append(window)
    if meeting:
        yield meeting
