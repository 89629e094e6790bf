"""The rare situations that a soak must have met to mean anything."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

KINDS = ("memory", "DuckDB", "PostgreSQL", "ClickHouse")


class Met(StrEnum):
    """What is counted, beside kills and pauses in each call of each kind of target."""

    FORK_OF_ONE = "rollback of one block"
    DEEP_FORK = "rollback of 8 blocks or more"
    FORK_AT_FINALITY = "rollback to the high-water mark"
    FORK_TAKEN_BACK = "fork back to a branch that was abandoned before"
    FORK_WHILE_DOWN = "fork while a stream was down"
    FORK_WHILE_PAUSED = "fork while a writer was paused"
    FORK_BEFORE_FLUSH = "fork that took what was not committed yet"
    RESTART_ON_ORPHAN = "start on a block that no longer exists"
    FINALITY_STALLED = "finality 20 blocks behind the head"
    FINALITY_JUMPED = "finality that moved by 10 blocks at once"
    FINALITY_REGRESSED = "a replica that reports older finality"
    REPLICA_BEHIND = "a replica that was behind and was waited for"
    REPLICA_ON_BRANCH = "a replica on a branch that was abandoned"
    REPLICA_RULED_OUT = "a replica on a branch that finality ruled out, waited for"
    PORTAL_FAULT = "a portal's answer that was faulty"
    PORTAL_CUT = "a portal's answer cut on the wire"
    PORTAL_HELD = "a portal's answer that came late or never"
    SEVERAL_STREAMS = "several streams in one database"
    DELIVERED = "message of a final block delivered"
    DELIVERED_AGAIN = "message delivered again, the same"
    DELIVERY_FAILED = "receiver of messages that failed"
    MESSAGE_UNDONE = "message of a block that a fork took away, never delivered"
    POOL_UNDONE = "child of a factory that a fork took away"
    CHANGES_UNDONE = "rollback by a change log"
    STOPPED = "stop and start with the same configuration"
    KILLED = "process killed between two events"
    CLOCK_BACK = "clock set back by an hour"
    CLOCK_FORWARD = "clock set forward by an hour"
    TAKEN_OVER = "successor that took over from a paused writer"
    SUCCESSOR_REFUSED = "successor refused, for the paused writer holds the stream"
    ZOMBIE_REFUSED = "paused writer that woke after its successor, and was refused"
    ZOMBIE_WENT_ON = "paused writer that woke in time, and went on"
    WAITED_FOR_LOCK = "statement that waited for a lock of a paused writer"
    ANSWER_CUT = "database's answer cut"
    HEADERS_CUT = "answer of ClickHouse or a portal cut inside its headers"
    REQUEST_CUT = "statement cut on its way to a database"
    ANSWER_HELD = "half-open connection to a database, then lost"
    ANSWER_LATE = "database's answer that came late"
    MERGED = "ClickHouse merged its tables meanwhile"
    SURVIVED_LOSS = "lost connection that the writer survived"
    VERIFIED = "table compared once more by verify"


class Tally:
    """Counts situations, faults, coded errors and points of interruption over a soak.

    `points` are those of worlds that ended with what their chains say, `different` all others.
    """

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.different: Counter[str] = Counter()

    def meet(self, situation: str) -> None:
        """Count one occurrence."""
        self.met[situation] += 1

    def add(self, other: Tally) -> None:
        """Add the figures of another one."""
        self.met += other.met
        self.faults += other.faults
        self.errors += other.errors
        self.points += other.points
        self.different += other.different

    def never_met(self) -> list[str]:
        """Name everything that should have occurred and did not."""
        return [one for one in expected() if not self.met[one]]


def expected() -> list[str]:
    """Return every situation that a soak should meet."""
    calls = ("recover", "commit", "roll back", "between batches")
    points = [
        interrupted(how, call, kind)
        for kind in KINDS
        for call in calls
        for how in (("killed", "paused") if kind != "memory" else ("killed",))
    ]
    return [*map(str, Met), *points]


def interrupted(how: str, call: str, kind: str) -> str:
    """Name an interruption: how, in which call, of which kind of target."""
    return f"{how} in {call} on {kind}"
