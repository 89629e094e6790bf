"""Delta tables that others maintain while the chain forks: OPTIMIZE, VACUUM, checkpoints."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headwater.errors import (
    LakeFileGoneError,
    LakeForeignWriteError,
    LakeSchemaError,
    LakeUndoError,
)
from headwater.targets.delta import DeltaSettings, DeltaTarget, delta_target, table
from headwater.targets.lake.paths import Place
from headwater.targets.lake.state import Author, Sweeper, file_name
from headwater.testing.conformance.model import (
    BALANCES,
    KEY,
    LOG,
    PLAIN,
    SCHEMAS,
    Change,
    Rig,
    balance,
    insert,
    log,
    plain,
    upsert,
)
from headwater.testing.conformance.suite import apply_changes
from tests.targets.lake_places import maintain_folder, optimize

TABLES = (LOG, table(BALANCES, key=KEY))


def made(path: Any, **options: Any) -> DeltaTarget:
    target = delta_target(path, **{"tables": TABLES, "on_data": apply_changes, **options})
    target.bind("one")
    return target


def started(path: Any, **options: Any) -> Rig:
    target = made(path, **options)
    target.recover()
    return Rig(target, lambda name: rows(path, name), [LOG, BALANCES])


def rows(path: Path, name: str) -> list[dict[str, Any]]:
    if not (path / name / "_delta_log").exists():
        return []
    found: list[dict[str, Any]] = DeltaTable(path / name).to_pyarrow_table().to_pylist()
    return found


def optimize_all(path: Path) -> None:
    """Compact all files of both tables, as any engine may at any moment."""
    for name in (LOG, BALANCES):
        if (path / name / "_delta_log").exists():
            optimize(str(path / name))


def vacuum(path: Path, name: str) -> None:
    """Delete all files that the newest version does not name, without any grace."""
    DeltaTable(path / name).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def blocks(rig: Rig, first: int, last: int, *, branch: str = "a", final: int = 1) -> None:
    for number in range(first, last + 1):
        values = [f"{branch}{number}", "the same"]
        upserted = upsert(balance("all", "t", number), balance(f"own {number % 3}", "t", number))
        rig.block(number, log(number, *values), upserted, branch=branch, final=final)


# --- files of hot blocks that others rewrite ------------------------------------------------------


@pytest.mark.guarantee("LAKE-5")
@pytest.mark.guarantee("LAKE-2")
def test_a_fork_takes_back_rows_that_others_have_rewritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = started(tmp_path)
    blocks(rig, 1, 6)
    optimize_all(tmp_path)
    blocks(rig, 7, 9)
    optimize_all(tmp_path)
    with caplog.at_level(logging.WARNING):
        rig.roll_back(5)
    rig.check()
    assert "table.back_by_row" in caplog.text
    blocks(rig, 6, 8, branch="b")
    rig.check()
    rig.roll_back(2)
    rig.check()
    blocks(rig, 3, 4, branch="c", final=2)
    optimize_all(tmp_path)
    again = made(tmp_path)
    assert again.recover() == rig.state
    rig.target = again
    rig.roll_back(2)
    rig.check()


@pytest.mark.guarantee("LAKE-5")
@pytest.mark.guarantee("LAKE-2")
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_blocks_forks_starts_and_maintenance_by_others_is_exact(
    tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    settings = DeltaSettings(maintain_every=4, compact_files=2, log_entries=3)
    rig = started(tmp_path, settings=settings)
    final, branch = 1, "a"
    blocks(rig, 1, 3)
    for step in range(14):
        number = rig.state.number
        match chance.randrange(6):
            case 0 | 1:
                final = min(max(final, number - 3), number)
                blocks(rig, number + 1, number + chance.randint(1, 3), branch=branch, final=final)
            case 2:
                optimize_all(tmp_path)
            case 3:
                branch = f"b{step}"
                lands = [one.number for one in rig.state.landing_points() if one.number < number]
                if lands:
                    rig.roll_back(chance.choice(lands))
            case 4:
                rig.target.close()
                rig.target = made(tmp_path, settings=settings)
                assert rig.target.recover() == rig.state
            case _:
                maintain_folder(Place.of(tmp_path), settings=replace(settings, retention_hours=0))
                DeltaTable(tmp_path / LOG).create_checkpoint()
        rig.check()


def test_rows_that_were_rewritten_and_whose_files_are_gone_go_by_their_block(
    tmp_path: Path,
) -> None:
    rig = started(tmp_path, tables=[LOG])
    for number in range(1, 7):
        rig.block(number, log(number, number, "x"), final=1)
    DeltaTable(tmp_path / LOG).optimize.compact()
    vacuum(tmp_path, LOG)
    rig.roll_back(3)
    rig.check()
    rig.block(4, log(4, "b"), branch="b", final=1)
    rig.check()


@pytest.mark.guarantee("LAKE-5")
def test_a_fork_that_needs_deleted_files_is_refused_before_anything_is_changed(
    tmp_path: Path,
) -> None:
    rig = started(tmp_path)
    blocks(rig, 1, 4)
    vacuum(tmp_path, BALANCES)
    before = {name: DeltaTable(tmp_path / name).version() for name in (LOG, BALANCES)}
    with pytest.raises(LakeUndoError, match="E2605"):
        rig.roll_back(2)
    rig.check()
    assert before == {name: DeltaTable(tmp_path / name).version() for name in before}


# --- keyed tables beside maintenance --------------------------------------------------------------


@pytest.mark.guarantee("LAKE-5")
def test_a_key_is_there_once_whoever_compacts_meanwhile(tmp_path: Path) -> None:
    settings = DeltaSettings(compact_files=2, maintain_every=0)
    rig = started(tmp_path, settings=settings)
    for number in range(1, 5):
        rig.block(number, insert(balance(f"own {number}", "t", number)), final=number)
    rig.block(5, upsert(balance("own 1", "t", 5)), final=5)
    for compact in (
        lambda: maintain_folder(Place.of(tmp_path), settings=settings),
        lambda: optimize_all(tmp_path),
    ):
        compact()
        number = rig.state.number + 1
        rig.block(number, insert(balance(f"own {number}", "t", 1)), final=number)
        rig.block(number + 1, upsert(balance("own 2", "t", number + 1)), final=number)
        rig.check()
        compact()
        rig.block(number + 2, upsert(balance("own 3", "t", number + 2)), final=number)
        rig.check()


def test_rows_that_others_append_are_refused_too(tmp_path: Path) -> None:
    rig = started(tmp_path, tables=[LOG])
    rig.block(1, log(1, "a"), final=1)
    write_deltalake(
        tmp_path / LOG,
        pa.Table.from_pylist([{"block_number": 9, "log_index": 0, "value": "foreign"}],
                             schema=SCHEMAS[LOG]),
        mode="append",
    )  # fmt: skip
    with pytest.raises(LakeForeignWriteError, match="rows"):
        rig.block(2, log(2, "a"), final=2)


def append(path: Path) -> None:
    write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(0, 1), mode="append")


def restore(path: Path) -> None:
    found = DeltaTable(path)
    found.restore(found.version() - 2)


@pytest.mark.guarantee("LAKE-5")
@pytest.mark.parametrize("change", [append, restore, lambda path: DeltaTable(path).delete()])
@pytest.mark.parametrize("name", [LOG, PLAIN])
def test_rows_that_others_change_while_nobody_writes_are_refused_by_the_next_start(
    name: str, change: Any, tmp_path: Path
) -> None:
    """One of the tables leads; what was changed may be taken back."""

    target = made(tmp_path, tables=[LOG, PLAIN])
    target.recover()
    rig = Rig(target, lambda name: [], [])
    for number in range(1, 6):
        rig.block(number, log(number, number), plain(str(number)), final=number)
    target.close()
    optimize(str(tmp_path / name))
    before = DeltaTable(tmp_path / name).version()
    change(tmp_path / name)
    again = made(tmp_path, tables=[LOG, PLAIN])
    with pytest.raises(LakeForeignWriteError, match="rows"):
        again.recover()
    again.close()
    DeltaTable(tmp_path / name).restore(before)
    assert again.recover().number == 5
    again.close()


def partitioned(number: int, *names: str | None) -> Change:
    values = pa.table(
        {"block_number": [number] * len(names), "chain": list(names), "value": ["x"] * len(names)}
    )
    return Change("insert", LOG, (), values)


@pytest.mark.guarantee("LAKE-7")
def test_partitions_that_others_have_rewritten_keep_their_values(tmp_path: Path) -> None:
    declared = table(LOG, partition_by="chain")
    rig = started(tmp_path, tables=[declared], on_data=None)
    odd = ["a b/c%20", "#?", "ü", None]
    for number in range(1, 5):
        rig.block(number, partitioned(number, *odd), final=1)
    DeltaTable(tmp_path / LOG).optimize.compact()
    rig.roll_back(2)
    found = sorted((one["block_number"], str(one["chain"])) for one in rows(tmp_path, LOG))
    assert found == sorted((number, str(one)) for number in (1, 2) for one in odd)
    rig.block(3, partitioned(3, *odd), branch="b", final=1)
    rig.roll_back(1)
    assert sorted(str(one["chain"]) for one in rows(tmp_path, LOG)) == sorted(map(str, odd))


@pytest.mark.guarantee("LAKE-7")
def test_an_empty_text_that_delta_would_make_null_is_refused(tmp_path: Path) -> None:
    rig = started(tmp_path, tables=[table(LOG, partition_by="chain")], on_data=None)
    rig.block(1, partitioned(1, "a", None), final=1)
    with pytest.raises(LakeSchemaError, match="chain"):
        rig.block(2, partitioned(2, "a", ""), final=1)
    assert [one["chain"] for one in rows(tmp_path, LOG)] in (["a", None], [None, "a"])


# --- the state, and what is deleted ---------------------------------------------------------------


@pytest.mark.guarantee("LAKE-5")
def test_the_state_of_a_stream_survives_log_retention(tmp_path: Path) -> None:
    rig = started(tmp_path)
    blocks(rig, 1, 3)
    for name in (LOG, BALANCES):
        handle = DeltaTable(tmp_path / name)
        for entry in (tmp_path / name / "_delta_log").glob("*.json"):
            age_entry(entry)
        handle.create_checkpoint()
        handle.cleanup_metadata()
    again = made(tmp_path)
    assert again.recover() == rig.state
    rig.target = again
    rig.roll_back(1)
    rig.check()


def age_entry(entry: Path) -> None:
    """Make an entry of a log two years old."""
    import os

    then = entry.stat().st_mtime - 2 * 365 * 86_400
    os.utime(entry, (then, then))


def test_tables_of_an_earlier_release_learn_to_keep_their_log(tmp_path: Path) -> None:
    rig = started(tmp_path, tables=[LOG])
    rig.block(1, log(1, "a"), final=1)
    handle = DeltaTable(tmp_path / LOG)
    handle.alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    again = made(tmp_path, tables=[LOG])
    assert again.recover() == rig.state
    kept = DeltaTable(tmp_path / LOG).metadata().configuration
    assert kept["delta.logRetentionDuration"] == "interval 36500 days"
    rig.target = again
    rig.block(2, log(2, "a"), final=1)
    rig.roll_back(1)
    rig.check()


@pytest.mark.guarantee("LAKE-4")
def test_maintenance_deletes_no_file_of_others_and_none_that_may_be_committed(
    tmp_path: Path,
) -> None:
    settings = DeltaSettings(compact_files=2, maintain_every=0, retention_hours=0)
    rig = started(tmp_path, settings=settings)
    blocks(rig, 1, 3, final=3)
    folder = tmp_path / LOG / "data"
    slow = folder / "0000000004-0000000004-one-e000001-00000-0123456789ab-000.parquet"
    foreign = folder / "part-00000-of-somebody.parquet"
    left = folder / "0000000004-0000000004-one-00000-0123456789ab-000.parquet"
    for one in (slow, foreign, left):
        one.write_bytes(b"rows")
    maintain_folder(Place.of(tmp_path), settings=settings)
    assert slow.exists(), "its writer may be about to commit it"
    assert foreign.exists()
    assert not left.exists(), "of a writer before the first that has an epoch"
    rig.target.close()
    rig.target = made(tmp_path, settings=settings)
    rig.target.recover()
    maintain_folder(Place.of(tmp_path), settings=settings)
    assert not slow.exists(), "its writer was replaced"
    assert foreign.exists()
    rig.check()


@pytest.mark.guarantee("LAKE-4")
def test_who_may_delete_a_file() -> None:
    name = "0000000004-0000000004-one-e000002-00000-0123456789ab-000.parquet"
    outside = name.replace("-e000002-", "-m000002-")
    other = name.replace("-one-", "-two-")
    assert Author.of(name) == Author("one", 2)
    assert Author.of(outside) == Author("one", 2, outside=True)
    assert Author.of("part-00000-x.snappy.parquet") is None
    old = name.replace("-e000002", "")
    names = [name, outside, other, old]
    beside, inside, later = (
        Sweeper("one", epoch, inside=inside)
        for epoch, inside in ((2, False), (2, True), (3, False))
    )
    assert list(filter(beside.may_delete, names)) == [old]
    assert list(filter(inside.may_delete, names)) == [name, old]
    assert list(filter(later.may_delete, names)) == [name, outside, old]
    assert beside.may_delete(name, was_removed=True)
    assert not beside.may_delete(other, was_removed=True)
    for named in (f"file:/x/{name}", f"file:///x/{name}", f"s3://b/x/{name}", f"/x/{name}"):
        assert file_name(named) == name


def test_a_file_that_is_gone_is_named_with_a_code(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, upsert(balance("a", "t", 1)), final=1)
    (file,) = DeltaTable(tmp_path / BALANCES).file_uris()
    Path(file).unlink()
    with pytest.raises(LakeFileGoneError, match="E2623"):
        rig.block(2, upsert(balance("a", "t", 2)), final=1)
