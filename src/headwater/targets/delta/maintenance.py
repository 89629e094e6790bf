"""Keeps Delta tables small: small files become large ones, the log is shortened, orphans are swept.

Nothing that a rollback needs is touched: only files of blocks that no fork can take are compacted,
and files that the undo of a hot block would add again are never deleted. Called by the target
between two batches, with a bound on what it rewrites, and by `headwater maintain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.targets.delta.changes import DataFile, Net
from headwater.targets.delta.tables import StreamTable
from headwater.targets.lake.files import window_stem
from headwater.targets.lake.tx import ROWS, Announce

if TYPE_CHECKING:
    from headwater.targets.delta.target import DeltaSettings

BIN_BYTES = 128 << 20  # of files that become one


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Maintains the tables of one stream; each comes with what its commits are to say.

    Blocks above `floor` may be undone. `bounded` limits what is rewritten by the settings.
    """

    tables: Sequence[tuple[StreamTable, Mapping[str, str]]]
    stream_id: str
    floor: int
    settings: DeltaSettings
    announce: Announce
    bounded: bool

    def run(self) -> dict[str, int]:
        """Compact, write checkpoints, sweep; return how many files those were."""
        compacted = self.compact()
        for table, said in self.tables:
            self.announce(f"checkpoint {table.name}")
            table.commit(Net({}, {}), said)  # the state must not expire with the log
            table.checkpoint()
        return {"compacted": compacted, "swept": sum(map(self._sweep, self.tables))}

    def compact(self) -> int:
        """Write small files of final blocks as fewer ones, in order of their blocks."""
        done = 0
        for table, said in self.tables:
            for several in self._bins(table):
                first = min(int(one.path.rpartition("/")[2].split("-")[0]) for one in several)
                stem = window_stem(self.stream_id, first, max(one.last_block for one in several))
                plan = table.plan(table.columns, stem)
                batches = (batch for one in several for batch in table.read([one]).to_batches(ROWS))
                self.announce(f"compact {table.name}")
                made = dict(map(table.data_file, plan.write(batches)))
                self.announce(f"commit {table.name}")
                table.commit(Net(made, {one.path: one for one in several}), said, changed=False)
                table.forget()
                done += len(several)
        return done

    def _bins(self, table: StreamTable) -> list[list[DataFile]]:
        """Return small files that are to become one each, in order of their blocks."""
        settings = self.settings
        small = [
            one
            for one in table.live().values()
            if one.size < settings.small_file_bytes and 0 <= one.last_block <= self.floor
        ]
        if not table.key:
            table.forget()  # only tables with a key are looked at again
        bins: list[list[DataFile]] = []
        size, room = 0, settings.compact_bytes if self.bounded else 1 << 62
        for one in sorted(small, key=lambda one: one.path):
            room -= one.size
            if room < 0:
                break
            if not bins or size + one.size > BIN_BYTES:
                bins.append([])
                size = 0
            bins[-1].append(one)
            size += one.size
        return [one for one in bins if len(one) >= settings.compact_files]

    def _sweep(self, one: tuple[StreamTable, Mapping[str, str]]) -> int:
        """Delete files that nothing needs any more; return how many those were."""
        table, _ = one
        needed = {path for change in table.undo for path in (*change.added, *change.removed)}
        gone = [
            path
            for path in table.unreferenced(self.settings.retention_hours)
            if path not in needed and path.endswith(".parquet")
        ]
        for path in gone:
            self.announce(f"sweep {table.name}")
            table.place.delete(path)
        return len(gone)
