"""Keeps Delta tables small: small files become large ones, the log is shortened, orphans are swept.

Nothing that a rollback needs is touched: only files of blocks that no fork can take are compacted,
and files that the undo of a hot block would add again are never deleted. Called by the target
between two batches, with a bound on what it rewrites, and by `headwater maintain`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headwater.targets.delta.changes import DataFile, Net
from headwater.targets.delta.settings import DeltaSettings
from headwater.targets.delta.stream_table import StreamTable
from headwater.targets.lake.authors import Author, Sweeper, file_name, slug, window_stem
from headwater.targets.lake.tx import ROWS, Announce

BIN_BYTES = 128 << 20  # of files that become one


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Maintains the tables of one stream. Blocks above `floor` may be undone.

    `said` is what a commit to a table is to say; without it, maintenance comes from outside and
    takes no stream over. `epoch` is that of the stream. `bounded` limits what is rewritten by the
    settings.
    """

    tables: Sequence[StreamTable]
    stream_id: str
    epoch: int
    floor: int
    settings: DeltaSettings
    announce: Announce
    bounded: bool
    said: Callable[[StreamTable], Mapping[str, str]] | None = None

    def run(self) -> dict[str, int]:
        """Compact, write checkpoints, shorten the log; return how many files were compacted.

        Raises:
            TableRewritten: a table has changed meanwhile; the others are done.
        """
        compacted = self.compact()
        for table in self.tables:
            self.announce(f"checkpoint {table.name}")
            table.checkpoint()
        self.shorten_logs()
        return {"compacted": compacted}

    def shorten_logs(self) -> int:
        """Delete entries of logs that neither a rollback nor time travel needs."""
        self.announce("shorten logs")
        kept = self.settings.log_entries
        for one in self.tables if self.said is not None else ():
            one.look()
        return sum(one.shorten_log(self.floor, kept) for one in self.tables)

    def compact(self) -> int:
        """Write small files of final blocks as fewer ones, in order of their blocks."""
        done = 0
        for table in self.tables:
            for several in self._bins(table):
                first = min(one.first_block for one in several)
                author = Author(slug(self.stream_id), self.epoch, self.said is None)
                stem = window_stem(author, first, max(one.last_block for one in several))
                plan = table.plan(table.columns, stem)
                batches = (batch for one in several for batch in table.read([one]).to_batches(ROWS))
                self.announce(f"compact {table.name}")
                made = dict(map(table.data_file, plan.write(batches)))
                net = Net(made, {one.path: one for one in several})
                self.announce(f"commit {table.name}")
                said = {} if self.said is None else self.said(table)
                table.commit(net, said, changed=False, fenced=self.said is not None)
                done += len(several)
            table.forget()
        return done

    def sweep(self) -> int:
        """Delete files that nothing needs any more; return how many those were.

        Those that a commit has removed, or that a writer has left who can commit nothing more.
        """
        return sum(map(self._sweep, self.tables))

    def _bins(self, table: StreamTable) -> list[list[DataFile]]:
        """Return small files that are to become one: of one partition, in order of blocks."""
        settings = self.settings
        small = [
            one
            for one in table.live().values()
            if one.size < settings.small_file_bytes and 0 <= one.last_block <= self.floor
        ]
        groups: dict[str, list[DataFile]] = {}
        for one in sorted(small, key=lambda one: one.path):
            groups.setdefault(repr(one.partition), []).append(one)
        bins: list[list[DataFile]] = []
        room = settings.compact_bytes if self.bounded else 1 << 62
        for several in groups.values():
            size = BIN_BYTES
            for one in several:
                if one.size > room:
                    break
                room -= one.size
                if size + one.size > BIN_BYTES:
                    bins.append([])
                    size = 0
                bins[-1].append(one)
                size += one.size
        return [one for one in bins if len(one) >= settings.compact_files]

    def _sweep(self, table: StreamTable) -> int:
        hours, inside = self.settings.retention_hours, self.said is not None
        sweeper = Sweeper(self.stream_id, table.epoch, inside)
        removed = set(table.unreferenced(hours, full=False))
        gone = [
            path
            for path in table.unreferenced(hours, full=True)
            if path in removed or sweeper.may_delete(path)
        ]
        if inside:
            table.look()
        else:
            table.reload()
            table.read_undo(self.floor)
        needed = {path for change in table.undo for path in (*change.added, *change.removed)}
        needed |= table.live().keys()
        kept = set(map(file_name, needed))
        gone = [path for path in gone if file_name(path) not in kept and sweeper.is_own(path)]
        for path in gone:
            self.announce(f"sweep {table.name}")
            table.place.delete(path)
        return len(gone)
