"""A program as a user writes it: one stream into one target. The benchmarks start it anew.

    python benchmarks/path/program.py TARGET PORTAL ADDRESS LAST_BLOCK PASSES [OUTPUTS]

It prints a line of JSON per pass: when it began, when the first batch and the last one were
committed, by the clock of the machine. The second pass of a process finds Spark warm.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

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


def main() -> None:
    kind, portal, address, last, passes, *several = sys.argv[1:]
    if os.environ.get("BENCH_LOG"):
        logging.basicConfig(level=logging.INFO, format="%(relativeCreated)6d %(message)s")
    for number in range(int(passes)):
        began, commits, name = time.time(), list[float](), f"transfers{number}"
        names = [name, *(f"{name}_{more}" for more in range(1, int((several or ["1"])[0])))]
        outputs = {one: evm.events("erc20.Transfer", range=(0, int(last))) for one in names}

        def on_event(event: Event, commits: list[float] = commits) -> None:
            if isinstance(event, Committed):
                commits.append(time.time())
                if os.environ.get("BENCH_LIVE"):
                    print(json.dumps({"committed": commits[-1]}), flush=True)

        stream = portal_stream(id=f"bench{number}", portal=portal, outputs=outputs)
        if os.environ.get("BENCH_TRANSFORM"):
            stream = stream.pipe(large)
        stream.pipe_to(target(kind, address, name), on_event=on_event)
        said = {"began": began, "first": commits[0], "last": commits[-1], "commits": len(commits)}
        print(json.dumps(said), flush=True)


def large(data: Mapping[str, Any]) -> dict[str, Any]:
    """Do a little with DataFrames, as the README's program does."""
    return {name: frame.where("length(value) > 1") for name, frame in data.items()}


def target(kind: str, address: str, name: str) -> Target[Delivery]:
    if kind == "postgres":
        key = ["block_number", "log_index"]
        return postgres_target(address, tables=[postgres_table(name, key=key)])
    if kind == "clickhouse":
        return clickhouse_target(address, tables=[clickhouse_table(name)])
    if kind == "duckdb":
        return duckdb_target(address)
    return Nowhere()


if __name__ == "__main__":
    main()
