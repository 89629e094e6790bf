"""Lakes: undo against the size of a table, commits against history, the head, a backfill.

    python benchmarks/lake/bench_lake.py undo FORMAT [ROWS …]     # default: 10,000 and 10,000,000
    python benchmarks/lake/bench_lake.py commits FORMAT [COUNT]   # default: 400, with and without
    python benchmarks/lake/bench_lake.py history FORMAT [COUNT]   # default: 40 of 200,000 rows
    python benchmarks/lake/bench_lake.py backfill [LOGS]          # default: 2,000,000, on Spark

FORMAT is iceberg or delta. `undo` goes back three hot blocks of 200 rows, once the disk has written
the rows below them. `commits` gives the time from a block of 200 rows to its being readable by
others, and to its being committed, by the age of the table: 64 blocks are hot, as on Ethereum; then
it counts what the table has gathered. `history` commits final rows and gives the cost of each
quarter, which is the same if the whole is linear. `backfill`
reads a portal on this machine through the whole pipeline, warm, into each of the three, and beside
that: Spark writing the same rows from its memory to Parquet. All files are temporary.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from headwater.targets import ParquetSettings, Rollover, parquet_target
from headwater.targets.delta import DeltaSettings, delta_target
from headwater.targets.iceberg import IcebergSettings, iceberg_target
from headwater.testing.conformance.model import Change, Rig

HOT, PER_BLOCK = 64, 200
FORKS, SPAN_ROWS = 21, 200_000
TEMPLATES = 1000  # blocks after which rows of a backfill repeat: more than a row group holds
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


def started(kind: str, path: str, every: int) -> Rig:
    target: Any = (
        iceberg_target(path, tables=["log"], settings=IcebergSettings(maintain_every=every))
        if kind == "iceberg"
        else delta_target(path, settings=DeltaSettings(maintain_every=every))
    )
    target.bind("bench")
    target.recover()
    return Rig(target, lambda name: [], [])


def block(rig: Rig, number: int, frame: pa.Table, final: int) -> None:
    rig.block(number, Change("insert", "log", (), frame), final=final)


def undo(kind: str, sizes: list[int]) -> None:
    """Print how long a rollback of three blocks takes."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rig, number, left = started(kind, folder, 0), 0, size
            while left:
                number, count = number + 1, min(left, 1_000_000)
                block(rig, number, rows(number, count, number * 1_000_000), number)
                left -= count
            os.sync()
            final, times = number, []
            for _ in range(FORKS):
                for ahead in range(1, 5):
                    block(rig, final + ahead, rows(final + ahead, PER_BLOCK), final)
                began = time.perf_counter()
                rig.roll_back(final + 1)
                times.append(time.perf_counter() - began)
                rig.roll_back(final)
            rig.target.close()
        low, _, high = quantiles(times)
        print(
            f"{kind}: undo of 3 blocks, {size:>12,} rows: {median(times) * 1000:6.1f} ms "
            f"(half of {FORKS} between {low * 1000:.1f} and {high * 1000:.1f})",
            flush=True,
        )


def history(kind: str, count: int) -> None:
    """Print what a commit of many final rows costs, by the number of those before it."""
    with tempfile.TemporaryDirectory() as folder:
        rig = started(kind, folder, 100)
        times: list[tuple[float, float]] = []
        for number in range(1, count + 1):
            frame = rows(number, SPAN_ROWS, number * SPAN_ROWS)
            began, cpu = time.perf_counter(), time.process_time()
            block(rig, number, frame, number)
            times.append((time.perf_counter() - began, time.process_time() - cpu))
        rig.target.close()
        for first in range(0, count, count // 4):
            part = times[first : first + count // 4]
            print(
                f"{kind}: rows {first * SPAN_ROWS:>10,} to {(first + len(part)) * SPAN_ROWS:>10,}: "
                f"a commit {median(one for one, _ in part) * 1000:6.1f} ms, "
                f"{median(one for _, one in part) * 1000:6.1f} CPU-ms",
                flush=True,
            )


def commits(kind: str, count: int) -> None:
    """Print the time of a commit by the number of commits before it."""
    for every in (0, 100):
        with tempfile.TemporaryDirectory() as folder:
            rig = started(kind, folder, every)
            target: Any = rig.target
            readable: list[float] = []
            whole: list[float] = []
            stored = [0.0]

            def step(text: str, stored: list[float] = stored) -> None:
                if text == "store state":  # Iceberg's tables are committed; Delta's are with it
                    stored[0] = time.perf_counter()

            target.on_step = step
            for number in range(1, count + 1):
                frame = rows(number, PER_BLOCK)
                began = time.perf_counter()
                block(rig, number, frame, max(number - HOT, 0))
                whole.append(time.perf_counter() - began)
                readable.append(stored[0] - began if stored[0] else whole[-1])
            target.close()
            print(f"{kind}, maintained every 100 commits" if every else f"{kind}, not maintained")
            for first in range(0, count, max(count // 4, 1)):
                part = slice(first, first + max(count // 4, 1))
                read, all_ = readable[part], whole[part]
                print(
                    f"  commits {part.start:>4} to {part.stop:>4}: readable p50 "
                    f"{median(read) * 1000:6.1f} ms, p95 {quantiles(read, n=20)[-1] * 1000:6.1f} "
                    f"ms; committed p50 {median(all_) * 1000:6.1f} ms, "
                    f"most {max(all_) * 1000:6.1f} ms"
                )
            print(f"  {held(kind, Path(folder))}")


def held(kind: str, folder: Path) -> str:
    """Return what a table has gathered."""
    data = len(list(folder.glob("**/log/data/*.parquet")))
    if kind == "delta":
        from deltalake import DeltaTable

        log = len(list((folder / "log/_delta_log").iterdir()))
        live = len(DeltaTable(folder / "log").file_uris())
        return f"{live} files of {data} on disk, {log} entries in the log"
    from pyiceberg.catalog import load_catalog

    lake = load_catalog("headwater", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    table = lake.load_table("default.log")
    live = len(list(table.scan().plan_files()))
    versions = len(list(folder.glob("**/log/metadata/*.metadata.json")))
    manifests = len(list(folder.glob("**/log/metadata/*.avro")))
    snapshots = len(table.metadata.snapshots)
    lake.close()
    return (
        f"{live} files of {data} on disk, {snapshots} snapshots, {versions} metadata files, "
        f"{manifests} manifests and lists on disk"
    )


def backfill(logs: int) -> None:
    """Print the time of a backfill, and that of Spark writing the same rows from memory."""
    from headwater import evm, portal_stream
    from headwater.spark import local_session
    from template_portal import template_portal

    spark = local_session("lake", **{"spark.driver.memory": "4g"})
    blocks = logs // 100
    made: dict[str, Any] = {
        "parquet": lambda path: parquet_target(path, settings=ParquetSettings(rollover=Rollover())),
        "iceberg": lambda path: iceberg_target(path, tables=["transfers"]),
        "delta": delta_target,
    }

    def timed(what: str, work: Callable[[], object]) -> None:
        began, cpu = time.perf_counter(), cpu_seconds()
        work()
        took, spent = time.perf_counter() - began, cpu_seconds() - cpu
        print(
            f"{what:<44} {took:5.1f} s, {logs / took:>9,.0f} rows/s, {spent:5.1f} CPU-s", flush=True
        )

    with tempfile.TemporaryDirectory() as folder, template_portal(blocks, 100, TEMPLATES) as portal:
        for name, kind in (("cold", "parquet"), *(("warm", one) for one in made)):
            stream = portal_stream(
                id="backfill",
                portal=portal,
                outputs={"transfers": evm.events("erc20.Transfer", range=(0, blocks - 1))},
                spark=spark,
            )
            target = made[kind](f"{folder}/{name}-{kind}")
            work = partial(stream.pipe_to, target, progress=False)
            timed(f"portal to {kind}, whole pipeline, {name}", work)
        frame = spark.read.parquet(f"{folder}/warm-parquet/transfers").cache()
        assert frame.count() == logs, "all rows are there"
        for name in ("first", "second", "third"):
            writer = frame.write.option("compression", "zstd")
            work = partial(writer.parquet, f"{folder}/spark-{name}")
            timed(f"Spark from memory to Parquet, {name}", work)
    spark.stop()


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all that it has started; of the portal, too."""
    parents, spent = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                spent[int(entry.name)] = sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, above in parents.items() if above in mine} - mine:
        mine |= more
    return sum(spent[pid] for pid in mine if pid in spent) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    what, *given = sys.argv[1:]
    if what == "backfill":
        backfill(*(int(one.replace(",", "")) for one in given or ["2,000,000"]))
        return
    kind, *rest = given
    numbers = [int(one.replace(",", "")) for one in rest]
    if what == "undo":
        undo(kind, numbers or [10_000, 10_000_000])
    elif what == "history":
        history(kind, *numbers or [40])
    else:
        commits(kind, *numbers or [400])


if __name__ == "__main__":
    main()
