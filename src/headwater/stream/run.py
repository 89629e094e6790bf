"""One run of a stream: the source and the host of its loop, from planning to the last stop.

It decides what is read, decodes and transforms it, and tells extensions and transformers how far
the stream is. Runs on the driver, in the loop's thread. It keeps no position of its own: a run that
is started again continues from what the target recovers.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.core import Batch, BlockCursor, ForkResolution, PipeState
from headwater.metrics import BatchFacts, Counts, StreamRecord
from headwater.pipeline import (
    Answers,
    Committed,
    Discarded,
    Event,
    Host,
    Raw,
    RolledBack,
    Settled,
    Source,
    Waited,
)
from headwater.portal import Clock, Notice, log_notice
from headwater.spark.frames import Frame
from headwater.spark.startup import SparkOfRun
from headwater.stream.assemble import Assembler
from headwater.stream.context import BatchContext, Progress, StartInfo
from headwater.stream.extensions import Extension, Extensions, stop_all
from headwater.stream.handle import Interrupt
from headwater.stream.owned import AskUser
from headwater.targets.contract import Capabilities, Delivery, Target
from headwater.targets.patience import WaitsForServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.stream.stream import Stream

logger = logging.getLogger("headwater.stream")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a stream is opened with: where it writes, and what it tells and asks meanwhile.

    `record` is told of every step. `finalized` reads final blocks alone. `ask_user` decides forks
    where the user owns the target. `interrupt` lets signals wait while the target is changed.
    """

    target: Target[Delivery]
    record: StreamRecord
    finalized: bool = False
    ask_user: AskUser | None = None
    interrupt: Interrupt = field(default_factory=Interrupt)

    def on_notice(self, notice: Notice) -> None:
        """Log what a client met, and count it."""
        log_notice(notice)
        self.record.noticed(notice)


class Run(Host[Delivery]):
    """What a stream is while it runs: the loop's `Source` and its `Host`.

    Each kind of stream derives from it: `open` says what is read and how it is decoded. `abort`
    breaks off the request that waits for its answer; it is called from another thread.
    """

    abort: Callable[[], None]

    def __init__(self, stream: Stream, clock: Clock, opening: Opening) -> None:
        target = opening.target
        self._stream = stream
        self._record = opening.record
        self._clock = clock
        self._target = target
        self._finalized = opening.finalized
        self._ask_user = opening.ask_user
        self._interrupt = opening.interrupt
        if isinstance(target, WaitsForServer):
            target.pause = self._wait_for_target
        self._started = False
        self._extensions = Extensions([make(stream.id) for make in stream.extensions])
        self._optional: Sequence[Extension] = ()
        can = target.capabilities
        self._shared = bool(stream.extensions) or can.rereads
        narrow = stream.is_single and not (stream.steps or self._shared or can.uses_frames)
        self._spark = SparkOfRun(stream.spark, narrow=narrow, on_wait=self._waits_for_spark)
        self._source: Source | None = None
        self._assembler: Assembler | None = None

    # --- the source -------------------------------------------------------------------------------

    @abstractmethod
    def open(self, state: PipeState) -> None:
        """Plan the run from the recovered state: make the source and the assembler, and `_begin`.

        No row is written.
        """

    def _begin(self, state: PipeState, source: Source, assembler: Assembler, first: int) -> None:
        """Take what `open` made, and tell the transformers that the run begins."""
        self._source, self._assembler = source, assembler
        source.open(state)
        self._started = True
        for step in self._stream.steps:
            step.start(StartInfo(self._stream.id, first, state.cursor))

    def read(self, state: PipeState) -> Answers | None:
        """Read what follows this state."""
        assert self._source is not None, "a run is opened before it reads"
        answers = self._source.read(state)
        return None if answers is None else self._recorded(answers)

    def _recorded(self, answers: Answers) -> Answers:
        """Pass answers on, timed, with the heads they report noted."""
        with closing(answers):
            while True:
                with self._record.stage("read"):
                    answer = next(answers, None)
                if answer is None:
                    return
                self._record.read(answer)
                yield answer

    # --- the host ---------------------------------------------------------------------------------

    def before_recover(self) -> None:
        """Have the target make room for what extensions of the stream store."""
        self._extensions.open(self._target, self._optional)

    def transform(self, batch: Batch[Raw]) -> Batch[Delivery]:
        """Decode and transform a batch."""
        return next(self.transform_all((batch,)))

    def transform_all(self, several: Sequence[Batch[Raw]]) -> Iterator[Batch[Delivery]]:
        """Decode and transform hot blocks that arrived together, in one Spark job if that is safe.

        What each block gets is what it would have got alone.
        """
        assert self._assembler is not None, "a run is opened before it transforms"
        made = map(self._extensions.add_rows, self._assembler.several(several))
        while True:
            with self._record.stage("transform"):
                batch = next(made, None)
            if batch is None:
                return
            self._record.transformed(_facts(batch))
            yield batch

    def count_rows(self, batch: Batch[Delivery]) -> int:
        """Count the rows of a batch, if a rule asks: a span that is not read has no count."""
        rules = self._stream.flush
        if rules.live.rows is None and rules.backfill.rows is None:
            return 0
        return int(batch.data.ctx.batch.rows_count)

    def resolve_fork(
        self, state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
    ) -> tuple[ForkResolution, PipeState]:
        """Search the rollback chain, or ask the user, where the user owns the target."""
        if self._ask_user is not None:
            return self._ask_user(state, previous_blocks, patient=patient)
        return super().resolve_fork(state, previous_blocks, patient=patient)

    def resolve_undo(
        self, state: PipeState, last_valid: BlockCursor
    ) -> tuple[ForkResolution, PipeState] | None:
        """Search the rollback chain, or ask the user, where the user owns the target."""
        if self._ask_user is not None:
            return self._ask_user(state, (last_valid,), patient=False)
        return super().resolve_undo(state, last_valid)

    def after_rollback(self, state: PipeState) -> None:
        """Let extensions and transformers roll back, in lockstep with the target."""
        assert state.cursor is not None, "a rollback lands on a block"
        self._extensions.rolled_back(state)
        self._forget(state)
        for step in self._stream.steps:
            step.fork(state.cursor)

    def _forget(self, state: PipeState) -> None:
        """Roll back what the run itself knows of blocks."""

    def finish(self, state: PipeState) -> None:
        """Let extensions end their work."""
        self._extensions.finish(state)

    def now(self) -> float:
        """Return the time by which flushes are due."""
        return self._clock.monotonic()

    @abstractmethod
    def pause(self) -> None:
        """Wait for a replica that is stale."""

    def _wait_for_target(self, seconds: float, why: str) -> None:
        """Wait for a database that is away, visibly; a stop ends the wait and the run.

        Nothing is committed then: what a lost connection has left is found at the next start.
        """
        self._record.waits_for_target(why)
        self._interrupt.wait(seconds)

    def _waits_for_spark(self, waits: bool) -> None:
        """Show a person what the run waits for."""
        self._record.activity = "Spark is starting" if waits else None

    def uninterrupted(self) -> AbstractContextManager[object]:
        """Let signals wait while the target is changed."""
        return self._interrupt.uninterrupted()

    def stop(self) -> None:
        """Tell the transformers that the run is over, all of them, and release what is held."""
        if self._assembler is not None:
            self._assembler.release()
        self._spark.close()
        steps, self._started = list(self._stream.steps) if self._started else [], False
        stop_all([self._extensions, *steps])

    def on_event(self, event: Event) -> None:
        """Write one line per batch and per fork; tell the extensions how far the stream is."""
        self._record.happened(event)
        undo_rows = self._target.capabilities.undo_rows
        if undo_rows is not None:
            self._record.undo(undo_rows())
        altered = self._target.capabilities.altered
        if altered is not None:
            self._record.altered(*altered())
        if isinstance(event, Committed):
            if self._assembler is not None:
                self._assembler.release()
            logger.info(
                "batch.committed id=%s to=%s blocks=%d", self._stream.id, event.state.cursor,
                event.blocks,
            )  # fmt: skip
        if isinstance(event, RolledBack):
            if self._assembler is not None:
                self._assembler.progress.went_back()
            cursor = event.state.cursor
            logger.info(
                "fork.rolled_back id=%s from=%s to=%s depth=%d rule=%s", self._stream.id,
                event.orphaned, cursor, event.orphaned.number - (cursor.number if cursor else 0),
                event.resolution.rule.value,
            )  # fmt: skip
        if isinstance(event, Committed | Settled):
            self._extensions.advanced(event.state)
            for one in self._extensions.outboxes(event.state):
                self._record.outbox(one.name, one.messages, one.age_blocks)
        if isinstance(event, Discarded):
            if self._assembler is not None:
                self._assembler.progress.went_back()
            logger.info(
                "fork.discarded id=%s from=%s to=%s blocks=%d", self._stream.id, event.orphaned,
                event.state.cursor, event.blocks,
            )  # fmt: skip
        if isinstance(event, Waited):
            logger.info("replica.stale id=%s at=%s", self._stream.id, event.state.cursor)

    def cancel(self) -> bool:
        """End what executors do for the run; tell whether they did. Called from another thread."""
        return self._spark.cancel()

    @property
    def session(self) -> SparkSession:
        """The Spark session of the run, waited for if it starts."""
        return self._spark.session

    @property
    def progress(self) -> Progress | None:
        """How far the last batch was; None before the first one."""
        return None if self._assembler is None else self._assembler.progress.last


def _facts(batch: Batch[Delivery]) -> BatchFacts:
    """Return what a record keeps of a batch."""
    ctx: BatchContext = batch.data.ctx
    progress, known = ctx.stream.progress, ctx.batch.known

    def counts() -> Counts | None:
        found = known()
        if found is None:
            return None
        skipped = sum(found.skipped.values())
        return Counts(found.rows_count, found.bytes_size, skipped, found.unlike, found.filled)

    return BatchFacts(
        blocks=ctx.batch.blocks_count,
        last=ctx.stream.state.current,
        first=progress.from_block,
        to_block=progress.to_block,
        percent=progress.percent,
        blocks_per_s=progress.blocks_per_s,
        eta_s=progress.eta_s,
        counts=counts,
        tables={
            name: frame.toArrow()
            for name, frame in batch.data.data.items()
            if isinstance(frame, Frame)  # another frame would run a Spark job
        },
    )


class TimedTarget:
    """A target whose calls are timed. The loop's own view of it: all else asks the target."""

    def __init__(self, target: Target[Delivery], record: StreamRecord) -> None:
        self._target = target
        self._record = record

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """What the target can do."""
        return self._target.capabilities

    def bind(self, stream_id: str) -> None:
        """Give the target its stream's id."""
        self._target.bind(stream_id)

    def recover(self) -> PipeState:
        """Return the last committed state."""
        with self._record.stage("recover"):
            return self._target.recover()

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Commit batches and state together."""
        with self._record.stage("commit"):
            self._target.commit(batches, state)

    def roll_back(self, state: PipeState) -> None:
        """Undo everything above a state."""
        with self._record.stage("roll_back"):
            self._target.roll_back(state)

    def close(self) -> None:
        """Close the target."""
        self._target.close()
