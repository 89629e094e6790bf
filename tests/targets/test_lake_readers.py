"""Readers who poll a lake while its stream commits, forks, dies, maintains and sweeps."""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest

from headwater.targets import ParquetSettings, ParquetTarget, Rollover, parquet_target
from headwater.targets.lake.paths import Place
from headwater.targets.parquet.state import read_stored
from headwater.testing.conformance import Crash, apply_changes
from headwater.testing.conformance.model import LOG, PLAIN, Change, Contents, Rig, log
from tests.sampling import every, visit
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


@pytest.mark.guarantee("LAKE-2")
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
@pytest.mark.parametrize("seed", every(16).seeds(range(16)))
def test_readers_see_states_of_the_chain_alone_on_random_ways(
    kind: str, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    polled = Polled(kind, tmp_path, every=chance.choice((4, 7, 9)))
    for branch in itertools.islice("abcdefghij", 9):
        polled.die_at = chance.choice((0, 0, chance.randint(1, 12)))
        match chance.choice(("blocks", "blocks", "blocks", "age", "maintain")):
            case "blocks":
                for number in range(polled.number + 1, polled.number + 1 + chance.randint(1, 3)):
                    polled.block(number, branch, final=number - 3)
            case "age":
                polled.age(chance.choice((0.5, 2)))
            case _:
                polled.maintain()
        if polled.number > 1 and chance.random() < 0.5:
            points = polled.rig.state.landing_points()
            polled.roll_back(chance.choice(points).number)
    assert polled.moments


LOOKS = 40


@pytest.mark.guarantee("LAKE-2")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_are_read_at_one_block_while_another_thread_writes_and_forks(
    kind: str, tmp_path: Path
) -> None:
    """What a commit or a fork does between two steps of a reader, not before them."""
    polled = Polled(kind, tmp_path, every=1 << 30)
    polled.follow_by_others()
    enough = threading.Event()

    def write() -> None:
        polled.block(1, "a", final=0)
        for branch in map("branch{}_".format, itertools.count()):
            for number in range(polled.number + 1, polled.number + 4):
                polled.block(number, branch, final=number - 4)
            if enough.is_set():
                return
            polled.roll_back(polled.number - 2)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            while len(polled.moments) < LOOKS:
                polled.look_from_outside()
                assert not writing.done(), writing.result()
        finally:
            enough.set()
        writing.result()
    assert len({*polled.moments}) > 5, "the stream went on meanwhile"


# --- Parquet: final rows alone, in files that never change ----------------------------------------

LAST = 12


class PolledFiles:
    """Readers of a folder of Parquet files, before each change of a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.looks = 0
        self.seen = {LOG: 0, PLAIN: 0}
        self.die_at = -1
        self._steps = 0

    def run(self) -> int:
        """Let a stream write from where it stands to the end; return how many steps it took."""
        rollover = Rollover(rows=3, bytes=None, seconds=None)
        target = parquet_target(
            self.folder,
            tables=[LOG, PLAIN],
            on_data=apply_changes,
            settings=ParquetSettings(rollover=rollover),
        )
        target.on_step = self._step
        target.bind("one")
        try:
            self._write(target)
        except Crash:
            target.on_step = None
            raise
        finally:
            target.close()
        return self._steps

    def _write(self, target: ParquetTarget) -> None:
        """Go on from the stored block; some blocks are orphaned before anybody has seen them."""
        rig = Rig(target, lambda name: [], [])
        rig.model._kept = [(target.recover(), Contents())]
        for number in range(rig.state.number + 1, LAST + 1):
            if number % 4 == 2 and number > 4:
                for hot in (number, number + 1):
                    rig.block(hot, *self._changes(hot, "z"), branch="z", final=number - 2)
                rig.roll_back(number - 1)
            rig.block(number, *self._changes(number, "a"), final=number - 1)
        rig.settle(LAST)
        assert target.capabilities.finish is not None
        target.capabilities.finish()

    @staticmethod
    def _changes(number: int, branch: str) -> list[Change]:
        row = {"note": f"{branch}{number}", "value": str(number)}
        return [log(number, f"{branch}{number}"), Change("insert", PLAIN, (row,))]

    def _step(self, step: str) -> None:
        self._steps += 1
        if 0 <= self.die_at < self._steps:
            raise Crash(step)
        self.look()

    def look(self) -> None:
        """See a beginning of the chain in each table, and the same one up to the cursor."""
        stored = read_stored(Place.of(self.folder), "one")
        cursor = -1 if stored is None else stored.state.number
        up_to = []
        for table, column in ((LOG, "value"), (PLAIN, "note")):
            files = [str(one) for one in (self.folder / table).glob("[!_.]*.parquet")]
            if not files:
                continue
            with duckdb.connect() as db:
                found = [row[0] for row in db.read_parquet(files).project(column).fetchall()]
            assert sorted(ds.dataset(files).to_table()[column].to_pylist()) == sorted(found)
            numbers = sorted(int(one[1:]) for one in found)
            assert {one[0] for one in found} <= {"a"}, "rows of blocks that are not final"
            assert numbers == list(range(len(numbers))), "no beginning of the chain"
            assert len(numbers) >= self.seen[table], "rows were seen, and are gone"
            up_to.append([one for one in numbers if one <= cursor])
            self.seen[table] = len(up_to[-1])
        assert len(up_to) < 2 or up_to[0] == up_to[1], "two tables at one cursor"
        self.looks += 1


@pytest.mark.guarantee("LAKE-1")
def test_readers_of_parquet_see_a_beginning_of_the_chain_wherever_the_stream_dies(
    tmp_path: Path,
) -> None:
    def die_at(point: int) -> int | None:
        polled = PolledFiles(tmp_path / str(point))
        polled.die_at = point
        try:
            steps = polled.run()
        except Crash:
            polled.die_at = -1
            polled.run()
            steps = None
        polled.look()
        assert polled.seen == {LOG: LAST + 1, PLAIN: LAST + 1}
        assert polled.looks > 5
        return steps

    assert visit(7, die_at)
