"""Iceberg as a target: fences, foreign writers, keys, columns, partitions, maintenance, S3."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from headwater import evm, portal_stream
from headwater.errors import (
    InvalidOptionError,
    LakeForeignWriteError,
    LakeKeyError,
    LakePathError,
    LakeRewriteError,
    LakeSchemaError,
    LakeUndoError,
    LakeUnsupportedError,
    LakeWriterError,
    StateMissingError,
    UndeclaredLakeTableError,
)
from headwater.targets import duckdb_target, iceberg_target
from headwater.targets import table as any_table
from headwater.targets.iceberg import IcebergSettings, IcebergTarget, snapshots, table
from headwater.targets.iceberg import stream_table as iceberg
from headwater.targets.iceberg.snapshots import ancestors, block_of
from headwater.targets.lake.paths import Place
from headwater.targets.lake.target import SWEEP_S
from headwater.testing import simulated_portal
from headwater.testing.conformance import apply_changes
from headwater.testing.conformance.model import (
    BALANCES,
    LOG,
    Change,
    Rig,
    balance,
    delete,
    insert,
    log,
    upsert,
)
from tests.targets.lake_places import SECRET_KEY, bucket, maintain_catalog

QUIET = IcebergSettings(maintain_every=0)
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


def frame(name: str, rows: pa.Table) -> Change:
    return Change("insert", name, (), rows)


# --- writers --------------------------------------------------------------------------------------


@pytest.mark.guarantee("OPERATE-2")
def test_a_writer_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    old = start(tmp_path, LOG)
    old.block(1, log(1, "a"), final=1)
    old.block(2, log(2, "b"))
    before = open_catalog(tmp_path).load_table("default.log").current_snapshot()
    new = make(tmp_path, LOG)
    assert new.recover() == old.state
    for _ in range(2):  # nor when it tries again
        with pytest.raises(LakeWriterError, match="E2603"):
            old.block(3, log(3, "zombie"))
    with pytest.raises(LakeWriterError):
        old.roll_back(1)
    with pytest.raises(LakeWriterError):
        old.target.capabilities.config.stored_config().write("zombie")  # type: ignore[union-attr]
    after = open_catalog(tmp_path).load_table("default.log")
    assert before is not None
    assert [one["value"] for one in rows_of(tmp_path, LOG)] == ["b", "a"]
    assert after.current_snapshot().parent_snapshot_id == before.snapshot_id  # type: ignore[union-attr]
    old.target.close()
    fresh = Rig(new, lambda name: rows_of(tmp_path, name), [LOG])
    fresh.model = old.model
    fresh.block(3, log(3, "new"))
    fresh.check()
    new.close()


def test_a_start_that_wakes_after_a_later_one_has_swept_is_refused(tmp_path: Path) -> None:
    """The snapshot that it would go back to has expired, and its files are gone."""

    def sweeps_at_once() -> IcebergTarget:
        eager = IcebergSettings(maintain_every=1, final_snapshots=1, grace_s=0)
        target = make(tmp_path, LOG, settings=eager)
        target.clock = count(step=2 * SWEEP_S).__next__
        return target

    rig = Rig(sweeps_at_once(), lambda name: rows_of(tmp_path, name), [LOG])
    rig.target.recover()
    rig.block(1, log(1, "a"), final=1)
    rig.target.close()
    slow, rig.target = sweeps_at_once(), sweeps_at_once()
    paused: list[str] = []

    def overtake(step: str) -> None:
        if step.startswith("put back") and not paused:
            paused.append(step)
            rig.target.recover()
            for number in range(2, 6):
                rig.block(number, log(number, "b"), final=number)

    slow.on_step = overtake
    with pytest.raises(LakeWriterError, match="E2603"):
        slow.recover()
    assert paused
    slow.close()
    rig.check()
    rig.target.close()


def test_tables_that_are_ahead_are_put_back_to_a_common_block(tmp_path: Path) -> None:
    rig = start(tmp_path)
    rig.block(1, log(1, "a"), insert(balance("x", "t", 1)), final=1)

    def die(step: str) -> None:
        if step == "commit balances":
            raise KeyboardInterrupt

    rig.target.on_step = die  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        rig.target.commit(*_batch(rig, 2, log(2, "ahead"), upsert(balance("x", "t", 2))))
    assert len(rows_of(tmp_path, LOG)) == 2, "the first table is ahead of the state"
    rig.target.close()
    rig.target = make(tmp_path)
    assert rig.target.recover() == rig.state
    rig.check()
    rig.block(2, log(2, "again"), upsert(balance("x", "t", 3)))
    rig.check()
    rig.target.close()


def _batch(rig: Rig, number: int, *changes: Change) -> tuple[list[Any], Any]:
    """Return what a commit of a block is called with; the model does not move."""
    caught: list[Any] = []

    class Catches:
        capabilities = rig.target.capabilities

        def commit(self, batches: list[Any], state: Any) -> None:
            caught.extend((batches, state))

    model = rig.model
    other = Rig(Catches(), lambda name: [], [])  # type: ignore[arg-type]
    other.model = type(model)()
    other.model._kept = list(model._kept)
    other.block(number, *changes)
    return caught[0], caught[1]


def test_a_table_of_another_stream_or_with_rows_of_others_is_refused(tmp_path: Path) -> None:
    rig = start(tmp_path, LOG)
    rig.block(1, log(1, "a"), final=1)
    rig.target.close()
    other = make(tmp_path, LOG)
    other.bind("two")
    with pytest.raises(LakeForeignWriteError, match="another stream"):
        other.recover()
    stored = open_catalog(tmp_path).load_table("default.log")
    stored.append(pa.table({"block_number": [9], "log_index": [9], "value": ["foreign"]}))
    with pytest.raises(LakeForeignWriteError, match="E2604"):
        make(tmp_path, LOG).recover()


def test_a_foreign_commit_while_the_stream_runs_is_refused_and_a_rewrite_is_not(
    tmp_path: Path,
) -> None:
    rig = start(tmp_path, LOG, settings=replace(QUIET, compact_files=2))
    for number in range(1, 6):
        rig.block(number, log(number, number), final=5)
    done = maintain_catalog(tmp_path, settings=replace(QUIET, compact_files=2))
    assert done["one"]["compacted"] == 5
    rig.block(6, log(6, "on top of rewritten files"), final=5)
    rig.check()
    stored = open_catalog(tmp_path).load_table("default.log")
    stored.append(pa.table({"block_number": [9], "log_index": [9], "value": ["foreign"]}))
    with pytest.raises(LakeForeignWriteError):
        rig.block(7, log(7, "x"))
    rig.target.close()


def test_a_state_that_is_missing_is_not_taken_for_a_beginning(tmp_path: Path) -> None:
    rig = start(tmp_path, LOG)
    rig.block(1, log(1, "a"), final=1)
    rig.target.close()
    open_catalog(tmp_path).drop_table("default.headwater_one")
    with pytest.raises(StateMissingError):
        make(tmp_path, LOG).recover()


def test_a_snapshot_that_a_rollback_needs_is_missed_with_a_code(tmp_path: Path) -> None:
    rig = start(tmp_path, LOG)
    for number in range(1, 5):
        rig.block(number, log(number, number), final=1)
    stored = open_catalog(tmp_path).load_table("default.log")
    ids = [one.snapshot_id for one in list(ancestors(stored))[2:]]
    stored.maintenance.expire_snapshots().by_ids(ids).commit()
    rig.target.close()
    rig.target = make(tmp_path, LOG)
    rig.target.recover()
    with pytest.raises(LakeUndoError, match="E2605"):
        rig.roll_back(1)
    rig.target.close()


# --- what is written ------------------------------------------------------------------------------


def test_what_is_not_offered_is_refused_with_a_code(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="on_data"):
        iceberg_target(tmp_path, on_data=lambda tx, data: None)
    with pytest.raises(InvalidOptionError):
        iceberg_target(tmp_path, tables=[any_table(LOG, untracked=True)])
    with pytest.raises(InvalidOptionError, match="partition_by"):
        iceberg_target(tmp_path, tables=[table(LOG, partition_by="week(at)")])
    for bad in ("execute", "query"):

        def runs_sql(tx: Any, data: Mapping[str, Any], ctx: Any, bad: str = bad) -> None:
            getattr(tx, bad)("SELECT 1")

        rig = start(tmp_path / bad, on_data=runs_sql)
        with pytest.raises(LakeUnsupportedError, match="SQL"):
            rig.block(1, log(1, 1))
    rig = start(tmp_path / "x", on_data=lambda tx, data: tx.insert("other", data[LOG]))
    with pytest.raises(UndeclaredLakeTableError, match="E2609"):
        rig.block(1, log(1, 1))


@pytest.mark.guarantee("LAKE-3")
def test_tables_need_no_declaration(tmp_path: Path) -> None:
    def fill(target: Any, last: int, name: str = "transfers") -> None:
        event = evm.events("erc20.Transfer", range=(0, last))
        stream = portal_stream(id=name, portal=portal.url, outputs={name: event})
        stream.pipe_to(target, progress=False)

    def read(name: str = "transfers") -> list[dict[str, Any]]:
        rows = rows_of(tmp_path / "lake", name)
        return sorted(rows, key=lambda row: (row["block_number"], row["log_index"]))

    with simulated_portal(seed=3, blocks=30) as portal:
        portal.finalize(10)
        fill(iceberg_target(tmp_path / "lake"), 29)
        before = read()
        fill(iceberg_target(tmp_path / "lake"), 29, "others")
        portal.fork(depth=8)
        portal.extend(10)
        fill(iceberg_target(tmp_path / "lake"), 33)
        truth = duckdb_target(tmp_path / "truth.duckdb")
        fill(truth, 33)
        query = "SELECT * FROM transfers ORDER BY block_number, log_index"
        assert read() == truth.query(query).to_pylist() != before
        assert read("others") == before, "the other stream has not run since"


def test_an_output_whose_name_is_no_table_is_refused(tmp_path: Path) -> None:
    target = iceberg_target(tmp_path, settings=QUIET)
    target.bind("one")
    target.recover()
    rig = Rig(target, lambda name: [], [])
    with pytest.raises(LakeSchemaError, match="E2602"):
        rig.block(1, frame("other.place", pa.table({"block_number": [1]})))


@pytest.mark.parametrize("given", ["s3://bucket/lake", "", "gs://x/y"])
def test_a_directory_must_be_local(given: str) -> None:
    with pytest.raises(LakePathError):
        iceberg_target(given, tables=[LOG])


def test_a_catalog_that_cannot_be_loaded_is_refused_without_its_properties(tmp_path: Path) -> None:
    target = iceberg_target({"type": "nosuch", "uri": f"x://{SECRET_KEY}@y"}, tables=[LOG])
    with pytest.raises(LakePathError) as refused:
        target.recover()
    assert SECRET_KEY not in str(refused.value)


def test_keys_are_checked_and_rewriting_is_bounded(tmp_path: Path) -> None:
    rig = start(tmp_path, KEYED, settings=replace(QUIET, rewrite_bytes=2_000))
    rig.block(1, upsert(balance("a", "t", 1), balance("b", "t", 1)), final=1)
    with pytest.raises(LakeKeyError, match="same key"):
        rig.block(2, upsert(balance("a", "t", 1), balance("a", "t", 2)))
    with pytest.raises(LakeKeyError, match="E2607"):
        rig.block(2, upsert(balance("a", None, 1)))  # type: ignore[arg-type]
    rig.check()
    for number in (2, 3):
        rig.block(number, upsert(balance(f"own {number}", "t", 1)), final=1)
    with pytest.raises(LakeRewriteError, match="E2608"):
        rig.block(4, delete(("a", "t"), ("own 2", "t"), ("own 3", "t")))
    rig.check()
    rig.target.close()


def test_an_upsert_keeps_the_columns_that_it_does_not_name(tmp_path: Path) -> None:
    def some(tx: Any, data: Mapping[str, Any], ctx: Any) -> None:
        if ctx[0].kind == "upsert":
            tx.upsert(
                BALANCES, pa.table({"owner": ["a", "n"], "token": ["t", "t"], "value": ["2", "3"]})
            )
        else:
            apply_changes(tx, data, ctx)

    rig = start(tmp_path, KEYED, on_data=some)
    rig.block(1, insert(balance("a", "t", 1, "kept"), balance("b", "t", 1)), final=1)
    rig.block(2, upsert(balance("a", "t", 2)))
    found = {one["owner"]: (one["value"], one["note"]) for one in rows_of(tmp_path, BALANCES)}
    assert found == {"a": ("2", "kept"), "b": ("1", None), "n": ("3", None)}
    rig.target.close()


def test_columns_are_added_and_widened_only_if_that_was_declared(tmp_path: Path) -> None:
    first = pa.table({"block_number": pa.array([1], pa.int32()), "value": ["a"]})
    wider = pa.table({"block_number": [2**40], "value": ["b"], "more": [1]})
    for evolve in (False, True):
        path = tmp_path / str(evolve)
        rig = start(path, table(LOG, evolve=evolve), on_data=None)
        rig.block(1, frame(LOG, first), final=1)
        if not evolve:
            with pytest.raises(LakeSchemaError, match="lacks a column"):
                rig.block(2, frame(LOG, wider))
            with pytest.raises(LakeSchemaError, match="does not fit"):
                rig.block(2, frame(LOG, wider.drop(["more"])))
            continue
        rig.block(2, frame(LOG, wider))
        assert rows_of(path, LOG) == [
            {"block_number": 2**40, "value": "b", "more": 1},
            {"block_number": 1, "value": "a", "more": None},
        ]
        rig.roll_back(1)
        assert rows_of(path, LOG) == [{"block_number": 1, "value": "a", "more": None}]
        rig.target.close()


def test_rows_are_partitioned_and_sorted_as_declared(tmp_path: Path) -> None:
    declared = table(
        LOG, partition_by="truncate(10, block_number), bucket(4, value), at", order_by=["value"]
    )
    rig = start(tmp_path, declared, on_data=None)
    rows = pa.table(
        {
            "block_number": [1, 12, 3, 14, 5, None],
            "value": ["e", "d", "c", "b", "a", None],
            "at": pa.array([0, 0, 0, 86_400, 0, None], pa.timestamp("s")),
        }
    )
    rig.block(20, frame(LOG, rows), final=20)
    stored = open_catalog(tmp_path).load_table("default.log")
    assert str(stored.spec().fields[0]).endswith("truncate[10](1)")
    assert len(stored.sort_order().fields) == 1
    wanted = stored.scan("block_number >= 10 AND at = '1970-01-02T00:00:00'")
    assert len(list(wanted.plan_files())) == 1, "other partitions are not read"
    assert wanted.to_arrow()["value"].to_pylist() == ["b"]
    files = list(stored.scan("block_number < 10").plan_files())
    assert stored.scan("block_number < 10").to_arrow().num_rows == 3
    assert len(files) >= 1
    rig.target.close()


# --- maintenance and readers ----------------------------------------------------------------------


@pytest.mark.guarantee("OPERATE-2")
def test_snapshots_expire_and_files_are_compacted_and_forks_still_go_back(tmp_path: Path) -> None:
    settings = IcebergSettings(maintain_every=10, final_snapshots=2, compact_files=4, grace_s=0)
    rig = start(tmp_path, settings=settings)
    for number in range(1, 41):
        rig.block(number, log(number, number), upsert(balance("a", "t", number)), final=number - 4)
    rig.check()
    stored = open_catalog(tmp_path).load_table("default.log")
    assert len(stored.metadata.snapshots) < 25
    assert len(list(stored.scan().plan_files())) < 20
    rig.roll_back(37)
    rig.check()
    rig.block(38, log(38, "b"), branch="b", final=36)
    assert rig.target.maintain()["swept"] > 0  # type: ignore[attr-defined]
    rig.check()
    named = {Path(one.file.file_path).name for one in stored.refresh().scan().plan_files()}
    held = {one.name for one in (tmp_path / "default/log/data").iterdir()}
    assert named <= held
    rig.roll_back(37)
    rig.check()
    rig.target.close()
    rig.target = make(tmp_path)
    assert rig.target.recover() == rig.state
    rig.target.close()


def test_each_commit_keeps_snapshots_and_manifests_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MANIFESTS", 4)
    monkeypatch.setattr(iceberg, "_EXPIRED_AT_ONCE", 2)
    settings = IcebergSettings(maintain_every=1000, final_snapshots=2)
    rig = start(tmp_path, LOG, settings=settings)
    for number in range(1, 16):
        rig.block(number, log(number, number), final=number - 3)
        stored = open_catalog(tmp_path).load_table("default.log")
        current = stored.current_snapshot()
        assert current is not None
        assert len(stored.metadata.snapshots) <= 9, "3 hot, 1 to go back to, 2 more, 2 that wait"
        assert len(current.manifests(stored.io)) <= 5
    rig.check()
    rig.roll_back(12)
    rig.check()
    rig.block(13, log(13, "b"), branch="b", final=12)
    rig.check()
    rig.target.close()


@pytest.mark.parametrize("seen_before", [True, False])
def test_snapshots_that_others_let_expire_do_not_stop_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_before: bool
) -> None:
    monkeypatch.setattr(iceberg, "_EXPIRED_AT_ONCE", 2)
    settings = IcebergSettings(maintain_every=1000, final_snapshots=2)
    rig = start(tmp_path, settings=settings)
    for number in range(1, 7):
        rig.block(number, log(number, number), upsert(balance("a", "t", number)), final=number - 2)
    if not seen_before:  # others do so between the look and the commit
        look = iceberg.StreamTable.seen
        tables: Any = rig.target._tables  # type: ignore[attr-defined]
        then = {one.name: look(one) for one in tables.open.values()}
        monkeypatch.setattr(
            iceberg.StreamTable, "seen", lambda one: then.pop(one.name, None) or look(one)
        )
    for name in ("log", "balances"):
        stored = open_catalog(tmp_path).load_table(f"default.{name}")
        final = [one for one in stored.metadata.snapshots if (block_of(one) or (9,))[0] < 4]
        assert final, "the next commit would let these expire"
        ids = [one.snapshot_id for one in final]
        stored.maintenance.expire_snapshots().by_ids(ids).commit()
    rig.block(7, log(7, 7), upsert(balance("a", "t", 7)), final=5)
    rig.roll_back(6)
    rig.check()
    rig.target.close()


def test_a_reader_finds_the_snapshot_of_a_block_and_duckdb_reads_the_files(tmp_path: Path) -> None:
    rig = start(tmp_path, LOG)
    for number in range(1, 6):
        rig.block(number, log(number, number * 2), final=1)
    stored = open_catalog(tmp_path).load_table("default.log")
    at_three = next(one for one in ancestors(stored) if (block_of(one) or (9,))[0] <= 3)
    scan = stored.scan(snapshot_id=at_three.snapshot_id)
    assert sorted(scan.to_arrow()["block_number"].to_pylist()) == [1, 2, 3]
    files = [one.file.file_path.removeprefix("file://") for one in stored.scan().plan_files()]
    summed = duckdb.connect().execute(f"SELECT sum(value::INT) FROM read_parquet({files})")
    assert summed.fetchall() == [(30,)]
    rig.target.close()


def test_rows_are_on_s3_and_credentials_in_no_log_and_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = bucket()
    catalog = {
        "name": "lake",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": one.uri,
        **one.options,
    }
    settings = IcebergSettings(maintain_every=3, compact_files=2, grace_s=0)
    with caplog.at_level(logging.DEBUG):
        target = iceberg_target(
            catalog, tables=[LOG, KEYED], on_data=apply_changes, settings=settings
        )
        target.bind("one")
        target.recover()

        def read(name: str) -> list[dict[str, Any]]:
            opened = load_catalog(**catalog)
            rows: list[dict[str, Any]] = (
                opened.load_table(f"default.{name}").scan().to_arrow().to_pylist()
            )
            opened.close()
            return rows

        rig = Rig(target, read, [LOG, BALANCES])
        for number in range(1, 5):
            rig.block(number, log(number, "x"), upsert(balance("a", "t", number)), final=number - 2)
        rig.roll_back(3)
        rig.check()
        target.maintain()
        rig.check()
        target.close()
    assert SECRET_KEY not in caplog.text
    assert SECRET_KEY not in repr(target.__dict__)
    place = Place.of(one.uri, one.options)
    for file in place.files():
        assert SECRET_KEY.encode() not in (place.read(file.name) or b"")
