"""One run of a portal's stream: what is read of which ranges, by whom, and what factories add.

Runs on the driver, in the loop's thread. It keeps no position of its own: a run that is started
again continues from what the target recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING
from weakref import WeakSet

from prometheus_client import CollectorRegistry

from headwater.core import BlockCursor, BlockRange, Blocks, Head, PipeState, RangeSpec
from headwater.core.ranges import At, Latest
from headwater.decode import Output
from headwater.errors import (
    NetworkError,
    PortalError,
    PortalHttpError,
    SkippedBlocksError,
    TransportError,
)
from headwater.metrics import StreamRecord
from headwater.pipeline import Answers
from headwater.portal import (
    Dataset,
    DriverPermits,
    LeaveOut,
    LimitedTransport,
    PortalBudget,
    PortalClient,
    PortalSource,
    Request,
    Response,
    RetryPolicy,
    SourceTransport,
    open_transport,
)
from headwater.query import Query, merge_queries, plan_requests
from headwater.runtime import Runtime
from headwater.spark.spans import read_span
from headwater.stream.assemble import Plan, PortalDecoder
from headwater.stream.config import Config, compare_config, compare_firsts, knows_firsts
from headwater.stream.evolve import evolve
from headwater.stream.extensions import Extension, MissingBlocks, check_keeps
from headwater.stream.factories import Factories
from headwater.stream.factory_index import factories_of
from headwater.stream.owned import Handover
from headwater.stream.run import Opening, Run
from headwater.targets.contract import Delivery, Target, branches
from headwater.targets.frames import bounded_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.stream.portal import PortalStream

WAIT_S = 1.0
ASK_HEAD_S = 5.0  # as long as a real-time service waits before it says that nothing is new
READINGS = 10  # that may end before blocks whose factories are unknown
START_ATTEMPTS = 20  # some minutes: long for an outage, and an address may just be wrong


class PortalRun(Run):
    """What a portal's stream is while it runs. `ranges` stand for those that the outputs name."""

    def __init__(
        self,
        stream: PortalStream,
        client: PortalClient,
        opening: Opening,
        budget: PortalBudget | None = None,
        *,
        abort: Callable[[], None] = lambda: None,
        ranges: Mapping[str, tuple[BlockRange, ...]] | None = None,
    ) -> None:
        super().__init__(stream, opening)
        self._abort = abort
        self._budget = budget or PortalBudget()
        self._spark.limit(self._budget)
        self._portal_stream = stream
        self._client = client
        self._given_ranges = ranges
        skips = stream.missing_blocks == "skip" and ranges is None  # never where history is filled
        self._missing = MissingBlocks(client, opening.record) if skips else None
        self._factories = self._make_factories()
        self._spans: PortalSource | None = None
        self._over = Event()
        self._planning: WeakSet[StoppableTransport] = WeakSet()
        self._given_up = 0  # readings in a row
        # where the stream stood when the portal was asked for its newest block, and that block
        self._newest: tuple[BlockCursor | None, BlockCursor | None] = (None, None)
        self._ask_head_at = 0.0  # not before

    def abort(self) -> None:
        """Break off the request that waits for its answer. Called from another thread."""
        self._abort()

    def _notes(self) -> Sequence[Extension]:
        return [
            extension for extension in (self._factories, self._missing) if extension is not None
        ]

    def before_recover(self) -> None:
        """Have the target make room, and fill what the definition has more than before."""
        if self._missing is not None:
            check_keeps(self._target, is_owned=isinstance(self._target, Handover))
        super().before_recover()
        if self._stream.on_config_change == "evolve":
            evolve(self._portal_stream, self._target, self)

    def open(self, state: PipeState) -> None:
        """Plan the run from the recovered state, and tell the transformers. No row is written.

        Raises:
            ConfigChangedError: the outputs ask for something else than the stored rows hold.
        """
        stream = self._portal_stream
        now = Config.of(stream.outputs, stream.versions)
        compare_config(self._target, state, now, stream.id, stream.on_config_change)
        if self._missing is not None:
            self._missing.open(at.number for _, at in branches(self._target, state))
        self._extensions.start(state)
        dataset = self._check_dataset()
        plan = self._plan(state)
        firsts = {
            name: min(block_range.from_block for block_range in r)
            for name, r in plan.ranges.items()
            if r
        }
        compare_firsts(self._target, state, firsts, stream.id)
        reading = stream.reading
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
            leave_out=self._leave_out,
        )
        decoder = PortalDecoder(
            stream,
            plan,
            dataset,
            self._spark,
            self._factories,
            self._missing,
            self._client,
            source,
            shared=self._shared,
        )
        self._begin(state, source, decoder, plan.initial, dataset)

    def read(self, state: PipeState) -> Answers | None:
        """Read what follows this state, once factories know the creations up to it."""
        self._record.activity = None  # near the head it does not matter whether Spark has started
        factories = self._factories
        knows = factories is None or factories.catch_up(state)
        self._given_up = 0 if knows else self._given_up
        answers = super().read(state)
        if factories is None or knows or answers is None:
            return answers
        return self._once_known(answers, factories)

    def _look_ahead(self, head: Head) -> None:
        """Show for how long the portal's newest block has been below the cursor.

        A real-time service says nothing of its head while nothing is new, so it is asked, now and
        then. A branch that is shorter than ours so far cannot be told from a replica that lags.
        """
        now, state, newest = self._clock.monotonic(), self._record.state, head.latest
        if newest is None:
            if now >= self._ask_head_at:
                self._ask_head_at = now + ASK_HEAD_S
                with suppress(PortalError):  # what asks for blocks says it
                    self._newest = state.cursor, self._client.head(attempts=1)
            asked_at, asked = self._newest
            newest = asked if asked_at == state.cursor else None  # it may have moved, too
        behind = newest is not None and newest.number < state.number
        self._record.ahead_of(newest.number if newest is not None and behind else None)

    def leaves_out(self) -> bool:
        """Tell whether the source leaves out what executors no longer found."""
        return self._spans is not None and self._spans.leaves_out()

    def _once_known(self, answers: Answers, factories: Factories) -> Answers:
        """Pass answers on, but blocks only if factories learn the creations before them.

        The cursor is on a branch that a replica has left, and one that has not sends blocks. Where
        no replica tells the creations of that branch, this reading ends, and the next one asks
        again: a fork is to come. It is believed for so many readings.
        """
        with closing(answers):
            for answer in answers:
                if isinstance(answer, Blocks) and self._given_up < READINGS:
                    if not factories.insist():
                        self._given_up += 1
                        return
                    self._given_up = 0
                yield answer

    def _forget(self, state: PipeState) -> None:
        if self._factories is not None:
            self._factories.forget(state)

    def stop(self) -> None:
        """End the requests of threads that plan ahead, and release what is held."""
        self._over.set()
        for transport in list(self._planning):
            transport.abort()
        super().stop()
        if self._spans is not None:
            self._spans.close()

    def pause(self) -> None:
        """Wait for a replica that is stale; a new connection may lead to another one."""
        self._client.rest()
        self._clock.sleep(WAIT_S)

    # --- planning ---------------------------------------------------------------------------------

    @property
    def _leave_out(self) -> LeaveOut | None:
        """Where missing blocks are noted, if they may be left out."""
        return None if self._missing is None else self._missing.leave_out

    def _planning_client(self, dataset: Dataset | None) -> PortalClient:
        """Return a client that makes one attempt and logs no failure: its work is done again.

        It is used by a thread that plans ahead. None of its requests begins, and none goes on, once
        the run is over.
        """
        stream = self._portal_stream
        source = open_transport(
            stream.portal, stream.reading.timeouts, network=dataset, notify=lambda notice: None
        )
        transport = StoppableTransport(source, partial(self._wait_to_plan, 0))
        self._planning.add(transport)
        return PortalClient(
            LimitedTransport(transport, DriverPermits(self._budget, self._wait_to_plan)),
            retry=RetryPolicy(attempts=1),
            on_notice=lambda notice: None,
            dataset=dataset,
        )

    def _wait_to_plan(self, seconds: float) -> None:
        """Wait, until the end of the run at most. Called by threads that plan ahead."""
        if self._over.wait(seconds):
            raise TransportError("the run is over", phase="plan")

    def _executors_ready(self) -> bool:
        """Tell whether executors could begin; a person is told of what is waited for."""
        ready = self._spark.is_ready()
        self._waits_for_spark(not ready)
        return ready

    def _plan(self, state: PipeState) -> Plan:
        ranges, cursor = self._ranges(state.cursor), state.cursor
        if not knows_firsts(self._target, state, ranges):
            self._check_gap(
                cursor, [block_range for several in ranges.values() for block_range in several]
            )
        wanted = [
            (block_range, output.query)
            for name, output in self._portal_stream.outputs.items()
            for block_range in ranges[name]
        ]
        if self._factories is not None:
            wanted += self._factories.plan([block_range for block_range, _ in wanted], cursor)
        return Plan(ranges, plan_requests(wanted))

    def _ranges(self, cursor: BlockCursor | None) -> dict[str, tuple[BlockRange, ...]]:
        """Return the blocks that each output wants."""
        if self._given_ranges is not None:
            return dict(self._given_ranges)
        return {
            name: tuple(self._resolve(spec, cursor) for spec in output.ranges)
            for name, output in self._portal_stream.outputs.items()
        }

    def _check_gap(self, cursor: BlockCursor | None, ranges: Sequence[BlockRange]) -> None:
        """Refuse ranges that all begin above the block after the cursor.

        A gap between two ranges is what the user asked for; one between the cursor and the first of
        them means that a range was raised, and what lies between would be skipped in silence. Or
        that a fork led back to a final block below the stream's first one: where the first blocks
        are stored, they tell.
        """
        first = min(block_range.from_block for block_range in ranges)
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

    # --- filling what a new definition has more (`stream/evolve.py`) ------------------------------

    def blocks_up_to(
        self, ranges: Sequence[RangeSpec], last: int, first: int | None
    ) -> tuple[BlockRange, ...]:
        """Return the blocks of ranges up to the last one; the head, at any time, is `first`."""
        found = []
        for spec in ranges:
            if not self._is_head(spec.start):
                resolved = self._client.resolve_range(spec)
            elif first is not None:
                resolved = BlockRange(min(first, last))
            else:
                continue
            if resolved.from_block <= last:
                end = last if resolved.to_block is None else min(last, resolved.to_block)
                found.append(BlockRange(resolved.from_block, end))
        return tuple(found)

    @contextmanager
    def filling(
        self,
        stream: PortalStream,
        target: Target[Delivery],
        ranges: Mapping[str, tuple[BlockRange, ...]],
    ) -> Iterator[PortalRun]:
        """Open the run of a stream that reads these blocks, with the client of this one."""
        record = StreamRecord(stream.id, registry=CollectorRegistry())
        runtime = Runtime.of(record, self._interrupt, self._clock)
        opening = Opening(target, record, runtime, finalized=True)
        run = PortalRun(
            stream, self._client, opening, self._budget, abort=self._abort, ranges=ranges
        )
        try:
            with self._interrupt.reaching(run):
                yield run
        finally:
            run.stop()

    def filled(self, text: str | None) -> None:
        """Show how far it is."""
        self._record.activity = text

    def _check_dataset(self) -> Dataset | None:
        """Refuse a dataset that does not exist, or holds another network, before anything else."""
        asked = merge_queries([output.query for output in self._portal_stream.outputs.values()])
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
        factories = factories_of(self._portal_stream.outputs.values())
        if not factories:
            return None
        far = self._portal_stream.reading.far
        return Factories(
            factories, self._client, self._read_creations, far, self.pause, self._leave_out
        )

    def _read_creations(
        self,
        outputs: Mapping[str, Output],
        ranges: Mapping[str, tuple[BlockRange, ...]],
        query: Query,
        block_range: BlockRange,
    ) -> Iterator[tuple[str, pa.Table]]:
        """Let executors read the creations of factories; they arrive in bounded tables."""
        portal = self._client.best_first(self._portal_stream.portal)
        reading = self._portal_stream.reading
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
            if self._factories is not None:
                self._factories.note_skipped(span.report().skipped)


class StoppableTransport:
    """Requests of the driver that a stop breaks off. `check` refuses those that come too late.

    `tell` is told the status of each answer, or None where a request has failed.
    """

    def __init__(
        self,
        transport: SourceTransport,
        check: Callable[[], None],
        tell: Callable[[int | None], None] = lambda status: None,
    ) -> None:
        self._transport = transport
        self._check = check
        self._tell = tell
        self.abort = transport.abort  # called from any thread
        self.close = transport.close

    def send(self, request: Request) -> Response:
        """Send one request, unless the run is to end."""
        self._check()
        try:
            response = self._transport.send(request)
        except TransportError:
            self._tell(None)
            raise
        self._tell(response.status)
        return response
