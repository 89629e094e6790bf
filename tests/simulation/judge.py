"""What is right in a world: which end of a process is explained, and what tables must hold.

An end with an error is accepted only where what was done to the process, or how the portal stands,
explains that very code. Tables must be those of the branch that ends in the stored cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.core import BlockCursor
from headwater.errors import HeadwaterError
from headwater.pipeline import (
    Committed,
    Discarded,
    Event,
    Recovered,
    RolledBack,
    Settled,
    Waited,
)
from headwater.testing.chain.tree import SimBlock
from headwater.testing.conformance import Crash
from headwater.testing.oracle import DisagreementError
from tests.simulation.lines import Line
from tests.simulation.places import Stored
from tests.simulation.process import Process
from tests.simulation.second import look_again
from tests.simulation.situations import Fault, Feature, Met, Tally
from tests.simulation.tables import difference, expected, pools_created, transfers_of
from tests.simulation.upstream import Upstream, own_hash

BAD_DATA = {"E1002", "E3001", "E3003", "E3004", "E3005", "E3006"}  # the portal's fault
LOST = {"E2119", "E2010"}
LAGGING = {"E1004"}  # a replica stayed behind a final cursor
GONE = {"E3010"}  # the portal no longer has what comes next
RULED_OUT = {"E1003"}  # a replica stayed on a branch that finality ruled out
UNFIT = {"E0012", "E0018"}  # the definition is not, or not yet, what the tables are made for
LOCKED = {"E2103", "E2507", "E2330"}  # another has the stream: PostgreSQL, DuckDB, Parquet
CONFLICTS = {"E2118"}  # with the transaction of another stream that is paused, or just killed
FENCED = {  # another has begun since: ClickHouse, lakes, Parquet on S3, a query's target
    "E2016", "E2603", "E2330", "E5016", "E5035",
}  # fmt: skip


class Judge:
    """Called by the world; raises `DisagreementError` where something is not as it must be."""

    def __init__(self, upstream: Upstream, tally: Tally, note: Callable[[str], None]) -> None:
        self._upstream = upstream
        self._tally = tally
        self._note = note

    def saw_rival(self, line: Line, name: str, event: Event) -> None:
        """Refuse a commit: what it writes are the tables of another stream.

        Changes name their table, so batches without any write none: there, tables are compared.
        """
        if isinstance(event, Committed) and not (line.shape.changes and line.place.applies):
            raise DisagreementError(f"{name} writes the tables of {line.shape.stream}")

    def saw(self, line: Line, name: str, event: Event) -> None:
        """Recognise what an event stands for. Called by the process while it has the turn."""
        self._note(f"{name} {type(event).__name__} {event.state.cursor}")
        line.state, cursor = event.state, event.state.cursor
        match event:
            case RolledBack(state, orphaned, _):
                self._on_rollback(line, orphaned, state.number)
                depth = orphaned.number - (state.cursor.number if state.cursor else 0)
                if depth == 1:
                    self._tally.meet(Met.FORK_OF_ONE)
                if depth >= 8:
                    self._tally.meet(Met.DEEP_FORK)
                if state.finalized is not None and state.finalized == state.cursor:
                    self._tally.meet(Met.FORK_AT_FINALITY)
            case Discarded():
                line.met.add(Fault.FORK)
                self._tally.meet(Met.FORK_BEFORE_FLUSH)
            case Waited():
                line.met.add(Fault.REPLICA)
                self._tally.meet(Met.REPLICA_BEHIND)
                if self._upstream.is_ruled_out:
                    self._tally.meet(Met.REPLICA_RULED_OUT)
            case Recovered() if line.evolving:
                line.evolving = False
            case Recovered() if cursor is not None and not self._upstream.is_canonical(cursor.hash):
                self._tally.meet(Met.RESTART_ON_ORPHAN)
            case Committed() | Settled():
                if any(
                    not self._upstream.is_canonical(one.view().tip.hash)
                    for one in self._upstream.portal.replicas
                ):
                    self._tally.meet(Met.REPLICA_ON_BRANCH)
            case _:
                pass

    def _on_rollback(self, line: Line, orphaned: BlockCursor, safe: int) -> None:
        """Recognise what a rollback took away beside rows."""
        line.met.add(Fault.FORK)
        if line.shape.changes:
            self._tally.meet(Met.CHANGES_UNDONE)
        if not line.shape.swaps and line.inbox is None:
            return
        for block in self._upstream.chain.path(own_hash(str(orphaned.hash)), safe + 1):
            if line.shape.swaps and pools_created(self._upstream.chain, block):
                self._tally.meet(Met.POOL_UNDONE)
            if line.inbox is not None and transfers_of(self._upstream.chain, block, line.tokens):
                self._tally.meet(Met.MESSAGE_UNDONE)

    def ended(self, line: Line, process: Process) -> None:
        """Accept the end of a process if what was done to it explains it."""
        failure = process.actor.failure
        if failure is None or isinstance(failure, Crash):
            return
        if not isinstance(failure, HeadwaterError):
            raise DisagreementError(
                f"{process.name} ended in {process.call} with {type(failure).__name__}: {failure}"
            ) from failure
        code = failure.code
        if code in GONE:
            line.met.add(Feature.GONE)
        self._note(f"{process.name} ended: {failure}")
        self._tally.errors[code] += 1
        if code in LOCKED | FENCED and any(one.is_paused for one in line.alive):
            self._tally.meet(Met.SUCCESSOR_REFUSED)
        if not self._explains(line, process, code):
            raise DisagreementError(f"nothing explains this end of {process.name}: {failure}")

    def _explains(self, line: Line, process: Process, code: str) -> bool:
        """Tell whether how things stand explains that a process ended with a code.

        One that the network held goes on by itself, between turns, once it is let go.
        """
        others = [one for one in line.processes if one is not process and one.turns]
        began = process.turns[0] if process.turns else 0
        replaced = any(one.actor.is_blocked or one.turns[1] > began for one in others if one.turns)
        if code in LOCKED:
            lost = line.struck > process.struck
            held = process.haunted or lost or any(not one.actor.is_over for one in others)
            if held or (process.dropped and replaced):
                return True
        if code in FENCED:
            return replaced
        return (
            (code in BAD_DATA and self._upstream.faulty)
            or (code in LAGGING and self._upstream.is_behind)
            or (code in RULED_OUT and self._upstream.is_ruled_out)
            or (code in GONE and self._upstream.gone_below > 0 and self._may_refuse(line))
            or (code in UNFIT and line.evolving)
            or (code in CONFLICTS and process.crowded)
            or (code in LOST and (line.lossy or process.dropped))
        )

    def _may_refuse(self, line: Line) -> bool:
        """Tell whether a stream may end where blocks are gone: they, or final ones below them."""
        return not line.gives_up or line.state.finalized is None

    def look(self, line: Line) -> None:
        """Compare what is stored with the branch that ends in the stored cursor.

        Where there are no transactions, rows above the cursor are there until the next start: the
        server is made to merge what it holds instead, as it may at any moment.
        """
        if line.place.transactional:
            self.compare(line)
        elif line.place.kind == "ClickHouse":
            line.place.merge()
            self._tally.meet(Met.MERGED)

    def compare(self, line: Line) -> list[Stored]:
        """Compare tables with what the branch of their cursor says they hold; return them."""
        if line.evolving:
            return []  # tables are between two definitions
        held = line.place.stored(line.shape)
        for stored in held:
            cursor = stored.cursor
            path = self._upstream.blocks_up_to(cursor)
            blocks = self._without(line, stored, path)
            wanted = expected(self._upstream.chain, blocks, line.tokens, line.shape)
            for name in stored.lacks:
                wanted.pop(name, None)
            said = difference(stored.tables, wanted)
            if said:
                what = f"{stored.kind} {line.shape.stream}"
                raise DisagreementError(f"{what} at {cursor}: {said}")
        return held

    def _without(
        self, line: Line, stored: Stored, blocks: Sequence[SimBlock]
    ) -> Sequence[SimBlock]:
        """Return the blocks that a stream has not left out; it may do so only where none was."""
        gone = stored.missing
        if not gone:
            return blocks
        line.met.add(Feature.GIVEN_UP)
        if not line.gives_up or max(one.stop for one in gone) > self._upstream.gone_below:
            raise DisagreementError(
                f"{line.shape.stream} left out {gone}; the portal lacked blocks below "
                f"{self._upstream.gone_below}"
            )
        return [one for one in blocks if not any(one.number in each for each in gone)]

    def check_final(self, line: Line, held: Sequence[Stored]) -> None:
        """Where final rows alone are shown: all of them are, once everything is at rest."""
        final = line.state.finalized
        for stored in held:
            if not stored.final_only or final is None or line.undo_buffer:
                continue
            blocks = self._without(line, stored, self._upstream.chain.canonical(0, final.number))
            wanted = expected(self._upstream.chain, blocks, line.tokens, line.shape)
            for name in stored.lacks:
                wanted.pop(name, None)
            if said := difference(stored.tables, wanted):
                raise DisagreementError(f"{line.shape.stream}, final up to {final}: {said}")

    def look_again(self, line: Line, held: Sequence[Stored]) -> None:
        """Have `verify` read the blocks once more, and compare what it can. Nothing writes now.

        `held` is what was read since anything was written.
        """
        for place, stored in zip(line.place.looked_at(line.shape), held, strict=True):
            with place.environment(), place.still():
                shape = place.own(line.shape)
                target, admin = place.target(shape, "verify", lambda: 0.0), place.admin(shape)
                if stored.cursor is None and line.query is not None:
                    continue  # no block had rows for it
                compared = look_again(
                    shape, line.stream(), admin, target, self._upstream.url(), stored.missing
                )
            self._tally.met[Met.VERIFIED] += len(compared)

    def is_delivered(self, line: Line) -> bool:
        """Tell whether every message of a block that the stream knows to be final has come."""
        final = line.state.finalized
        return line.inbox is None or final is None or line.inbox.is_complete(final.number)

    def is_at_head(self, line: Line) -> bool:
        """Tell whether a stream has committed all that it may, up to the newest block."""
        if line.query is not None:
            return line.query.is_at_head
        cursor = line.state.cursor
        head, held = self._upstream.chain.head, line.undo_buffer
        if cursor is None or not self._upstream.is_canonical(cursor.hash):
            return False
        if not held:
            return cursor.number == head.number
        rest = self._upstream.chain.canonical(cursor.number + 1, head.number - held)
        return not any(expected(self._upstream.chain, rest, line.tokens, line.shape).values())
