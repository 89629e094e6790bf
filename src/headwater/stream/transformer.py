"""User code between the portal and the target: plain functions, and transformers with a life.

A transformer may keep state of its own. It is told when a run starts and stops, once each, and when
a fork was rolled back, after the target has undone it and before reading resumes: so its state and
the target's move in lockstep. All calls come from one thread of the driver.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headwater.core import BlockCursor
from headwater.errors import InvalidOptionError
from headwater.stream.context import BatchContext, StartInfo

Frames = Mapping[str, Any]


def takes(function: Callable[..., Any], count: int) -> bool:
    """Tell whether a callback accepts so many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


class Step:
    """One `pipe` of a stream: a function, or an object with `transform` and optional hooks."""

    def __init__(self, code: object) -> None:
        transform = getattr(code, "transform", None) or code
        if not callable(transform) or not (takes(transform, 1) or takes(transform, 2)):
            raise InvalidOptionError(
                "pipe takes a function of (data) or (data, ctx), or an object with transform",
                got=repr(code),
            )
        self._transform = transform
        self._wants_context = takes(transform, 2)
        self._code = code

    def transform(self, data: Frames, ctx: BatchContext) -> Frames:
        """Return what becomes of a batch: a mapping of names to DataFrames."""
        made = self._transform(data, ctx) if self._wants_context else self._transform(data)
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
        hook = getattr(self._code, name, None)
        if callable(hook):
            hook(*arguments)
