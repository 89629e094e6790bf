"""A model of what Spark does with a streaming source, without Spark: logs, replays, restarts.

It keeps an offset log and a commit log, as a checkpoint does, and a sink that holds the rows of
each micro-batch by its id. As in Spark, no log has the initial offset, which is asked for whenever
the first micro-batch is planned or run; and a source hears of a commit once the micro-batch that
follows is planned. It can be killed between two calls and at every file that the journal writes or
removes, and starts again with a new follower on the same journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

from headwater.core import BlockRange, Blocks, SpanLimits
from headwater.decode import evm
from headwater.portal import PortalClient
from headwater.query import Query as Asked
from headwater.spark.datasource import RawQuery
from headwater.spark.parts import Receipt, RowMaker, table_rows
from headwater.spark.streaming.changelog_rows import InsertRows
from headwater.spark.streaming.folder import Folder, LocalFolder, open_folder
from headwater.spark.streaming.journal import Journal, Offset
from headwater.spark.streaming.source import (
    Changelog,
    ChangelogPart,
    FinalPart,
    Limits,
    PortalUpstream,
    Upstream,
)
from headwater.stream.changelog import Follower
from headwater.testing import PortalServer, PortalSim, SimTransport, VirtualClock
from tests.stream.truth import transfers

TRANSFER = evm.events("erc20.Transfer")
ROWS = table_rows(TRANSFER)
Row = dict[str, Any]


class Killed(Exception):  # noqa: N818 - what happens, not an error
    """The driver was killed here."""


def limits(*, far: int = 10, first_span: int = 7, largest: int = 15, hot_blocks: int = 4) -> Limits:
    return Limits(SpanLimits(blocks=largest, seconds=1e9), hot_blocks, 1 << 24, first_span, far, 3)


class MortalFolder:
    """A folder whose process may end before and after each file that it writes or removes."""

    def __init__(self, folder: Folder, may_die: Callable[[], None]) -> None:
        self._may_die = may_die
        self.open, self.close, self._create = folder.open, folder.close, folder.create
        self.names, self.read, self._remove = folder.names, folder.read, folder.remove

    def create(self, name: str, data: bytes) -> None:
        self._may_die()
        self._create(name, data)
        self._may_die()

    def remove(self, name: str) -> None:
        self._may_die()
        self._remove(name)
        self._may_die()


class Query:
    """One streaming query with its checkpoint, its journal and its sink."""

    def __init__(
        self,
        portal: PortalSim,
        folder: Path,
        *,
        dice: Random,
        first_block: Callable[[], int] = lambda: 0,
        limits: Limits,
        final_only: bool = False,
        fingerprint: str = "rows",
        address: str | None = None,
        row_maker: RowMaker = ROWS,
        asked: Asked | RawQuery = TRANSFER.query,
    ) -> None:
        self.portal = portal
        self.folder = folder
        self.sink: dict[int, list[Row]] = {}
        self.ends: list[dict[str, Any]] = []
        self.committed = 0
        self.kills = 0
        self.replays = 0
        self.clock = VirtualClock()
        self._dice = dice
        self._limits = limits
        self._first_block = first_block
        self._final_only = final_only
        self._fingerprint = fingerprint
        self._address = address
        self._row_maker = row_maker
        self._asked = asked
        self._follower: Follower | None = None
        self.kill_rate = 0.0
        self.kill_at = ""
        self._net: dict[str, Row] = {}
        self._netted = 0

    @property
    def follower(self) -> Follower:
        """The running follower; a new one after a kill."""
        if self._follower is None:
            self._follower = self.new_follower()
        return self._follower

    def new_follower(self) -> Follower:
        """Return a follower, as a new process has it."""
        journal = None
        if not self._final_only:
            folder: Folder = LocalFolder(self.folder, wait_s=0)
            if self._address is not None:
                folder = open_folder(self._address)
            mortal = cast("Folder", MortalFolder(folder, self._may_die))
            journal = Journal(mortal, self._fingerprint)
        upstream = self.upstream()
        changelog = Changelog(upstream, self._row_maker, journal, self._limits)
        return Follower(changelog, self.clock)

    def upstream(self) -> Upstream:
        """Return the portal that a new follower reads."""
        watch = self._asked.headers_only()
        return PortalUpstream(self.client(), self._asked, watch, self._limits, self.clock)

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *error: object) -> None:
        if self._follower is not None:
            self._follower.close()

    def kill(self) -> None:
        """End the process: only what is on disk stays."""
        if self._follower is not None:
            self._follower.close()  # releases the lock, as the end of a process does
        self._follower = None
        self.kills += 1

    def take_over(self, other: Query) -> None:
        """Go on with the checkpoint of another process."""
        self.ends, self.sink, self.committed = list(other.ends), dict(other.sink), other.committed

    def trigger(self) -> bool:
        """Do what Spark does at one trigger; tell whether there was something new."""
        if self._follower is None and len(self.ends) > self.committed:
            self.replays += 1
            self._run_batch(self.committed)
        start = self.start(len(self.ends))
        self._may_die()
        end = self.follower.next(start).to_json()
        self._may_die()
        if end == start.to_json():
            return False
        self.ends.append(end)
        self._may_die()
        if len(self.ends) > 1:
            self.follower.commit(Offset.from_json(self.ends[-2]))
        self._may_die("plan")
        self._run_batch(len(self.ends) - 1)
        return True

    def start(self, batch: int) -> Offset:
        """Return where a batch begins."""
        if batch:
            return Offset.from_json(self.ends[batch - 1])
        return self.follower.begin(self._first_block())

    def _run_batch(self, batch: int) -> None:
        parts = self.follower.plan(self.start(batch), Offset.from_json(self.ends[batch]))
        self._may_die()
        rows = [row for part in parts for row in self._read(part)]
        if batch in self.sink:
            assert self.sink[batch] == rows, "a replay gives the same rows"
        self.sink[batch] = rows
        self._may_die()
        self.committed = batch + 1
        self._may_die()

    def _read(self, part: ChangelogPart) -> Iterator[Row]:
        """Do what a task does."""
        if isinstance(part, FinalPart):
            yield from self.final_rows(
                InsertRows(self._row_maker, part.shift, part.finalized), part.part.blocks
            )
            return
        for batch in part.rows().to_batches():
            yield from batch.to_pylist()

    def final_rows(self, maker: RowMaker, blocks: BlockRange) -> Iterator[Row]:
        """Read final blocks as the batch source does."""
        with self.client() as client:
            for answer in client.read(self._asked, blocks, finalized=True):
                if isinstance(answer, Blocks):
                    for batch in maker.rows(answer, Receipt(0)):
                        yield from batch.to_pylist()

    def client(self) -> PortalClient:
        """Return a client of the simulated portal."""
        clock = self.clock
        return PortalClient(SimTransport(self.portal, clock), clock=clock, rng=Random(0))

    def _may_die(self, place: str = "") -> None:
        if place and place == self.kill_at:
            self.kill_at = ""
            raise Killed
        if self._dice.random() < self.kill_rate:
            raise Killed

    def net(self) -> dict[str, Row]:
        """Return the rows that are left once inserts and deletes are netted, by their id."""
        held = self._net
        for batch in range(self._netted, len(self.sink)):
            self._netted += 1
            for row in self.sink[batch]:
                if row["_sign"] > 0:
                    assert row["_row_id"] not in held, f"{row['_row_id']} came twice"
                    held[row["_row_id"]] = row
                else:
                    before = held.pop(row["_row_id"])
                    assert plain(before) == plain(row), "a delete is the row as it was"
        return held

    def versions(self) -> list[tuple[int, int, str]]:
        """Return (version, sign, block hash) of all changes with rows, in order of emission."""
        seen: dict[tuple[int, int, str], None] = {}
        for batch in sorted(self.sink):
            for row in self.sink[batch]:
                block = row["_row_id"].rpartition("-")[0]
                seen[row["_commit_version"], row["_sign"], block] = None
        return list(seen)

    def files(self) -> list[str]:
        """Return the segments of the journal."""
        return sorted(one.name for one in self.folder.glob("*.arrow"))


def plain(row: Row) -> Row:
    """Return the columns of the batch source."""
    return {name: value for name, value in row.items() if not name.startswith("_")}


def canonical(portal: PortalServer) -> list[tuple[int, str, int]]:
    """Return number, hash and log index of every transfer of the canonical chain, in order."""
    rows = transfers(portal.chain, portal.chain.canonical())
    return sorted((number, block_hash, index) for number, block_hash, index, *_ in rows)
