"""The endpoint's own cursors, beside the state: one row per commit, in the same transaction.

A cursor is opaque: only the endpoint reads it. It names a block and what was final then, so an
endpoint that is given the cursor of an orphaned block answers with an undo signal first. The rows
live in a side table of the target, so a rollback undoes them with everything else, and what is left
is the cursor of the block that the stream stands at. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.core import Batch, BlockCursor, PipeState
from headwater.core.cursor import UNKNOWN_HASH
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable

TABLE = SideTable(
    "substreams_cursors",
    pa.schema(
        [
            ("block_number", pa.int64()),
            ("ordinal", pa.int64()),
            ("block_hash", pa.string()),
            ("cursor", pa.string()),
        ]
    ),
)
PRUNE_AT = 200  # commits, after which the rows that no resume needs are removed
_NO_HASH = (None, UNKNOWN_HASH)


@dataclass(frozen=True, slots=True)
class Note:
    """Hash and cursor of a block that was handed to the loop."""

    hash: str
    cursor: str


class CursorLog:
    """An extension that remembers and stores the cursors of blocks that the source hands out.

    Without a target that keeps side tables it remembers them, and stores nothing.
    """

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}  # ascending
        self._commits = 0  # since rows were removed
        self._target: KeepsSideTables | None = None

    # --- told and asked by the source -------------------------------------------------------------

    @property
    def last(self) -> int:
        """The newest block that was handed out and not taken back; -1 if there is none."""
        return next(reversed(self._notes), -1)

    def note(self, block: BlockCursor, cursor: str) -> None:
        """Remember the cursor of a block that the loop is about to stand at; in ascending order."""
        self._notes[block.number] = Note(str(block.hash), cursor)

    def cursor_of(self, block: BlockCursor) -> str:
        """Return the endpoint's cursor of a block that was handed out; "" if it is not known."""
        note = self._notes.get(block.number)
        return "" if note is None or note.hash != block.hash else note.cursor

    def undo(self, number: int) -> None:
        """Forget the blocks above a block."""
        for above in [above for above in self._notes if above > number]:
            del self._notes[above]

    def resume_at(self, state: PipeState) -> tuple[str, bool]:
        """Return the cursor of the newest known block that a state holds; "" without any.

        And whether it is the state's own block. What is stored may be of another branch: that of a
        target beside this one. A block below what a fork can reach is on the chain in any case.
        """
        hashes = {point.number: point.hash for point in state.landing_points()}
        for number, note in reversed(self._notes.items()):
            same = number < state.undo_floor or hashes.get(number, "") in (note.hash, *_NO_HASH)
            if number <= state.number and same:
                return note.cursor, number == state.number
        return "", False

    def hash_of(self, number: int) -> str:
        """Return the hash of a block that was handed out; "" if it is not known."""
        note = self._notes.get(number)
        return "" if note is None else note.hash

    # --- an extension of the stream ---------------------------------------------------------------

    @property
    def tables(self) -> Sequence[SideTable]:
        """The table of cursors."""
        return (TABLE,)

    def start(self, target: KeepsSideTables, state: PipeState) -> None:
        """Read the stored cursors up to the state's."""
        self._target = target
        rows = target.read_side_table(TABLE.name, up_to_block=max(state.number, 0))
        for row in rows.to_pylist():
            if row["block_number"] <= state.number:
                self._notes[row["block_number"]] = Note(row["block_hash"], row["cursor"])

    def rows(self, batch: Batch[Delivery]) -> Mapping[str, pa.Table]:
        """Return the cursor of the batch's last block."""
        number = batch.headers[-1].number
        note = self._notes[number]
        row = {"block_number": number, "ordinal": 0, "block_hash": note.hash, "cursor": note.cursor}
        return {TABLE.name: pa.Table.from_pylist([row], schema=TABLE.columns)}

    def advanced(self, state: PipeState) -> None:
        """Forget cursors that no resume and no fork needs."""
        floor = min(state.undo_floor, state.number)
        kept = max((number for number in self._notes if number <= floor), default=-1)
        for number in list(self._notes):
            if number >= kept:
                break
            del self._notes[number]
        self._commits += 1
        if self._target is not None and kept > 0 and self._commits >= PRUNE_AT:
            self._target.settle_side_rows(TABLE.name, (kept - 1, 0), {})
            self._commits = 0

    def rolled_back(self, state: PipeState) -> None:
        """Do nothing: the target has removed the rows, and the next session forgets the notes."""

    def finish(self, state: PipeState) -> None:
        """Do nothing: all cursors are stored."""

    def stop(self) -> None:
        """Hold nothing."""
