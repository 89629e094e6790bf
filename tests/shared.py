"""What many tests need is started once, and a start that fails is reported once.

The first test that needs it fails, with what the server has said, so the run is red. The others are
skipped, with one line for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import pytest

Result = TypeVar("Result")
HANG_S = 900.0
"""How long a test waits for what it knows will come: only a hang reaches it, no busy machine."""

_FAILED: set[str] = set()


def at_once(work: Callable[[], Result]) -> Future[Result]:
    """Do in this thread what another one does outside of tests, so that it is repeatable."""
    future: Future[Result] = Future()
    future.set_result(work())
    return future


@contextmanager
def starting(name: str) -> Iterator[None]:
    """Start something in this block, unless its start has failed before in this process."""
    skip_without(name)
    try:
        yield
    except Exception:
        _FAILED.add(name)
        raise


def skip_without(name: str) -> None:
    """Skip the test that runs if the start of what it needs has failed."""
    if name in _FAILED:
        pytest.skip(f"{name} did not start: the first test that needed it says why")
