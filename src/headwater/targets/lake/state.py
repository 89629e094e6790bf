"""What a lake target stores of its stream, as properties: texts by name, next to the data.

Iceberg keeps them in a snapshot's summary, Delta in a commit's metadata, Parquet in a file of
state. All of it is replaced in one step, so cursor, high-water mark, rollback chain, definition and
side tables never disagree. `epoch` counts the writers: each start takes the next one, and a writer
whose epoch is not the stored one any more has been replaced and may change nothing.

Names of a stream's files tell who wrote them, and so who may delete them. A file that nothing names
may be one that its writer is about to commit. So that nothing names it is no proof that it may go;
that its writer can commit nothing any more is. Names tell the stream and the epoch of the writer:
those of earlier epochs are fenced out of a table by a commit of the next one. Files that tell
neither, such as those of other engines, are left to these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import unquote

from headwater.core import PipeState
from headwater.core.codec import dump_state, load_state
from headwater.errors import StoredStateError

PREFIX = "headwater."
FORMAT = "headwater.format-version"
STREAM = "headwater.stream-id"
EPOCH = "headwater.epoch"
BLOCK = "headwater.block"
HASH = "headwater.block-hash"
STATE = "headwater.state"
CONFIG = "headwater.config"
SIDE = "headwater.side-tables"
PENDING = "headwater.pending"
AGES = "headwater.table-ages"
FORMAT_VERSION = 1
EMPTIED, KEPT = "emptied", "kept"  # what becomes of tables of a stream that is forgotten


class SideFile(NamedTuple):
    """A Parquet file with rows of a side table: its name, its blocks, how many rows."""

    name: str
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class StoredStream:
    """All that is stored of a stream beside its tables.

    `pending` says that the stream is being forgotten, and what becomes of the rows of its tables.
    `ages` are those of the tables when this was stored, by the tables' own ids: one that is younger
    is an older copy.
    """

    stream_id: str
    state: PipeState = PipeState()  # noqa: RUF009 - immutable
    epoch: int = 0
    config: str | None = None
    side: Mapping[str, tuple[SideFile, ...]] = field(default_factory=dict)
    pending: str = ""
    ages: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing is stored but the epoch of a writer."""
        return self.state.cursor is None and self.config is None and not self.pending

    def to_properties(self) -> dict[str, str]:
        """Return it as texts by name."""
        properties = {
            **position(self.stream_id, self.epoch, self.state),
            STATE: dump_state(self.state),
            SIDE: json.dumps(self.side, separators=(",", ":")),
        }
        if self.config is not None:
            properties[CONFIG] = self.config
        if self.pending:
            properties[PENDING] = self.pending
        if self.ages:
            properties[AGES] = json.dumps(self.ages, separators=(",", ":"))
        return properties

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> StoredStream:
        """Read what `to_properties` wrote; refuse a newer format, and what is incomplete."""
        check_format(properties)
        try:
            side = json.loads(properties.get(SIDE, "{}"))
            return cls(
                properties[STREAM],
                load_state(properties[STATE]),
                int(properties[EPOCH]),
                properties.get(CONFIG),
                {
                    name: tuple(SideFile(*fields) for fields in files)
                    for name, files in side.items()
                },
                properties.get(PENDING, ""),
                json.loads(properties.get(AGES, "{}")),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise StoredStateError(
                "the stored properties of a stream cannot be read", reason=repr(error)[:80]
            ) from error


def position(stream_id: str, epoch: int, state: PipeState) -> dict[str, str]:
    """Return what each commit to a data table carries: who wrote it, and up to which block.

    Readers find the snapshot of a block by it. The rollback chain is not in it: it is as long as
    the history that it would be repeated in.
    """
    properties = {
        FORMAT: str(FORMAT_VERSION),
        STREAM: stream_id,
        EPOCH: str(epoch),
        BLOCK: str(state.number),
    }
    if state.cursor is not None and state.cursor.hash is not None:
        properties[HASH] = state.cursor.hash
    return properties


def check_format(properties: Mapping[str, str]) -> None:
    """Refuse properties that a newer release has written."""
    text = properties.get(FORMAT, "")
    if not text.isdigit() or not 0 < int(text) <= FORMAT_VERSION:
        raise StoredStateError(
            "stored properties have no format that is known", version=text, known=FORMAT_VERSION
        )


# --- who wrote a file -----------------------------------------------------------------------------

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
        match = _DATA.fullmatch(last) or _METADATA.fullmatch(last)
        return match and cls(match[1], int(match[3] or 0), match[2] == _OUTSIDE)


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
    match = _BLOCKS.match(file_name(name))
    if match is None:
        return -1, -1
    return int(match[1] or 0), int(match[2])


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

    def may_delete(self, name: str, *, was_removed: bool = False) -> bool:
        """Tell whether nobody can commit a file any more, if nothing names it now.

        One that a commit has removed was committed before: whoever wrote it is done.
        """
        author = Author.of(name)
        if author is None or author.stream != slug(self.stream_id):
            return False
        is_mine = self.inside and author.epoch == self.epoch and not author.outside
        return was_removed or author.epoch < self.epoch or is_mine
