"""What a callback is given: the same methods on every path, from history to the head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater import SpanLimits, StopRequested, create_target, evm, foreach_batch, portal_stream
from headwater.core import Batch, PipeState
from headwater.pipeline import Event
from headwater.spark.frames import spark_schema
from headwater.spark.streaming.changelog_rows import changelog_schema
from headwater.stream import PortalStream
from headwater.targets import MemoryStore, MemoryTarget, duckdb_target
from headwater.targets.contract import Delivery
from headwater.testing import PortalServer, simulated_portal
from tests.spark.streaming.micro_batches import ROWS

SEEN: Counter[tuple[str, str]] = Counter()
"""By callback and path, how often it was called."""


def use(callback: str, data: Mapping[str, Any], ctx: Any) -> None:
    """Call what the documents name of each frame, and of the context."""
    assert ctx.stream.state.current.number >= 0
    assert ctx.batch.rows_count >= 0
    key = callback, "hot" if ctx.stream.state.rollback_chain else "history"
    SEEN[key] += 1
    for frame in data.values():
        rows = frame.toArrow()
        assert isinstance(rows, pa.Table)
        assert frame.count() == rows.num_rows
        assert frame.isEmpty() == (rows.num_rows == 0)
        assert frame.columns == frame.schema.names == rows.column_names
        if SEEN[key] <= 2:  # Spark jobs, which cost
            kept = frame.where("block_number >= 0").select("block_number", "value")
            assert kept.toArrow().num_rows == rows.num_rows


def on_data(name: str) -> Any:
    """Return a callback of a target that inserts."""

    def insert(tx: Any, data: Mapping[str, Any], ctx: Any) -> None:
        use(name, data, ctx)
        for frame in data.values():
            tx.insert("transfers", frame)

    return insert


class Noting(MemoryTarget[Delivery]):
    """A target with the contract."""

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        for batch in batches:
            use("contract", batch.data.data, batch.data.ctx)
        super().commit(batches, state)


def transform(kind: str) -> Any:
    """Return a transform that gives its rows on in some form."""

    def change(data: Mapping[str, Any], ctx: Any) -> Mapping[str, Any]:
        use(f"transform before {kind}", data, ctx)
        rows = data["transfers"]
        return {
            "transfers": {
                "Arrow": lambda: rows.toArrow(),
                "a batch": lambda: rows.toArrow().combine_chunks().to_batches()[0],
                "a DataFrame": lambda: rows.select("*"),
                "the frame": lambda: rows,
            }[kind]()
        }

    return change


def stream_of(portal: PortalServer, spark: SparkSession) -> PortalStream:
    return portal_stream(
        id="s", portal=portal.url, spark=spark, far=8, first_span=10, spans=SpanLimits(blocks=10),
        poll_interval_s=0.01, outputs={"transfers": evm.events("erc20.Transfer", range=2)},
    )  # fmt: skip


def run(stream: PortalStream, portal: PortalServer, *targets: Any) -> None:
    def until_head(event: Event) -> None:
        if event.state.number >= portal.chain.head.number:
            raise StopRequested

    given = targets[0] if len(targets) == 1 else targets
    assert stream.start(given, on_event=until_head).await_termination(300)


def test_every_callback_is_given_the_same_on_every_path(
    spark: SparkSession, tmp_path: Path
) -> None:
    SEEN.clear()

    def database() -> Any:
        path = tmp_path / "chain.duckdb"
        return duckdb_target(path, tables=["transfers"], on_data=on_data("on_data"))

    store: MemoryStore[Delivery] = MemoryStore()
    with simulated_portal(seed=3, blocks=26, finality_depth=3) as portal:
        stream = stream_of(portal, spark)
        run(stream.pipe_batches(transform("Arrow")), portal, database(), Noting(store))
        portal.fork(2, 24)
        portal.finalize(portal.chain.head.number - 3)
        run(stream.pipe_batches(transform("a DataFrame")), portal, database())
        portal.extend(12)
        portal.finalize(portal.chain.head.number - 3)
        SEEN["on_data", "history"] = SEEN["contract", "history"] = 0
        together = stream.pipe_batches(transform("a batch")).pipe_batches(transform("the frame"))
        run(together, portal, database(), Noting(store))  # the first is ahead, in a span
        assert SEEN["contract", "history"] >= SEEN["on_data", "history"] > 0

        def write(read: Any) -> None:
            for batch in read(None):
                use("write", batch.data, batch.ctx)
                if batch.ctx.stream.state.current.number >= portal.chain.head.number:
                    return

        stream.pipe_to(create_target(write=write), progress=False)
        for batch in stream:
            use("iteration", batch.data, batch.ctx)
            if batch.ctx.stream.state.current.number >= 20:
                break
    micro_batches(spark, tmp_path)
    both = {"history", "hot"}
    met = {name: {path for one, path in SEEN if one == name} for name, _ in SEEN}
    final_only = {"iteration", "write of micro-batches"}
    assert met == {name: {"history"} if name in final_only else both for name in met}
    assert len(met) == 10, sorted(met)


def micro_batches(spark: SparkSession, folder: Path) -> None:
    """Hand micro-batches over, of final and of hot blocks."""

    def write(read: Any) -> None:
        for batch in read(None):
            use("write of micro-batches", batch.data, batch.ctx)

    target = duckdb_target(
        folder / "micro.duckdb", tables=["transfers"], on_data=on_data("micro-batches")
    )
    into, own = foreach_batch(target, id="s"), foreach_batch(create_target(write=write), id="s")
    for batch_id, final in ((0, 2), (1, None)):
        rows = [
            {
                **{field.name: "1" for field in ROWS.schema if field.type == pa.string()},
                "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
                "transaction_index": 0,
                "log_index": 0,
                "block_number": 2 * batch_id + at,
                "_change_type": "insert",
                "_commit_version": 2 * batch_id + at,
                "_commit_timestamp": datetime(2026, 1, 1, tzinfo=UTC),
                "_sign": 1,
                "_row_id": f"0x{2 * batch_id + at}-0",
                "_finalized": final,
            }
            for at in (1, 2)
        ]
        frame = spark.createDataFrame(rows, spark_schema(changelog_schema(ROWS.schema)))
        into(frame, batch_id)
        if final is not None:
            own(frame, batch_id)
    into.close()
    assert target.query("SELECT count(*) n FROM transfers")["n"].to_pylist() == [4]


@pytest.mark.parametrize("kind", [pa.table, pa.record_batch])
def test_rows_that_are_filtered_stay_a_frame(kind: Any) -> None:
    from headwater.spark.frames import as_frames

    def no_spark() -> Any:
        raise AssertionError("Spark was asked")

    frame = as_frames({"t": kind({"block_number": [1, 2, 3]})}, no_spark)["t"]
    assert frame.above("block_number", 2).toArrow().to_pylist() == [{"block_number": 3}]
