"""Delta tables: writers that were replaced, maintenance, schemas, object stores, whole streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headwater import StopRequested, evm, portal_stream
from headwater.core import PipeState
from headwater.errors import (
    InvalidOptionError,
    LakeForeignWriteError,
    LakeKeyError,
    LakeRewriteError,
    LakeSchemaError,
    LakeUndoError,
    LakeUnsupportedError,
    LakeWriterError,
    StateMissingError,
    UndeclaredLakeTableError,
)
from headwater.pipeline import Event, RolledBack
from headwater.targets.delta import DeltaSettings, DeltaTarget, delta_target, table
from headwater.targets.delta.tables import StreamTables
from headwater.targets.lake.maintenance import Maintenance
from headwater.targets.lake.paths import Place
from headwater.targets.lake.target import SWEEP_S
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.conformance.model import (
    KEY,
    Change,
    Rig,
    balance,
    delete,
    insert,
    log,
    upsert,
)
from headwater.testing.conformance.suite import apply_changes
from tests.stream.truth import COLUMNS, transfers
from tests.targets.lake_places import ACCESS_KEY, SECRET_KEY, bucket, delta_options, maintain_folder

TABLES = ("log", table("balances", key=KEY))


def made(path: Any, **options: Any) -> DeltaTarget:
    target = delta_target(path, **{"tables": TABLES, "on_data": apply_changes, **options})
    target.bind("one")
    return target


def started(path: Any, **options: Any) -> Rig:
    target = made(path, **options)
    target.recover()
    return Rig(target, lambda name: rows(path, name), ["log", "balances"])


def rows(path: Path, name: str) -> list[dict[str, Any]]:
    if not (path / name / "_delta_log").exists():
        return []
    found: list[dict[str, Any]] = DeltaTable(path / name).to_pyarrow_table().to_pylist()
    return found


# --- writers --------------------------------------------------------------------------------------


@pytest.mark.guarantee("LAKE-3")
def test_a_writer_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    old = started(tmp_path)
    old.block(1, log(1, 1), upsert(balance("a", "t", 1)), final=1)
    new = made(tmp_path)
    assert new.recover() == old.state
    with pytest.raises(LakeWriterError):
        old.target.commit((), old.state)
    with pytest.raises(LakeWriterError):
        old.target.recover()
    rig = Rig(new, old._read_rows, ["log", "balances"])
    rig.model = old.model
    rig.block(2, log(2, "right"), upsert(balance("a", "t", 2)))
    rig.check()
    rig.roll_back(1)
    rig.check()


def test_a_replaced_writer_with_rows_at_hand_commits_none_of_them(tmp_path: Path) -> None:
    old = started(tmp_path)
    old.block(1, log(1, 1), upsert(balance("a", "t", 1)), final=1)
    new = made(tmp_path)
    new.recover()
    with pytest.raises(LakeWriterError):
        old.block(2, log(2, "stale"), upsert(balance("a", "t", 9)))
    old.check()


def test_rows_of_others_in_a_table_do_not_pass_unnoticed(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, upsert(balance("a", "t", 1)), final=1)
    handle = DeltaTable(tmp_path / "balances")
    handle.delete("owner = 'a'")
    with pytest.raises(LakeForeignWriteError):
        rig.block(2, upsert(balance("a", "t", 2)))


def test_a_table_of_another_stream_or_program_is_left_alone(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "log", pa.table({"block_number": [1]}))
    rig = started(tmp_path)
    with pytest.raises(LakeForeignWriteError):
        rig.block(1, log(1, 1), final=1)
    assert rows(tmp_path, "log") == [{"block_number": 1}]


def test_a_lost_state_is_not_taken_for_a_beginning(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, log(1, 1), insert(balance("a", "t", 1)), final=1)
    for one in sorted((tmp_path / "log" / "_delta_log").glob("*.json"))[1:]:
        one.unlink()
    first = tmp_path / "log" / "_delta_log" / f"{0:020d}.json"
    first.write_text(first.read_text().replace("headwater.state", "headwater.lost"))
    with pytest.raises(StateMissingError):
        made(tmp_path).recover()


# --- what is written ------------------------------------------------------------------------------


def test_what_is_not_offered_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError):
        delta_target(tmp_path, on_data=apply_changes)
    with pytest.raises(InvalidOptionError):
        DeltaSettings(compact_files=1)
    for name in ("_hidden", "a/b"):
        with pytest.raises(LakeSchemaError):
            delta_target(tmp_path, tables=[name])

    def execute(tx: Any, data: Any) -> None:
        tx.execute("DELETE FROM log")

    def query(tx: Any, data: Any) -> None:
        tx.query("FROM log")

    for callback in (execute, query):
        rig = started(tmp_path, on_data=callback)
        with pytest.raises(LakeUnsupportedError):
            rig.block(1, log(1, 1), final=1)


def test_keys_are_checked_and_rewrites_are_bounded(tmp_path: Path) -> None:
    rig = started(tmp_path, settings=DeltaSettings(rewrite_bytes=2))
    with pytest.raises(LakeKeyError):
        rig.block(1, upsert(balance("a", "t", 1), balance("a", "t", 2)), final=1)
    rig = started(tmp_path, settings=DeltaSettings(rewrite_bytes=2))
    rig.block(1, insert(balance("a", "t", 1)), final=1)
    with pytest.raises(LakeRewriteError):
        rig.block(2, upsert(balance("a", "t", 2)))
    rig = started(tmp_path, tables=["log"])
    with pytest.raises(UndeclaredLakeTableError):
        rig.block(2, upsert(balance("b", "t", 2)))


def frame(number: int, value: pa.Table) -> Change:
    return Change("insert", "log", log(number, 1).rows, value)


def test_new_columns_are_taken_where_that_is_declared(tmp_path: Path) -> None:
    narrow, wide = pa.table({"block_number": [1]}), pa.table({"block_number": [2], "more": ["x"]})
    rig = started(tmp_path / "fixed")
    rig.block(1, frame(1, narrow), final=1)
    with pytest.raises(LakeSchemaError):
        rig.block(2, frame(2, wide))
    rig = started(tmp_path / "free", tables=[table("log", evolve=True)])
    rig.block(1, frame(1, narrow), final=1)
    rig.block(2, frame(2, wide))
    rig.block(3, frame(3, narrow))
    found = sorted(rows(tmp_path / "free", "log"), key=str)
    assert found == [
        {"block_number": 1, "more": None},
        {"block_number": 1, "more": None},
        {"block_number": 2, "more": "x"},
    ]


def test_a_wider_type_is_refused_in_words(tmp_path: Path) -> None:
    small = pa.table(
        {"block_number": [1], "n": pa.array([1], pa.int32()), "x": pa.array([1.5], pa.float32())}
    )
    for column, value in (
        ("n", pa.array([1 << 40], pa.int64())),
        ("x", pa.array([0.1], pa.float64())),
    ):
        path = tmp_path / column
        rig = started(path, tables=[table("log", evolve=True)], unrepresentable="stop")
        rig.block(1, frame(1, small), final=1)
        with pytest.raises(LakeSchemaError, match=rf"{column}.*a column of Delta keeps its type"):
            rig.block(2, frame(2, pa.table({"block_number": [2], column: value})))
        assert made(path, tables=["log"]).recover().number == 1


def test_rows_are_partitioned_as_declared_and_a_fork_takes_partitions_back(tmp_path: Path) -> None:
    tables = [
        table("log", partition_by="chain, day"),
        table("balances", key=KEY, partition_by="token"),
    ]
    settings = DeltaSettings(compact_files=2, maintain_every=0)
    rig = started(tmp_path, tables=tables, settings=settings)

    def block(number: int, final: int) -> None:
        days = pa.array([number, number + 1, None], pa.date32())
        chains = ["a", "b", "a" if number % 2 else None]
        rows = pa.table({"block_number": [number] * 3, "chain": chains, "day": days})
        rig.block(
            number,
            frame(number, rows),
            upsert(balance("me", "t", number), balance("me", f"t{number}", 1)),
            final=final,
        )

    for number in (1, 2, 3):
        block(number, number)
    block(4, 3)
    stored = DeltaTable(tmp_path / "log")
    assert stored.metadata().partition_columns == ["chain", "day"]
    assert len(stored.file_uris(file_pruning_predicate=[("chain", "=", "b")])) == 4
    held = stored.to_pyarrow_table(filters=[("chain", "=", "b")])
    assert sorted(held["block_number"].to_pylist()) == [1, 2, 3, 4]
    target: Any = rig.target
    assert target.maintain()["compacted"]
    before = len(rows(tmp_path, "log"))
    rig.roll_back(3)
    assert before - len(rows(tmp_path, "log")) == 3
    token = DeltaTable(tmp_path / "balances").to_pyarrow_table(filters=[("token", "=", "t")])
    assert token.num_rows == 1, "the row that block 4 had replaced is back"
    for wrong in ("day(at)", "bucket(4, chain)"):
        with pytest.raises(InvalidOptionError):
            delta_target(tmp_path / "x", tables=[table("log", partition_by=wrong)])
    rig = started(tmp_path / "none", tables=[table("log", partition_by="nothing")])
    with pytest.raises(LakeSchemaError):
        rig.block(1, log(1, 1), final=1)


def test_timestamps_are_not_written_as_int96(tmp_path: Path) -> None:
    rig = started(tmp_path)
    at = pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC"))
    rig.block(1, frame(1, pa.table({"block_number": [1], "at": at})), final=1)
    (file,) = DeltaTable(tmp_path / "log").file_uris()
    columns = pq.ParquetFile(file).schema
    assert {columns.column(at).physical_type for at in range(len(columns))} == {"INT64"}


# --- maintenance ----------------------------------------------------------------------------------


def test_maintenance_from_outside_takes_no_stream_over(tmp_path: Path) -> None:
    settings = DeltaSettings(compact_files=2, retention_hours=0)
    rig = started(tmp_path, settings=settings)
    for number in range(1, 9):
        rig.block(number, log(number, number), upsert(balance("a", "t", number)), final=number)
    rig.block(9, log(9, 9), upsert(balance("a", "t", 9)))
    place = Place.of(tmp_path)
    done = maintain_folder(place, settings=settings)
    assert done["one"]["compacted"] >= 8
    assert done["one"]["swept"] >= 8
    rig.check()
    rig.block(10, log(10, 10))
    rig.roll_back(8)
    rig.check()
    rig.block(9, log(9, "other"), upsert(balance("a", "t", 99)), branch="b")
    rig.check()
    assert made(tmp_path).recover() == rig.state
    assert maintain_folder(place, stream_id="another") == {}


def test_files_that_nothing_needs_are_deleted_once_a_day(tmp_path: Path) -> None:
    rig = started(
        tmp_path, settings=DeltaSettings(compact_files=2, maintain_every=4, retention_hours=0)
    )
    target: Any = rig.target
    now = iter((0.0, 0.0, 2 * SWEEP_S, 2 * SWEEP_S, 2 * SWEEP_S))
    target.clock = lambda: next(now)
    target._swept = target.clock()
    for number in range(1, 9):
        rig.block(number, log(number, number), final=number)
    assert len(list((tmp_path / "log").rglob("*.parquet"))) == len(
        DeltaTable(tmp_path / "log").file_uris()
    )
    rig.check()


def test_maintenance_between_batches_passes_over_a_conflict_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = started(tmp_path, settings=DeltaSettings(compact_files=2, maintain_every=2))

    def breaks(error: Exception) -> None:
        def fail(work: Maintenance[Any]) -> dict[str, int]:
            raise error

        monkeypatch.setattr(Maintenance, "run", fail)

    breaks(OSError("the disk is full"))
    for number in (1, 2, 3):
        rig.block(number, log(number, number), final=number)
    breaks(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        rig.block(4, log(4, 4), final=4)


@pytest.mark.guarantee("LAKE-3")
def test_maintenance_keeps_all_that_a_rollback_needs(tmp_path: Path) -> None:
    settings = DeltaSettings(maintain_every=0, compact_files=2, retention_hours=0)
    rig = started(tmp_path, settings=settings)
    for number in range(1, 9):
        rig.block(number, log(number, number), upsert(balance("a", "t", number)), final=number)
    for number in range(9, 13):
        rig.block(number, log(number, number), upsert(balance("a", "t", number)))
    rig.block(13, delete(("a", "t")))
    before = len(list((tmp_path / "log").rglob("*.parquet")))
    target: Any = rig.target
    done = target.maintain()
    assert done["compacted"] >= 8
    assert done["swept"] > 0
    assert len(list((tmp_path / "log").rglob("*.parquet"))) < before
    rig.check()
    again = made(tmp_path, settings=settings)
    assert again.recover() == rig.state
    rig.target = again
    for number in (12, 10, 8):
        rig.roll_back(number)
        rig.check()


def log_entries(path: Path) -> list[int]:
    return sorted(int(one.stem) for one in (path / "log/_delta_log").glob("[0-9]*.json"))


@pytest.mark.guarantee("LAKE-2")
def test_the_log_is_shortened_and_forks_still_go_back(tmp_path: Path) -> None:
    """Every commit lists the log: were it never shortened, commits would take longer each day."""
    settings = DeltaSettings(maintain_every=3, log_entries=4)
    rig = started(tmp_path, settings=settings)
    target: Any = rig.target
    for number in range(1, 10):
        rig.block(number, log(number, number), final=number)
    DeltaTable(tmp_path / "log").create_checkpoint()
    for number in range(10, 19):
        rig.block(number, log(number, number), final=9)
    entries = log_entries(tmp_path)
    assert 0 not in entries, "those below the checkpoint are gone"
    assert len(entries) > 9, "those of hot blocks are not, nor is the one below them"
    target.maintain()
    rig.check()
    again = made(tmp_path, settings=settings)
    assert again.recover() == rig.state
    rig.target = again
    for number in (17, 12, 9):
        rig.roll_back(number)
        rig.check()
    again.close()


def test_a_log_that_others_have_shortened_too_far_is_missed_with_a_code(tmp_path: Path) -> None:
    rig = started(tmp_path)
    for number in range(1, 6):
        rig.block(number, log(number, number), final=1)
    DeltaTable(tmp_path / "log").create_checkpoint()
    rig.block(6, log(6, 6))
    for one in log_entries(tmp_path)[:-2]:
        (tmp_path / f"log/_delta_log/{one:020d}.json").unlink()
    with pytest.raises(LakeUndoError, match="has lost commits"):
        made(tmp_path).recover()


def test_the_state_is_found_behind_any_number_of_commits_of_others(tmp_path: Path) -> None:
    rig = started(tmp_path)
    rig.block(1, log(1, 1), final=1)
    for _ in range(70):
        DeltaTable(tmp_path / "log").alter.set_table_properties({"delta.checkpointInterval": "10"})
    assert made(tmp_path).recover() == rig.state


# --- whole streams --------------------------------------------------------------------------------


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


def held(path: str, options: dict[str, str] | None = None) -> list[tuple[Any, ...]]:
    names = [one.strip('" ') for one in COLUMNS.split(",")]
    order = [("block_number", "ascending"), ("log_index", "ascending")]
    found = DeltaTable(path, storage_options=options).to_pyarrow_table(columns=names)
    return [tuple(row.values()) for row in found.sort_by(order).to_pylist()]


@pytest.mark.guarantee("LAKE-2")
def test_hot_blocks_are_readable_at_once_and_a_fork_takes_them_back(
    portal: PortalServer, tmp_path: Path
) -> None:
    chain = portal.sim.chain
    forked: list[Event] = []
    stream = portal_stream(
        id="transfers", portal=portal.url, far=10**9, poll_interval_s=0.01,
        outputs={"transfers": evm.events("erc20.Transfer", range=5)},
    )  # fmt: skip

    def follow(event: Event) -> None:
        cursor = event.state.cursor
        if cursor is not None and cursor.number == chain.head.number:
            number = chain.head.number
            assert held(str(tmp_path / "transfers")) == transfers(chain, chain.canonical(5, number))
            if len(forked) == 3:
                raise StopRequested
            chain.fork(4, 5)
            forked.append(event)
        elif isinstance(event, RolledBack):
            assert held(str(tmp_path / "transfers"))[-1][0] <= event.state.number

    stream.pipe_to(delta_target(tmp_path), on_event=follow, progress=False)
    assert len(forked) == 3


def test_of_two_writers_that_commit_at_once_to_s3_one_is_refused(tmp_path: Path) -> None:
    """The second takes over and commits while the first is about to: its entry is there first."""
    place = bucket()

    def opened() -> Rig:
        target = made(place.uri, tables=["log"], options=place.options)
        target.recover()
        return Rig(target, lambda name: read(), ["log"])

    def read() -> list[dict[str, Any]]:
        stored = DeltaTable(f"{place.uri}/log", storage_options=delta_options(place))
        found: list[dict[str, Any]] = stored.to_pyarrow_table().to_pylist()
        return found

    first = opened()
    first.block(1, log(1, "first"), final=1)
    second: list[Rig] = []

    def meanwhile(step: str) -> None:
        if step == "commit log" and not second:
            second.append(opened())
            second[0].model.settle(first.state)
            second[0].block(2, log(2, "second"), final=1)

    target: Any = first.target
    target.on_step = meanwhile
    with pytest.raises(LakeWriterError, match="E2603"):
        first.block(2, log(2, "first"), final=1)
    assert sorted(one["value"] for one in read()) == ["first", "second"]
    second[0].block(3, log(3, "second"), final=1)


def test_s3_with_conditional_writes_and_without_a_word_of_its_credentials(
    portal: PortalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = bucket()
    stream = portal_stream(
        id="transfers", portal=portal.url, far=10**9, poll_interval_s=0.01,
        outputs={"transfers": evm.events("erc20.Transfer", range=(30, 50))},
    )  # fmt: skip
    target = delta_target(place.uri, options=place.options)
    stream.pipe_to(target, progress=False)
    chain = portal.sim.chain
    tables: Any = StreamTables(Place.of(place.uri, place.options), "transfers", {})
    uri = f"{place.uri}/transfers"
    assert held(uri, tables._options()) == transfers(chain, chain.canonical(30, 50))
    for text in (caplog.text, repr(vars(target)), str(tables)):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
    old = delta_target(place.uri, options=place.options)
    old.bind("transfers")
    state = old.recover()
    assert state.number == 50
    new = delta_target(place.uri, options=place.options)
    new.bind("transfers")
    assert new.recover() == state
    with pytest.raises(LakeWriterError):
        old.commit((), state)
    assert PipeState() != state
