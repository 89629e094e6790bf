"""A folder or a table of a lake that an operator brings back from an older copy.

A copy of everything is right: the stream goes on from there. A copy of a part is either right,
because the state says what to take back, or refused before anything is changed. It is never taken
for the newest.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headwater.errors import LakeFileGoneError, LakeForeignWriteError, LakeUndoError
from headwater.targets.contract import SideTable
from headwater.targets.delta import DeltaSettings, delta_target
from headwater.targets.iceberg import IcebergSettings, iceberg_target
from headwater.targets.parquet import ParquetSettings, Rollover, parquet_target
from headwater.testing.conformance.model import LOG, PLAIN, Rig, log, plain
from headwater.testing.conformance.suite import apply_changes
from tests.targets.lake_places import maintain_catalog, optimize

KINDS = ["iceberg", "delta", "parquet"]
EVERY_COMMIT = ParquetSettings(rollover=Rollover(bytes=None, seconds=None))
OFTEN = IcebergSettings(maintain_every=1, final_snapshots=0, grace_s=0)


def made(kind: str, path: Path) -> Any:
    given: dict[str, Any] = {"tables": [LOG, PLAIN], "on_data": apply_changes}
    target: Any
    if kind == "parquet":
        target = parquet_target(path, settings=EVERY_COMMIT, **given)
    elif kind == "delta":
        settings = DeltaSettings(maintain_every=2, compact_files=2, log_entries=1)
        target = delta_target(path, settings=settings, **given)
    else:
        target = iceberg_target(path, settings=OFTEN, **given)
    target.bind("one")
    return target


def started(kind: str, path: Path) -> Rig:
    target = made(kind, path)
    target.recover()
    return Rig(target, lambda name: rows(kind, path, name), [LOG, PLAIN])


def write(rig: Rig, first: int, last: int, *, final: int | None = None) -> None:
    for number in range(first, last + 1):
        changes = log(number, f"row {number}"), plain(str(number))
        rig.block(number, *changes, final=number if final is None else min(number, final))


def catalog_of(path: Path) -> Any:
    place = {"uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
    return load_catalog("headwater", type="sql", **place)


def rows(kind: str, path: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]]
    if kind == "parquet":
        files = sorted((path / name).glob("[0-9]*.parquet"))
        return [row for one in files for row in pq.read_table(one, partitioning=None).to_pylist()]
    if kind == "delta":
        found = DeltaTable(path / name).to_pyarrow_table().to_pylist()
        return found
    catalog = catalog_of(path)
    found = catalog.load_table(f"default.{name}").scan().to_arrow().to_pylist()
    catalog.close()
    return found


def copy(source: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to)


def restore_table(kind: str, path: Path, older: Path, name: str) -> None:
    """Bring one table back, with all that belongs to it."""
    if kind != "iceberg":
        copy(older / name, path / name)
        return
    before, catalog = catalog_of(older), catalog_of(path)
    identifier = f"default.{name}"
    location = before.load_table(identifier).metadata_location
    before.close()
    folder = Path(catalog.load_table(identifier).location().removeprefix("file://"))
    catalog.drop_table(identifier)
    copy(older / folder.relative_to(path), folder)
    catalog.register_table(identifier, location)
    catalog.close()


def restore_state(kind: str, path: Path, older: Path) -> None:
    """Bring back what says how far the stream is, and no table that is not part of it."""
    if kind == "iceberg":
        restore_table(kind, path, older, "headwater_one")
    else:
        name = "_headwater" if kind == "parquet" else LOG  # the table that leads
        copy(older / name, path / name)


@pytest.mark.guarantee("LAKE-5")
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_older_copy_of_one_table_is_refused_until_it_is_put_right(
    kind: str, compacted: bool, tmp_path: Path
) -> None:
    path, older, newest = (tmp_path / name for name in ("lake", "older", "newest"))
    rig = started(kind, path)
    write(rig, 1, 4)
    rig.target.close()
    copy(path, older)
    rig.target = made(kind, path)
    assert rig.target.recover() == rig.state
    write(rig, 5, 8)
    rig.target.close()
    copy(path, newest)
    restore_table(kind, path, older, PLAIN)
    if compacted and kind == "delta":  # the log is longer than it was
        for _ in range(12):
            optimize(str(path / PLAIN))
            DeltaTable(path / PLAIN).alter.set_table_properties({"delta.appendOnly": "false"})
    elif compacted and kind == "iceberg":
        maintain_catalog(path, settings=OFTEN)
    for _ in range(2):
        with pytest.raises(LakeForeignWriteError, match="older copy"):
            made(kind, path).recover()
    copy(newest, path)
    rig.target = made(kind, path)
    assert rig.target.recover() == rig.state
    rig.check()
    write(rig, 9, 9)
    rig.check()


@pytest.mark.guarantee("LAKE-5")
@pytest.mark.parametrize("final", [2, None])
@pytest.mark.parametrize("kind", KINDS)
def test_an_older_state_takes_the_tables_back_or_is_refused(
    kind: str, final: int | None, tmp_path: Path
) -> None:
    path, older = tmp_path / "lake", tmp_path / "older"
    rig = started(kind, path)
    write(rig, 1, 4, final=final)
    rig.target.close()
    copy(path, older)
    rig.target = made(kind, path)
    rig.model.roll_back(rig.target.recover())
    write(rig, rig.state.number + 1, 8, final=final)
    rig.target.close()
    restore_state(kind, path, older)
    rig.target = made(kind, path)
    try:
        goes_on_from_there(rig)
    except LakeUndoError:
        assert kind == "iceberg", "snapshots of final blocks have expired"
        assert final is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_copy_of_everything_goes_on_from_there(kind: str, tmp_path: Path) -> None:
    path, older = tmp_path / "lake", tmp_path / "older"
    rig = started(kind, path)
    write(rig, 1, 4)
    rig.target.close()
    copy(path, older)
    rig.target = made(kind, path)
    rig.target.recover()
    write(rig, 5, 8)
    rig.target.close()
    copy(older, path)
    rig.target = made(kind, path)
    goes_on_from_there(rig)
    assert rig.state.number == 9


def goes_on_from_there(rig: Rig) -> None:
    rig.model.roll_back(rig.target.recover())
    assert rig.state.number <= 4
    rig.check()
    write(rig, rig.state.number + 1, 9)
    rig.check()


# --- logs and snapshots that others forget --------------------------------------------------------


@pytest.mark.guarantee("LAKE-5")
@pytest.mark.parametrize("final", [2, None])
def test_a_log_that_others_have_shortened_below_hot_blocks_is_no_silent_way_back(
    final: int | None, tmp_path: Path
) -> None:
    """`vacuum(0)` deletes the files of before, and log retention the commits that named them."""
    rig = started("delta", tmp_path)
    for number in range(1, 7):  # the first table that is made leads
        changes = plain(str(number)), log(number, f"row {number}")
        rig.block(number, *changes, final=final or number)
    rig.target.close()
    optimize(str(tmp_path / LOG))
    DeltaTable(tmp_path / LOG).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    table = DeltaTable(tmp_path / LOG)
    table.create_checkpoint()
    for entry in (tmp_path / LOG / "_delta_log").glob("*.json"):
        if int(entry.stem) < table.version():
            entry.unlink()
    rig.target = made("delta", tmp_path)
    if final is None:
        assert rig.target.recover() == rig.state
        write(rig, 7, 8)
        rig.check()
    else:
        with pytest.raises(LakeUndoError, match="lost commits"):
            rig.target.recover()


@pytest.mark.guarantee("LAKE-5")
def test_a_snapshot_that_maintenance_has_let_expire_is_no_sign_of_an_older_copy(
    tmp_path: Path,
) -> None:
    rig = started("iceberg", tmp_path)
    write(rig, 1, 20)
    rig.target.close()
    settings = replace(OFTEN, compact_files=2)
    for _ in range(2):
        maintain_catalog(tmp_path, settings=settings)
    rig.target = made("iceberg", tmp_path)
    assert rig.target.recover() == rig.state
    rig.check()


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_side_rows_of_an_older_state_that_are_gone_have_a_code(kind: str, tmp_path: Path) -> None:
    columns = pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64())])
    target = made(kind, tmp_path)
    target.open_side_tables([SideTable("outbox", columns)])
    target.recover()
    rig = Rig(target, lambda name: rows(kind, tmp_path, name), [LOG])
    write(rig, 1, 1)
    moved = {"outbox": pa.table({"block_number": [1], "ordinal": [0]}, schema=columns)}
    target.settle_side_rows("outbox", (0, 0), moved)
    target.close()
    (file,) = tmp_path.rglob("side/*.parquet")
    file.unlink()
    again = made(kind, tmp_path)
    again.open_side_tables([SideTable("outbox", columns)])
    with pytest.raises(LakeFileGoneError, match="E2623"):
        again.read_side_table("outbox")
