"""Examples run in the process of the tests: what they set up is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Put back what an example does to the loggers that all tests share."""
    loggers = [logging.getLogger(name) for name in ("headwater", "py4j")]
    before = [(one, list(one.handlers), one.level, one.propagate) for one in loggers]
    yield
    for one, handlers, level, propagate in before:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)
