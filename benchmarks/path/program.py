"""A program as a user writes it: one stream into one target. The benchmarks start it anew.

    python benchmarks/path/program.py TARGET PORTAL ADDRESS LAST_BLOCK PASSES [OUTPUTS [WORK]]

WORK is what the stream does with its rows on their way, one of `WORKS`. With BENCH_SESSION=given
the program brings a session of its own, made before the stream. It prints a line of JSON per pass:
when it began, when the first batch and the last one were committed, by the clock of the machine,
and the CPU seconds that driver, JVM and Python workers took meanwhile. Later passes find Spark
warm.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater import Committed, Event, evm, portal_stream
from headwater.core import Batch, PipeState
from headwater.runtime import ALONE, Runtime
from headwater.targets import clickhouse_target, duckdb_target, postgres_target
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.contract import Capabilities, Delivery, Target
from headwater.targets.frames import executor_rows
from headwater.targets.postgres import table as postgres_table


class Nowhere:
    """Throws rows away where they are: on executors, or here. It keeps no state."""

    def __init__(self) -> None:
        self.capabilities: Capabilities[Delivery] = Capabilities()

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None: ...

    def recover(self) -> PipeState:
        return PipeState()

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        for batch in batches:
            for frame in batch.data.data.values():
                rows = executor_rows(frame)
                if rows is not None:
                    rows.run(drop, pa.schema([]))

    def roll_back(self, state: PipeState) -> None: ...

    def close(self) -> None: ...


def drop(batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Select, cast and rename: the columns as another tool has them."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return {
        name: frame.select(
            "block_number",
            F.col("log_index").cast("int"),
            F.col("transaction_hash").alias("tx"),
            F.col("address").alias("token"),
            F.col("from").alias("sender"),
            F.col("to").alias("receiver"),
            F.col("value").cast("double").alias("amount"),
        )
        for name, frame in data.items()
    }


def filtered(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keep most rows, as they are."""
    return {name: frame.where("length(value) > 1") for name, frame in data.items()}


def joined(data: Mapping[str, Any]) -> dict[str, Any]:
    """Look up the token of each row in a table that does not change."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    made = {}
    for name, frame in data.items():
        tokens = [(f"0x{number:040x}", f"T{number}", 18) for number in range(1000)]
        known = frame.sparkSession.createDataFrame(
            tokens, "token string, symbol string, digits int"
        )
        made[name] = frame.join(F.broadcast(known), frame["address"] == known["token"], "left")
    return made


def by_function(data: Mapping[str, Any]) -> dict[str, Any]:
    """Add a column that a Python function makes of another, in Arrow."""
    from headwater.spark.versions import arrow_function

    size = arrow_function(pc.utf8_length, "int")
    return {name: frame.withColumn("digits", size("value")) for name, frame in data.items()}


Work = Callable[[Mapping[str, Any]], dict[str, Any]]
WORKS: dict[str, Work | None] = {
    "none": None, "select": plain, "filter": filtered, "join": joined, "udf": by_function,
}  # fmt: skip


def cpu() -> dict[str, float]:
    """Return the CPU seconds so far of this process, its JVM, and the Python processes of that."""
    tick, stats = os.sysconf("SC_CLK_TCK"), dict[int, tuple[str, int, list[int]]]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            stats[int(entry.name)] = name, int(fields[1]), list(map(int, fields[11:15]))
    used = dict.fromkeys(("driver", "JVM", "workers"), 0.0)
    for pid, (name, parent, times) in stats.items():
        above = [pid]
        while parent in stats and above[-1] != os.getpid():
            above.append(parent)
            parent = stats[parent][1]
        if above[-1] != os.getpid():
            continue
        if pid == os.getpid() or name == "java":
            used["driver" if pid == os.getpid() else "JVM"] += sum(times[:2]) / tick
        elif any(stats[one][0] == "java" for one in above):
            used["workers"] += sum(times) / tick  # with those that it has waited for
    return used


def main() -> None:
    kind, portal, address, last, passes, *more = sys.argv[1:]
    outputs_count, work = (*more, *("1", "none")[len(more) :])
    if os.environ.get("BENCH_LOG"):
        logging.basicConfig(level=logging.INFO, format="%(relativeCreated)6d %(message)s")
    given = None
    if os.environ.get("BENCH_SESSION") == "given":
        from pyspark.sql import SparkSession

        given = SparkSession.builder.master("local[2]").getOrCreate()
        given.sparkContext.setLogLevel("ERROR")
    before = dict.fromkeys(("driver", "JVM", "workers"), 0.0)
    for number in range(int(passes)):
        began, commits, name = time.time(), list[float](), f"transfers{number}"
        names = [name, *(f"{name}_{more}" for more in range(1, int(outputs_count)))]
        outputs = {one: evm.events("erc20.Transfer", range=(0, int(last))) for one in names}

        def on_event(event: Event, commits: list[float] = commits) -> None:
            if isinstance(event, Committed):
                commits.append(time.time())
                if os.environ.get("BENCH_LIVE"):
                    print(json.dumps({"committed": commits[-1]}), flush=True)

        stream = portal_stream(id=f"bench{number}", portal=portal, outputs=outputs, spark=given)
        if (transform := WORKS[work]) is not None:
            stream = stream.pipe(transform)
        stream.pipe_to(target(kind, address, names), on_event=on_event)
        used = cpu()
        said = {"began": began, "first": commits[0], "last": commits[-1], "commits": len(commits),
                "cpu": {one: seconds - before[one] for one, seconds in used.items()}}  # fmt: skip
        before = used
        print(json.dumps(said), flush=True)


def target(kind: str, address: str, names: Sequence[str]) -> Target[Delivery]:
    if kind == "postgres":
        key = ["block_number", "log_index"]
        return postgres_target(address, tables=[postgres_table(name, key=key) for name in names])
    if kind == "clickhouse":
        return clickhouse_target(address, tables=[clickhouse_table(name) for name in names])
    if kind == "duckdb":
        return duckdb_target(address)
    return Nowhere()


if __name__ == "__main__":
    main()
