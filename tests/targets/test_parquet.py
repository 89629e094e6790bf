"""Parquet folders: windows, roll-over, what recovery removes, and what it refuses."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headwater import evm, portal_stream
from headwater.core import PipeState
from headwater.errors import (
    InvalidOptionError,
    LakeSchemaError,
    ParquetWriteError,
    ParquetWriterError,
    StateMissingError,
    UndeclaredLakeTableError,
    UnexplainedFilesError,
)
from headwater.targets.lake.paths import Place
from headwater.targets.parquet import (
    ParquetSettings,
    ParquetTarget,
    Rollover,
    Window,
    parquet_target,
    table,
)
from headwater.targets.parquet.state import Folder, StateFiles, Stored, read_stored
from headwater.targets.parquet.windows import leftovers, window_of
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.conformance.model import Rig, log, plain, upsert
from headwater.testing.conformance.suite import apply_changes
from tests.sampling import visit
from tests.stream.truth import COLUMNS, transfers
from tests.targets.lake_places import ACCESS_KEY, SECRET_KEY, bucket

EVERY_COMMIT = ParquetSettings(rollover=Rollover(bytes=None, seconds=None))


def started(path: Any, **options: Any) -> Rig:
    given = {"tables": ["log", "plain"], "on_data": apply_changes, "settings": EVERY_COMMIT}
    target = parquet_target(path, **{**given, **options})
    target.bind("one")
    target.recover()
    return Rig(target, lambda name: [], [])


def restarted(path: Any, **options: Any) -> tuple[Rig, PipeState]:
    rig = started(path, **options)
    return rig, rig.target.recover()


def files(path: Path, name: str = "log") -> list[str]:
    return sorted(one.name for one in (path / name).glob("[!_.]*"))


def rows(path: Path, name: str = "log") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ds.dataset(path / name, format="parquet").to_table().to_pylist()
    return found


# --- windows --------------------------------------------------------------------------------------


def test_files_are_named_by_the_blocks_they_cover(tmp_path: Path) -> None:
    rig = started(tmp_path)
    for number in range(1, 5):
        rig.block(number, log(number, number), final=1)
    assert files(tmp_path) == ["000000000001-000000000001.parquet"]
    rig.settle(3)
    assert files(tmp_path)[1:] == ["000000000002-000000000003.parquet"]
    assert [row["block_number"] for row in rows(tmp_path)] == [1, 2, 3]
    assert window_of(files(tmp_path)[1]) == Window(2, 3)
    rig.target.close()


def test_a_table_without_rows_stretches_and_says_so_at_the_end(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, log(1, "a"), plain("x"), final=1)
    for number in (2, 3):
        rig.block(number, log(number, "a"), final=number)
    rig.block(4, log(4), plain("y"), final=4)
    assert files(tmp_path, "plain") == [
        "000000000001-000000000001.parquet", "000000000002-000000000004.parquet",
    ]  # fmt: skip
    rig.block(5, plain("z"), final=5)
    finish = rig.target.capabilities.finish
    assert finish is not None
    finish()
    assert files(tmp_path)[-1] == "000000000004-000000000005.parquet"
    assert pq.read_metadata(tmp_path / "log" / files(tmp_path)[-1]).num_rows == 0
    before = files(tmp_path)
    finish()
    assert files(tmp_path) == before, "a second end adds nothing"
    rig.target.close()


@pytest.mark.parametrize(
    ("rollover", "published"),
    [
        (Rollover(rows=3, bytes=None, seconds=None), [3, 6]),
        (Rollover(blocks=2, bytes=None, seconds=None), [2, 4, 6]),
        (Rollover(bytes=1, seconds=None), [1, 2, 3, 4, 5, 6]),
        (Rollover(seconds=25), [4]),
    ],
)
def test_final_rows_wait_for_a_limit(
    tmp_path: Path, rollover: Rollover, published: list[int]
) -> None:
    rig = started(tmp_path, settings=ParquetSettings(rollover=rollover))
    now = 0.0
    target: Any = rig.target
    target.clock = lambda: now
    for number in range(1, 7):
        rig.block(number, log(number, "row"), final=number)
        now += 10
    ends = [window.last for window in map(window_of, files(tmp_path)) if window]
    assert ends == published
    stored = read_stored(Place.of(tmp_path), "one")
    assert stored is not None
    assert stored.state.number == published[-1]
    rig.target.close()


def test_a_limit_that_cannot_work_is_refused() -> None:
    for wrong in ({"rows": 0}, {"bytes": True}, {"seconds": 0}):
        with pytest.raises(InvalidOptionError):
            Rollover(**wrong)


def test_what_waits_moves_to_disk_when_memory_is_full(tmp_path: Path) -> None:
    rollover = Rollover(bytes=None, seconds=None)
    rig = started(tmp_path, settings=ParquetSettings(memory_bytes=100, rollover=rollover))
    for number in range(1, 6):
        rig.block(number, log(number, "x" * 50, "y" * 50), final=0)
    target: Any = rig.target
    assert target._folders.held._spilled, "rows have moved"
    rig.settle(5)
    assert len(rows(tmp_path)) == 10
    assert {row["value"] for row in rows(tmp_path)} == {"x" * 50, "y" * 50}
    rig.target.close()


# --- recovery -------------------------------------------------------------------------------------


def some_windows(path: Path, last: int = 3) -> None:
    rig = started(path)
    for number in range(1, last + 1):
        rig.block(number, log(number, number), final=number)
    rig.target.close()


def test_files_above_the_cursor_and_staged_ones_are_removed(tmp_path: Path) -> None:
    some_windows(tmp_path)
    folder = tmp_path / "log"
    good = files(tmp_path)
    (folder / "000000000004-000000000009.parquet").write_bytes(b"half")
    (folder / "_staging").mkdir(exist_ok=True)
    (folder / "_staging" / "4-9-00000-abc-000.parquet").write_bytes(b"half")
    (folder / ".000000000004.parquet.12.tmp").write_bytes(b"half")
    rig, state = restarted(tmp_path)
    assert state.number == 3
    assert files(tmp_path) == good
    left = [one for one in folder.rglob("*") if one.is_file() and one.read_bytes() == b"half"]
    assert left == []
    rig.target.close()


@pytest.mark.parametrize(
    "name",
    [
        "000000000002-000000000005.parquet",  # begins below what is covered
        "000000000001-000000000002.parquet",  # overlaps
        "part-0000.parquet",
        "notes.txt",
    ],
)
def test_what_nothing_explains_is_refused_before_anything_is_deleted(
    tmp_path: Path, name: str
) -> None:
    some_windows(tmp_path)
    above = tmp_path / "log" / "000000000004-000000000004.parquet"
    above.write_bytes(b"half")
    (tmp_path / "log" / name).write_bytes(b"?")
    with pytest.raises(UnexplainedFilesError):
        started(tmp_path)
    assert above.exists(), "nothing was deleted"


def test_a_file_below_the_cursor_that_no_window_covers_is_refused() -> None:
    with pytest.raises(UnexplainedFilesError):
        leftovers({"log": ["000000000005-000000000006.parquet"]}, 9, {"log": 5})


def test_a_file_of_an_earlier_epoch_is_told_from_those_of_the_next() -> None:
    good = [
        "000000000001-000000000004-e000001.parquet",
        "000000000005-000000000006-e000002.parquet",
        "000000000007-000000000009-0000-e000002.parquet",
        "000000000007-000000000009-0001-e000002.parquet",
    ]
    for stale in (
        "000000000005-000000000008-e000001.parquet",
        "000000000007-000000000012-e000001.parquet",  # and beyond what is published
        "000000000007-000000000009-e000001.parquet",  # the same window
    ):
        assert leftovers({"log": [*good, stale]}, 9, {"log": 10}) == [("log", stale)]
    for odd in (
        "000000000005-000000000008-e000002.parquet",
        "000000000005-000000000008.parquet",
        "000000000007-000000000012-e000002.parquet",
    ):
        with pytest.raises(UnexplainedFilesError):
            leftovers({"log": [*good, odd]}, 9, {"log": 10})


def test_a_lost_state_is_not_taken_for_a_beginning(tmp_path: Path) -> None:
    some_windows(tmp_path)
    for one in (tmp_path / "_headwater").rglob("*.json"):
        one.unlink()
    with pytest.raises(StateMissingError):
        started(tmp_path)
    assert len(files(tmp_path)) == 3


def test_another_stream_does_not_take_the_files_for_its_own(tmp_path: Path) -> None:
    some_windows(tmp_path)
    other = parquet_target(tmp_path, settings=EVERY_COMMIT)
    other.bind("two")
    assert other.recover() == PipeState()
    rig = Rig(other, lambda name: [], [])
    with pytest.raises(UnexplainedFilesError):
        rig.block(1, log(1, "other"), final=1)
    assert len(files(tmp_path)) == 3
    other.close()


def test_a_writer_that_was_replaced_publishes_nothing() -> None:
    """An object store has no locks: the newer epoch counts."""
    place = f"memory://bucket/{uuid4().hex}"
    old = started(place)
    old.block(1, log(1, 1), final=1)
    new, state = restarted(place)
    assert state.number == 1
    with pytest.raises(ParquetWriterError):
        old.block(2, log(2, "stale"), final=2)
    new.model.settle(state)
    new.block(2, log(2, "right"), final=2)
    new.target.close()
    old.target.close()
    found = Place.of(place)
    names = [one.name for one in found.files("log")]
    assert [name.rsplit("/")[-1] for name in sorted(names)] == [
        "000000000001-000000000001-e000001.parquet", "000000000002-000000000002-e000002.parquet",
    ]  # fmt: skip
    with found.open(sorted(names)[1]) as file:
        assert pq.read_table(file)["value"].to_pylist() == ["right"]


@pytest.mark.parametrize("dies", [False, True], ids=["wakes", "dies"])
def test_a_file_that_a_paused_writer_publishes_is_removed(dies: bool) -> None:
    """It has looked at the epoch, then another took over and published; now it publishes, too."""
    place = f"memory://bucket/{uuid4().hex}"
    old = started(place)
    old.block(1, log(1, 1), final=1)
    target = old.target
    assert isinstance(target, ParquetTarget)

    def pause(step: str) -> None:
        if step.startswith("put log/"):
            new, state = restarted(place)
            new.model.settle(state)
            for number in (2, 3, 4):
                new.block(number, log(number, "right"), final=2 if number < 4 else 4)
            new.target.close()
        elif dies and step.startswith("delete log/"):
            raise KeyboardInterrupt

    for number in (2, 3):
        old.block(number, log(number, "stale"), final=1)
    target.on_step = pause
    with pytest.raises(KeyboardInterrupt if dies else ParquetWriterError):
        old.settle(3)
    target.on_step = None
    if dies:
        last, state = restarted(place)
        assert state.number == 4
        last.target.close()
    held = []
    for name in sorted(one.name for one in Place.of(place).files("log")):
        with Place.of(place).open(name) as file:
            held += pq.read_table(file)["value"].to_pylist()
    assert held == ["1", "right", "right", "right"]


def test_a_writer_leaves_the_state_of_its_successor_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Folder(Place.of(f"memory://bucket/{uuid4().hex}"))
    old, new = StateFiles(folder, "one"), StateFiles(folder, "one")
    old.claim()
    check = old.check

    def looks_a_moment_too_early() -> None:
        check()
        new.claim()

    monkeypatch.setattr(old, "check", looks_a_moment_too_early)
    old.save(Stored(config="of the old one"))
    (left,) = [one for one in folder.names("_headwater/one") if one.startswith("000002-")]
    new.save(Stored(config="of the new one"))
    assert left not in folder.names("_headwater/one")
    assert read_stored(folder.place, "one") == Stored(config="of the new one")


# --- what is written ------------------------------------------------------------------------------


def test_upserts_and_deletes_are_refused(tmp_path: Path) -> None:
    rig = started(tmp_path, tables=["balances"])
    with pytest.raises(ParquetWriteError):
        rig.block(1, upsert({"owner": "a", "token": "t", "value": "1", "note": None}), final=1)
    rig.target.close()


def test_a_table_that_was_not_declared_is_refused(tmp_path: Path) -> None:
    rig = started(tmp_path, tables=["plain"])
    with pytest.raises(UndeclaredLakeTableError):
        rig.block(1, log(1, 1), final=1)
    rig.target.close()
    with pytest.raises(InvalidOptionError):
        parquet_target(tmp_path, on_data=apply_changes)
    for name in ("_hidden", "a/b", ""):
        with pytest.raises(LakeSchemaError):
            parquet_target(tmp_path, tables=[name])


def insert(target: ParquetTarget, rig: Rig, number: int, frame: pa.Table) -> None:
    change = log(number, 1)
    rig.block(number, type(change)("insert", "log", change.rows, frame), final=number)


def test_new_columns_and_wider_types_are_taken_where_that_is_declared(tmp_path: Path) -> None:
    narrow = pa.table({"block_number": pa.array([1], pa.int32())})
    wide = pa.table({"block_number": pa.array([2**40], pa.int64()), "more": ["x"]})
    rig = started(tmp_path / "fixed")
    insert(rig.target, rig, 1, narrow)  # type: ignore[arg-type]
    with pytest.raises(LakeSchemaError):
        insert(rig.target, rig, 2, wide)  # type: ignore[arg-type]
    rig.target.close()
    rig = started(tmp_path / "free", tables=[table("log", evolve=True)])
    insert(rig.target, rig, 1, narrow)  # type: ignore[arg-type]
    insert(rig.target, rig, 2, wide)  # type: ignore[arg-type]
    insert(rig.target, rig, 3, narrow)  # type: ignore[arg-type]
    schema = pq.read_schema(tmp_path / "free" / "log" / files(tmp_path / "free")[-1])
    assert schema.names == ["block_number", "more"]
    assert schema.field("block_number").type == pa.int64()
    rig.target.close()


# --- whole streams --------------------------------------------------------------------------------


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


def names_of(columns: str) -> list[str]:
    return [one.strip('" ') for one in columns.split(",")]


def held(path: Any, options: dict[str, str] | None = None) -> list[tuple[Any, ...]]:
    place = Place.of(path, options).under("transfers")
    found = ds.dataset(place.path_of(), filesystem=place.filesystem, format="parquet")
    order = [("block_number", "ascending"), ("log_index", "ascending")]
    table = found.to_table(columns=names_of(COLUMNS)).sort_by(order)
    return [tuple(row.values()) for row in table.to_pylist()]


def run(portal: PortalServer, target: ParquetTarget, *ranges: tuple[int, int]) -> None:
    outputs = {"transfers": evm.events("erc20.Transfer", range=list(ranges) or (5, 40))}
    stream = portal_stream(
        id="transfers", portal=portal.url, outputs=outputs, far=10**9, poll_interval_s=0.01
    )
    stream.pipe_to(target, progress=False)


@pytest.mark.guarantee("LAKE-1")
def test_a_stream_publishes_all_final_rows_when_its_range_is_read(
    portal: PortalServer, tmp_path: Path
) -> None:
    run(portal, parquet_target(tmp_path))
    chain = portal.sim.chain
    assert held(tmp_path) == transfers(chain, chain.canonical(5, 40))
    windows = sorted(window for window in map(window_of, files(tmp_path, "transfers")) if window)
    assert windows[0].first == 5
    assert windows[-1].last == 40
    before = files(tmp_path, "transfers")
    run(portal, parquet_target(tmp_path))
    assert files(tmp_path, "transfers") == before, "a second run adds nothing"


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.guarantee("LAKE-1")
def test_a_stream_of_two_ranges_dies_at_any_step_and_goes_on(
    portal: PortalServer, tmp_path: Path
) -> None:
    chain = portal.sim.chain
    expected = transfers(chain, [*chain.canonical(5, 12), *chain.canonical(30, 40)])

    def die_at(point: int) -> int | None:
        path, steps = tmp_path / str(point), itertools.count()

        def step(name: str) -> None:
            if next(steps) == point:
                raise Killed

        target = parquet_target(path, settings=EVERY_COMMIT)
        target.on_step = step
        try:
            run(portal, target, (5, 12), (30, 40))
        except Killed:
            target.close()
            run(portal, parquet_target(path, settings=EVERY_COMMIT), (5, 12), (30, 40))
            assert held(path) == expected, point
            return None
        assert held(path) == expected
        return next(steps)

    assert visit(6, die_at)


def test_s3_without_rename_and_without_a_word_of_its_credentials(
    portal: PortalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = bucket()
    target = parquet_target(place.uri, options=place.options, settings=EVERY_COMMIT)
    run(portal, target)
    chain = portal.sim.chain
    assert held(place.uri, place.options) == transfers(chain, chain.canonical(5, 40))
    assert "window.published" in caplog.text
    for text in (caplog.text, repr(vars(target)), repr(Place.of(place.uri, place.options))):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
