"""What targets with callbacks have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes_three(function: Callable[..., Any]) -> bool:
    """Tell whether a callback wants the context too."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return True
    return (
        sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters) > 2
    )
