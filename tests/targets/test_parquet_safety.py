"""Parquet folders that several streams, starts and half writes share: nobody's files are lost."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.core import BlockCursor, PipeState
from headwater.core.codec import dump_state
from headwater.errors import (
    LakeForeignWriteError,
    LakeStorageError,
    ParquetWriterError,
    StoredStateError,
    UnexplainedFilesError,
)
from headwater.targets.admin import open_admin
from headwater.targets.lake.paths import Place
from headwater.targets.parquet import ParquetSettings, Rollover, parquet_target
from headwater.targets.parquet.state import Folder, StateFiles, Stored, read_stored
from headwater.targets.parquet.windows import leftovers
from headwater.testing.conformance.model import Change, Rig, log, plain
from headwater.testing.conformance.suite import apply_changes

EVERY_COMMIT = ParquetSettings(rollover=Rollover(bytes=None, seconds=None))


def opened(place: Any, stream_id: str = "one", **options: Any) -> Rig:
    given = {"tables": ["log", "plain"], "on_data": apply_changes, "settings": EVERY_COMMIT}
    target = parquet_target(place, **{**given, **options})
    target.bind(stream_id)
    return Rig(target, lambda name: [], [])


def started(place: Any, stream_id: str = "one", **options: Any) -> Rig:
    rig = opened(place, stream_id, **options)
    state = rig.target.recover()
    if state.cursor is not None:
        rig.model.settle(state)
    return rig


def names(place: str, table: str = "log") -> list[str]:
    return sorted(one.name for one in Place.of(place).files(table))


def bucket() -> str:
    """Return an empty place without locks and renames, as object stores are."""
    return f"memory://bucket/{uuid4().hex}"


@pytest.mark.parametrize("stream_id", ["..", ".", "...", "a/../b", "log"])
def test_the_id_of_a_stream_is_never_a_way_out_of_its_folder(
    tmp_path: Path, stream_id: str
) -> None:
    first = started(tmp_path, "first")
    first.block(1, log(1, "kept"), final=1)
    first.target.close()
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    rig = started(tmp_path, stream_id, tables=["plain"])
    rig.block(1, plain("own"), final=1)
    rig.target.close()
    assert all(one.is_file() and one.read_bytes() == before[one] for one in before)
    stored = read_stored(Place.of(tmp_path), stream_id)
    assert stored is not None
    assert stored.state.number == 1


def test_two_streams_with_a_table_of_one_name_lose_no_file() -> None:
    """Each looks at an empty folder, and only then do both publish."""
    place = bucket()
    rigs = [started(place, one) for one in ("one", "two")]
    looked: list[str] = []

    def meanwhile(step: str) -> None:
        if step.startswith("put _headwater/one/") and not looked:
            looked.append(step)
            rigs[1].block(1, log(1, "two"), final=1)

    rigs[0].target.on_step = meanwhile  # type: ignore[attr-defined]
    with pytest.raises(LakeForeignWriteError, match="two"):
        rigs[0].block(1, log(1, "one"), final=1)
    assert looked
    assert len(names(place)) == 1
    again = started(place, "two")
    again.block(2, log(2, "two"), final=2)
    started(place, "one")
    assert len(names(place)) == 2


def test_streams_that_an_earlier_release_let_share_a_table_are_refused_and_nothing_is_deleted(
    tmp_path: Path,
) -> None:
    rig = started(tmp_path, "one")
    rig.block(1, log(1, "one"), final=1)
    rig.target.close()
    folder = Folder(Place.of(tmp_path))
    files = StateFiles(folder, "two")
    files.claim()
    files.save(Stored(coverage={"log": 1}))
    files.release()
    before = names(str(tmp_path))
    for stream_id in ("one", "two"):
        with pytest.raises(LakeForeignWriteError, match="log"):
            started(tmp_path, stream_id)
    assert names(str(tmp_path)) == before


def pausing(rig: Rig, at: Callable[[str], bool], meanwhile: Callable[[], None]) -> None:
    """Have something happen before the first of some steps."""
    seen: list[str] = []

    def step(name: str) -> None:
        if at(name) and not seen:
            seen.append(name)
            meanwhile()

    rig.target.on_step = step  # type: ignore[attr-defined]


@pytest.mark.guarantee("LAKE-3")
def test_a_start_that_was_paused_after_its_claim_deletes_nothing_of_its_successor() -> None:
    place = bucket()
    first = started(place)
    first.block(1, log(1, "kept"), final=1)
    first.target.close()
    Folder(Place.of(place)).put("log/000000000002-000000000004-e000001.parquet", b"half")
    paused = opened(place)
    successor: list[Rig] = []

    def take_over() -> None:
        successor.append(started(place))
        for number in (2, 3):
            successor[0].block(number, log(number, "right"), final=number)

    pausing(paused, lambda step: step.startswith("delete log/"), take_over)
    with pytest.raises(ParquetWriterError):
        paused.target.recover()
    ends = [name.partition("-e")[2] for name in names(place)]
    assert ends == ["000001.parquet", "000003.parquet", "000003.parquet"]
    successor[0].block(4, log(4, "right"), final=4)
    successor[0].target.close()
    assert started(place).target.recover().number == 4


def test_files_of_a_later_epoch_are_not_judged() -> None:
    held = {"log": ["000000000005-000000000006-e000004.parquet"]}
    assert leftovers(held, 4, {"log": 5}, epoch=5) == [("log", held["log"][0])]
    for epoch in (3, 4):
        with pytest.raises(ParquetWriterError):
            leftovers(held, 4, {"log": 5}, epoch=epoch)


def crash_at(rig: Rig, step: str) -> None:
    def die(name: str) -> None:
        if name.startswith(step):
            raise KeyboardInterrupt

    rig.target.on_step = die  # type: ignore[attr-defined]


def test_a_crash_at_the_end_of_a_range_is_recovered(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, log(1, "a"), plain("x"), final=1)
    rig.block(2, log(2, "a"), plain(), final=2)
    crash_at(rig, "put _headwater/")
    finish = rig.target.capabilities.finish
    assert finish is not None
    with pytest.raises(KeyboardInterrupt):
        finish()
    rig.target.close()
    assert len(names(str(tmp_path), "plain")) == 2, "the empty file is there, the state is not"
    rig = started(tmp_path)
    assert len(names(str(tmp_path), "plain")) == 1
    finish = rig.target.capabilities.finish
    assert finish is not None
    finish()
    assert names(str(tmp_path), "plain")[-1] == "plain/000000000002-000000000002.parquet"
    rig.target.close()


def test_what_only_looks_like_the_end_of_a_range_is_refused() -> None:
    assert leftovers({"log": ["000000000005-000000000009.parquet"]}, 9, {"log": 5}) == [
        ("log", "000000000005-000000000009.parquet")
    ]
    for name in ("000000000006-000000000009.parquet", "000000000005-000000000008.parquet"):
        with pytest.raises(UnexplainedFilesError):
            leftovers({"log": [name]}, 9, {"log": 5})


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_half_a_state_is_passed_over_if_the_one_before_is_there(cut: int) -> None:
    """File systems such as HDFS and SFTP show a file before its writing has ended."""
    place = bucket()
    rig = started(place)
    for number in (1, 2):
        rig.block(number, log(number, "a"), final=number)
    rig.target.close()
    folder = Folder(Place.of(place))
    (newest,) = folder.names("_headwater/one")
    content = folder.place.read(f"_headwater/one/{newest}")
    assert content is not None
    epoch, change, writer = newest.removesuffix(".json").split("-")
    half = f"_headwater/one/{epoch}-{int(change) + 1:012d}-{writer}.json"
    folder.put(half, content[:cut])
    stored = read_stored(folder.place, "one")
    assert stored is not None
    assert stored.state.number == 2
    again = started(place)
    assert again.target.recover().number == 2
    again.block(3, log(3, "a"), final=3)
    assert folder.place.read(half) is None


def test_a_state_that_is_whole_and_not_understood_is_refused() -> None:
    place = bucket()
    rig = started(place)
    rig.block(1, log(1, "a"), final=1)
    rig.target.close()
    Folder(Place.of(place)).put("_headwater/one/000009-000000000000-ab.json", b'{"new": "form"}')
    with pytest.raises(StoredStateError):
        started(place)
    folder = Folder(Place.of(place))
    for name in folder.names("_headwater/one"):
        folder.delete(f"_headwater/one/{name}")
    folder.put("_headwater/one/000001-000000000000-ab.json", b'{"state"')
    with pytest.raises(StoredStateError):
        started(place)


def test_a_storage_that_fails_while_files_are_published_has_a_code(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, log(1, "a"), final=1)

    def fail(step: str) -> None:
        if step.startswith("put "):
            raise OSError("AWS Error SLOW_DOWN")

    rig.target.on_step = fail  # type: ignore[attr-defined]
    with pytest.raises(LakeStorageError, match="E2624"):
        rig.block(2, log(2, "a"), final=2)
    rig.target.close()
    again = started(tmp_path)
    again.block(2, log(2, "a"), final=2)
    assert len(names(str(tmp_path))) == 2
    again.target.close()


def test_rows_taken_in_before_a_failure_are_held_when_the_writer_goes_on(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, log(1, "a"), final=1)
    rig.block(2, log(2, "hot"), final=1)

    def fail(step: str) -> None:
        if step.startswith(("write files", "put log/")):
            raise OSError("AWS Error SLOW_DOWN")

    target: Any = rig.target
    target.on_step = fail
    with pytest.raises(OSError, match="SLOW_DOWN"):
        rig.block(3, log(3, "hot"), final=1)
    target.on_step = None
    rig.block(3, log(3, "hot"), final=1)
    target.on_step = fail
    with pytest.raises(LakeStorageError):
        rig.settle(3)
    target.on_step = None
    rig.settle(3)
    rig.target.close()
    found = [pq.read_table(tmp_path / name)["value"].to_pylist() for name in names(str(tmp_path))]
    assert found == [["a"], ["hot", "hot"]]


def test_a_folder_of_an_earlier_release_opens_as_it_is(tmp_path: Path) -> None:
    """Its state says nothing of resets, its staged files name no stream."""
    columns = pa.schema([("block_number", pa.int64()), ("log_index", pa.int64())])
    rows = pa.table({"block_number": [3, 5], "log_index": [0, 1]}, columns)
    folder = Folder(Place.of(tmp_path))
    (tmp_path / "log").mkdir()
    pq.write_table(rows, tmp_path / "log" / "000000000001-000000000005.parquet")
    schema = base64.b64encode(columns.serialize()).decode()
    cursor = BlockCursor(5, "0x5", None)
    state = dump_state(PipeState(cursor, cursor, (cursor,)))
    text = (
        f'{{"state": {state}, "coverage": {{"log": 6}}, "schemas": {{"log": "{schema}"}}, '
        '"config": null}'
    )
    folder.put("_headwater/one/000002-000000000007-ab.json", text.encode())
    waiting = "log/_staging/e000002-6-9-00000-0123456789ab-000.parquet"
    folder.put(waiting, b"rows")
    rig = started(tmp_path)
    assert rig.state.number == 5
    assert folder.place.read(waiting) is None
    frame = pa.table({"block_number": [6], "log_index": [0]}, columns)
    rig.block(6, Change("insert", "log", (), frame), final=6)
    rig.target.close()
    assert names(str(tmp_path))[1:] == ["log/000000000006-000000000006.parquet"]
    assert open_admin(str(tmp_path)).streams()[0].state.number == 6
