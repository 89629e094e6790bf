"""Iceberg tables that others maintain: rewritten files, expired snapshots, spellings of paths."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from headwater.errors import LakeFileGoneError, LakeForeignWriteError, LakeStorageError
from headwater.targets import iceberg_target
from headwater.targets.iceberg import IcebergSettings, IcebergTarget, table
from headwater.targets.iceberg.snapshots import TableChange, live_files
from headwater.targets.iceberg.stream_table import StreamTable
from headwater.targets.iceberg.target import IcebergAdmin
from headwater.targets.lake.columns import as_of_today
from headwater.targets.lake.paths import Place
from headwater.testing.conformance import apply_changes
from headwater.testing.conformance.model import (
    BALANCES,
    LOG,
    Change,
    Rig,
    balance,
    log,
    upsert,
)
from tests.targets.lake_places import maintain_catalog, rewrite_as_spark

QUIET = IcebergSettings(maintain_every=0, grace_s=0)
KEYED = table(BALANCES, key=["owner", "token"])


def open_catalog(path: Path) -> Catalog:
    return load_catalog(
        "headwater", type="sql", uri=f"sqlite:///{path}/catalog.db", warehouse=str(path)
    )


def rows_of(path: Path, name: str) -> list[dict[str, Any]]:
    catalog = open_catalog(path)
    try:
        found: list[dict[str, Any]] = (
            catalog.load_table(f"default.{name}").scan().to_arrow().to_pylist()
        )
    finally:
        catalog.close()
    return found


def make(path: Path, *tables: Any, **options: Any) -> IcebergTarget:
    given = {"on_data": apply_changes, "settings": QUIET, **options}
    target = iceberg_target(path, tables=tables or (LOG, KEYED), **given)
    target.bind("one")
    return target


def start(path: Path, *tables: Any, **options: Any) -> Rig:
    target = make(path, *tables, **options)
    target.recover()
    names = [one if isinstance(one, str) else one.name for one in tables or (LOG, KEYED)]
    return Rig(target, lambda name: rows_of(path, name), names)


def rewrite(path: Path, name: str) -> None:
    """Rewrite a table's files as Spark does, and name its metadata as Hadoop spells it."""
    catalog = open_catalog(path)
    rewrite_as_spark(catalog.load_table(f"default.{name}"))
    catalog.close()
    connection = sqlite3.connect(path / "catalog.db")
    connection.execute(
        "UPDATE iceberg_tables SET metadata_location = replace(metadata_location, ?, ?)"
        " WHERE table_name = ?",
        ("file:///", "file:/", name),
    )
    connection.commit()
    connection.close()


def expire_all(path: Path, name: str) -> None:
    """Do what `expire_snapshots` with `retain_last => 1` does."""
    catalog = open_catalog(path)
    stored = catalog.load_table(f"default.{name}")
    current = stored.current_snapshot()
    assert current is not None
    ids = [
        one.snapshot_id
        for one in stored.metadata.snapshots
        if one.snapshot_id != current.snapshot_id
    ]
    stored.maintenance.expire_snapshots().by_ids(ids).commit()
    catalog.close()


# --- who deletes what -----------------------------------------------------------------------------


@pytest.mark.guarantee("LAKE-4")
@pytest.mark.guarantee("LAKE-3")
def test_a_sweep_deletes_nothing_that_another_engine_has_written(tmp_path: Path) -> None:
    rig = start(tmp_path)
    for number in range(1, 6):
        rig.block(number, log(number, number), upsert(balance("a", "t", number)), final=number)
    for name in (LOG, BALANCES):
        rewrite(tmp_path, name)
    rig.block(6, log(6, 6), upsert(balance("a", "t", 6)), final=6)
    rig.check()
    target: Any = rig.target
    for sweep in (target.maintain, lambda: maintain_catalog(tmp_path, settings=QUIET)):
        sweep()
        rig.check()
    expire_all(tmp_path, LOG)
    swept = target.maintain()["swept"]
    assert swept > 0, "its own files, which nothing names any more"
    rig.check()
    assert list((tmp_path / "default/log/data").glob("*spark*")), "they are for Spark to delete"
    rig.target.close()
    rig.target = make(tmp_path)
    assert rig.target.recover() == rig.state
    rig.check()


@pytest.mark.guarantee("LAKE-4")
def test_a_sweep_leaves_what_may_still_be_committed(tmp_path: Path) -> None:
    rig = start(tmp_path, LOG)
    rig.block(1, log(1, 1), final=1)
    folder = tmp_path / "default/log/data"
    slow = folder / "0000000002-0000000002-one-e000001-00000-0123456789ab-000.parquet"
    slow.write_bytes(b"rows")
    (folder.parent / "metadata/one-m000001-01234567-89ab-cdef-0123-456789abcdef-m0.avro").touch()
    maintain_catalog(tmp_path, settings=QUIET)
    assert slow.exists(), "its writer may be about to commit it"
    rig.target.close()
    rig.target = make(tmp_path, LOG)
    rig.target.recover()
    assert maintain_catalog(tmp_path, settings=QUIET)["one"]["swept"] >= 2
    assert not slow.exists()
    rig.check()


@pytest.mark.guarantee("LAKE-4")
def test_a_reader_keeps_the_files_of_a_snapshot_that_has_expired_since_it_began(
    tmp_path: Path,
) -> None:
    """The files are as old as their rows; what counts is since when nothing has named them."""
    settings = IcebergSettings(
        maintain_every=0, compact_files=2, final_snapshots=0, grace_s=50_000.0
    )
    rig = start(tmp_path, LOG, settings=settings)
    for number in range(1, 5):
        rig.block(number, log(number, number), final=number)
    catalog = open_catalog(tmp_path)
    began = catalog.load_table("default.log")
    target: Any = rig.target
    for one in (tmp_path / "default").rglob("*.*"):
        os.utime(one, (0, 0))
    done = target.maintain()
    assert (done["compacted"], done["swept"]) == (4, 0)
    assert done["expired"] > 3
    assert maintain_catalog(tmp_path, settings=settings)["one"]["swept"] == 0
    assert began.scan().to_arrow().num_rows == 4
    for notes in (tmp_path / "default").rglob("headwater-unnamed-*.json"):
        waiting = dict.fromkeys(json.loads(notes.read_text()), 0.0)
        notes.write_text(json.dumps(waiting))
    assert target.maintain()["swept"] >= 4
    rig.check()
    with pytest.raises(FileNotFoundError):
        began.scan().to_arrow()
    catalog.close()
    rig.target.close()


@pytest.mark.guarantee("LAKE-5")
def test_keys_that_others_rewrite_at_this_moment_are_there_once(tmp_path: Path) -> None:
    rig = start(tmp_path, KEYED)
    for number in range(1, 5):
        rig.block(number, upsert(balance(f"own {number}", "t", number)), final=number)
    seen: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "commit balances" and not seen:
            seen.append(step)
            rewrite(tmp_path, BALANCES)

    target: Any = rig.target
    target.on_step = meanwhile
    rig.block(5, upsert(balance("own 2", "t", 5)), final=5)
    assert seen
    rig.check()


@pytest.mark.guarantee("LAKE-5")
def test_the_table_of_state_may_lose_its_snapshots(tmp_path: Path) -> None:
    rig = start(tmp_path, LOG)
    for number in range(1, 4):
        rig.block(number, log(number, number), final=1)
    expire_all(tmp_path, "headwater_one")
    rig.block(4, log(4, 4), final=1)
    expire_all(tmp_path, "headwater_one")
    rig.roll_back(3)
    rig.check()
    rig.target.close()
    rig.target = make(tmp_path, LOG)
    assert rig.target.recover() == rig.state


# --- values ---------------------------------------------------------------------------------------


def nested() -> pa.Table:
    item = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    values = [None, [], [None], [{"a": 1, "b": None}], [{"a": None, "b": []}, {"a": 2, "b": ["x"]}]]
    return pa.table(
        {
            "block_number": [1] * len(values),
            "owner": [f"o{place}" for place in range(len(values))],
            "token": ["t"] * len(values),
            "items": pa.array(values, pa.list_(item)),
            "one": pa.array([None, {"a": 1, "b": None}] + [None] * 3, item),
            "texts": pa.array([None, [], [None], ["", None], ["x"]], pa.list_(pa.string())),
        }
    )


def held_values(path: Path) -> list[dict[str, Any]]:
    """Return what the files hold, read by Arrow: pyiceberg's reader changes null lists."""
    catalog = open_catalog(path)
    stored = catalog.load_table("default.balances")
    files = [file.file_path.removeprefix("file://") for file, _ in live_files(stored)]
    catalog.close()
    rows = pa.concat_tables([pa.parquet.read_table(file) for file in files]).to_pylist()
    return in_key_order(rows)


def in_key_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["owner"] + row["token"]))


@pytest.mark.guarantee("LAKE-7")
def test_nulls_in_nested_columns_stay_as_files_are_rewritten(tmp_path: Path) -> None:
    def write(tx: Any, data: Any, ctx: Any) -> None:
        rows = ctx[0].frame
        if rows.num_rows > 1:
            tx.insert(BALANCES, rows)
        else:
            tx.upsert(BALANCES, rows)

    settings = replace(QUIET, compact_files=2)
    rig = start(tmp_path, KEYED, on_data=write, settings=settings)
    rows = nested()
    rig.block(1, Change("insert", BALANCES, (), rows), final=1)
    last = rows.slice(4).set_column(2, "token", pa.array(["u"]))
    rig.block(2, Change("insert", BALANCES, (), last), final=2)
    again = rows.slice(4).drop_columns(["items"])
    rig.block(3, Change("insert", BALANCES, (), again), final=3)
    expected = sorted(
        [*rows.to_pylist(), *last.to_pylist()], key=lambda row: row["owner"] + row["token"]
    )
    assert held_values(tmp_path) == expected, "copied on write"
    target: Any = rig.target
    assert target.maintain()["compacted"]
    assert held_values(tmp_path) == expected, "compacted"
    found = IcebergAdmin(str(tmp_path), None, "").read_blocks("one", BALANCES, 1, 1)
    assert sum(found.rows.column(found.rows.column_names[-1]).to_pylist()) == 6


@pytest.mark.guarantee("LAKE-7")
def test_older_files_are_read_in_the_columns_of_today() -> None:
    def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})

    old_item = pa.struct([field("a", pa.int32(), 4)])
    new_item = pa.struct([field("b", pa.string(), 9), field("a", pa.int64(), 4)])
    old = pa.schema(
        [
            field("n", pa.int32(), 1),
            field("items", pa.list_(field("element", old_item, 3)), 2),
            field("gone", pa.string(), 5),
        ]
    )
    new = pa.schema(
        [
            field("gone", pa.string(), 8),
            field("items", pa.list_(field("element", new_item, 3)), 2),
            field("number", pa.int64(), 1),
        ]
    )
    rows = pa.table([pa.array([1, 2, 3, 4], pa.int32()),
                     pa.array([None, [], [{"a": 1}, None], [{"a": None}]], old.field(1).type),
                     pa.array(["x"] * 4)], schema=old)  # fmt: skip
    found = as_of_today(rows.slice(0, 3), new)
    assert found.schema == new
    assert found.to_pylist() == [
        {"gone": None, "items": None, "number": 1},
        {"gone": None, "items": [], "number": 2},
        {"gone": None, "items": [{"b": None, "a": 1}, None], "number": 3},
    ]
    assert as_of_today(rows.slice(0, 0), new).num_rows == 0
    plain = pa.table({"number": pc.add(pa.array([1]), 1)})
    assert as_of_today(plain, new)["number"].to_pylist() == [2], "a file without ids goes by names"


# --- storage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("AWS Error SLOW_DOWN"), EOFError("a short read")])
def test_a_storage_that_fails_under_a_commit_has_a_code_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rig = start(tmp_path)
    rig.block(1, log(1, 1), upsert(balance("a", "t", 1)), final=1)

    def fail(*given: Any, **more: Any) -> Any:
        raise error

    for owner, name in ((TableChange, "commit"), (Place, "create"), (StreamTable, "read")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(LakeStorageError, match="E2624") as refused:
                rig.block(2, log(2, 2), upsert(balance("a", "t", 2)), final=1)
            assert refused.value.retryable
    rig.block(2, log(2, 2), upsert(balance("a", "t", 2)), final=1)
    with monkeypatch.context() as patch:
        patch.setattr(TableChange, "commit", fail)
        with pytest.raises(LakeStorageError):
            rig.roll_back(1)
    rig.roll_back(1)
    rig.check()


def test_an_error_of_the_users_own_code_stays_what_it_is(tmp_path: Path) -> None:
    def broken(tx: Any, data: Any) -> None:
        raise ConnectionResetError("of the user's own service")

    rig = start(tmp_path, on_data=broken)
    with pytest.raises(ConnectionResetError):
        rig.block(1, log(1, 1), final=1)


def test_a_data_file_that_is_gone_has_a_code(tmp_path: Path) -> None:
    rig = start(tmp_path)
    rig.block(1, upsert(balance("a", "t", 1)), final=1)
    (file,) = (tmp_path / "default/balances/data").iterdir()
    file.unlink()
    with pytest.raises(LakeFileGoneError, match="E2623"):
        rig.block(2, upsert(balance("a", "t", 2)), final=1)


def test_a_refused_commit_of_maintenance_leaves_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(QUIET, compact_files=2)
    rig = start(tmp_path, LOG, settings=settings)
    for number in range(1, 4):
        rig.block(number, log(number, number), final=number)
    folder = tmp_path / "default/log/metadata"
    before = set(folder.glob("*.avro"))
    commit = TableChange.commit
    left = [1]

    def refused(self: TableChange) -> None:
        if left.pop() if left else 0:
            raise CommitFailedException("others were first")
        commit(self)

    monkeypatch.setattr(TableChange, "commit", refused)
    maintain_catalog(tmp_path, settings=settings)
    catalog = open_catalog(tmp_path)
    stored: Table = catalog.load_table("default.log")
    current = stored.current_snapshot()
    assert current is not None
    named = {current.manifest_list, *(one.manifest_path for one in current.manifests(stored.io))}
    new = {f"file://{one}" for one in set(folder.glob("*.avro")) - before}
    assert new <= named
    catalog.close()


@pytest.mark.guarantee("LAKE-5")
def test_a_table_that_others_take_back_while_nobody_writes_is_refused_until_it_is_put_right(
    tmp_path: Path,
) -> None:
    """Spark's `rollback_to_snapshot` moves a reference: no commit tells of it."""
    rig = start(tmp_path)
    for number in range(1, 7):
        rig.block(number, log(number, number), upsert(balance("all", "t", number)), final=number)
    rig.roll_back(6)
    rig.target.close()
    catalog = open_catalog(tmp_path)
    stored = catalog.load_table(f"default.{LOG}")
    newest, before = (stored.metadata.snapshots[at].snapshot_id for at in (-1, -3))
    stored.manage_snapshots().rollback_to_snapshot(before).commit()
    for _ in range(2):
        with pytest.raises(LakeForeignWriteError, match="taken the table back"):
            start(tmp_path)
    stored = catalog.load_table(f"default.{LOG}")
    stored.manage_snapshots().set_current_snapshot(newest).commit()
    catalog.close()
    again = make(tmp_path)
    assert again.recover() == rig.state
    rig.target = again
    rig.check()
    rig.block(7, log(7, "next"), final=6)
    rig.check()
    again.close()


@pytest.mark.guarantee("LAKE-5")
def test_a_fork_after_a_start_takes_back_rows_that_others_have_rewritten_before_it(
    tmp_path: Path,
) -> None:
    """The start commits on top of a snapshot that says no block."""
    rig = start(tmp_path)
    for number in range(1, 5):
        rig.block(number, log(number, number), upsert(balance("all", "t", number)), final=1)
    for name in (LOG, BALANCES):
        rewrite(tmp_path, name)
    for back in (3, 2):
        rig.target.close()
        rig.target = make(tmp_path)
        assert rig.target.recover() == rig.state
        rig.check()
        rig.roll_back(back)
        rig.check()
    rig.block(3, log(3, "other"), branch="b", final=1)
    rig.check()
    rig.target.close()
