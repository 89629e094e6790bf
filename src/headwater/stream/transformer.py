"""User code between the portal and the target: plain functions, and transformers with a life.

A transformer may keep state of its own. It is told when a run starts and stops, once each, and when
a fork was rolled back, after the target has undone it and before reading resumes: so its state and
the target's move in lockstep. All calls come from one thread of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headwater.core import BlockCursor
from headwater.core.callbacks import Callback
from headwater.errors import InvalidOptionError
from headwater.stream.context import BatchContext, StartInfo

Frames = Mapping[str, Any]
Transform = Callable[[Frames], Frames] | Callable[[Frames, BatchContext], Frames]
_HOOKS = {"start": "info", "fork": "safe_cursor", "stop": ""}


class Transformer(Protocol):
    """An object with `transform`, a function of (data) or (data, ctx).

    It may also have `start(info)`, `fork(safe_cursor)` and `stop()`.
    """

    @property
    def transform(self) -> Callable[..., Frames]:
        """The function that returns what becomes of a batch."""
        ...


class Step:
    """One `pipe` of a stream: a function, or an object with `transform` and optional hooks."""

    def __init__(self, code: Transform | Transformer, row_wise: bool | None = None) -> None:
        transform = getattr(code, "transform", None) or code
        self._transform = Callback("transform", transform, "data", "data, ctx")
        self._hooks = {
            name: Callback(name, hook, form)
            for name, form in _HOOKS.items()
            if callable(hook := getattr(code, name, None))
        }
        self.row_wise = row_wise

    @property
    def may_join_blocks(self) -> bool:
        """Whether hot blocks that wait may be given to it together, to be cut by block afterwards.

        A transformer with a life, or one that is told where the stream stands, sees each by itself.
        """
        if self.row_wise is not None:
            return self.row_wise
        return self._transform.arguments == 1 and not self._hooks

    @property
    def has_hooks(self) -> bool:
        """Whether it is told of starts, forks and stops: then it may keep state of its own."""
        return bool(self._hooks)

    def transform(self, data: Frames, ctx: BatchContext) -> Frames:
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
