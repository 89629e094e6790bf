"""What the user holds, whatever the blocks come from: `pipe`, `pipe_to`, `start`, iteration.

    stream = portal_stream(id="usdc", portal="https://…", outputs={"transfers": evm.events(…)})
    stream.pipe(large).pipe_to(duckdb_target("chain.duckdb"))

A stream is a value: `pipe` returns a new one, and nothing is asked of its source before it runs.
`portal_stream` and `substreams_stream` make the two kinds there are.
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from prometheus_client import CollectorRegistry

from headwater.core import DEFAULT_CAP, BlockCursor, Flush, FlushRules, PipeState
from headwater.core.callbacks import Callback
from headwater.core.messages import Listener
from headwater.dashboard import serve
from headwater.effects import Subscription
from headwater.effects.outbox import RETRY, Deliver
from headwater.errors import InvalidOptionError, MessageRowsError, PipelineFileError
from headwater.metrics import REGISTRY, StreamRecord
from headwater.pipeline import Committed
from headwater.portal import RetryPolicy
from headwater.runtime import Interrupt, Runtime
from headwater.stream.config import OnConfigChange
from headwater.stream.context import StreamBatch
from headwater.stream.extensions import ExtensionMaker
from headwater.stream.handle import StreamHandle
from headwater.stream.owned import (
    AskUser,
    Handover,
    OnFork,
    OwnedTarget,
    check_cursor,
    check_id,
    check_target,
    start_after,
)
from headwater.stream.run import Opening, Run
from headwater.stream.user_code import (
    Step,
    Transform,
    Transformer,
    from_user_frame,
    quiet_spark_queries,
)
from headwater.stream.view import ProgressView
from headwater.targets.contract import Delivery, Target
from headwater.targets.fanout import FanOutTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(ABC):
    """A stream of blocks, the transforms of their rows, and how they are committed."""

    id: str
    steps: tuple[Step, ...] = ()
    spark: SparkSession | None = None
    extensions: tuple[ExtensionMaker, ...] = ()
    flush: FlushRules = FlushRules()  # noqa: RUF009 - immutable
    undo_buffer: int = 0
    rollback_cap: int = DEFAULT_CAP
    on_config_change: OnConfigChange = "error"

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the blocks come from, as it may be shown."""

    @property
    @abstractmethod
    def is_single(self) -> bool:
        """Whether there is one output, so that its rows can be written as they are decoded."""

    @abstractmethod
    def _opened(self, opening: Opening) -> AbstractContextManager[Run]:
        """Connect, and let go of everything on every exit path."""

    def pipe(self, code: Transform | Transformer, *, row_wise: bool | None = None) -> Self:
        """Add a transform: a function of (data) that says what becomes of rows.

        `data` maps output names to DataFrames, and so must the result. As in Structured Streaming
        it is a plan: called once per run, on frames that have columns and no rows, and applied to
        large spans of a backfill and to single blocks at the head alike. What would look at rows
        (`count`, `first`, `toArrow`, …) is refused, and belongs into `pipe_batches`. Hot blocks
        that wait share a Spark job where each row of a result is made of one row.

        A function of (data, ctx) and a transformer object are taken as `pipe_batches` takes them,
        until 0.4; `row_wise` means nothing any more, since the plan tells.

        Raises:
            TransformActionError: when the stream runs: it asked for rows.
            TransformPlanError: when the stream runs: what it returns is no plan of its frames.
        """
        if row_wise is not None:
            warnings.warn(
                "row_wise= of pipe means nothing any more, and goes with 0.4: the plan tells",
                DeprecationWarning,
                stacklevel=2,
            )
        step = Step(code, is_plan=True)
        if not step.wants_batches:
            return replace(self, steps=(*self.steps, step))
        warnings.warn(
            "functions of (data, ctx) and transformers belong into pipe_batches; pipe refuses them "
            "from 0.4 on",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.pipe_batches(code)

    def pipe_batches(self, code: Transform | Transformer) -> Self:
        """Add a transform that is called for each batch: of (data) or (data, ctx), or an object.

        Its frames have rows, and may be looked at: `count`, `collect`, `toArrow`, …. A batch is a
        span of final blocks, or one hot block: hot blocks never share a call or a Spark job. A
        transformer object has `transform` and, if it likes, `start(info)`, `fork(safe_cursor)` and
        `stop()`.
        """
        return replace(self, steps=(*self.steps, Step(code)))

    def on_finalized(
        self,
        output: str,
        deliver: Deliver,
        *,
        name: str | None = None,
        batch_size: int = 100,
        retry: RetryPolicy = RETRY,
    ) -> Self:
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
        names = {
            extension.name.lower()
            for extension in self.extensions
            if isinstance(extension, Subscription)
        }
        if added.name.lower() in names:
            raise InvalidOptionError("there is an outbox of this name: give name=", got=added.name)
        return replace(self, extensions=(*self.extensions, added))

    def pipe_to(
        self,
        target: Target[Delivery] | OwnedTarget | Sequence[Target[Delivery]],
        *,
        on_event: Listener | None = None,
        dashboard: int | str | None = None,
        progress: bool = True,
    ) -> None:
        """Run into a target until the range is read; without an end, until a signal.

        Several targets, in a list, are filled by one reading; each keeps its own cursor. The same
        as `start` and a wait for the end, in the calling thread.

        On SIGINT or SIGTERM the batch in hand commits or vanishes, and the program exits with 130
        or 143; a second signal does not wait for the batch. In an interactive session the call
        returns instead. An `on_event` listener, which is told of every event, may raise
        `StopRequested` to end the run: then, too, the call returns.

        `dashboard` is a port, or "host:port", at which this process shows its streams: a page,
        Prometheus metrics and JSON. Several streams may share it. `progress` shows on standard
        error how far the stream is: drawn on a terminal, a line every few seconds elsewhere.
        """
        _run_here(self._handle(target, on_event, dashboard), progress=progress)

    def start(
        self,
        target: Target[Delivery] | OwnedTarget | Sequence[Target[Delivery]],
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
        target: Target[Delivery] | OwnedTarget | Sequence[Target[Delivery]],
        on_event: Listener | None,
        dashboard: int | str | None,
    ) -> StreamHandle:
        """Return a run that has not begun."""
        if (file := _file_read.get()) is not None:
            raise PipelineFileError(
                "the file runs its stream by itself: nothing was run", file=file, stream=self.id
            )
        if isinstance(target, Sequence):
            for each in target:  # a text has texts, which are refused
                check_target(each)
            target = FanOutTarget(target)
        check_target(target)
        self._check_outboxes()
        quiet_spark_queries()
        if dashboard is not None:
            serve(dashboard)
        record = self._record(type(target).__name__)
        return StreamHandle(record, lambda handle: self._work(target, handle), on_event)

    @property
    def _known_outputs(self) -> Collection[str] | None:
        """The names of what reaches the target; None while only the transforms know."""
        return None

    def _check_outboxes(self) -> None:
        """Refuse to deliver an output that there will never be, before anything is read."""
        known = self._known_outputs
        if known is None:
            return
        for extension in self.extensions:
            if isinstance(extension, Subscription) and extension.output not in known:
                raise MessageRowsError(
                    "there is no such output to deliver",
                    output=extension.output,
                    outputs=", ".join(known),
                )

    def _record(self, target: str, registry: CollectorRegistry = REGISTRY) -> StreamRecord:
        """Return what keeps the figures of a run."""
        return StreamRecord(self.id, portal=self.address, target=target, registry=registry)

    def _work(self, target: Target[Delivery] | OwnedTarget, handle: StreamHandle) -> None:
        """Run until the range is read, or until a stop."""
        if isinstance(target, OwnedTarget):
            target.write(lambda cursor=None: self._read_for(target, cursor, handle))
            return
        runtime = Runtime.of(handle.record, handle.interrupt)
        with self._running(Opening(target, handle.record, runtime)) as run:
            for _ in run.steps(handle.listener(run)):
                pass

    def __iter__(self) -> Iterator[StreamBatch]:
        """Read final blocks, from the beginning of the range every time."""
        return self._read(PipeState(), None, finalized=True)

    def read_into(self, target: Handover) -> Iterator[StreamBatch]:
        """Read from the beginning of the range; a fork ends it. Called by `verify`."""
        return self._read(
            PipeState(), Callback("on_fork", lambda previous: None, "previous_blocks"), into=target
        )

    def _read_for(
        self, target: OwnedTarget, cursor: BlockCursor | None, handle: StreamHandle
    ) -> Iterator[StreamBatch]:
        """Hand out batches to a target of the user's, which says where to begin."""
        check_cursor(cursor)
        start = target.start(cursor)
        return self._read(start, target.fork, floor=start.finalized, handle=handle)

    def _read(
        self,
        start: PipeState,
        on_fork: OnFork | None,
        *,
        finalized: bool = False,
        handle: StreamHandle | None = None,
        into: Handover | None = None,
        floor: BlockCursor | None = None,
    ) -> Iterator[StreamBatch]:
        """Hand out batches one by one; what happens in between is the caller's.

        A stop waits until the caller comes back for the next batch. `into` is told of more than the
        caller is given. No fork goes below `floor`.
        """
        target, ask_user = into or Handover(start), AskUser(on_fork, floor)
        interrupt = Interrupt() if handle is None else handle.interrupt
        record = self._record("iteration", CollectorRegistry()) if handle is None else handle.record
        opening = Opening(target, record, Runtime.of(record, interrupt), finalized, ask_user)
        with self._running(opening) as run:
            for event in run.steps(*([] if handle is None else [handle.listener(run)])):
                if isinstance(event, Committed):
                    with interrupt.uninterrupted():
                        yield from target.take()

    @contextmanager
    def _running(self, opening: Opening) -> Iterator[Run]:
        """Open a run, and have a stop reach it."""
        with self._opened(opening) as run, opening.runtime.stop.reaching(run):
            yield run


def check_stream(
    id: object, flush: object, flush_backfill: object, undo_buffer: object, rollback_cap: object
) -> FlushRules:
    """Refuse options that no stream can have; return the rules of flushing."""
    check_id(id)
    for rule in (flush, flush_backfill):
        if rule is not None and not isinstance(rule, Flush):
            raise InvalidOptionError("flush rules are Flush(blocks=…)", got=repr(rule))
    if type(undo_buffer) is not int or undo_buffer < 0:
        raise InvalidOptionError(
            "undo_buffer is a number of blocks, 0 for none", got=repr(undo_buffer)
        )
    if type(rollback_cap) is not int or rollback_cap < 1:
        raise InvalidOptionError("rollback_cap is a whole number from 1", got=repr(rollback_cap))
    live = flush if isinstance(flush, Flush) else Flush()
    backfill = flush_backfill if isinstance(flush_backfill, Flush) else Flush()
    return FlushRules(live, backfill)


_file_read: ContextVar[str | None] = ContextVar("_file_read", default=None)


@contextmanager
def reading_definitions(file: str) -> Iterator[None]:
    """Let no stream run: a command reads the streams that a user's file defines.

    Within it `pipe_to` and `start` raise PipelineFileError, before anything is opened.
    """
    token = _file_read.set(file)
    try:
        yield
    finally:
        _file_read.reset(token)


def pipe_and_tell(
    stream: Stream, target: Target[Delivery], dashboard: int | str | None, *, progress: bool
) -> None:
    """Do what `pipe_to` does; the last line says how it ended, however short it was.

    Called by commands.
    """
    _run_here(stream._handle(target, None, dashboard), progress=progress, always_ends=True)


def _run_here(handle: StreamHandle, *, progress: bool, always_ends: bool = False) -> None:
    """Run in this thread until the end, with signals handled and the progress shown."""
    with ExitStack() as stack:
        view = ProgressView(lambda: [handle.record], shown=progress, always_ends=always_ends)
        stack.enter_context(view)
        stack.enter_context(handle.interrupt.handling(view.say if progress else None))
        try:
            handle.run()
        except Exception as error:
            own = from_user_frame(error)
            if own is None:
                raise
            raise error.with_traceback(own)  # noqa: B904 - the same error, with fewer frames
    code = handle.interrupt.exit_code()
    if code is not None and not hasattr(sys, "ps1"):
        raise SystemExit(code)


def pipe_to_iterator(
    stream: Stream, initial_cursor: BlockCursor | None, on_fork: OnFork
) -> Iterator[StreamBatch]:
    """Iterate in real time: resume after a full cursor, and keep fork detection on across forks.

    `on_fork(previous_blocks)` returns the last good cursor, or None to give up.
    """
    check_cursor(initial_cursor)
    start = start_after(initial_cursor)
    return stream._read(start, Callback("on_fork", on_fork, "previous_blocks"))
