"""Iceberg: undo against the size of a table, commits against history, the head, a backfill.

    python benchmarks/lake/bench_iceberg.py undo [ROWS …]      # default: 10,000 and 10,000,000
    python benchmarks/lake/bench_iceberg.py commits [COUNT]    # default: 400, with and without
    python benchmarks/lake/bench_iceberg.py backfill [LOGS]    # default: 1,000,000, on Spark

`undo` goes back three hot blocks of 200 rows. `commits` gives the time from a block of 200 rows to
its being readable, and to its being committed, by the age of the table: 64 blocks are hot, as on
Ethereum. `backfill` reads a portal on this machine through the whole pipeline, warm, and has Spark
write the same rows from its memory to Parquet. Everything is in a temporary directory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from headwater.targets.iceberg import IcebergSettings, IcebergTarget, iceberg_target
from headwater.testing.conformance.model import Change, Rig

HOT, PER_BLOCK = 64, 200
ADDRESS = "0x" + "ab" * 20


def rows(block: int, count: int, first: int = 0) -> pa.Table:
    """Return transfers of one block."""
    numbers = pa.array(range(first, first + count), pa.int64())
    return pa.table(
        {
            "block_number": pa.repeat(pa.scalar(block, pa.int64()), count),
            "log_index": numbers,
            "address": pa.repeat(ADDRESS, count),
            "value": numbers.cast(pa.string()),
        }
    )


def started(path: str, every: int) -> Rig:
    target: IcebergTarget = iceberg_target(
        path, tables=["log"], settings=IcebergSettings(maintain_every=every)
    )
    target.bind("bench")
    target.recover()
    return Rig(target, lambda name: [], [])


def block(rig: Rig, number: int, frame: pa.Table, final: int) -> None:
    rig.block(number, Change("insert", "log", (), frame), final=final)


def undo(sizes: list[int]) -> None:
    """Print how long a rollback of three blocks takes."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rig, number, left = started(folder, 0), 0, size
            while left:
                number, count = number + 1, min(left, 1_000_000)
                block(rig, number, rows(number, count, number * 1_000_000), number)
                left -= count
            final, times = number, []
            for _ in range(7):
                for ahead in range(1, 5):
                    block(rig, final + ahead, rows(final + ahead, PER_BLOCK), final)
                began = time.perf_counter()
                rig.roll_back(final + 1)
                times.append(time.perf_counter() - began)
                rig.roll_back(final)
            rig.target.close()
        print(f"undo of 3 blocks, {size:>12,} rows: {median(times) * 1000:6.1f} ms")


def commits(count: int) -> None:
    """Print the time of a commit by the number of commits before it."""
    for every in (0, 100):
        with tempfile.TemporaryDirectory() as folder:
            rig = started(folder, every)
            target: Any = rig.target
            readable: list[float] = []
            whole: list[float] = []
            stored = [0.0]

            def step(text: str, stored: list[float] = stored) -> None:
                if text == "store state":
                    stored[0] = time.perf_counter()

            target.on_step = step
            for number in range(1, count + 1):
                frame = rows(number, PER_BLOCK)
                began = time.perf_counter()
                block(rig, number, frame, max(number - HOT, 0))
                whole.append(time.perf_counter() - began)
                readable.append(stored[0] - began)
            target.close()
        print("with upkeep every 100 commits" if every else "without upkeep")
        for first in range(0, count, max(count // 4, 1)):
            part = slice(first, first + max(count // 4, 1))
            read, all_ = readable[part], whole[part]
            print(
                f"  commits {part.start:>4} to {part.stop:>4}: readable p50 "
                f"{median(read) * 1000:6.1f} ms, p95 {quantiles(read, n=20)[-1] * 1000:6.1f} ms; "
                f"committed p50 {median(all_) * 1000:6.1f} ms"
            )


def backfill(logs: int) -> None:
    """Print the time of a backfill, and that of Spark writing the same rows from memory."""
    from headwater import evm, portal_stream
    from headwater.spark import local_session
    from template_portal import template_portal

    spark = local_session("lake")
    blocks = logs // 100
    with tempfile.TemporaryDirectory() as folder, template_portal(blocks, 100) as portal:
        for name in ("cold", "warm"):
            target = iceberg_target(f"{folder}/{name}", tables=["transfers"])
            stream = portal_stream(
                id="backfill",
                portal=portal,
                outputs={"transfers": evm.events("erc20.Transfer", range=(0, blocks - 1))},
                spark=spark,
            )
            began = time.perf_counter()
            stream.pipe_to(target)
            took = time.perf_counter() - began
            print(f"backfill of {logs:,} rows, {name}: {took:5.1f} s, {logs / took:,.0f} rows/s")
        files = [str(one) for one in Path(folder, "warm/default/transfers/data").iterdir()]
        frame = spark.read.parquet(*files).cache()
        assert frame.count() == logs, "all rows are there"
        for name in ("first", "second"):
            began = time.perf_counter()
            frame.write.option("compression", "zstd").parquet(f"{folder}/spark-{name}")
            took = time.perf_counter() - began
            print(f"Spark from memory, {name}: {took:5.1f} s, {logs / took:,.0f} rows/s")
    spark.stop()


def main() -> None:
    what, *given = sys.argv[1:]
    numbers = [int(one.replace(",", "")) for one in given]
    if what == "undo":
        undo(numbers or [10_000, 10_000_000])
    elif what == "commits":
        commits(*numbers or [400])
    else:
        backfill(*numbers or [1_000_000])


if __name__ == "__main__":
    main()
