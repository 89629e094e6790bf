"""Whole-system worlds: real databases, cuts, pauses, kills. `make soak` plays many more."""

from __future__ import annotations

import pytest

from tests.sampling import every
from tests.simulation.places import Engines
from tests.simulation.script import Script
from tests.simulation.situations import Tally, expected
from tests.simulation.soak import play, play_seeds
from tests.simulation.world import World
from tests.targets import clickhouse_places, postgres_places

SEEDS = every(60).seeds(range(1, 241))
RARE = [  # worlds about nothing that together meet every rare situation, and almost every feature
    2, 3, 7, 23, 43, 60, 85, 104, 123, 124, 129, 161, 184, 201, 223, 240, 284, 298, 304, 453, 533,
    3903, 7424,
]  # fmt: skip
ABOUT = [  # blocks that a portal has no more, refused and left out; a plan of Spark; a node;
    9, 46, 1023, 1300, 1320, 3164, 5036, 5097,  # a rewind; changes and sums without a change log;
    389,  # a query whose first blocks have all been taken back;
    11185, 1000061,  # waits without an end: for a turn to write, for replicas that are behind
]  # fmt: skip
FOUND = [  # worlds about nothing that once differed
    31,  # a query that was killed before it took blocks back, after a micro-batch without rows
    1388,  # a fork that brought rows below the first block of a query that had some
    3903,  # creations of factories, asked of a replica that was behind, every time of the same one
    4127,  # three empty answers in a row, taken for the end of a range that holds blocks
    7424,  # a start that the network held, and that overtook its successor once it was let go
]


@pytest.fixture
def engines() -> Engines:
    return Engines(postgres_places.server, clickhouse_places.server)


@pytest.mark.guarantee("SYSTEM-1")
@pytest.mark.guarantee("FENCE-1")
@pytest.mark.guarantee("STATE-2")
def test_worlds_agree_with_their_chains_and_meet_every_rare_situation(engines: Engines) -> None:
    rare = play_seeds(ABOUT, engines)
    rare.add(play_seeds(RARE, engines, free=True))
    others = play_seeds(set(SEEDS) - set(ABOUT), engines)
    found = play_seeds(FOUND, engines, free=True)
    assert {**rare.failures, **others.failures, **found.failures} == {}
    assert rare.tally.lacks(expected()) == []


@pytest.mark.guarantee("SIM-1")
@pytest.mark.parametrize("seed", [6, 7, 46, 385])
def test_a_world_is_the_same_for_the_same_seed(engines: Engines, seed: int) -> None:
    first, second = (World(Script.draw(seed), engines, Tally()) for _ in range(2))
    first.play()
    second.play()
    assert first.log == second.log


def test_any_part_of_a_script_can_be_played(engines: Engines) -> None:
    script = Script.draw(8)
    for kept in ([], [0], list(range(0, len(script.steps), 3))):
        assert play(script.only(kept), engines, Tally())[1] is None
