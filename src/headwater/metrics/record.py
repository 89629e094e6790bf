"""The record of one stream while it runs: counted, timed, kept for the page and for people.

The run of a stream tells a `StreamRecord` of every step, on the driver, in the loop's thread; the
metrics endpoint, the dashboard and the progress view read it from other threads. Nothing of it is
stored: a restart begins with empty lists, and the target's state says where it stands.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock
from typing import Any, Literal

from prometheus_client import CollectorRegistry

from headwater.core import AtHead, Blocks, Head, PipeState, RangeEnd, Span
from headwater.core.messages import (
    Committed,
    Discarded,
    Event,
    Recovered,
    RolledBack,
    Settled,
    Waited,
)
from headwater.metrics.facts import (
    BatchFacts,
    Counts,
    ForkSeen,
    RecentPast,
    block_seconds,
    cursor_facts,
    in_words,
    newest,
    plain,
)
from headwater.metrics.instruments import (
    CONNECTION,
    DATABASE,
    REGISTRY,
    instruments,
    show_record,
    show_sources,
)
from headwater.portal import Notice, NoticeKind, SourceState

logger = logging.getLogger("headwater.stream")
Status = Literal[
    "starting", "backfilling", "following", "waiting", "stalled", "stopped", "failed", "done"
]
Stage = Literal["recover", "read", "transform", "commit", "roll_back"]

RECENT_PROFILES = 50
RECENT_MESSAGES = 20
STALL_S = 60.0  # that a database is away
MANY = 10  # logs of another form, without a single row, that are told of
UNREAD = 4  # committed batches whose rows may still be read, and counted
NEAR = 20  # blocks behind the head up to which a stream counts as following it


class StreamRecord:
    """The figures and the recent past of one stream. `wall` and `clock` stand in for the time."""

    def __init__(
        self,
        stream_id: str,
        *,
        portal: str = "",
        target: str = "",
        registry: CollectorRegistry = REGISTRY,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = stream_id
        self.portal = portal
        self.target = target
        self.file: str | None = None
        self.registry = registry
        self.began = wall()
        self.status: Status = "starting"
        self.state = PipeState()
        self.head = Head()
        self.facts: BatchFacts | None = None
        self.error: str | None = None
        self.activity: str | None = None
        self.trouble: str | None = None
        self._meters = instruments(registry)
        self._wall = wall
        self._clock = clock
        self._lock = Lock()
        self._pending: list[BatchFacts] = []
        self._uncounted: list[BatchFacts] = []  # committed, and read by nobody yet
        self._past = RecentPast(wall)
        self._messages: deque[tuple[float, str]] = deque(maxlen=RECENT_MESSAGES)
        self._profiles: deque[tuple[float, dict[Stage, float]]] = deque(maxlen=RECENT_PROFILES)
        self._spent: dict[Stage, float] = {}
        self._total_blocks = 0
        self.total_rows = 0  # committed by this run, those undone later included
        self._unlike: dict[str, int] = {}
        self._filled: frozenset[str] = frozenset()
        self.fork_count = 0
        self._undo_rows: int | None = None
        self._missing_blocks: int | None = None
        self._altered = (0, 0)
        self._outboxes: dict[str, int] = {}
        self._away_since: float | None = None
        self._final_told_at: float | None = None  # while answers tell it, that of the newest one
        self._tells_finality = True
        self._ahead_since: float | None = None
        self._stall_after_s = STALL_S
        self._sources: Callable[[], Sequence[SourceState]] = tuple
        show_record(self, self._meters)

    # --- told by the run --------------------------------------------------------------------------

    def read(self, answer: object) -> None:
        """Note the head that an answer of the portal reports."""
        if isinstance(answer, Blocks | AtHead | RangeEnd | Span):
            head = answer.head
            with self._lock:
                self.trouble = None
                self._tells_finality = head.finalized is not None
                if not isinstance(answer, AtHead):
                    self._ahead_since = None
                if self._tells_finality:
                    self._final_told_at = self._clock()
                self.head = Head(
                    head.finalized or self.head.finalized, head.latest or self.head.latest
                )
                if isinstance(answer, Span):
                    self.status = "backfilling"
                elif isinstance(answer, AtHead):
                    self.status = "following"

    def reads_from(self, sources: Callable[[], Sequence[SourceState]]) -> None:
        """Show the sources of a list, as they are whenever somebody looks."""
        self._sources = sources
        show_sources(self.id, sources, self._meters)

    def transformed(self, facts: BatchFacts) -> None:
        """Note a batch that waits for its commit."""
        self._pending.append(facts)

    def happened(self, event: Event) -> None:
        """Count an event of the loop."""
        with self._lock:
            self.state = event.state
            self._away_since = None
            self._count_late()
            match event:
                case Recovered():
                    self._say(f"resumed after block {event.state.number}" if event.state.cursor
                              else "begins with the first block")  # fmt: skip
                case Committed():
                    self._commit(event)
                case RolledBack():
                    self._roll_back(event)
                case Discarded():
                    self._pending.clear()
                    self._meters.discarded.labels(self.id).inc(event.blocks)
                    self._say(f"a fork took {in_words(event.blocks, 'block')} before a commit")
                case Waited():
                    self.status = "waiting"
                    self._meters.replica_waits.labels(self.id).inc()
                case Settled():
                    self.status = "following" if self._ahead_since is None else "waiting"
                case _:
                    pass
            self._past.sample(
                self.state.number, newest(self.head), self._total_blocks, self.total_rows
            )

    def noticed(self, notice: Notice) -> None:
        """Count a retry or a stall of the portal's client."""
        meters = self._meters
        status = notice.facts.get("status", CONNECTION)
        reason = str(status)
        with self._lock:
            if notice.kind is NoticeKind.RETRYING:
                meters.retries.labels(self.id, reason).inc()
                if self.trouble is None:
                    self._say(str(notice))
                self.trouble = "the portal does not answer, asking again"
                if notice.facts.get("phase") == "sources":
                    self.trouble = "none of the sources answers, asking again"
                if "status" in notice.facts:
                    source = "portal" if isinstance(status, int) else "endpoint"  # over gRPC
                    self.trouble = f"the {source} answers {reason}, asking again"
            elif notice.kind is NoticeKind.STALLED:
                meters.stalls.labels(self.id, reason).inc()
                self.status = "stalled"
                self._say(str(notice))
            elif notice.kind is NoticeKind.RECOVERED:
                self.status = "following"
                self._say(str(notice))
            elif notice.kind is NoticeKind.SOURCE_CHANGED:
                meters.source_changes.labels(self.id).inc()
                self._say(str(notice))
            elif notice.kind in (NoticeKind.LEFT_OUT, NoticeKind.SOURCE_JUDGED):
                self._say(str(notice))

    def waits_for_target(self, why: str) -> None:
        """Count an attempt at a database that is away; long waits are stalls."""
        with self._lock:
            now = self._clock()
            if self._away_since is None:
                self._away_since, self._stall_after_s = now, STALL_S
                self._say(why)
            self.trouble = why
            self._meters.retries.labels(self.id, DATABASE).inc()
            waited = now - self._away_since
            if waited >= self._stall_after_s:
                self._stall_after_s = 2 * max(waited, STALL_S)
                self._meters.stalls.labels(self.id, DATABASE).inc()
                self.status = "stalled"
                self._say(f"{why}: for {waited:.0f} s")

    def ahead_of(self, newest: int | None) -> None:
        """Note that the portal's newest block lies below the cursor; None: it does not.

        It lags, or it is on another branch that is shorter so far: then what the stream holds is
        orphaned, and a portal says so only once its branch is as long.
        """
        with self._lock:
            if newest is None:
                self._ahead_since = None
                return
            first = self._ahead_since is None
            if self._ahead_since is None:
                self._ahead_since = self._clock()
            waited = self._clock() - self._ahead_since
            text = (
                f"the portal's newest block is {newest:,}, below ours: it lags, or its branch is "
                "shorter so far"
            )
            self.status = "waiting"
            self.trouble = f"{text}; for {waited:.0f} s"
            if first:
                self._say(text)

    def outbox(self, name: str, messages: int, age_blocks: int) -> None:
        """Note how much an outbox holds."""
        with self._lock:
            self._outboxes[name] = messages
        self._meters.outbox_messages.labels(self.id, name).set(messages)
        self._meters.outbox_age.labels(self.id, name).set(age_blocks)

    def altered(self, values: int, rows: int) -> None:
        """Note how many values the target could not hold, and how many rows it left out for them.

        Of this target, since it was made.
        """
        before, self._altered = self._altered, (values, rows)
        self._meters.altered.labels(self.id).inc(max(values - before[0], 0))
        self._meters.skipped.labels(self.id).inc(max(rows - before[1], 0))

    def undo(self, rows: int) -> None:
        """Note how many rows the target keeps for undoing hot blocks."""
        self._undo_rows = rows
        self._meters.undo_rows.labels(self.id).set(rows)

    def missing(self, blocks: int) -> None:
        """Note how many blocks were left out because the portal does not have them any more."""
        self._missing_blocks = blocks
        self._meters.missing_blocks.labels(self.id).set(blocks)

    def asked(self, status: int | None) -> None:
        """Count a request of the driver; without a status its connection failed."""
        kind = "success" if (status is not None and status < 400) or status == 409 else "error"
        kind = "rate_limited" if status in (429, 529) else kind
        self._meters.sqd_requests.labels(self.id, kind, str(status or "none")).inc()

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time a step of the loop."""
        began = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - began
            self._spent[name] = self._spent.get(name, 0.0) + spent
            self._meters.stage_seconds.labels(self.id, name).observe(spent)

    def ended(self, error: BaseException | None = None, *, stopped: bool = False) -> None:
        """Note the end of a run."""
        with self._lock:
            self._count_late()
            self._meters.running.labels(self.id).set(0)
            self.status = "failed" if error else "stopped" if stopped else "done"
            if error is not None:
                code = str(getattr(error, "code", type(error).__name__))
                self._meters.errors.labels(self.id, code).inc()
                self.error = str(error)
                self._say(self.error)

    # --- asked by others --------------------------------------------------------------------------

    @property
    def lag_blocks(self) -> int | None:
        """How many blocks the cursor is behind the newest block that is known."""
        head = newest(self.head)
        return None if head is None else max(0, head - self.state.number)

    @property
    def lag_seconds(self) -> float | None:
        """How old the last committed block is."""
        cursor = self.state.cursor
        if cursor is None or not cursor.timestamp:
            return None
        return max(0.0, self._wall() - block_seconds(cursor.timestamp))

    @property
    def finality_unknown_s(self) -> float | None:
        """For how long answers have not told what is final; None if they never did."""
        if self._tells_finality or self._final_told_at is None:
            return 0.0 if self._tells_finality else None
        return max(0.0, self._clock() - self._final_told_at)

    @property
    def ahead_s(self) -> float:
        """For how long the portal's newest block has been below the cursor."""
        since = self._ahead_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    @property
    def last_fork(self) -> ForkSeen | None:
        """The newest fork that undid committed blocks."""
        return self._past.last_fork

    def speed(self) -> tuple[float, float]:
        """Return blocks and rows per second over the last minute of samples."""
        with self._lock:
            return self._past.speed()

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it. Called by the dashboard's threads."""
        with self._lock:
            facts, (blocks_s, rows_s) = self.facts, self._past.speed()
            is_near = self.status == "following"
            return {
                "id": self.id,
                "portal": self.portal,
                "target": self.target,
                "file": self.file,
                "status": "waiting" if self.activity and is_near else self.status,
                "activity": self.activity,
                "trouble": self.trouble,
                "began": self.began,
                "now": self._wall(),
                "cursor": cursor_facts(self.state.cursor),
                "finalized": cursor_facts(self.state.finalized),
                "head": newest(self.head),
                "finality_unknown_seconds": self.finality_unknown_s,
                "ahead_seconds": self.ahead_s,
                "lag_blocks": self.lag_blocks,
                "lag_seconds": self.lag_seconds,
                "from_block": facts.first if facts else None,
                "to_block": facts.to_block if facts else None,
                "percent": facts.percent if facts else None,
                "eta_seconds": facts.eta_s if facts else None,
                "blocks_per_second": blocks_s,
                "rows_per_second": rows_s,
                "blocks": self._total_blocks,
                "rows": self.total_rows,
                "forks": self.fork_count,
                "undo_rows": self._undo_rows,
                "missing_blocks": self._missing_blocks,
                "values_unrepresentable": self._altered[0],
                "outboxes": dict(self._outboxes),
                **self._past.snapshot(),
                "messages": [{"at": at, "text": text} for at, text in self._messages],
                "sources": [asdict(source) for source in self._sources()],
                "error": self.error,
            }

    def profiles(self) -> list[tuple[float, dict[Stage, float]]]:
        """Return the seconds per stage of the last commits, oldest first."""
        with self._lock:
            return list(self._profiles)

    def preview(self, rows: int = 5) -> dict[str, list[dict[str, Any]]]:
        """Return the first rows of the last batch near the head, by output."""
        facts = self.facts
        tables = {} if facts is None else facts.tables
        return {
            name: [
                {column: plain(value) for column, value in row.items()}
                for row in table.slice(0, rows).to_pylist()
            ]
            for name, table in tables.items()
        }

    # --- inside -----------------------------------------------------------------------------------

    def _note_unlike(self, counts: Counts) -> None:
        """Count logs that an output's event does not fit; say so once, if it never had a row.

        A few such logs are usual: transfers of ERC-20 and ERC-721 have one topic.
        """
        self._filled |= counts.filled
        for name, count in counts.unlike.items():
            self._meters.unlike.labels(self.id, name).inc(count)
            before = self._unlike.get(name, 0)
            self._unlike[name] = before + count
            if name not in self._filled and before < MANY <= before + count:
                text = (
                    f"output {name}: no row, but {before + count} logs with the event's topic and "
                    "other indexed parameters; compare the signature with the contract's ABI"
                )
                self._say(text)
                logger.warning("event.unlike id=%s %s", self.id, text)

    def _commit(self, event: Committed) -> None:
        meters = self._meters
        for facts in self._pending:
            counts = facts.counts()
            if counts is None:
                self._uncounted.append(facts)
            else:
                self._count(facts, counts)
            self._past.committed(facts, None if counts is None else counts.rows)
            self.facts = facts
        self._pending = []
        meters.blocks.labels(self.id).inc(event.blocks)
        meters.sqd_blocks.labels(self.id).inc(event.blocks)
        meters.commits.labels(self.id).inc()
        self._total_blocks += event.blocks
        self._profiles.append((self._wall(), self._spent))
        self._spent = {}
        lag = self.lag_blocks
        self.status = "following" if lag is not None and lag <= NEAR else "backfilling"
        self._past.reached(event.state.number)

    def _count(self, facts: BatchFacts, counts: Counts) -> None:
        """Count the rows of a committed batch."""
        meters, rows, size, skipped = self._meters, counts.rows, counts.bytes, counts.skipped
        self._note_unlike(counts)
        self.total_rows += rows
        meters.rows.labels(self.id).inc(rows)
        meters.bytes.labels(self.id).inc(size)
        meters.skipped.labels(self.id).inc(skipped)
        meters.sqd_bytes.labels(self.id).inc(size)
        meters.sqd_skipped.labels(self.id).inc(skipped)
        meters.sqd_batch_blocks.labels(self.id).observe(facts.blocks)
        meters.sqd_batch_bytes.labels(self.id).observe(size)

    def _count_late(self) -> None:
        """Count batches that were read after their commit: whoever iterates reads them then.

        Of those that nobody reads the last few are remembered.
        """
        unread = []
        for facts in self._uncounted:
            counts = facts.counts()
            if counts is None:
                unread.append(facts)
            else:
                self._count(facts, counts)
        self._uncounted = unread[-UNREAD:]

    def _roll_back(self, event: RolledBack) -> None:
        self._pending.clear()
        fork = self._past.rolled_back(event, self._spent.get("roll_back", 0.0))
        meters = self._meters
        meters.forks.labels(self.id).inc()
        meters.sqd_forks.labels(self.id).inc()
        meters.fork_depth.labels(self.id).observe(fork.depth)
        meters.rows_undone.labels(self.id).inc(fork.rows_undone)
        self.fork_count += 1
        self._say(f"a fork undid {in_words(fork.depth, 'block')}, down to {fork.safe}")

    def _say(self, text: str) -> None:
        self._messages.append((self._wall(), text))


_records: dict[str, StreamRecord] = {}


def announce(record: StreamRecord) -> None:
    """Show a record to the dashboard of this process; it replaces the one of an earlier run."""
    _records[record.id] = record


def records() -> dict[str, StreamRecord]:
    """Return the records of the streams of this process, by their ids."""
    return dict(_records)
