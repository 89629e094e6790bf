"""One run of a stream: the source and the host of its loop, from planning to the last stop.

It decides what is read, decodes and transforms it, and tells extensions and transformers how far
the stream is. Runs on the driver, in the loop's thread. It keeps no position of its own: a run that
is started again continues from what the target recovers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headwater.core import (
    Batch,
    BlockCursor,
    BlockRange,
    ForkResolution,
    PipeState,
    RangeSpec,
)
from headwater.core.ranges import At, Latest
from headwater.decode import Output
from headwater.errors import NetworkError, PortalHttpError, SkippedBlocksError
from headwater.metrics import BatchFacts, StreamRecord
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
from headwater.portal import (
    Clock,
    Dataset,
    HttpTransport,
    PortalClient,
    PortalSource,
    RetryPolicy,
)
from headwater.query import Query, merge_queries, plan_requests
from headwater.spark.frames import Frame
from headwater.spark.spans import read_span
from headwater.spark.startup import SparkOfRun
from headwater.stream.assemble import Assembler, Plan
from headwater.stream.config import compare_config, compare_firsts
from headwater.stream.context import BatchContext, Progress, StartInfo
from headwater.stream.extensions import Extensions, stop_all
from headwater.stream.factories import Factories
from headwater.stream.factory_index import factories_of
from headwater.stream.handle import Interrupt
from headwater.stream.owned import AskUser
from headwater.stream.undo_buffer import UndoBuffer
from headwater.targets.contract import Delivery, Target
from headwater.targets.frames import bounded_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.stream.stream import PortalStream

logger = logging.getLogger("headwater.stream")

WAIT_S = 1.0
START_ATTEMPTS = 20  # some minutes: long for an outage, and an address may just be wrong


class Run(Host[Delivery]):
    """What a stream is while it runs: the loop's `Source` and its `Host`.

    `ask_user` decides forks where the user owns the target; `interrupt` lets signals wait while the
    target is changed; `record` is told of every step.
    """

    def __init__(
        self,
        stream: PortalStream,
        client: PortalClient,
        clock: Clock,
        target: Target[Delivery],
        *,
        finalized: bool = False,
        ask_user: AskUser | None = None,
        interrupt: Interrupt | None = None,
        record: StreamRecord,
    ) -> None:
        self._stream = stream
        self._record = record
        self._client = client
        self._clock = clock
        self._target = target
        self._finalized = finalized
        self._ask_user = ask_user
        self._interrupt = interrupt
        self._started = False
        self._extensions = Extensions([make(stream.id) for make in stream.extensions])
        self._shared = bool(stream.extensions) or target.capabilities.rereads
        self._factories = self._make_factories()
        narrow = len(stream.outputs) == 1 and not stream.steps and not self._shared
        self._spark = SparkOfRun(stream.spark, narrow=narrow)
        self._source: Source | None = None
        self._spans: PortalSource | None = None
        self._assembler: Assembler | None = None

    # --- the source -------------------------------------------------------------------------------

    def open(self, state: PipeState) -> None:
        """Plan the run from the recovered state, and tell the transformers. No row is written.

        Raises:
            ConfigChangedError: the outputs ask for something else than the stored rows hold.
        """
        stream = self._stream
        compare_config(self._target, state, stream.outputs, stream.id, stream.on_config_change)
        self._extensions.start(state)
        dataset = self._check_dataset()
        plan = self._plan(state.cursor)
        firsts = {name: min(one.from_block for one in r) for name, r in plan.ranges.items() if r}
        compare_firsts(self._target, state.cursor, firsts, stream.id)
        self._source = self._make_source(plan, dataset)
        self._source.open(state)
        self._assembler = Assembler(
            stream.id,
            stream.portal,
            stream.outputs,
            stream.steps,
            plan,
            dataset,
            self._spark,
            self._clock,
            stream.flush.backfill,
            self._factories,
            shared=self._shared,
            on_span=self._spans.learn if self._spans else lambda blocks, size, rows: None,
            finalized=state.finalized,
            final_only=self._finalized,
            retry=stream.reading.retry,
            timeouts=stream.reading.timeouts,
        )
        self._started = True
        for step in stream.steps:
            step.start(StartInfo(stream.id, plan.initial, state.cursor))

    def read(self, state: PipeState) -> Answers | None:
        """Read what follows this state."""
        assert self._source is not None, "a run is opened before it reads"
        if self._factories is not None:
            self._factories.catch_up(state)
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
        self._extensions.open(self._target, self._factories)

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

    def after_rollback(self, state: PipeState) -> None:
        """Let extensions and transformers roll back, in lockstep with the target."""
        assert state.cursor is not None, "a rollback lands on a block"
        self._extensions.rolled_back(state)
        if self._factories is not None:
            self._factories.forget(state)
        for step in self._stream.steps:
            step.fork(state.cursor)

    def finish(self, state: PipeState) -> None:
        """Let extensions end their work."""
        self._extensions.finish(state)

    def now(self) -> float:
        """Return the time by which flushes are due."""
        return self._clock.monotonic()

    def pause(self) -> None:
        """Wait for a replica that is stale; a new connection may lead to another one."""
        self._client.close()
        self._clock.sleep(WAIT_S)

    def uninterrupted(self) -> AbstractContextManager[object]:
        """Let signals wait while the target is changed."""
        return nullcontext() if self._interrupt is None else self._interrupt.uninterrupted()

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
        if isinstance(event, Discarded):
            if self._assembler is not None:
                self._assembler.progress.went_back()
            logger.info(
                "fork.discarded id=%s from=%s to=%s blocks=%d", self._stream.id, event.orphaned,
                event.state.cursor, event.blocks,
            )  # fmt: skip
        if isinstance(event, Waited):
            logger.info("replica.stale id=%s at=%s", self._stream.id, event.state.cursor)

    @property
    def progress(self) -> Progress | None:
        """How far the last batch was; None before the first one."""
        return None if self._assembler is None else self._assembler.progress.last

    # --- planning ---------------------------------------------------------------------------------

    def _make_source(self, plan: Plan, dataset: Dataset | None) -> Source:
        """Return what reads the plan, behind the undo buffer if the stream has one."""
        reading = self._stream.reading
        source = self._spans = PortalSource(
            self._client,
            plan.requests,
            watch=plan.requests[0][1].headers_only(),
            clock=self._clock,
            finalized=self._finalized,
            far=reading.far,
            first_span=reading.first_span,
            limits=reading.spans,
            executors_ready=self._executors_ready,
            planner=partial(self._planning_client, dataset),
        )
        depth = 0 if self._finalized else self._stream.undo_buffer
        cap = reading.rollback_cap
        return UndoBuffer(source, depth, pause=self.pause, cap=cap) if depth else source

    def _planning_client(self, dataset: Dataset | None) -> PortalClient:
        """Return a client that tries once and tells nobody: what it fails to do is done again."""
        return PortalClient(
            HttpTransport(self._stream.portal, self._stream.reading.timeouts),
            retry=RetryPolicy(attempts=1),
            on_notice=lambda notice: None,
            dataset=dataset,
        )

    def _executors_ready(self) -> bool:
        """Tell whether executors could begin; a person is told of what is waited for."""
        ready = self._spark.is_ready()
        self._record.activity = None if ready else "Spark is starting"
        return ready

    def _plan(self, cursor: BlockCursor | None) -> Plan:
        ranges = {
            name: tuple(self._resolve(spec, cursor) for spec in output.ranges)
            for name, output in self._stream.outputs.items()
        }
        self._check_gap(cursor, [one for several in ranges.values() for one in several])
        wanted = [
            (block_range, output.query)
            for name, output in self._stream.outputs.items()
            for block_range in ranges[name]
        ]
        if self._factories is not None:
            wanted += self._factories.plan([one for one, _ in wanted], cursor)
        return Plan(ranges, plan_requests(wanted))

    def _check_gap(self, cursor: BlockCursor | None, ranges: Sequence[BlockRange]) -> None:
        """Refuse ranges that all begin above the block after the cursor.

        A gap between two ranges is what the user asked for; one between the cursor and the first of
        them means that a range was raised, and what lies between would be skipped in silence.
        """
        first = min(one.from_block for one in ranges)
        if cursor is not None and first > cursor.number + 1:
            raise SkippedBlocksError(
                "the range begins above the stored cursor",
                stream=self._stream.id,
                cursor=cursor,
                first=first,
                skipped=BlockRange(cursor.number + 1, first - 1),
            )

    def _resolve(self, spec: RangeSpec, cursor: BlockCursor | None) -> BlockRange:
        """Turn a range into numbers; a stored cursor outranks "latest", which has moved on.

        So it does a time that no block has reached, such as `datetime.now()` of every start. Such a
        range has no beginning of its own: a fork may go back behind the cursor, and what follows
        then is wanted as before.
        """
        if cursor is None or not self._is_head(spec.start):
            return self._client.resolve_range(spec, finalized=self._finalized)
        spec = replace(spec, start=cursor.number + 1)
        resolved = self._client.resolve_range(spec, finalized=self._finalized)
        return BlockRange(0, resolved.to_block)

    def _is_head(self, start: int | Latest | At) -> bool:
        """Tell whether a range begins at the head, by name or by time."""
        if isinstance(start, At):
            return self._client.block_at(start.timestamp) is None
        return isinstance(start, Latest)

    def _check_dataset(self) -> Dataset | None:
        """Refuse a dataset that does not exist, or holds another network, before anything else."""
        asked = merge_queries([output.query for output in self._stream.outputs.values()])
        try:
            dataset = self._client.metadata(attempts=START_ATTEMPTS)
        except PortalHttpError:
            self._client.head()  # an old portal lacks metadata; a wrong dataset lacks a head too
            return None
        if dataset.kind is not None and dataset.kind != asked.network.type:
            raise NetworkError(
                "the dataset holds another network than the outputs ask for",
                dataset=dataset.name,
                holds=dataset.kind,
                asked=asked.network.type,
            )
        return dataset

    def _make_factories(self) -> Factories | None:
        """Return what keeps the children of factories, if outputs name any."""
        found = factories_of(self._stream.outputs.values())
        if not found:
            return None
        far = self._stream.reading.far
        return Factories(found, self._client, self._read_creations, far, self.pause)

    def _read_creations(
        self,
        outputs: Mapping[str, Output],
        ranges: Mapping[str, tuple[BlockRange, ...]],
        query: Query,
        block_range: BlockRange,
    ) -> Iterator[tuple[str, pa.Table]]:
        """Let executors read the creations of factories; they arrive in bounded tables."""
        portal = self._stream.portal
        reading = self._stream.reading
        with read_span(
            self._spark,
            portal,
            outputs,
            ranges,
            query,
            block_range,
            retry=reading.retry,
            timeouts=reading.timeouts,
        ) as span:
            for name, frame in span.frames.items():
                for rows in bounded_tables(frame):
                    yield name, rows.cast(outputs[name].schema)


def _facts(batch: Batch[Delivery]) -> BatchFacts:
    """Return what a record keeps of a batch."""
    ctx: BatchContext = batch.data.ctx
    progress, known = ctx.stream.progress, ctx.batch.known

    def counts() -> tuple[int, int, int] | None:
        found = known()
        if found is None:
            return None
        return found.rows_count, found.bytes_size, sum(found.skipped.values())

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
