"""`portal_stream`: what the user holds. One definition for backfill and head.

    stream = portal_stream(id="usdc", portal="https://…", outputs={"transfers": evm.events(…)})
    stream.pipe(large).pipe_to(duckdb_target("chain.duckdb"))

A stream is a value: `pipe` returns a new one, and nothing is asked of the portal before it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from headwater.address import HttpAddress
from headwater.core import DEFAULT_CAP, BlockCursor, Flush, FlushRules, SpanLimits
from headwater.core.callbacks import Callback
from headwater.core.messages import Listener
from headwater.dashboard import serve
from headwater.dashboard.note import leave_note
from headwater.decode import Output
from headwater.effects import Subscription
from headwater.effects.courier import Deliver
from headwater.effects.outbox import RETRY
from headwater.errors import InvalidOptionError, NetworkError, StreamIdError
from headwater.metrics import REGISTRY, StreamRecord, TimedTarget
from headwater.pipeline import Committed, Event, Pipeline, Recovered
from headwater.portal import (
    HttpTransport,
    Notice,
    PortalClient,
    RetryPolicy,
    Timeouts,
    log_notice,
    portal_address,
)
from headwater.spark.executors import coded_failures
from headwater.stream.config import OnConfigChange, check_option
from headwater.stream.context import StreamBatch
from headwater.stream.extensions import ExtensionMaker
from headwater.stream.handle import (
    Interrupt,
    StoppableClock,
    StoppableTransport,
    StreamHandle,
)
from headwater.stream.owned import (
    AskUser,
    Handover,
    OnFork,
    OwnedTarget,
    check_cursor,
    check_target,
)
from headwater.stream.run import Run
from headwater.stream.transformer import Step, Transform, Transformer
from headwater.stream.view import ProgressView
from headwater.targets.contract import Delivery, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAR = 1000  # blocks behind the finalized head at which executors take over
FIRST_SPAN = 2000
_SPANS = SpanLimits()


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Options of `portal_stream` that say how blocks are read; checked when the stream is made.

    `retry` and `timeouts` count on the driver and, pickled, on executors.
    """

    far: int = FAR
    first_span: int = FIRST_SPAN
    spans: SpanLimits = SpanLimits()  # noqa: RUF009 - immutable
    poll_interval_s: float = 0.25
    max_bytes: int = 10 * 1024 * 1024
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009 - immutable
    timeouts: Timeouts = Timeouts()  # noqa: RUF009 - immutable
    rollback_cap: int = DEFAULT_CAP

    def __post_init__(self) -> None:
        for name in ("far", "first_span", "max_bytes", "rollback_cap"):
            given = getattr(self, name)
            if type(given) is not int or given < 1:
                raise InvalidOptionError(f"{name} is a whole number from 1", got=repr(given))
        seconds = self.poll_interval_s
        if type(seconds) not in (int, float) or not seconds > 0:
            raise InvalidOptionError("poll_interval_s is a number above 0", got=repr(seconds))
        if not isinstance(self.retry, RetryPolicy):
            raise InvalidOptionError("retry is a RetryPolicy(…)", got=repr(self.retry))
        if not isinstance(self.timeouts, Timeouts):
            raise InvalidOptionError("timeouts are Timeouts(…)", got=repr(self.timeouts))


@dataclass(frozen=True, slots=True)
class PortalStream:
    """A stream of one or more outputs from one dataset. Made by `portal_stream`."""

    id: str
    portal: HttpAddress
    outputs: Mapping[str, Output]
    steps: tuple[Step, ...] = ()
    spark: SparkSession | None = None
    reading: ReadingOptions = ReadingOptions()
    extensions: tuple[ExtensionMaker, ...] = ()
    flush: FlushRules = FlushRules()  # noqa: RUF009 - immutable
    undo_buffer: int = 0
    on_config_change: OnConfigChange = "error"

    def pipe(self, code: Transform | Transformer, *, row_wise: bool | None = None) -> PortalStream:
        """Add a transform: a function of (data) or (data, ctx), or a transformer object.

        `data` maps output names to DataFrames, and so must the result. The same code runs on large
        spans of a backfill and on single blocks at the head. Hot blocks that wait are transformed
        in one Spark job where that gives the same rows: if each row of a result is made of one row,
        and keeps its `block_number`. Spark's plan tells, for functions of (data). `row_wise=True`
        says so for any transform, `row_wise=False` has each hot block transformed alone.
        """
        if row_wise is not None and not isinstance(row_wise, bool):
            raise InvalidOptionError("row_wise is True, False or None", got=repr(row_wise))
        return replace(self, steps=(*self.steps, Step(code, row_wise)))

    def on_finalized(
        self,
        output: str,
        deliver: Deliver,
        *,
        name: str | None = None,
        batch_size: int = 100,
        retry: RetryPolicy = RETRY,
    ) -> PortalStream:
        """Deliver each row of an output once its block is final: at least once, and in order.

        A message is stored in the transaction of its batch, so nothing of an orphaned block is ever
        delivered, and nothing final is missed. The stream never waits for a receiver.

        Args:
            output: whose rows, as the transforms leave them.
            deliver: a function of a list of `Message`s that raises if it fails, or `webhook(…)` or
                `kafka(…)` of `headwater.effects`. It is called in a thread of its own.
            name: what the outbox is called, if not like the output; never rename it.
            batch_size: how many messages a call gets at most.
            retry: the pauses, and after how many attempts messages become dead letters.
        """
        added = Subscription(output, deliver, name or output, batch_size, retry)
        names = {one.name.lower() for one in self.extensions if isinstance(one, Subscription)}
        if added.name.lower() in names:
            raise InvalidOptionError("there is an outbox of this name: give name=", got=added.name)
        return replace(self, extensions=(*self.extensions, added))

    def pipe_to(
        self,
        target: Target[Delivery] | OwnedTarget,
        *,
        on_event: Listener | None = None,
        dashboard: int | str | None = None,
        progress: bool = True,
    ) -> None:
        """Run into a target until the range is read; without an end, until a signal.

        The same as `start` and a wait for the end, in the calling thread.

        On SIGINT or SIGTERM the batch in hand commits or vanishes, and the program exits with 130
        or 143; a second signal does not wait for the batch. In an interactive session the call
        returns instead. An `on_event` listener, which is told of every event, may raise
        `StopRequested` to end the run: then, too, the call returns.

        `dashboard` is a port, or "host:port", at which this process shows its streams: a page,
        Prometheus metrics and JSON. Several streams may share it. `progress` shows on standard
        error how far the stream is: drawn on a terminal, a line every few seconds elsewhere.
        """
        handle = self._handle(target, on_event, dashboard)
        with ExitStack() as stack:
            if progress:
                view = stack.enter_context(ProgressView(lambda: [handle.record]))
                handle.interrupt.say = view.say
            stack.enter_context(handle.interrupt.handling())
            handle.run()
        code = handle.interrupt.exit_code()
        if code is not None and not hasattr(sys, "ps1"):
            raise SystemExit(code)

    def start(
        self,
        target: Target[Delivery] | OwnedTarget,
        *,
        on_event: Listener | None = None,
        dashboard: int | str | None = None,
    ) -> StreamHandle:
        """Run into a target in a thread of its own; return a handle to wait for it, or to stop it.

        `on_event` is called in that thread. Signals are left to the program. The thread does not
        keep the program alive: wait with `handle.await_termination()`.
        """
        return self._handle(target, on_event, dashboard).start()

    def _handle(
        self,
        target: Target[Delivery] | OwnedTarget,
        on_event: Listener | None,
        dashboard: int | str | None,
    ) -> StreamHandle:
        """Return a run that has not begun."""
        check_target(target)
        if dashboard is not None:
            serve(dashboard)
        record = self._record(type(target).__name__)
        return StreamHandle(record, lambda handle: self._work(target, handle), on_event)

    def _record(self, target: str, registry: CollectorRegistry = REGISTRY) -> StreamRecord:
        """Return what keeps the figures of a run."""
        return StreamRecord(self.id, portal=str(self.portal), target=target, registry=registry)

    def _work(self, target: Target[Delivery] | OwnedTarget, handle: StreamHandle) -> None:
        """Run until the range is read, or until a stop."""
        if isinstance(target, OwnedTarget):
            target.write(lambda cursor=None: self._read(cursor, target.fork, handle=handle))
            return
        record = handle.record
        with self._opened(target, record, interrupt=handle.interrupt) as run:
            target.bind(self.id)
            for event in self._steps(run, TimedTarget(target, record)):
                if isinstance(event, Recovered) and target.capabilities.file is not None:
                    leave_note(target.capabilities.file)
                handle.on_event(event, run)
                handle.interrupt.check()

    def __iter__(self) -> Iterator[StreamBatch]:
        """Read final blocks, from the beginning of the range every time."""
        return self._read(None, None, finalized=True)

    def _read(
        self,
        cursor: BlockCursor | None,
        on_fork: OnFork | None,
        *,
        finalized: bool = False,
        handle: StreamHandle | None = None,
    ) -> Iterator[StreamBatch]:
        """Hand out batches one by one; what happens in between is the caller's.

        A stop waits until the caller comes back for the next batch.
        """
        check_cursor(cursor)
        target, ask_user = Handover(cursor), AskUser(on_fork)
        interrupt = None if handle is None else handle.interrupt
        record = self._record("iteration", CollectorRegistry()) if handle is None else handle.record
        with self._opened(
            target, record, finalized=finalized, ask_user=ask_user, interrupt=interrupt
        ) as run:
            for event in self._steps(run, target):
                if handle is not None:
                    handle.on_event(event, run)
                if isinstance(event, Committed):
                    with nullcontext() if interrupt is None else interrupt.uninterrupted():
                        yield from target.take()
                if interrupt is not None:
                    interrupt.check()

    @contextmanager
    def _opened(
        self,
        target: Target[Delivery],
        record: StreamRecord,
        *,
        finalized: bool = False,
        ask_user: AskUser | None = None,
        interrupt: Interrupt | None = None,
    ) -> Iterator[Run]:
        """Connect, and let go of everything on every exit path."""
        with ExitStack() as stack:
            reading = self.reading
            interrupt = interrupt or Interrupt()
            transport = StoppableTransport(
                HttpTransport(self.portal, reading.timeouts), interrupt, record
            )

            def on_notice(notice: Notice) -> None:
                log_notice(notice)
                record.noticed(notice)

            clock = StoppableClock(interrupt)
            client = stack.enter_context(
                PortalClient(
                    transport,
                    retry=reading.retry,
                    clock=clock,
                    max_bytes=reading.max_bytes,
                    poll_interval_s=reading.poll_interval_s,
                    rollback_cap=reading.rollback_cap,
                    on_notice=on_notice,
                )
            )
            run = Run(
                self,
                client,
                clock,
                target,
                finalized=finalized,
                ask_user=ask_user,
                interrupt=interrupt,
                record=record,
            )
            stack.callback(run.stop)
            yield run

    def _steps(self, run: Run, target: Target[Delivery]) -> Iterator[Event]:
        """Run the loop; the run is told of every event first."""
        with coded_failures():
            loop = Pipeline(
                run, target, run, flush=self.flush, rollback_cap=self.reading.rollback_cap
            )
            for event in loop.steps():
                run.on_event(event)
                yield event


def portal_stream(
    *,
    id: str,
    portal: str | HttpAddress,
    outputs: Mapping[str, Output],
    spark: SparkSession | None = None,
    flush: Flush | None = None,
    flush_backfill: Flush | None = None,
    undo_buffer: int = 0,
    rollback_cap: int = DEFAULT_CAP,
    on_config_change: OnConfigChange = "error",
    far: int = FAR,
    first_span: int = FIRST_SPAN,
    largest_span: int = _SPANS.blocks,
    span_bytes: int = _SPANS.bytes,
    span_rows: int = _SPANS.rows,
    span_seconds: float = _SPANS.seconds,
    poll_interval_s: float = 0.25,
    max_bytes: int = 10 * 1024 * 1024,
    retry: RetryPolicy | None = None,
    timeouts: Timeouts | None = None,
) -> PortalStream:
    """Define a stream.

    Args:
        id: the key of all stored state; never rename it.
        portal: the address of a dataset; no text of the stream shows its credentials.
        outputs: the tables to fill, by name; all are fetched together.
        spark: your session, used as it is; without one a local session is made when needed.
        flush: when to commit hot blocks: `Flush(blocks=…, rows=…, seconds=…)`, whichever comes
            first; left out, each block at once. What waits is dropped by a fork or a stop.
        flush_backfill: the same for final blocks; left out, each span at once.
        undo_buffer: how many of the newest blocks to hold back until they are deeper or final: a
            fork among them never reaches the target.
        rollback_cap: how many committed blocks above the finalized one a fork can be undone to,
            at most; also while the portal reports no finality at all. The state and its undo data
            grow with it. A deeper fork lands on the finalized block, or ends the stream if that is
            unknown. Choose it by the deepest reorganization of the network.
        on_config_change: what to do if the outputs ask for something else than what the stored
            rows were made of: "error", "warn" or "ignore".
        far: how many blocks behind the finalized head executors take over.
        first_span: how many blocks executors read first; later spans follow from how that went.
        largest_span: how many blocks a span has at most.
        span_bytes: of block lines, about, in a span at most.
        span_rows: rows, about, in a span at most.
        span_seconds: how long a span may take, about.
        poll_interval_s: how often the head is asked for.
        max_bytes: of block lines that are held at once.
        retry: pauses and attempts after a request failed, on the driver and on executors.
        timeouts: how long to wait for a connection, for headers, for the next part of a body; on
            the driver and on executors.

    Raises:
        StreamIdError: the id is missing or blank.
        PortalUrlError: the portal's address is none.
        InvalidOptionError: outputs is not a mapping of names to outputs, or an option cannot work.
        NetworkError: the outputs ask for several networks.
    """
    if not isinstance(id, str) or not id.strip():
        raise StreamIdError("a stream needs an id", got=repr(id))
    if not isinstance(outputs, Mapping) or not outputs:
        raise InvalidOptionError(
            'outputs maps names to outputs: {"transfers": evm.events(…)}', got=repr(outputs)
        )
    for name, output in outputs.items():
        if not isinstance(name, str) or not name or not hasattr(output, "query"):
            raise InvalidOptionError("not an output", name=name, got=repr(output))
    networks = sorted({output.query.network.type for output in outputs.values()})
    if len(networks) > 1:
        raise NetworkError("one stream reads one network", got=", ".join(networks))
    address = portal_address(portal)
    for rule in (flush, flush_backfill):
        if rule is not None and not isinstance(rule, Flush):
            raise InvalidOptionError("flush rules are Flush(blocks=…)", got=repr(rule))
    if type(undo_buffer) is not int or undo_buffer < 0:
        raise InvalidOptionError(
            "undo_buffer is a number of blocks, 0 for none", got=repr(undo_buffer)
        )
    rules = FlushRules(flush or Flush(), flush_backfill or Flush())
    return PortalStream(
        id,
        address,
        dict(outputs),
        spark=spark,
        reading=ReadingOptions(
            far=far,
            first_span=first_span,
            spans=SpanLimits(largest_span, span_bytes, span_rows, span_seconds),
            poll_interval_s=poll_interval_s,
            max_bytes=max_bytes,
            retry=RetryPolicy() if retry is None else retry,
            timeouts=Timeouts() if timeouts is None else timeouts,
            rollback_cap=rollback_cap,
        ),
        flush=rules,
        undo_buffer=undo_buffer,
        on_config_change=check_option(on_config_change),
    )


def pipe_to_iterator(
    stream: PortalStream, initial_cursor: BlockCursor | None, on_fork: OnFork
) -> Iterator[StreamBatch]:
    """Iterate in real time: resume after a full cursor, and keep fork detection on across forks.

    `on_fork(previous_blocks)` returns the last good cursor, or None to give up.
    """
    return stream._read(initial_cursor, Callback("on_fork", on_fork, "previous_blocks"))
