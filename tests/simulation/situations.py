"""The rare situations that a soak, or a campaign of scenarios, must have met to mean anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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


class Feature(StrEnum):
    """What the product does in a world: a row of the table in docs/guarantees.md."""

    ON_DATA = "on_data"
    OUTPUTS = "outputs are tables"
    KEYED = "table with a key"
    AGGREGATE = "aggregate"
    CHANGES = "changes"
    FOREACH_BATCH = "foreach_batch"
    SUBSTREAMS = "substreams_stream"
    FACTORY = "factory"
    OUTBOX = "on_finalized"
    FLUSH = "flush"
    UNDO_BUFFER = "undo_buffer"
    PLAN = "pipe"
    TRANSFORM = "pipe_batches"
    TRANSFORMER = "transformer with state"
    ADDED = "evolve: an output more"
    RENAMED = "evolve: another name"
    MAINTAINED = "maintained from outside"
    COLLISION = "another stream wants its tables"
    TOGETHER = "several streams in one place"
    GONE = "blocks that the portal no longer has: refused"
    GIVEN_UP = "blocks that the portal no longer has: left out"
    UNKNOWN_FINALITY = "no finality reported"
    NODE = "rpc+http: a node is the source"
    REWOUND = "rewind by an operator"


class Fault(StrEnum):
    """What goes wrong around it: a column of that table."""

    FORK = "fork"
    KILLED = "kill"
    PAUSED = "pause"
    CUT = "connection cut"
    ANSWER = "faulty answer"
    REPLICA = "replica behind"
    CLOCK = "clock set"


class Situation(StrEnum):
    """What scenarios must meet, beside every fault of a portal and some coded errors."""

    FORK_OF_ONE = "fork of one block"
    DEEP_FORK = "deep fork (8 blocks or more)"
    FORK_AT_WATERMARK = "fork right above the high-water mark"
    FORK_WITHOUT_FINALITY = "fork while finality was never reported"
    FORK_BEYOND_HISTORY = "fork beyond the capped history"
    FORK_TAKEN_BACK = "fork back to a branch that was abandoned before"
    FORK_WHILE_DOWN = "fork while the pipeline was down"
    FORK_HIDDEN_BY_204 = "fork that hid behind a 204"
    FINALITY_VIOLATED = "fork below finality (refused)"
    CONFLICT_STORM = "three conflicts in a row or more"
    RULE_MATCH = "resolved by a common block"
    RULE_WATERMARK = "resolved by the high-water mark"
    RULE_DESCEND = "resolved by descending and asking again"
    REPLICA_BEHIND = "a replica was behind and was waited for"
    OUT_OF_PATIENCE = "a replica stayed behind and patience ran out"
    SETTLED_WHILE_IDLE = "finality moved while nothing arrived"
    FINALITY_UNCHECKED = "finality on a 204 that could not be checked was not adopted"
    CRASH_BEFORE_COMMIT = "crash before a commit"
    CRASH_AFTER_COMMIT = "crash after a commit"
    CRASH_BEFORE_ROLLBACK = "crash before a rollback"
    CRASH_AFTER_ROLLBACK = "crash after a rollback"
    CRASH_IN_RECOVERY = "crash while recovering"
    RESTART_ON_ORPHAN = "restart on a block that no longer exists"
    SKIPPED_SLOTS = "slots without a block"
    GAP_BETWEEN_RANGES = "a gap between two ranges"
    SPAN = "a span of final blocks taken at once"
    FELL_BEHIND = "a span after reading near the head: it had fallen behind"
    BEFORE_DATASET = "a range that begins before the dataset"
    RULE_UNDO = "hot blocks undone because nobody could confirm them"
    REFUSED_AS_GONE = "blocks that the portal had no more, and rows that nobody could confirm"
    BLOCKS_GONE = "blocks left out that the portal had no more"
    FLUSHED_TOGETHER = "several batches committed in one step"
    FORK_BEFORE_FLUSH = "fork that took what was not committed yet"
    FORK_IN_BUFFER = "fork that took only what the undo buffer held back"
    FORK_BELOW_BUFFER = "fork deeper than the undo buffer"


class Tally:
    """Counts situations, faults, coded errors and points of interruption of many runs.

    `points` are those of worlds that ended with what their chains say, `different` all others.
    """

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.different: Counter[str] = Counter()
        self.cells: Counter[str] = Counter()  # target, feature and fault that met in a world

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
        self.cells += other.cells

    def lacks(self, situations: Iterable[str]) -> list[str]:
        """Name the situations that did not occur."""
        return [str(one) for one in situations if not self.met[one]]


def expected() -> list[str]:
    """Return every situation that a soak should meet."""
    calls = ("recover", "commit", "roll back", "between batches")
    points = [
        interrupted(how, call, kind)
        for kind in KINDS
        for call in calls
        for how in (("killed", "paused") if kind != "memory" else ("killed",))
    ]
    return [*map(str, Met), *points, *map(str, Feature)]


def interrupted(how: str, call: str, kind: str) -> str:
    """Name an interruption: how, in which call, of which kind of target."""
    return f"{how} in {call} on {kind}"


def cell(kind: str, feature: str, fault: str) -> str:
    """Name a cell of the table in docs/guarantees.md."""
    return f"{kind}|{feature}|{fault}"
