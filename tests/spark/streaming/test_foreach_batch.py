"""Micro-batches into a target, exactly once: forks, replays, and targets that die in between."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater import foreach_batch
from headwater.changes.model import FIELDS_TYPE
from headwater.core import Batch, BlockCursor, BlockHeader, PipeState
from headwater.errors import ForkCursorMissingError, MicroBatchOrderError, StreamIdError
from headwater.spark.frames import spark_schema
from headwater.spark.streaming.changelog_rows import changelog_schema
from headwater.stream import micro_batches
from headwater.stream.micro_batches import ForeachBatch
from headwater.targets import MemoryStore, MemoryTarget, duckdb_target
from headwater.targets.contract import Capabilities, Delivery
from headwater.targets.frames import to_arrow
from headwater.testing import PortalSim
from tests.spark.streaming.micro_batches import ROWS, TRANSFER, Killed, Query, limits
from tests.spark.streaming.test_follower import NAMES, Truth, act, chain_of

SCHEMA = changelog_schema(ROWS.schema)


def give(write: ForeachBatch, batch_id: int, rows: list[dict[str, object]]) -> None:
    """Hand a micro-batch over, as `__call__` does once it has looked at the DataFrame."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    last = max(rows, key=lambda row: int(str(row["block_number"])))
    final = all(row["_finalized"] is not None for row in rows) and all(
        row["_sign"] == 1 and row["block_number"] <= row["_finalized"]  # type: ignore[operator]
        for row in rows
    )
    if final:
        header = BlockHeader(int(str(last["block_number"])), str(last["block_hash"]))
        write.apply_final(batch_id, header, table.select(ROWS.schema.names))
    else:
        write.apply(batch_id, table)


class Forgetful(MemoryTarget[Delivery]):
    """A target that keeps no side tables: its cursor is all that it knows."""

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        return Capabilities()


@pytest.mark.guarantee("STREAM-4")
@pytest.mark.parametrize("kind", [MemoryTarget, Forgetful])
@pytest.mark.parametrize("seed", range(5))
def test_a_target_holds_each_micro_batch_once(
    seed: int, kind: type[MemoryTarget[Delivery]], tmp_path: Path
) -> None:
    dice = Random(f"foreach {seed}")
    chain = chain_of(seed)
    truth = Truth(chain)
    store: MemoryStore[Delivery] = MemoryStore()
    write = foreach_batch(kind(store), id="s")
    given = 0
    with Query(PortalSim(chain, seed=seed), tmp_path, dice=dice, limits=limits(far=4)) as query:
        for _ in range(100):
            act(query, chain, truth, dice)
            while given < len(query.sink):
                if dice.random() < 0.3:
                    write = foreach_batch(kind(store), id="s")
                for _ in range(dice.choice([1, 1, 2])):
                    if query.sink[given]:
                        give(write, given, query.sink[given])
                given += 1
                held = [
                    tuple(str(row[name]) for name in NAMES)
                    for batch in store.committed.batches
                    for row in batch.data.data["rows"].to_pylist()
                ]
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
            if rows:
                give(write, batch, rows)
        assert {row["_sign"] for row in last} == {1, -1}
        target.dies = True
        with pytest.raises(Killed):
            give(write, len(before), last)
        target.dies = False
        give(foreach_batch(target, id="s"), len(before), last)
        held = {
            row["block_hash"]
            for batch in target.store.committed.batches
            for row in batch.data.data["rows"].to_pylist()
        }
        branch = chain.path(query.ends[-1]["hash"])
        assert held == {one.hash for one in branch if truth.rows(one)}


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
            if query.sink[batch]:
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
    give(write, 5, rows)
    block = rows[-1]["block_hash"]
    own = [row for row in rows if row["block_hash"] == block]
    gone = [{**row, "_sign": -1, "_commit_version": 900} for row in own]
    back = [{**row, "_commit_version": 901} for row in own]
    for _ in range(2):
        give(write, 6, [*gone, *back])
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
    monkeypatch.setattr(micro_batches, "PRUNE_AT", 3)
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
            if query.sink[batch]:
                give(write, batch, query.sink[batch])
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
