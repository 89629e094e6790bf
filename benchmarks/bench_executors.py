"""One executor against two: a backfill into Iceberg on a standalone cluster of two workers.

Each executor has one core of a machine with two, which also serves the portal's answers (rendered
and compressed beforehand, `template_portal`) and runs the driver; the rows are fetched, decoded and
written by executors. Spans are of one size; the first one, which starts Python workers, does not
count. Runs alternate; medians are shown, and the CPU seconds of executors, driver and portal for a
million rows: what all of them take bounds what two executors can gain on two cores. With `--pace`
an answer comes no faster than so many MB/s, as over a long way: then a core is not the limit.
Exit code 1 if two executors are less than 1.6 times as fast as one, or than nine tenths of the
bound where that is less.

    python benchmarks/bench_executors.py [--rows 3000000] [--rounds 3] [--pace 25]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from template_portal import template_portal

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.spark_servers import spark_cluster

LIMIT = 1.6
KINDS = ("executors", "driver", "portal")
LOGS = 250
SPAN = 2000
TEMPLATES = 400  # blocks after which rows repeat: more than a row group holds

DRIVER = """
import os, sys, time
from headwater import SpanLimits, evm, portal_stream
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
        print("committed", flush=True)
portal_stream(
    id="bench", portal=portal, spark=spark, far=100, first_span=int(span),
    spans=SpanLimits(blocks=int(span)),
    outputs={"transfers": evm.events("erc20.Transfer", range=(0, int(last)))},
).pipe_to(iceberg_target(folder, tables=["transfers"]), on_event=on_event)
blocks = sum(count for _, count in times[1:])
print("measured", blocks / (times[-1][0] - times[0][0]))
"""


def cpu_seconds(driver: int) -> Counter[str]:
    """Return what the processes under this one have used until now, by what they are for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    found: Counter[str] = Counter()
    for pid, used in ticks.items():
        above, at = [pid], pid
        while (at := parents.get(at, 0)) > 1:
            above.append(at)
        if os.getpid() not in above[1:]:
            continue
        kind = "driver" if driver in above else "executors"
        if b"template_portal" in Path(f"/proc/{pid}/cmdline").read_bytes():
            kind = "portal"
        found[kind] += used
    return Counter({kind: used / os.sysconf("SC_CLK_TCK") for kind, used in found.items()})


def run(master: str, portal: str, blocks: int, executors: int) -> tuple[float, Counter[str]]:
    """Run one backfill; return rows per second after the first span, and CPU-s per million rows."""
    with tempfile.TemporaryDirectory() as folder:
        command = [master, portal, folder, str(blocks - 1), str(SPAN), str(executors)]
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER, *command],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[1] / "src")),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        ) as driver:
            assert driver.stdout is not None
            used: list[Counter[str]] = []
            measured = 0.0
            for line in driver.stdout:
                if line.startswith("committed"):
                    used.append(cpu_seconds(driver.pid))
                elif line.startswith("measured"):
                    measured = float(line.split()[1])
    if driver.returncode:
        raise SystemExit(f"the driver ended with {driver.returncode}")
    rows = (blocks - SPAN) * LOGS / 1e6
    spent = Counter({kind: (used[-1][kind] - used[0][kind]) / rows for kind in KINDS})
    return LOGS * measured, spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.0, help="MB/s of an answer, unpacked")
    options = parser.parse_args()
    blocks = options.rows // LOGS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = stack.enter_context(spark_cluster(folder, workers=2, cores=1))
        portal = stack.enter_context(template_portal(blocks + 50, LOGS, TEMPLATES, options.pace))
        rates: dict[int, list[tuple[float, Counter[str]]]] = {1: [], 2: []}
        for _ in range(options.rounds):
            for executors, found in rates.items():
                found.append(run(master, portal, blocks, executors))
    print(f"{options.rows:,} rows on {os.cpu_count()} cores, answers "
          f"{f'of {options.pace:g} MB/s' if options.pace else 'as fast as they can be taken'}; "
          f"load {os.getloadavg()[0]:.1f} at the end\n")  # fmt: skip
    print(f"| executors of one core | rows/s, median | of all runs | "
          f"{' | '.join(f'{kind}, CPU-s per million' for kind in KINDS)} |")  # fmt: skip
    print("|--:|--:|---|--:|--:|--:|")
    spent = {}
    for executors, found in rates.items():
        every = ", ".join(f"{one:,.0f}" for one, _ in sorted(found, key=lambda one: one[0]))
        spent[executors] = [median(used[kind] for _, used in found) for kind in KINDS]
        cells = " | ".join(f"{one:.1f}" for one in spent[executors])
        print(f"| {executors} | {median(one for one, _ in found):,.0f} | {every} | {cells} |")
    one, two = (median(rate for rate, _ in rates[count]) for count in (1, 2))
    bound = (os.cpu_count() or 1) / sum(spent[2]) * 1e6 / one
    print(f"\ntwo executors are {two / one:.2f} times as fast as one (limit {LIMIT}); more than "
          f"{bound:.2f} times is not possible on these cores")  # fmt: skip
    return 0 if two / one >= min(LIMIT, 0.9 * bound) else 1


if __name__ == "__main__":
    sys.exit(main())
