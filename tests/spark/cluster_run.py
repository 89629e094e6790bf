"""One driver on a cluster, in a process of its own, that fills six targets. For `test_cluster`.

What it is given stands in a file: addresses, a folder, spans, and whether it dies. In the last span
a task that is in the middle of its work writes the process id of its worker to the file `working`,
and waits to be lost.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater import SpanLimits, evm, portal_stream
from headwater.portal import PortalLimits, Timeouts
from headwater.spark import local_session, ship
from headwater.spark.executors import map_in_arrow
from headwater.targets import (
    clickhouse_target,
    delta_target,
    duckdb_target,
    iceberg_target,
    parquet_target,
    postgres_target,
)
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.postgres import table as postgres_table

REDUCERS = 3  # more than cores: one has not begun when a worker is lost


def main(given: dict[str, Any]) -> None:
    folder = given["folder"]
    spark = local_session(
        "cluster",
        **{
            "spark.master": given["master"],
            "spark.executor.memory": "512m",
            "spark.executor.cores": 1,
            "spark.cores.max": 1 if given["dies"] else 2,  # who dies needs no second executor
            "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
            "spark.speculation": True,
            "spark.speculation.interval": "100ms",
            "spark.speculation.task.duration.threshold": "1s",
            "spark.shuffle.io.retryWait": "100ms",  # a machine that is gone does not come back
            "spark.locality.wait": 0,
            "spark.eventLog.enabled": True,
            "spark.eventLog.dir": f"file://{folder}/events",
            "spark.eventLog.compress": False,
            "spark.eventLog.rolling.enabled": False,
        },
    )
    ship(spark)  # the workers' Python does not have headwater

    def shuffled(data: Mapping[str, Any]) -> dict[str, Any]:
        """Order rows anew by their token, as a join or an aggregation does."""
        frame = data["transfers"]
        columns = frame.limit(0).toArrow().schema
        moved = frame.dataframe.repartition(REDUCERS, "address")
        return {
            "transfers": map_in_arrow(moved, Loss(folder, given["last"] - given["span"]), columns)
        }

    postgres = postgres_target(
        given["postgres"],
        tables=[postgres_table("transfers", append_only=True)],
        on_data=lambda tx, data: tx.insert("transfers", data["transfers"]),
    )
    clickhouse = clickhouse_table("transfers", types={"value": "UInt256"})
    states = []

    def watch(sql: str) -> None:
        states.append(sql.startswith('INSERT INTO "public"."sync" '))
        if given["dies"] and sum(states) == 2:
            # ClickHouse has committed; these rows are copied, and their commit is not sent
            os.kill(os.getpid(), signal.SIGKILL)

    postgres.on_statement = watch
    stream = portal_stream(
        id="s",
        portal=given["portal"],
        spark=spark,
        far=50,
        first_span=given["span"],
        spans=SpanLimits(blocks=given["span"]),
        timeouts=Timeouts(chunk_s=500),  # a part that hangs is not given up by its task
        limits=PortalLimits(requests=2),  # its own, and one for the copy: what is lost gives back
        outputs={"transfers": evm.events("erc20.Transfer", range=(0, given["last"]))},
    )
    stream.pipe_batches(shuffled).pipe_to(
        [
            clickhouse_target(given["clickhouse"], tables=[clickhouse]),
            postgres,
            iceberg_target(f"{folder}/iceberg", tables=["transfers"]),
            delta_target(f"{folder}/delta", tables=["transfers"]),
            parquet_target(f"{folder}/parquet"),
            duckdb_target(f"{folder}/a.duckdb"),
        ],
        progress=False,
    )
    spark.stop()


class Loss:
    """Hands rows on; once, in the middle of a part above a block, it waits for its end."""

    def __init__(self, folder: str, block: int) -> None:
        self.sign = Path(folder, "working")
        self.block = block

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on an executor, whose session is its worker's."""
        for batch in batches:
            yield batch
            if batch["block_number"][0].as_py() > self.block and self._is_first():
                signal.pause()

    def _is_first(self) -> bool:
        try:
            sign = self.sign.open("x")
        except FileExistsError:
            return False
        with sign:
            sign.write(f"{os.getsid(0)}\n")
        return True


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
