"""Which tests of the conformance suite a target must be able to pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


def needs(*capabilities: str) -> Callable[[Test], Test]:
    """Mark a test that only targets with these capabilities can pass."""

    def mark(test: Test) -> Test:
        test.__dict__["needs"] = capabilities
        return test

    return mark
