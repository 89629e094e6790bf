"""User code between the portal and the target: plans, functions of batches, transformers.

What `pipe` is given says what becomes of rows: it is called once, and Spark keeps the plan
(`spark/plans.py`). What `pipe_batches` is given is called for each batch. A transformer may keep
state of its own. It is told when a run starts and stops, once each, and when a fork was rolled
back, after the target has undone it and before reading resumes: so its state and the target's move
in lockstep. All calls come from one thread of the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from headwater.core import BlockCursor
from headwater.core.callbacks import Callback
from headwater.errors import InvalidOptionError
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
        made = self._transform(data, ctx)
        if not isinstance(made, Mapping):
            raise InvalidOptionError(
                "a transform returns a mapping of names to DataFrames", got=type(made).__name__
            )
        return made

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
            made = call() if once else with_columns(call, self._provider)
            data = as_frames(made, self._provider)
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
        made = plan.apply_together(several)
        if made is None:
            self._tell(plan)
        return made

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
        one.equals(other, check_metadata=True)
        if isinstance(one, pa.Schema) and isinstance(other, pa.Schema)
        else one == other
        for one, other in zip(known.values(), schemas.values(), strict=True)
    )
