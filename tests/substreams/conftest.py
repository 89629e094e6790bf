"""Streams of a simulated endpoint, into databases of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.targets.change_log.places import KINDS, Place, open_place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty database; whatever was opened on it is closed."""
    with open_place(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries follow each other quickly where time is not what is tested."""
    monkeypatch.setattr("headwater.substreams.client.FIRST_PAUSE_S", 0.002)
