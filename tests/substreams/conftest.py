"""Streams of a simulated endpoint, into databases of each kind."""

from __future__ import annotations

import pytest

from tests.targets.change_log.places import place

__all__ = ["place"]


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries follow each other quickly where time is not what is tested."""
    monkeypatch.setattr("headwater.substreams.client.FIRST_PAUSE_S", 0.002)
