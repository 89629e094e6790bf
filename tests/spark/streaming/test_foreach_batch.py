"""Micro-batches into a target, exactly once: forks, replays, and targets that die in between."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headwater import create_target, foreach_batch
from headwater.changes.model import FIELDS_TYPE
from headwater.core import Batch, BlockCursor, BlockHeader, Blocks, Head, PipeState
from headwater.errors import (
    BlockContentError,
    ForkCursorMissingError,
    InvalidOptionError,
    MicroBatchGapError,
    MicroBatchOrderError,
    MicroBatchReadError,
    MicroBatchTargetError,
    StoredStateError,
    StreamIdError,
)
from headwater.spark.frames import spark_schema
from headwater.spark.parts import Receipt
from headwater.spark.streaming.changelog_rows import InsertRows, changelog_schema
from headwater.stream import micro_batch_log
from headwater.stream.micro_batch_log import TABLE
from headwater.stream.micro_batches import ForeachBatch, MicroBatch
from headwater.targets import (
    MemoryStore,
    MemoryTarget,
    delta_target,
    duckdb_target,
    parquet_target,
)
from headwater.targets.contract import Capabilities, Delivery
from headwater.targets.frames import to_arrow
from headwater.testing import PortalSim
from headwater.testing.conformance import Crash
from headwater.testing.conformance.crash import Clock
from tests.spark.streaming.micro_batches import ROWS, TRANSFER, Killed, Query, limits
from tests.spark.streaming.test_follower import NAMES, Truth, act, chain_of

SCHEMA = changelog_schema(ROWS.schema)


def no_spark() -> Any:
    raise AssertionError("a target asked for Spark")


def give(write: ForeachBatch, batch_id: int, rows: list[dict[str, Any]], query: str = "q") -> None:
    """Hand a micro-batch over, as `__call__` does once it has looked at the DataFrame."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    came = sorted((row for row in rows if row["_sign"] > 0), key=lambda row: row["block_number"])
    given = MicroBatch(batch_id, query, table, len(rows))
    if came:
        last = BlockHeader(came[-1]["block_number"], came[-1]["block_hash"])
        final = all(row["_finalized"] is not None for row in rows) and len(came) == len(rows)
        final = final and all(last.number <= row["_finalized"] for row in rows)
        given = replace(given, first=came[0]["block_number"], last=last, is_final=final)
    write.write(given, no_spark)


def held_rows(store: MemoryStore[Delivery]) -> list[dict[str, Any]]:
    """Return all rows that a store holds."""
    frames = [to_arrow(batch.data.data["rows"]) for batch in store.committed.batches]
    return [row for frame in frames for row in frame.to_pylist()]


@pytest.mark.guarantee("STREAM-4")
@pytest.mark.parametrize("seed", range(8))
def test_a_target_holds_each_micro_batch_once(seed: int, tmp_path: Path) -> None:
    dice = Random(f"foreach {seed}")
    chain = chain_of(seed)
    truth = Truth(chain)
    store: MemoryStore[Delivery] = MemoryStore()
    write = foreach_batch(MemoryTarget(store), id="s")
    given = 0
    with Query(PortalSim(chain, seed=seed), tmp_path, dice=dice, limits=limits(far=4)) as query:
        for _ in range(100):
            act(query, chain, truth, dice)
            while given < len(query.sink):
                if dice.random() < 0.3:
                    write = foreach_batch(MemoryTarget(store), id="s")
                for _ in range(dice.choice([1, 1, 2])):
                    give(write, given, query.sink[given])
                given += 1
                held = [tuple(str(row[name]) for name in NAMES) for row in held_rows(store)]
                branch = chain.path(query.ends[given - 1]["hash"])
                assert sorted(held) == sorted(row for one in branch for row in truth.rows(one))


class DyingTarget(MemoryTarget[Delivery]):
    """A target whose process ends between the rollback and the commit of one micro-batch."""

    dies = False

    def commit(self, batches: object, state: object) -> None:
        if self.dies:
            raise Killed
        super().commit(batches, state)  # type: ignore[arg-type]


def test_a_target_that_dies_after_its_rollback_gets_the_micro_batch_again(tmp_path: Path) -> None:
    chain = chain_of(5)
    truth, target = Truth(chain), DyingTarget()
    write = foreach_batch(target, id="s")
    with Query(PortalSim(chain, seed=5), tmp_path, dice=Random(5), limits=limits()) as query:
        while query.trigger():
            pass
        chain.fork(4)
        query.trigger()
        *before, last = [query.sink[batch] for batch in sorted(query.sink)]
        for batch, rows in enumerate(before):
            give(write, batch, rows)
        assert {row["_sign"] for row in last} == {1, -1}
        target.dies = True
        with pytest.raises(Killed):
            give(write, len(before), last)
        target.dies = False
        give(foreach_batch(target, id="s"), len(before), last)
        held = {row["block_hash"] for row in held_rows(target.store)}
        branch = chain.path(query.ends[-1]["hash"])
        assert held == {one.hash for one in branch if truth.rows(one)}


@pytest.mark.guarantee("STREAM-4")
def test_a_rollback_after_micro_batches_without_rows_may_die_at_any_statement(
    tmp_path: Path,
) -> None:
    micro_batches = [
        (rows_of(1, 2, 3), [1, 2, 3]),
        ([], [1, 2, 3]),
        (gone(2, 3, version=4) + rows_of(2, version=10), [1, 2]),
        (gone(2, version=13), [1]),
        (gone(1, version=14) + rows_of(1, version=20), [1]),
    ]
    deaths = 0
    for batch_id, (rows, held) in enumerate(micro_batches):
        for step in count(1):
            target = duckdb_target(tmp_path / "chain.duckdb")
            clock = Clock([(0, step)])
            clock.begin_call()
            target.on_statement = lambda statement, clock=clock: clock.tick()
            with closing(foreach_batch(target, id="s")) as write:
                try:
                    give(write, batch_id, rows)
                except Crash:
                    deaths += 1
                    clock.recovered(again=False)
                    continue
                clock.recovered(again=False)
                found = target.query("SELECT block_number AS n FROM rows ORDER BY n")["n"]
                assert found.to_pylist() == held
                break
    assert deaths > 50


@pytest.mark.guarantee("STREAM-4")
@pytest.mark.parametrize("kind", ["memory", "duckdb"])
def test_a_fork_may_bring_rows_below_the_first_block_that_had_some(
    kind: str, tmp_path: Path
) -> None:
    """Blocks before it had no rows on the branch that was taken back."""
    store: MemoryStore[Delivery] = MemoryStore()
    path = tmp_path / "a.duckdb"
    forked = [*gone(4, version=5), *rows_of(1, 2, 4, version=10)]
    for batch, rows in enumerate([rows_of(4), forked, rows_of(5, version=20)]):
        target: Any = MemoryTarget(store) if kind == "memory" else duckdb_target(path)
        with closing(foreach_batch(target, id="s")) as write:
            give(write, batch, rows)
    held = blocks_in(store)
    if kind == "duckdb":
        found = duckdb_target(path).query('SELECT block_number n FROM "rows" ORDER BY n')
        held = found["n"].to_pylist()
    assert held == [1, 2, 4, 5]


def test_a_database_undoes_what_is_retracted(tmp_path: Path) -> None:
    chain = chain_of(2)
    truth = Truth(chain)
    target = duckdb_target(
        str(tmp_path / "chain.duckdb"),
        tables=["transfers"],
        on_data=lambda tx, data: tx.insert("transfers", data["rows"]),
    )
    write = foreach_batch(target, id="s")
    portal = PortalSim(chain, seed=2)
    with (
        closing(write),
        Query(portal, tmp_path / "journal", dice=Random(2), limits=limits()) as query,
    ):
        for step in range(12):
            while query.trigger():
                pass
            (chain.fork(3), chain.extend(2)) if step % 3 == 2 else chain.extend(2)
        for batch in sorted(query.sink):
            give(write, batch, query.sink[batch])
        assert query.ends[-1]["forks"] == 3
        branch = chain.path(query.ends[-1]["hash"])
    columns = ", ".join(f'"{name}"' for name in NAMES)
    found = duckdb_target(str(tmp_path / "chain.duckdb")).query(f"SELECT {columns} FROM transfers")
    rows = [tuple(str(row[name]) for name in NAMES) for row in found.to_pylist()]
    assert sorted(rows) == sorted(row for one in branch for row in truth.rows(one))
    assert TRANSFER.schema.names[0] == "block_number"


def test_a_target_that_lacks_what_is_below_a_retraction_is_refused(tmp_path: Path) -> None:
    chain = chain_of(1)
    store: MemoryStore[Delivery] = MemoryStore()
    write = foreach_batch(MemoryTarget(store), id="s")
    with Query(PortalSim(chain, seed=1), tmp_path, dice=Random(1), limits=limits()) as query:
        while query.trigger():
            pass
        hot = [row for row in query.net().values() if row["block_number"] > 25]
    first, *others = sorted(hot, key=lambda row: int(row["block_number"]))
    give(write, 0, [first, *others])
    gone = {**first, "_sign": -1, "_change_type": "delete", "_commit_version": 1000}
    below = {**gone, "block_number": 0, "_commit_version": 1001}
    with pytest.raises(ForkCursorMissingError):
        give(write, 1, [gone, below])


def test_a_block_that_goes_and_comes_back_is_not_taken_for_a_replay(tmp_path: Path) -> None:
    """Two micro-batches that end with the same block: their ids tell them apart."""
    chain = chain_of(4)
    written: list[list[str]] = []

    class Noting(MemoryTarget[Delivery]):
        def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
            written.append([one.headers[-1].hash for one in batches])
            super().commit(batches, state)

    target = Noting()
    with Query(PortalSim(chain, seed=4), tmp_path, dice=Random(4), limits=limits()) as query:
        while query.trigger():
            pass
        last = max(batch for batch, rows in query.sink.items() if rows)
        rows = query.sink[last]
    write = foreach_batch(target, id="s")
    give(write, 0, rows)
    block = rows[-1]["block_hash"]
    own = [row for row in rows if row["block_hash"] == block]
    gone = [{**row, "_sign": -1, "_commit_version": 900} for row in own]
    back = [{**row, "_commit_version": 901} for row in own]
    for _ in range(2):
        give(write, 1, [*gone, *back])
        write = foreach_batch(target, id="s")
    assert written[1:] == [[block]]
    held = [one.headers[-1].hash for one in target.store.committed.batches]
    assert held.count(block) == 1


def test_a_query_with_another_checkpoint_is_refused(tmp_path: Path) -> None:
    chain = chain_of(4)
    target: MemoryTarget[Delivery] = MemoryTarget()
    with Query(PortalSim(chain, seed=4), tmp_path, dice=Random(4), limits=limits()) as query:
        while query.trigger():
            pass
        rows = [query.sink[batch] for batch in sorted(query.sink) if query.sink[batch]]
    write = foreach_batch(target, id="s")
    for batch, one in enumerate(rows):
        give(write, batch, one)
    with pytest.raises(MicroBatchOrderError, match="E5016"):
        give(foreach_batch(target, id="s"), 0, rows[0])


def test_the_ids_of_micro_batches_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(micro_batch_log, "PRUNE_AT", 3)
    chain = chain_of(6)
    target: MemoryTarget[Delivery] = MemoryTarget()
    write, kept = foreach_batch(target, id="s"), []
    with Query(PortalSim(chain, seed=6), tmp_path, dice=Random(6), limits=limits()) as query:
        for _ in range(25):
            while query.trigger():
                pass
            chain.extend(1)
            chain.finalize(chain.head.number - 4)
        for batch in sorted(query.sink):
            give(write, batch, query.sink[batch])
            if query.sink[batch]:
                kept.append(target.store.committed.side["micro_batches"].num_rows)
    assert len(kept) > 15
    assert max(kept) <= 8


MODULE = pa.schema(
    [
        pa.field("operation", pa.string(), False),
        pa.field("fields", FIELDS_TYPE),
        pa.field("party", pa.struct([pa.field("name", pa.string(), False)])),
        pa.field("marks", pa.list_(pa.field("item", pa.int64(), False))),
        pa.field("block_number", pa.int64(), False),
    ]
)
"""What modules put out: no hash, the number not first, and nested columns that may be null."""


@pytest.mark.parametrize("final", [1, 9])
def test_nested_columns_that_are_null_reach_the_target(spark: SparkSession, final: int) -> None:
    fields = [{"name": "a", "value": None, "operation": "set"}]
    rows: list[dict[str, object]] = [
        {"fields": None, "party": None, "marks": None},
        {"fields": fields, "party": {"name": "b"}, "marks": [1]},
        {"fields": [], "party": None, "marks": []},
    ]
    rows = [{"operation": "x", **row, "block_number": 2 + at} for at, row in enumerate(rows)]
    changes = [
        {
            "_change_type": "insert",
            "_commit_version": number,
            "_commit_timestamp": datetime.fromtimestamp(1000 + number, UTC),
            "_sign": 1,
            "_row_id": f"0x-{number}-0",
            "_finalized": final,
        }
        for number in (2, 3, 4)
    ]
    frame = spark.createDataFrame(
        [{**row, **change} for row, change in zip(rows, changes, strict=True)],
        spark_schema(changelog_schema(MODULE)),
    )
    target: MemoryTarget[Delivery] = MemoryTarget()
    foreach_batch(target, id="s")(frame, 0)
    frames = [to_arrow(batch.data.data["rows"]) for batch in target.store.committed.batches]
    assert [row for one in frames for row in one.to_pylist()] == rows
    assert target.recover().cursor in (BlockCursor(4, "0x-4"), BlockCursor(4, "0x-4", 1004))


def test_an_id_is_needed() -> None:
    with pytest.raises(StreamIdError):
        foreach_batch(MemoryTarget(), id="")


# --- whose micro-batches they are, and which are missing ------------------------------------------


def rows_of(*numbers: int, version: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return one row for each block of a chain of our own, hot unless `_finalized` says more."""
    return [
        {
            **{field.name: EMPTY[field.type] for field in ROWS.schema},
            "_commit_timestamp": None,
            "block_number": number,
            "block_hash": f"0x{number}",
            "_change_type": "insert",
            "_commit_version": version + number,
            "_sign": 1,
            "_row_id": f"0x{number}-0",
            "_finalized": None,
            **more,
        }
        for number in numbers
    ]


EMPTY: dict[pa.DataType, Any] = {
    pa.string(): "0",
    pa.int64(): 0,
    pa.int32(): 0,
    pa.timestamp("us", tz="UTC"): datetime(2026, 1, 1, tzinfo=UTC),
}


def gone(*numbers: int, version: int) -> list[dict[str, Any]]:
    """Return the deletes of blocks."""
    rows = rows_of(*numbers, _sign=-1, _change_type="delete")
    return [{**row, "_commit_version": version + at} for at, row in enumerate(reversed(rows))]


def blocks_in(store: MemoryStore[Delivery]) -> list[int]:
    return [row["block_number"] for row in held_rows(store)]


class Place:
    """A store, and what writes it: anew after each restart."""

    def __init__(self) -> None:
        self.store: MemoryStore[Delivery] = MemoryStore()
        self.restart()

    def restart(self) -> None:
        self.write = foreach_batch(MemoryTarget(self.store), id="s")


@pytest.mark.guarantee("STREAM-4")
def test_a_query_whose_first_micro_batch_has_the_id_of_the_last_one_is_refused() -> None:
    place = Place()
    give(place.write, 0, rows_of(1, 2))
    place.restart()
    with pytest.raises(MicroBatchOrderError, match=r"E5016.*another query"):
        give(place.write, 0, rows_of(3, 4), query="other")
    place.restart()
    with pytest.raises(MicroBatchOrderError, match=r"E5016.*another micro-batch of this id"):
        give(place.write, 0, rows_of(3, 4))
    place.restart()
    with pytest.raises(MicroBatchOrderError, match=r"E5016.*another query"):
        give(place.write, 1, rows_of(3, 4), query="other")
    give(place.write, 0, rows_of(1, 2))
    give(place.write, 1, rows_of(3, 4))
    assert blocks_in(place.store) == [1, 2, 3, 4]


@pytest.mark.guarantee("STREAM-4")
@pytest.mark.parametrize("back_to", [1, 2, 3])
def test_a_target_that_was_rewound_is_refused_until_the_query_is_too(back_to: int) -> None:
    place = Place()
    for batch, numbers in enumerate([(1,), (2, 3), (), (4,)]):
        give(place.write, batch, rows_of(*numbers))
    state = place.store.committed.state
    safe = next(one for one in state.rollback_chain if one.number == back_to)
    MemoryTarget(place.store).roll_back(state.rewind(safe))
    place.restart()
    with pytest.raises(MicroBatchGapError, match="E5035"):
        give(place.write, 4, rows_of(5))
    assert blocks_in(place.store) == [1, 2, 3][:back_to], "nothing was written"
    for batch, numbers in list(enumerate([(1,), (2, 3), (), (4,), (5,)]))[1:]:
        if back_to < 3 or batch > 2:  # what the checkpoint of that time gives again
            give(place.write, batch, rows_of(*numbers))
    assert blocks_in(place.store) == [1, 2, 3, 4, 5]


@pytest.mark.guarantee("STREAM-4")
def test_a_target_that_was_restored_or_emptied_is_refused() -> None:
    place = Place()
    give(place.write, 0, rows_of(1))
    backup = replace(place.store)
    give(place.write, 1, rows_of(2))
    place.store = backup
    place.restart()
    with pytest.raises(MicroBatchGapError, match=r"lacks=1\.\.1, given=2"):
        give(place.write, 2, rows_of(3))
    with pytest.raises(MicroBatchGapError, match=r"lacks=0\.\.1"):
        give(Place().write, 2, rows_of(3))


@pytest.mark.guarantee("STREAM-4")
@pytest.mark.parametrize("kind", ["memory", "duckdb", "delta"])
def test_micro_batches_without_rows_are_not_missed(kind: str, tmp_path: Path) -> None:
    """Before the first block, between blocks, and after a fork, with a restart after each."""
    store: MemoryStore[Delivery] = MemoryStore()

    def target() -> Any:
        if kind == "memory":
            return MemoryTarget(store)
        return delta_target(tmp_path) if kind == "delta" else duckdb_target(tmp_path / "a.duckdb")

    steps = [[], [], rows_of(1, 2, 3), [], gone(2, 3, version=4), [], rows_of(4, version=9), []]
    for batch, rows in enumerate(steps):
        for _ in range(2):
            with closing(foreach_batch(target(), id="s")) as write:
                give(write, batch, rows)
    held = blocks_in(store)
    if kind == "duckdb":
        held = target().query('SELECT block_number n FROM "rows" ORDER BY n')["n"].to_pylist()
    if kind == "delta":
        found = DeltaTable(tmp_path / "rows").to_pyarrow_table(columns=["block_number"])
        held = sorted(found["block_number"].to_pylist())
    assert held == [1, 4]
    with closing(foreach_batch(target(), id="s")) as write, pytest.raises(MicroBatchGapError):
        give(write, len(steps) + 1, rows_of(5))


def test_what_an_earlier_release_has_written_goes_on() -> None:
    """It stored ids of micro-batches with rows, and nothing of those without."""
    place = Place()
    for batch in range(3):
        give(place.write, batch, rows_of(batch))
    place.store.config = None
    place.restart()
    with pytest.raises(MicroBatchOrderError, match="E5016"):
        give(place.write, 2, rows_of(7))
    place.restart()
    give(place.write, 2, rows_of(2))
    assert blocks_in(place.store) == [0, 1, 2]
    place.store.config = None
    place.restart()
    give(place.write, 7, rows_of(3))
    with pytest.raises(MicroBatchGapError):
        give(place.write, 9, rows_of(5))
    assert blocks_in(place.store) == [0, 1, 2, 3]


def test_rows_of_a_stream_are_not_taken_for_those_of_a_query() -> None:
    place = Place()
    give(place.write, 0, rows_of(1))
    place.store.config = '{"version": 1, "outputs": {"transfers": "…"}}'
    place.restart()
    with pytest.raises(MicroBatchOrderError, match="a stream that is no query"):
        give(place.write, 1, rows_of(2))
    place.store.config = "[]"
    place.restart()
    with pytest.raises(StoredStateError):
        give(place.write, 1, rows_of(2))


def test_a_target_in_the_middle_of_a_micro_batch_is_given_the_rest() -> None:
    """It was moved there together with the checkpoint of that time."""
    for finalized in (None, 3):
        place = Place()
        give(place.write, 0, rows_of(1, _finalized=None))
        give(place.write, 1, rows_of(2, _finalized=None))
        give(place.write, 2, rows_of(3))
        state = place.store.committed.state
        MemoryTarget(place.store).roll_back(state.rewind(state.rollback_chain[1]))
        place.store.committed = replace(
            place.store.committed, side={"micro_batches": TABLE.columns.empty_table()}
        )
        place.restart()
        give(place.write, 0, rows_of(0, 1, 2, 3, _finalized=finalized)[1:])
        assert blocks_in(place.store) == [1, 2, 3]


def test_what_cannot_hold_a_micro_batch_is_refused(tmp_path: Path) -> None:
    """Parquet holds rows in memory until no fork can take them; Spark would not give them again."""

    class Forgetful(MemoryTarget[Delivery]):
        @property
        def capabilities(self) -> Capabilities[Delivery]:
            return Capabilities(config=self)

    for target in (parquet_target(tmp_path), Forgetful()):
        with pytest.raises(MicroBatchTargetError, match="E5036"):
            foreach_batch(target, id="s")
    with pytest.raises(InvalidOptionError):
        foreach_batch([MemoryTarget()], id="s")  # type: ignore[arg-type]


@pytest.mark.parametrize("finalized", [None, 2])
def test_times_that_no_calendar_of_python_has_reach_the_target(
    finalized: int | None, tmp_path: Path
) -> None:
    target = duckdb_target(tmp_path / "chain.duckdb", tables=["far"], on_data=insert_far)
    far = [-99_999_999_999_999_999, 900_000_000_000_000_000]  # of years -1199 and 30489
    table = pa.Table.from_pylist(rows_of(1, 2, _finalized=finalized), SCHEMA)
    for name in ("timestamp", "_commit_timestamp"):
        times = pa.array(far, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        table = table.set_column(table.column_names.index(name), SCHEMA.field(name), times)
    last = BlockHeader(2, "0x2")
    given = MicroBatch(0, "q", table, 2, 1, last, is_final=finalized is not None)
    with closing(foreach_batch(target, id="s")) as write:
        write.write(given, no_spark)
        found = target.query('SELECT epoch_us("timestamp") t FROM far ORDER BY block_number')
    assert found["t"].to_pylist() == far
    blocks = Blocks((BlockHeader(1, "0x1", timestamp=2**60),), (b"",), Head())
    with pytest.raises(BlockContentError, match="impossible timestamp"):
        list(InsertRows(ROWS, 0, None).rows(blocks, Receipt(0)))


def insert_far(tx: Any, data: Any) -> None:
    tx.insert("far", to_arrow(data["rows"]).select(["block_number", "timestamp"]))


# --- targets of the user's ------------------------------------------------------------------------


@pytest.mark.guarantee("STREAM-4")
def test_a_target_of_the_users_has_each_micro_batch_of_final_blocks_once(tmp_path: Path) -> None:
    chain = chain_of(7)
    truth = Truth(chain)
    rows: list[dict[str, Any]] = []
    cursors: list[BlockCursor] = []

    def write(read: Any) -> None:
        for batch in read(cursors[-1] if cursors else None):
            rows.extend(to_arrow(batch.data["transfers"]).to_pylist())
            cursors.append(batch.ctx.stream.state.current)

    dice = Random(7)
    target = create_target(write=write)
    into = foreach_batch(target, id="s", output="transfers")
    portal = PortalSim(chain, seed=7)
    with Query(portal, tmp_path, dice=dice, limits=limits(), final_only=True) as query:
        for _ in range(12):
            while query.trigger():
                pass
            chain.extend(2)
            chain.finalize(chain.head.number - 4)
    for batch, given in query.sink.items():
        for _ in range(dice.choice([1, 2])):
            give(into, batch, given)
            if dice.random() < 0.5:
                into = foreach_batch(target, id="s", output="transfers")
    held = sorted(tuple(str(row[name]) for name in NAMES) for row in rows)
    branch = chain.path(query.ends[-1]["hash"])
    assert len(cursors) > 3
    assert held == sorted(row for one in branch for row in truth.rows(one))


def test_a_target_of_the_users_is_given_no_rows_that_a_fork_may_take() -> None:
    def write(read: Any) -> None:
        list(read(None))

    into = foreach_batch(create_target(write=write), id="s")
    with pytest.raises(MicroBatchTargetError, match=r"E5036.*finalOnly"):
        give(into, 0, rows_of(1, 2))
    give(into, 0, rows_of(1, _finalized=1))
    with pytest.raises(MicroBatchGapError, match="E5035"):
        give(into, 1, rows_of(2, _finalized=2))


def test_a_micro_batch_that_write_leaves_is_an_error() -> None:
    def first(read: Any) -> None:
        next(read(None))

    for write in (lambda read: None, first):
        with pytest.raises(MicroBatchReadError, match="E5037"):
            give(foreach_batch(create_target(write=write), id="s"), 0, rows_of(1, _finalized=1))
