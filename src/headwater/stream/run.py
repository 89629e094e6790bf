"""One run of a stream: the source and the host of its loop, from planning to the last stop.

It decides what is read, decodes and transforms it, and tells extensions and transformers how far
the stream is. Runs on the driver, in the loop's thread. It keeps no position of its own: a run that
is started again continues from what the target recovers.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.core import AtHead, Batch, BlockCursor, ForkResolution, Head, PipeState
from headwater.dashboard.server import leave_note
from headwater.metrics import BatchFacts, Counts, StreamRecord
from headwater.pipeline import (
    Answers,
    Committed,
    Discarded,
    Event,
    Host,
    Pipeline,
    Raw,
    Recovered,
    RolledBack,
    Settled,
    Source,
    Waited,
)
from headwater.runtime import ALONE, Runtime
from headwater.spark.executors import coded_failures
from headwater.spark.frames import Frame
from headwater.spark.startup import SparkOfRun
from headwater.stream.assemble import Assembler, Decoder
from headwater.stream.context import BatchContext, Progress, StartInfo
from headwater.stream.extensions import Extension, Extensions
from headwater.stream.owned import AskUser
from headwater.stream.undo_buffer import UndoBuffer, WatchedSource
from headwater.stream.user_code import placed
from headwater.targets.contract import Capabilities, Delivery, Target, binding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.core.messages import Listener
    from headwater.portal import Dataset
    from headwater.stream.stream import Stream

logger = logging.getLogger("headwater.stream")
_SPARK_STARTS = "Spark is starting, which takes some seconds, and fewer from the second run on"


@dataclass(frozen=True, slots=True)
class Opening:
    """What a stream is opened with: where it writes, and what its run is handed.

    `record` is told of every step; the runtime shows in it what the run waits for. `finalized`
    reads final blocks alone. `ask_user` decides forks where the user owns the target.
    """

    target: Target[Delivery]
    record: StreamRecord
    runtime: Runtime
    finalized: bool = False
    ask_user: AskUser | None = None


class Run(Host[Delivery]):
    """What a stream is while it runs: the loop's `Source` and its `Host`.

    Each kind of stream derives from it: `open` says what is read and how it is decoded.
    """

    def __init__(self, stream: Stream, opening: Opening) -> None:
        target = opening.target
        self._stream = stream
        self._record = opening.record
        self._runtime = opening.runtime
        self._clock = opening.runtime.clock
        self._target = target
        self._finalized = opening.finalized
        self._ask_user = opening.ask_user
        self._interrupt = opening.runtime.stop
        self._started = False
        self._extensions = Extensions([make(stream.id) for make in stream.extensions])
        can = target.capabilities
        self._shared = bool(stream.extensions) or can.rereads
        narrow = stream.is_single and not (stream.steps or self._shared or can.uses_frames)
        self._spark = SparkOfRun(stream.spark, narrow=narrow, on_wait=self._waits_for_spark)
        self._source: Source | None = None
        self._assembler: Assembler | None = None

    # --- the source -------------------------------------------------------------------------------

    @abstractmethod
    def open(self, state: PipeState) -> None:
        """Plan the run from the recovered state: make the source and the decoder, and `_begin`.

        No row is written.
        """

    def _begin(
        self,
        state: PipeState,
        source: WatchedSource,
        decoder: Decoder,
        first: int,
        dataset: Dataset | None = None,
    ) -> None:
        """Take what `open` made, and tell the transformers that the run begins.

        The source is read through an undo buffer, if the stream has one and reads hot blocks.
        """
        depth = 0 if self._finalized else self._stream.undo_buffer
        cap = self._stream.rollback_cap
        self._source = UndoBuffer(source, depth, pause=self.pause, cap=cap) if depth else source
        self._assembler = Assembler(
            self._stream.id,
            decoder,
            self._stream.steps,
            self._spark,
            self._clock,
            dataset=dataset,
            finalized=state.finalized,
            final_only=self._finalized,
        )
        self._source.open(state)
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
                if isinstance(answer, AtHead):
                    self._look_ahead(answer.head)
                yield answer

    def _look_ahead(self, head: Head) -> None:
        """Note what nothing new means: that the stream is ahead of its source, for example."""

    # --- the host ---------------------------------------------------------------------------------

    def before_recover(self) -> None:
        """Have the target make room for what extensions of the stream store."""
        self._extensions.open(self._target, self._notes())

    def _notes(self) -> Sequence[Extension]:
        """Return what the run itself stores, if the target can keep it."""
        return ()

    def transform(self, batch: Batch[Raw]) -> Batch[Delivery]:
        """Decode and transform a batch."""
        return next(self.transform_all((batch,)))

    def transform_all(self, several: Sequence[Batch[Raw]]) -> Iterator[Batch[Delivery]]:
        """Decode and transform hot blocks that arrived together, in one Spark job if that is safe.

        What each block gets is what it would have got alone.
        """
        assert self._assembler is not None, "a run is opened before it transforms"
        rows = map(self._extensions.add_rows, self._assembler.several(several))
        while True:
            with self._record.stage("transform"), placed("transform", self._stream.id, several):
                batch = next(rows, None)
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

    def _waits_for_spark(self, waits: bool) -> None:
        """Show a person what the run waits for."""
        self._record.activity = _SPARK_STARTS if waits else None

    def uninterrupted(self) -> AbstractContextManager[object]:
        """Let signals wait while the target is changed."""
        return self._interrupt.uninterrupted()

    def stop(self) -> None:
        """Tell the transformers that the run is over, all of them, and release what is held."""
        if self._assembler is not None:
            self._assembler.release()
        self._spark.close()
        steps, self._started = self._stream.steps if self._started else (), False
        with ExitStack() as stack:
            stack.callback(self._extensions.stop)
            for step in steps:
                stack.callback(step.stop)

    def steps(self, *listeners: Listener) -> Iterator[Event]:
        """Bind the target and run the loop into it; yield each event.

        Who hears of an event, in this order: the run (`on_event`: the record first, then extensions
        of the stream), the listeners, and who takes it from here. Then a stop that has waited
        ends the run.
        """
        rules, cap = self._stream.flush, self._stream.rollback_cap
        target = TimedTarget(self._target, self._record)
        target.bind(self._stream.id, self._runtime)
        with coded_failures():
            loop = Pipeline(self, target, self, flush=rules, rollback_cap=cap)
            for event in loop.steps():
                for hear in (self.on_event, *listeners):
                    hear(event)
                yield event
                self._interrupt.check()

    @abstractmethod
    def abort(self) -> None:
        """Break off the request that waits for its answer. Called from another thread."""

    def on_event(self, event: Event) -> None:
        """Record an event, let go of what a batch held, and tell the extensions how far it is."""
        self._record.happened(event)
        self._record_target(event)
        _log(self._stream.id, event)
        if self._assembler is not None:
            if isinstance(event, Committed):
                self._assembler.release()
            elif isinstance(event, RolledBack | Discarded):
                self._assembler.progress.went_back()
        if isinstance(event, Committed | Settled):
            self._extensions.advanced(event.state)
            for outbox in self._extensions.outboxes(event.state):
                self._record.outbox(outbox.name, outbox.messages, outbox.age_blocks)

    def _record_target(self, event: Event) -> None:
        """Record what the target says of itself."""
        can = self._target.capabilities
        if isinstance(event, Recovered) and can.file is not None:
            self._record.file = str(can.file.resolve())
            leave_note(can.file)
        if can.undo_rows is not None:
            self._record.undo(can.undo_rows())
        if can.altered is not None:
            self._record.altered(*can.altered())

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


def _log(stream_id: str, event: Event) -> None:
    """Write one line per batch and per fork."""
    cursor = event.state.cursor
    match event:
        case Committed():
            logger.info("batch.committed id=%s to=%s blocks=%d", stream_id, cursor, event.blocks)
        case RolledBack():
            depth = event.orphaned.number - (cursor.number if cursor else 0)
            logger.info(
                "fork.rolled_back id=%s from=%s to=%s depth=%d rule=%s", stream_id, event.orphaned,
                cursor, depth, event.resolution.rule.value,
            )  # fmt: skip
        case Discarded():
            logger.info(
                "fork.discarded id=%s from=%s to=%s blocks=%d", stream_id, event.orphaned, cursor,
                event.blocks,
            )  # fmt: skip
        case Waited():
            logger.info("replica.stale id=%s at=%s", stream_id, cursor)
        case _:
            pass


def _facts(batch: Batch[Delivery]) -> BatchFacts:
    """Return what a record keeps of a batch."""
    ctx: BatchContext = batch.data.ctx
    progress, known = ctx.stream.progress, ctx.batch.known

    def counts() -> Counts | None:
        last = known()
        if last is None:
            return None
        skipped = sum(last.skipped.values())
        return Counts(last.rows_count, last.bytes_size, skipped, last.unlike, last.filled)

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

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Give the target its stream's id, and what the run hands it."""
        binding(self._target)(stream_id, runtime)

    def recover(self) -> PipeState:
        """Return the last committed state."""
        with self._record.stage("recover"):
            return self._target.recover()

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Commit batches and state together."""
        with self._record.stage("commit"), placed("commit", self._record.id, batches):
            self._target.commit(batches, state)

    def roll_back(self, state: PipeState) -> None:
        """Undo everything above a state."""
        with self._record.stage("roll_back"):
            self._target.roll_back(state)

    def close(self) -> None:
        """Close the target."""
        self._target.close()
