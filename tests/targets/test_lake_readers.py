"""Readers who poll a lake while its stream commits, forks, dies, maintains and sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sampling import visit
from tests.targets.lake_readers import TABLES, Polled


def play(polled: Polled) -> None:
    """Blocks, forks of several depths, files that grow old, maintenance."""
    for number in range(1, 6):
        polled.block(number, "a", final=number - 3)
    polled.roll_back(3)
    for number in range(4, 8):
        polled.block(number, "b", final=number - 3)
    polled.age()
    polled.roll_back(6)
    polled.roll_back(5)
    polled.block(6, "c", final=5)
    polled.maintain()
    polled.block(7, "c", final=5)


@pytest.mark.guarantee("STATE-2")
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_readers_see_states_of_the_chain_alone_before_every_step(kind: str, tmp_path: Path) -> None:
    polled = Polled(kind, tmp_path, every=2)
    play(polled)
    assert min(polled.looks.values()) > 20, polled.looks
    assert {*polled.moments} >= {1, 5, 3, 7, 6}


@pytest.mark.guarantee("STATE-2")
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_readers_see_states_of_the_chain_alone_wherever_the_stream_dies(
    kind: str, tmp_path: Path
) -> None:
    def die_at(point: int) -> int | None:
        polled = Polled(kind, tmp_path / str(point), every=5)
        for number in (1, 2, 3):
            polled.block(number, "a", final=1)
        polled.die_at = point + 1
        polled.block(4, "a", final=1)
        steps = polled.steps_of_call if polled.die_at else None
        polled.die_at = point + 1 if steps is None else 0
        polled.roll_back(2)
        polled.die_at = 0
        polled.block(3, "b", final=1)
        assert polled.looks.keys() >= {f"DuckDB {one}" for one in TABLES}
        return steps

    assert visit(3, die_at)
