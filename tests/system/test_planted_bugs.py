"""Bugs planted by hand are found by the worlds that are said to find them."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import BUGS, SEEDS, Bug
from tests.simulation.places import Engines
from tests.simulation.script import Script
from tests.simulation.situations import Tally
from tests.simulation.soak import play
from tests.targets import clickhouse_places, postgres_places


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(postgres_places.server, clickhouse_places.server)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, engines: Engines) -> None:
    """The same world is right without it."""
    assert bug.seed in SEEDS
    with bug.planted():
        wrong = play(Script.draw(bug.seed), engines, Tally())[1]
    assert wrong is not None
    assert play(Script.draw(bug.seed), engines, Tally())[1] is None
