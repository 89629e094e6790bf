"""User code between the portal and the target: plans, functions of batches, transformers; failures.

What `pipe` is given says what becomes of rows: it is called once, and Spark keeps the plan
(`spark/plans.py`). What `pipe_batches` is given is called for each batch. A transformer may keep
state of its own. It is told when a run starts and stops, once each, and when a fork was rolled
back, after the target has undone it and before reading resumes: so its state and the target's move
in lockstep. All calls come from one thread of the driver.

User code may raise anything. The loop's own frames say nothing to its author: a failure is shown
from the author's first frame on, with the stream, the blocks and the outputs that it was about, and
where it ran. The exception itself stays what it was, so a program that catches `KeyError` still
does.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException

from headwater.core import Batch, BlockCursor, Span
from headwater.core.callbacks import Callback, NamedCallback
from headwater.errors import HeadwaterError, InvalidOptionError
from headwater.spark.frames import SparkProvider, as_frames
from headwater.spark.plans import Schema, TransformPlan, schema_of, with_columns
from headwater.stream.context import BatchContext, StartInfo

logger = logging.getLogger("headwater.stream")

Frames = Mapping[str, Any]
Transform = Callable[[Frames], Frames] | Callable[[Frames, BatchContext], Frames]
_HOOKS = {"start": "info", "fork": "safe_cursor", "stop": ""}
_PLANS = 8  # of one stage that are kept: frames have the same columns in all batches, as a rule


class Transformer(Protocol):
    """An object with `transform`, a function of (data) or (data, ctx).

    It may also have `start(info)`, `fork(safe_cursor)` and `stop()`.
    """

    @property
    def transform(self) -> Callable[..., Frames]:
        """The function that returns what becomes of a batch."""
        ...


class Step:
    """One `pipe` or `pipe_batches`: a function, or an object with `transform` and optional hooks.

    `is_plan`: it is called once per run, on frames without rows.
    """

    def __init__(self, code: Transform | Transformer, *, is_plan: bool = False) -> None:
        transform = getattr(code, "transform", None) or code
        self._transform = Callback("transform", transform, "data", "data, ctx")
        self._hooks = {
            name: Callback(name, hook, form)
            for name, form in _HOOKS.items()
            if callable(hook := getattr(code, name, None))
        }
        self.is_plan = is_plan

    def by_batch(self) -> Step:
        """Return it as one that is called for each batch: of Spark Connect no plan can be kept."""
        step = copy(self)
        step.is_plan = False
        return step

    @property
    def wants_batches(self) -> bool:
        """Whether it cannot be a plan: it has a life, or is told where the stream stands."""
        return self._transform.arguments > 1 or self.has_hooks

    @property
    def has_hooks(self) -> bool:
        """Whether it is told of starts, forks and stops: then it may keep state of its own."""
        return bool(self._hooks)

    def transform(self, data: Frames, ctx: BatchContext | None) -> Frames:
        """Return what becomes of a batch: a mapping of names to DataFrames."""
        result = self._transform(data, ctx)
        if not isinstance(result, Mapping):
            raise InvalidOptionError(
                "a transform returns a mapping of names to DataFrames", got=type(result).__name__
            )
        return result

    def start(self, info: StartInfo) -> None:
        """Tell that a run begins, if the transformer wants to know."""
        self._call("start", info)

    def fork(self, safe_cursor: BlockCursor) -> None:
        """Tell that everything above a cursor was rolled back."""
        self._call("fork", safe_cursor)

    def stop(self) -> None:
        """Tell that the run is over, however it ended."""
        self._call("stop")

    def _call(self, name: str, *arguments: object) -> None:
        if name in self._hooks:
            self._hooks[name](*arguments)


class Transforms:
    """The steps of one run. Plans that follow each other are one plan."""

    def __init__(self, stream_id: str, steps: Sequence[Step], provider: SparkProvider) -> None:
        self._provider = provider
        self._stages: list[_Planned | Step] = []
        for step in steps:
            last = self._stages[-1] if self._stages else None
            if not step.is_plan:
                self._stages.append(step)
            elif isinstance(last, _Planned):
                last.steps.append(step)
            else:
                self._stages.append(_Planned(stream_id, [step], provider))

    def __call__(self, data: Frames, ctx: BatchContext | None) -> Frames:
        """Return what becomes of a batch."""
        for stage in self._stages:
            call = partial(stage.transform, data, ctx)
            once = isinstance(stage, Step) and stage.has_hooks  # it may have changed its state
            result = call() if once else with_columns(call, self._provider)
            data = as_frames(result, self._provider)
        return data

    def together(self, several: Sequence[Mapping[str, pa.Table]]) -> Sequence[Frames] | None:
        """Return what becomes of hot blocks, each by itself, by one job; None if it cannot be."""
        if len(self._stages) != 1 or not isinstance(planned := self._stages[0], _Planned):
            return None
        return planned.together(several)

    @property
    def may_share(self) -> bool:
        """Whether hot blocks may be transformed together, as far as is known."""
        return (
            len(self._stages) == 1
            and isinstance(planned := self._stages[0], _Planned)
            and planned.may_share
        )


class _Planned:
    """Steps that are plans, called once for frames with the same columns."""

    def __init__(self, stream_id: str, steps: list[Step], provider: SparkProvider) -> None:
        self.steps = steps
        self.may_share = True
        self._id = stream_id
        self._provider = provider
        self._plans: list[tuple[dict[str, Schema], TransformPlan]] = []

    def transform(self, data: Frames, ctx: object) -> Frames:
        """Return what becomes of a batch."""
        return self._plan(data).apply(data)

    def together(self, several: Sequence[Mapping[str, pa.Table]]) -> Sequence[Frames] | None:
        """Return what becomes of hot blocks, each by itself, by one job; None if it cannot be."""
        plan = self._plan(several[0])
        result = plan.apply_together(several)
        if result is None:
            self._tell(plan)
        return result

    def _plan(self, data: Frames) -> TransformPlan:
        """Return the plan for frames with these columns; the steps are called if there is none."""
        schemas = {name: schema_of(frame) for name, frame in data.items()}
        for known, plan in self._plans:
            if _are_same(known, schemas):
                return plan
        plan = TransformPlan(self._all, schemas, self._provider)
        if plan.is_fixed:
            self._plans = [(schemas, plan), *self._plans[: _PLANS - 1]]
        self._tell(plan)
        return plan

    def _all(self, data: Frames) -> Frames:
        for step in self.steps:
            data = step.transform(data, None)
        return data

    def _tell(self, plan: TransformPlan) -> None:
        """Say once, if hot blocks that wait cannot share a job."""
        if plan.mixes is None or not self.may_share:
            return
        self.may_share = False
        output, operator = plan.mixes
        logger.info(
            "transform.by_block id=%s output=%s operator=%s: hot blocks that wait get a Spark job "
            "each, because rows of this output may be made of several rows", self._id, output,
            operator,
        )  # fmt: skip


def _are_same(known: Mapping[str, Schema], schemas: Mapping[str, Schema]) -> bool:
    """Tell whether frames have the same columns, in the same order, described alike."""
    if list(known) != list(schemas):
        return False
    return all(
        schema.equals(other, check_metadata=True)
        if isinstance(schema, pa.Schema) and isinstance(other, pa.Schema)
        else schema == other
        for schema, other in zip(known.values(), schemas.values(), strict=True)
    )


# --- failures -------------------------------------------------------------------------------------


_CALLS = (Callback.__call__.__code__, NamedCallback.__call__.__code__)
_TRACE = "Traceback (most recent call last):"
_WORKER_FRAME = re.compile(r'  File "[^"]*[/\\](?:pyspark|headwater)[/\\].*\n(?:    .*\n)*')
_LONGEST = 4000  # characters of a trace that executors sent


@contextmanager
def placed(stage: str, stream_id: str, batches: Sequence[Batch[Any]]) -> Iterator[None]:
    """Note on an error, once, which stream and blocks it was about, and where it ran."""
    try:
        yield
    except Exception as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(_place(error, stage, stream_id, batches))
        raise


def _place(error: Exception, stage: str, stream_id: str, batches: Sequence[Batch[Any]]) -> str:
    on_executor = isinstance(error, PySparkException) and _TRACE in str(error)
    place = [f"stream {stream_id!r}"]
    if batches:
        place.append(f"blocks {_first(batches[0])}..{batches[-1].headers[-1].number}")
        outputs = getattr(batches[0].data, "data", None)
        if outputs:
            place.append(f"outputs {', '.join(map(str, outputs))}")
    return f"{stage}: {', '.join(place)}, on {'an executor' if on_executor else 'the driver'}"


def _first(batch: Batch[Any]) -> int:
    """Return the first block of a batch; of a span the last header alone is known."""
    if isinstance(batch.data, Span):
        return batch.data.block_range.from_block
    first = batch.headers[0].number
    ctx = getattr(batch.data, "ctx", None)
    count = ctx.batch.blocks_count if isinstance(ctx, BatchContext) else len(batch.headers)
    return min(first, batch.headers[-1].number - count + 1)


def from_user_frame(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the first frame of user code on; None if it is not of it."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in _CALLS and frame.tb_next is not None:
            return frame.tb_next
        frame = frame.tb_next
    return None


def headline(error: BaseException) -> str:
    """Return an error in one line: a coded one says what it is, another one its type, too."""
    text = str(error) if isinstance(error, HeadwaterError) else _last_line(error)
    lines = [" ".join(text.split("\n", 1)[0].split()), *getattr(error, "__notes__", ())]
    return "; ".join(line for line in lines if line)


def failure_text(error: BaseException) -> str:
    """Return what a person is shown of a failure: the user's frames, if it is of user code."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, HeadwaterError):
        return f"{error}{notes}"
    sent = _sent_trace(str(error)) if isinstance(error, PySparkException) else None
    if sent is not None:
        return f"{sent}{notes}"
    frames = from_user_frame(error) or error.__traceback__
    shown = "".join(traceback.format_tb(frames))
    return f"{_TRACE}\n{shown}{_last_line(error)}{notes}"


def _last_line(error: BaseException) -> str:
    """Return the type and the message; of an error of Spark's, the message alone begins."""
    if isinstance(error, PySparkException):
        sent = _sent_trace(str(error))
        text = sent.rstrip().rsplit("\n", 1)[-1] if sent else str(error).split("\n", 1)[0]
        return text if sent else f"{type(error).__name__}: {text}"
    return "".join(traceback.format_exception_only(type(error), error)).split("\n", 1)[0]


def _sent_trace(text: str) -> str | None:
    """Return the traceback that an executor sent, from the user's first frame on."""
    _, separator, trace = text.partition(_TRACE)
    if not separator:
        return None
    trace = re.split(r"\n\s*(?:\tat |Driver stacktrace|JVM stacktrace)", trace, maxsplit=1)[0]
    own = _WORKER_FRAME.sub("", trace.lstrip("\n")).rstrip()
    return f"{_TRACE}\n{own}"[:_LONGEST]


def quiet_spark_queries() -> None:
    """Keep away the JSON line that Spark logs of a wrong column: the error says the same.

    A level that the program has set stays.
    """
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger = PySparkLogger.getLogger(name)
        if not logger.level:
            logger.setLevel("CRITICAL")
