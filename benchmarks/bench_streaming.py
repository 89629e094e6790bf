"""A changelog in Structured Streaming: latency of micro-batches, throughput, the journal's share.

    python benchmarks/bench_streaming.py [--blocks 2000] [--head 30]

Final blocks are read by executors, then single blocks arrive at the head. Beside it the same blocks
go through `pipe_to` into a target that drops them. Times are of one machine; read ratios.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headwater import evm, portal_stream
from headwater.spark import local_session, register
from headwater.spark.streaming.folder import LocalFolder
from headwater.targets import MemoryTarget
from headwater.testing import ContentSettings, PortalServer, simulated_portal

EVENT = "erc20.Transfer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--head", type=int, default=30)
    asked = parser.parse_args()
    spark = local_session("bench")
    register(spark)
    content = ContentSettings(transactions_per_block=20, transfers_per_transaction=2)
    with simulated_portal(seed=1, blocks=asked.blocks, content=content) as portal:
        for name, run in (("warm-up", changelog), ("changelog", changelog), ("pipe_to", piped)):
            seconds, rows = run(spark, portal)
            print(f"history, {name}: {rows} rows in {seconds:.2f} s, {rows / seconds:,.0f} rows/s")
        head(spark, portal, asked.head)


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
    spent: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        query = (
            source(spark, portal, folder)
            .writeStream.format("noop")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        query.processAllAvailable()
        seen = query.lastProgress.batchId if query.lastProgress else -1
        for _ in range(blocks):
            began = time.perf_counter()
            portal.extend(1)
            query.processAllAvailable()
            spent.append(time.perf_counter() - began)
        progress = [one for one in query.recentProgress if one.batchId > seen and one.numInputRows]
        query.stop()
        print(f"head, block to processed: p50 {at(spent, 50):.0f} ms, p95 {at(spent, 95):.0f} ms")
        for part in ("triggerExecution", "latestOffset", "addBatch", "walCommit", "commitOffsets"):
            found = [one.durationMs.get(part, 0) / 1000 for one in progress]
            print(f"head, {part}: p50 {at(found, 50):.0f} ms, p95 {at(found, 95):.0f} ms")
        files = sorted(Path(folder, "journal").glob("*.arrow"))
        sizes = [one.stat().st_size for one in files]
        print(f"journal: {len(files)} segments, {sum(sizes) / max(1, len(sizes)):,.0f} bytes each")
        data = files[-1].read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        target = LocalFolder(Path(folder))
        target.open()
        writes = [clock(lambda index=index: target.create(f"{index}", data)) for index in range(50)]  # type: ignore[misc]
        target.close()
    print(f"journal, write and sync: p50 {at(writes, 50):.1f} ms, p95 {at(writes, 95):.1f} ms")
    print(json.dumps({"latency_ms": [round(1000 * one) for one in spent]}))


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
