"""What is delivered is the canonical, final chain: whatever forks, fails or crashes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.effects import dead_letters, replay_dead_letters
from headwater.targets import (
    MemoryStore,
    MemoryTarget,
    clickhouse_target,
    duckdb_target,
    postgres_target,
)
from headwater.targets.duckdb import DuckDBSettings
from headwater.targets.postgres import PostgresSettings
from headwater.testing.conformance.crash import WHOLE
from tests.effects.outbox_walk import STREAM, OutboxWalk, expected_messages
from tests.sampling import every
from tests.targets.clickhouse_places import database as clickhouse
from tests.targets.postgres_places import database, empty

Places = Iterator[Callable[[], Any]]


def memory_places(path: Path) -> Places:
    while True:
        store: MemoryStore[Any] = MemoryStore()
        yield partial(MemoryTarget, store)


def duckdb_places(path: Path) -> Places:
    settings = DuckDBSettings(config={"threads": 1})
    for number in itertools.count():
        yield partial(duckdb_target, path / f"{number}.duckdb", settings=settings)


def postgres_places(path: Path) -> Places:
    dsn = database()
    while True:
        empty(dsn)
        yield partial(postgres_target, dsn, settings=PostgresSettings(lock_wait_s=1))


def clickhouse_places(path: Path) -> Places:
    while True:
        yield partial(clickhouse_target, clickhouse())


PLACES = {"memory": memory_places, "duckdb": duckdb_places, "postgres": postgres_places}
MORE_PLACES = {**PLACES, "clickhouse": clickhouse_places}


@pytest.fixture(params=PLACES)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    return PLACES[request.param](tmp_path)


@pytest.mark.guarantee("OUTBOX-1")
@pytest.mark.guarantee("OUTBOX-2")
@pytest.mark.guarantee("OUTBOX-3")
def test_a_crash_at_any_statement_or_delivery_loses_nothing_and_leaks_nothing(
    places: Places, request: pytest.FixtureRequest
) -> None:
    script = ["final", "read", "read", "fork", "read"]
    counted = OutboxWalk(next(places), 6)
    counted.run(script)
    assert counted.forks
    assert counted.receiver.unique
    sample = WHOLE if "memory" in request.node.name else every(12)
    repeats = 0
    for nth in sample.of(range(1, counted.ticks + 1)):
        walk = OutboxWalk(next(places), 6, crash_at=nth)
        walk.run(script)
        assert walk.deaths == 1, f"step {nth} was not reached"
        repeats += walk.receiver.repeats
    assert repeats or not sample.is_whole, "no crash came between a delivery and its settlement"


@pytest.fixture(params=MORE_PLACES)
def more_places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    return MORE_PLACES[request.param](tmp_path)


@pytest.mark.guarantee("OUTBOX-1")
@pytest.mark.guarantee("OUTBOX-2")
@pytest.mark.guarantee("OUTBOX-3")
def test_random_scenarios_with_forks_failures_and_crashes_agree_with_the_oracle(
    more_places: Places, request: pytest.FixtureRequest
) -> None:
    sample = WHOLE if "memory" in request.node.name else every(4)
    seen = {"forks": 0, "deaths": 0, "failures": 0, "messages": 0}
    for seed in sample.seeds(range(100, 104)):
        walk = OutboxWalk(next(more_places), seed, crashes=0.03)
        walk.receiver.failing = 0.2
        walk.run(50)
        seen["forks"] += walk.forks
        seen["deaths"] += walk.deaths
        seen["failures"] += walk.receiver.failures
        seen["messages"] += len(walk.receiver.unique)
    assert all(seen.values()) or not sample.is_whole, seen
    assert seen["messages"]


@pytest.mark.guarantee("OUTBOX-4")
def test_refused_messages_become_dead_letters_and_can_be_replayed(more_places: Places) -> None:
    place = next(more_places)
    walk = OutboxWalk(place, 7, crashes=0.01)
    walk.receiver.poison = 4
    walk.run(40)
    wanted = expected_messages(walk.chain)
    poison = [one for one in wanted if walk.receiver.is_poison(one)]
    assert len(poison) > 2
    found = dead_letters(place(), STREAM)
    assert sorted(one.message.key for one in found) == sorted(one.key for one in poison)
    assert {one.message for one in found} == set(poison)
    assert all(one.name == "transfers" and "poison" in one.reason for one in found)

    walk.receiver.poison, walk.receiver.unique = 0, []
    keys = [one.key for one in poison[:2]]
    assert replay_dead_letters(place(), STREAM, keys=keys) == 2
    assert replay_dead_letters(place(), STREAM, name="other") == 0
    assert len(dead_letters(place(), STREAM)) == len(poison) - 2
    assert replay_dead_letters(place(), STREAM) == len(poison) - 2
    assert dead_letters(place(), STREAM) == []
    received = len(walk.receiver.received)
    walk.receiver.unique = wanted  # all of them may come now
    walk.resume()
    again = [one for one in walk.receiver.received[received:] if one in poison]
    assert list(dict.fromkeys(again)) == poison
