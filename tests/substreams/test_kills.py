"""A Substreams stream whose process dies at statements of its target, over and over."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headwater import Flush
from headwater.substreams.client import Dialling
from headwater.testing.conformance import Crash
from headwater.testing.substreams import simulated_endpoint
from tests.sampling import is_whole
from tests.substreams.scripted import (
    TABLES,
    CrashError,
    Weather,
    chain_of,
    expected,
    run,
    stored,
    stream_of,
)
from tests.targets import points
from tests.targets.change_log.places import Place
from tests.targets.places import has_effect

KINDS = {"postgres": "PostgreSQL, Substreams", "duckdb": "DuckDB, Substreams"}


class Death:
    """Kills at the n-th statement that has an effect; `n` is drawn for every process."""

    def __init__(self, random: Random) -> None:
        self.left = random.choice([2, 9, 22, 40])

    def __call__(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Crash(0, 0)


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.guarantee("CURSOR-1")
def test_a_crash_at_any_statement_leaves_what_the_endpoint_said(place: Place) -> None:
    """Undo signals, faults of the endpoint, and a cursor that must agree with the rows."""
    random = Random("kills")
    chain = chain_of(8, 2)
    weather = Weather(chain, random, 32 if is_whole() else 20)
    options: dict[str, Any] = {
        "flush": random.choice([None, Flush(blocks=3)]),
        "dialling": Dialling(idle_s=0.3),
    }
    died = 0
    with simulated_endpoint(chain=chain, bundle=random.choice([1, 4])) as server:
        server.faults.by_chance(3, 0.2)
        while not weather.is_over:
            target = place.target(*TABLES)
            points.watch(KINDS[place.kind], target, Death(random), has_effect)
            try:
                run(stream_of(server, **options), target, weather)
            except (Crash, CrashError):
                died += 1
                target.close()
        server.faults.by_chance(3, 0.0)
        target = place.target(*TABLES)
        stop = chain.head.number + 1
        run(stream_of(server, stop=stop, **options), target)
    assert died >= (8 if is_whole() else 4)
    assert stored(target.query) == expected(chain.canonical(0, stop - 1))
