"""Micro-batches into a target, exactly once: forks, replays, and targets that die in between."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from headwater import foreach_batch
from headwater.core import BlockHeader
from headwater.errors import ForkCursorMissingError, InvalidOptionError
from headwater.spark.streaming.changelog_rows import changelog_schema
from headwater.targets import MemoryStore, MemoryTarget, duckdb_target
from headwater.targets.contract import Delivery
from headwater.testing import PortalSim
from tests.spark.streaming.micro_batches import ROWS, TRANSFER, Killed, Query, limits
from tests.spark.streaming.test_follower import NAMES, Truth, act, chain_of

SCHEMA = changelog_schema(ROWS.schema)


def give(write: object, rows: list[dict[str, object]]) -> None:
    """Hand a micro-batch over, as `__call__` does once it has looked at the DataFrame."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    last = max(rows, key=lambda row: int(str(row["block_number"])))
    final = all(row["_finalized"] is not None for row in rows) and all(
        row["_sign"] == 1 and row["block_number"] <= row["_finalized"]  # type: ignore[operator]
        for row in rows
    )
    if final:
        header = BlockHeader(int(str(last["block_number"])), str(last["block_hash"]))
        write.apply_final(header, table.select(ROWS.schema.names))  # type: ignore[attr-defined]
    else:
        write.apply(table)  # type: ignore[attr-defined]


@pytest.mark.guarantee("STREAM-4")
@pytest.mark.parametrize("seed", range(10))
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
                    if query.sink[given]:
                        give(write, query.sink[given])
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
        for rows in filter(None, before):
            give(write, rows)
        assert {row["_sign"] for row in last} == {1, -1}
        target.dies = True
        with pytest.raises(Killed):
            give(write, last)
        target.dies = False
        give(foreach_batch(target, id="s"), last)
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
                give(write, query.sink[batch])
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
    give(write, [first, *others])
    store.committed.state  # noqa: B018 - it is there
    gone = {**first, "_sign": -1, "_change_type": "delete", "_commit_version": 1000}
    below = {**gone, "block_number": 0, "_commit_version": 1001}
    with pytest.raises(ForkCursorMissingError):
        give(write, [gone, below])


def test_an_id_is_needed() -> None:
    with pytest.raises(InvalidOptionError):
        foreach_batch(MemoryTarget(), id="")
