"""A changelog in Structured Streaming: latency of micro-batches, throughput, the journal's share.

    python benchmarks/bench_streaming.py [--blocks 2000] [--head 30]

Final blocks are read by executors, then single blocks arrive at the head. Beside it the same blocks
go through `pipe_to` into a target that drops them. The portal holds an answer back until there is a
block, as real ones do. Times are of one machine; read ratios.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headwater import evm, portal_stream
from headwater.spark import local_session, register
from headwater.spark.streaming.folder import LocalFolder
from headwater.targets import MemoryTarget
from headwater.testing import ContentSettings, PortalServer, simulated_portal

EVENT = "erc20.Transfer"
PAUSE_S = 0.5  # between two blocks at the head: what reads has come to wait by then
LIMIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--head", type=int, default=30)
    parser.add_argument("--held", type=float, default=5.0, help="seconds; 0: the portal is polled")
    asked = parser.parse_args()
    spark = local_session("bench")
    register(spark)
    content = ContentSettings(transactions_per_block=20, transfers_per_transaction=2)
    with simulated_portal(
        seed=1, blocks=asked.blocks, content=content, no_content_delay=asked.held
    ) as portal:
        for name, run in (("warm-up", changelog), ("changelog", changelog), ("pipe_to", piped)):
            seconds, rows = run(spark, portal)
            print(f"history, {name}: {rows} rows in {seconds:.2f} s, {rows / seconds:,.0f} rows/s")
        head(spark, portal, asked.head)
        piped_head(spark, portal, asked.head)


def source(spark: SparkSession, portal: PortalServer, folder: str) -> DataFrame:
    options = {"portal": portal.url, "event": EVENT, "journal": f"{folder}/journal", "far": "50"}
    return spark.readStream.format("headwater").options(**options).load()


def changelog(spark: SparkSession, portal: PortalServer) -> tuple[float, int]:
    """Read all that is there with `Trigger.AvailableNow` into a sink that drops it."""
    with tempfile.TemporaryDirectory() as folder:
        writer = source(spark, portal, folder).writeStream.format("noop")
        started = time.perf_counter()
        query = (
            writer.option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - started
        return seconds, sum(one.numInputRows for one in query.recentProgress)


def piped(spark: SparkSession, portal: PortalServer) -> tuple[float, int]:
    """Read the same blocks with `pipe_to`."""
    last = portal.chain.head.number
    rows = 0

    class Counting(MemoryTarget[Any]):
        def commit(self, batches: Any, state: Any) -> None:
            nonlocal rows
            for batch in batches:
                rows += batch.data.data["t"].count()

    stream = portal_stream(
        id="bench", portal=portal.url, spark=spark, far=50,
        outputs={"t": evm.events(EVENT, range=(0, last))},
    )  # fmt: skip
    started = time.perf_counter()
    stream.pipe_to(Counting())
    return time.perf_counter() - started, rows


def head(spark: SparkSession, portal: PortalServer, blocks: int) -> None:
    """Let single blocks arrive, and take the durations of their micro-batches apart."""
    written: SimpleQueue[int] = SimpleQueue()

    def each(rows: DataFrame, batch_id: int) -> None:
        written.put(max(row[0] for row in rows.select("block_number").collect()))

    with tempfile.TemporaryDirectory() as folder:
        query = (
            source(spark, portal, folder)
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        spent = arrivals(portal, written, blocks)
        progress = [one for one in query.recentProgress if one.numInputRows][-blocks:]
        began = time.perf_counter()
        query.stop()
        print(f"head, query.stop(): {1000 * (time.perf_counter() - began):.0f} ms")
        tell("head, changelog, block to rows in foreachBatch", spent)
        for part in ("triggerExecution", "latestOffset", "addBatch", "walCommit", "commitOffsets"):
            tell(f"head, {part}", [one.durationMs.get(part, 0) / 1000 for one in progress])
        files = sorted(Path(folder, "journal").glob("*.arrow"))
        sizes = [one.stat().st_size for one in files]
        print(f"journal: {len(files)} segments, {sum(sizes) / max(1, len(sizes)):,.0f} bytes each")
        data = files[-1].read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        target = LocalFolder(Path(folder))
        target.open()
        writes = [clock(lambda index=index: target.create(f"{index}", data)) for index in range(50)]  # type: ignore[misc]
        target.close()
    tell("journal, write and sync", writes)
    print(json.dumps({"latency_ms": [round(1000 * one) for one in spent]}))


def piped_head(spark: SparkSession, portal: PortalServer, blocks: int) -> None:
    """Let single blocks arrive with `pipe_to`: from the block to its commit."""
    committed: SimpleQueue[int] = SimpleQueue()

    class Telling(MemoryTarget[Any]):
        def commit(self, batches: Any, state: Any) -> None:
            for batch in batches:
                batch.data.data["t"].count()
            super().commit(batches, state)
            committed.put(state.number)

    events = evm.events(EVENT, range=portal.chain.head.number - 5)
    stream = portal_stream(id="head", portal=portal.url, spark=spark, outputs={"t": events})
    running = stream.start(Telling())
    try:
        tell("head, pipe_to, block to commit", arrivals(portal, committed, blocks))
    finally:
        running.stop()


def arrivals(portal: PortalServer, arrived: SimpleQueue[int], blocks: int) -> list[float]:
    """Let single blocks arrive once the head is reached; return how long each took to be told."""

    def reach_head() -> None:
        while arrived.get(timeout=LIMIT_S) < portal.chain.head.number:
            pass

    reach_head()
    spent = []
    for _ in range(blocks):
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        portal.extend(1)
        reach_head()
        spent.append(time.perf_counter() - began)
    return spent


def tell(what: str, seconds: list[float]) -> None:
    print(f"{what}: p50 {at(seconds, 50):.1f} ms, p95 {at(seconds, 95):.1f} ms")


def clock(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def at(seconds: list[float], percent: int) -> float:
    """Return a percentile in milliseconds."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


if __name__ == "__main__":
    main()
