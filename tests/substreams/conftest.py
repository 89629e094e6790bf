"""Streams of a simulated endpoint, into databases of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sampling import turn
from tests.targets.change_log.places import KINDS, Place, open_place

ON_BOTH = (
    "test_the_walkthrough_of_the_seed_sentence_by_sentence",
    "test_random_histories_with_faults_and_restarts_equal_the_oracle",
    "test_a_crash_at_any_statement_leaves_what_the_endpoint_said",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each test write to both databases, by turns.

    What a database makes of changes is shown on each by tests/targets/change_log.
    """
    if "place" in metafunc.fixturenames:
        name = metafunc.function.__name__
        metafunc.parametrize(
            "place", KINDS if name in ON_BOTH else turn(KINDS, name), indirect=True
        )


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty database; whatever was opened on it is closed."""
    with open_place(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries follow each other quickly where time is not what is tested."""
    monkeypatch.setattr("headwater.substreams.client.FIRST_PAUSE_S", 0.002)
