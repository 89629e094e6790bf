"""Who wrote a file of a lake, as its name tells, and so who may delete it. Pure.

A file that nothing names may be one that its writer is about to commit. So that nothing names it is
no proof that it may go; that its writer can commit nothing any more is. Names tell the stream and
the epoch of the writer: those of earlier epochs are fenced out of a table by a commit of the next
one. Files that tell neither, such as those of other engines, are left to these.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import unquote

_DATA = re.compile(
    r"(?:\d{10,}-\d{10,}|rewritten-\d{10,})-([a-z0-9_]+)(?:-([em])(\d{6,}))?"
    r"-\d{5,}-[0-9a-f]{12}-\d{3,}\.parquet"
)
_METADATA = re.compile(r"(?:snap-\d+-0-)?([a-z0-9_]+)-([em])(\d{6,})-[0-9a-f-]{36}(?:-m0)?\.avro")
_BLOCKS = re.compile(r"(?:(\d{10,})|rewritten)-(\d{10,})-[a-z0-9_]+-")
_OUTSIDE = "m"


class Author(NamedTuple):
    """A writer: the `slug` of its stream, and its epoch; 0 in names of releases that told none.

    `outside` is maintenance beside the stream: it commits under an epoch that is another's.
    """

    stream: str
    epoch: int = 0
    outside: bool = False

    @property
    def mark(self) -> str:
        """What names of its files hold."""
        return f"{self.stream}-{_OUTSIDE if self.outside else 'e'}{self.epoch:06d}"

    @classmethod
    def of(cls, name: str) -> Author | None:
        """Return who wrote a file; None if the name is not one of a stream."""
        last = file_name(name)
        found = _DATA.fullmatch(last) or _METADATA.fullmatch(last)
        return found and cls(found[1], int(found[3] or 0), found[2] == _OUTSIDE)


def slug(text: str) -> str:
    """Return a text as a part of a name of files and tables; two texts never have the same."""
    plain = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")[:40]
    if plain == text:
        return plain
    return f"{plain or 'stream'}_{sha256(text.encode()).hexdigest()[:8]}"


def window_stem(author: Author, first: int, last: int) -> str:
    """Return how names of files begin: the blocks, then the writer."""
    return f"{max(first, 0):010d}-{max(last, 0):010d}-{author.mark}"


def blocks_of(name: str) -> tuple[int, int]:
    """Return the first and the last block that a file may hold rows of, as its name tells.

    -1 for both where the name tells none: another engine has written it.
    """
    found = _BLOCKS.match(file_name(name))
    if found is None:
        return -1, -1
    return int(found[1] or 0), int(found[2])


def file_name(location: str) -> str:
    """Return the last part of a location.

    Names of a stream's files are never used twice, and hold nothing that is encoded, so this part
    is all that needs to be compared: engines write one place as `file:/x`, `file:///x` or `/x`.
    """
    return unquote(location.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Who wants to delete files of a stream: its writer itself, between two commits, or another.

    `epoch` is the newest of which the table has a commit: all earlier writers are fenced out. Only
    the writer itself knows that nothing of its own epoch is under way.
    """

    stream_id: str
    epoch: int
    inside: bool

    def is_own(self, name: str) -> bool:
        """Tell whether the stream wrote a file."""
        author = Author.of(name)
        return author is not None and author.stream == slug(self.stream_id)

    def may_delete(self, name: str) -> bool:
        """Tell whether nobody can commit a file any more, if nothing names it now."""
        author = Author.of(name)
        if author is None or author.stream != slug(self.stream_id):
            return False
        return author.epoch < self.epoch or (
            self.inside and author.epoch == self.epoch and not author.outside
        )

    def unnamed(
        self, names: Iterable[str], named: Iterable[str], removed: Collection[str] = ()
    ) -> list[str]:
        """Return the files that may be deleted, given all locations that something names.

        Those that a commit has `removed` were committed before: whoever wrote them is done.
        """
        kept = {file_name(one) for one in named}
        return [
            one
            for one in names
            if file_name(one) not in kept
            and (self.may_delete(one) or (one in removed and self.is_own(one)))
        ]
