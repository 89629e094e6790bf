"""One executor against two: a backfill into Iceberg on a standalone cluster of two workers.

Each executor has one core of a machine with two, which also serves the portal's answers (rendered
beforehand, `template_portal`) and runs the driver; the rows are fetched, decoded and written by
executors. Spans are of one size; the first one, which starts Python workers, does not count. Runs
alternate; medians are shown. Exit code 1 if two executors are less than 1.6 times as fast as one.

    python benchmarks/bench_executors.py [rows]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from headwater.testing.servers import spark_cluster
from template_portal import template_portal

LIMIT = 1.6
ROUNDS = 3
LOGS = 250
SPAN = 2000

DRIVER = """
import os, sys, time
from headwater import evm, portal_stream
from headwater.pipeline import Committed
from headwater.spark import local_session
from headwater.targets import iceberg_target

master, portal, folder, last, span, executors = sys.argv[1:]
spark = local_session("bench-executors", **{
    "spark.master": master, "spark.driver.memory": "1g", "spark.executor.memory": "1g",
    "spark.executor.cores": 1, "spark.cores.max": executors,
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]})
times = []
def on_event(event):
    if isinstance(event, Committed):
        times.append((time.perf_counter(), event.blocks))
portal_stream(
    id="bench", portal=portal, spark=spark, far=100, first_span=int(span), largest_span=int(span),
    outputs={"transfers": evm.events("erc20.Transfer", range=(0, int(last)))},
).pipe_to(iceberg_target(folder, tables=["transfers"]), on_event=on_event)
blocks = sum(count for _, count in times[1:])
print("measured", blocks / (times[-1][0] - times[0][0]))
"""


def run(master: str, portal: str, blocks: int, executors: int) -> float:
    """Run one backfill; return its rows per second after the first span."""
    folder = tempfile.mkdtemp()
    command = [master, portal, folder, str(blocks - 1), str(SPAN), str(executors)]
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, *command],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[1] / "src")),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    shutil.rmtree(folder)
    if ran.returncode:
        raise SystemExit(ran.stderr[-2000:])
    return LOGS * float(ran.stdout.split("measured")[1])


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
    blocks = rows // LOGS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = stack.enter_context(spark_cluster(folder, workers=2, cores=1))
        portal = stack.enter_context(template_portal(blocks + 50, LOGS))
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(ROUNDS):
            for executors, found in rates.items():
                found.append(run(master, portal, blocks, executors))
    print(f"{rows:,} rows on {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end\n")
    print("| executors of one core | rows/s, median | of all runs |\n|--:|--:|---|")
    for executors, found in rates.items():
        every = ", ".join(f"{one:,.0f}" for one in sorted(found))
        print(f"| {executors} | {median(found):,.0f} | {every} |")
    ratio = median(rates[2]) / median(rates[1])
    print(f"\ntwo executors are {ratio:.2f} times as fast as one (limit {LIMIT})")
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
