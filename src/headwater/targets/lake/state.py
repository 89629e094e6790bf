"""What a lake target stores of its stream, as properties: texts by name, next to the data.

Iceberg keeps them in a snapshot's summary, Delta in a commit's metadata, Parquet in a file of
state. All of it is replaced in one step, so cursor, high-water mark, rollback chain, definition and
side tables never disagree. `epoch` counts the writers: each start takes the next one, and a writer
whose epoch is not the stored one any more has been replaced and may change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
        found = {
            **position(self.stream_id, self.epoch, self.state),
            STATE: dump_state(self.state),
            SIDE: json.dumps(self.side, separators=(",", ":")),
        }
        if self.config is not None:
            found[CONFIG] = self.config
        if self.pending:
            found[PENDING] = self.pending
        if self.ages:
            found[AGES] = json.dumps(self.ages, separators=(",", ":"))
        return found

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
                {name: tuple(SideFile(*one) for one in files) for name, files in side.items()},
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
    found = {
        FORMAT: str(FORMAT_VERSION),
        STREAM: stream_id,
        EPOCH: str(epoch),
        BLOCK: str(state.number),
    }
    if state.cursor is not None and state.cursor.hash is not None:
        found[HASH] = state.cursor.hash
    return found


def check_format(properties: Mapping[str, str]) -> None:
    """Refuse properties that a newer release has written."""
    text = properties.get(FORMAT, "")
    if not text.isdigit() or not 0 < int(text) <= FORMAT_VERSION:
        raise StoredStateError(
            "stored properties have no format that is known", version=text, known=FORMAT_VERSION
        )
