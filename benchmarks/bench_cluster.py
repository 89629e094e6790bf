"""A backfill on a standalone cluster of two workers: what the driver's process holds meanwhile.

Into PostgreSQL, ClickHouse and DuckDB, one after the other, by the plain path: one output, no
transform, spans as a stream cuts them. The portal (`template_portal`), the databases and the
cluster run on this machine, the driver in a process of its own, whose resident memory is sampled:
its Python, its JVM, and what the executors' Python workers take. Every row is counted in the end.
Exit code 1 if the driver's Python held more than the limit; not for DuckDB, which is part of it.

    python benchmarks/bench_cluster.py --rows 10000000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headwater.testing.servers import clickhouse_server, postgres_server
from template_portal import template_portal

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.spark_servers import spark_cluster

LIMIT_MB = 600
MB = 1_000_000
LOGS = 250
KINDS = ("driver, Python", "driver, JVM", "Python workers")
TARGETS = ("postgres", "clickhouse", "duckdb")

DRIVER = """
import os, sys
from headwater import evm, portal_stream
from headwater.spark import local_session
from headwater.targets import clickhouse_target, duckdb_target, postgres_target
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.postgres import table as postgres_table

master, portal, kind, address, last = sys.argv[1:]
spark = local_session("bench-cluster", **{
    "spark.master": master, "spark.driver.memory": "1g", "spark.executor.memory": "1g",
    "spark.executor.cores": 1, "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]})
if kind == "postgres":
    target = postgres_target(address, tables=[postgres_table("transfers", append_only=True)])
elif kind == "clickhouse":
    target = clickhouse_target(
        address, tables=[clickhouse_table("transfers", types={"value": "UInt256"})])
else:
    target = duckdb_target(address)
portal_stream(
    id="bench", portal=portal, spark=spark,
    outputs={"transfers": evm.events("erc20.Transfer", range=(0, int(last)))}, far=100,
).pipe_to(target)
name = "transfers_live" if kind == "clickhouse" else "transfers"
print(target.query(f"SELECT count(*) AS n FROM {name}").to_pylist()[0]["n"], flush=True)
spark.stop()
"""


@dataclass(slots=True)
class Peaks:
    """The most that each kind of process was seen to hold, in MB, and the largest single worker."""

    held: dict[str, float]
    worker: float = 0.0

    def sample(self, driver: int, cluster: set[int]) -> None:
        """Look at all processes once."""
        now = dict.fromkeys(KINDS, 0.0)
        for pid, (parents, name, size) in processes().items():
            if pid == driver:
                now[KINDS[0]] += size
            elif driver in parents and name == "java":
                now[KINDS[1]] += size
            elif name.startswith("python") and cluster & parents:
                now[KINDS[2]] += size
                self.worker = max(self.worker, size)
        for kind, size in now.items():
            self.held[kind] = max(self.held[kind], size)


def processes() -> dict[int, tuple[set[int], str, float]]:
    """Return the ancestors, the name and the resident MB of every process."""
    parent: dict[int, int] = {}
    found: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            parent[int(entry.name)] = int(fields[1])
            size = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / MB
            found[int(entry.name)] = (name, size)
    made = {}
    for pid, (name, size) in found.items():
        above, at = set(), pid
        while (at := parent.get(at, 0)) > 1:
            above.add(at)
        made[pid] = (above, name, size)
    return made


def run(master: str, portal: str, kind: str, address: str, rows: int) -> tuple[float, Peaks]:
    """Run one backfill; return the seconds it took, from the driver's start, and the peaks."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[1] / "src")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    own = {pid for pid, (above, name, _) in processes().items() if os.getpid() in above}
    began = time.perf_counter()
    peaks = Peaks(dict.fromkeys(KINDS, 0.0))
    command = [sys.executable, "-c", DRIVER, master, portal, kind, address, str(rows // LOGS - 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        while driver.poll() is None:
            peaks.sample(driver.pid, own)
            time.sleep(0.2)
        seconds = time.perf_counter() - began
        assert driver.stdout is not None
        counted = driver.stdout.read().split()
    if driver.returncode or int(counted[-1]) != rows:
        raise SystemExit(f"{kind}: exit code {driver.returncode}, rows {counted}, wanted {rows}")
    return seconds, peaks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--limit", type=int, default=LIMIT_MB, help="MB of the driver's Python")
    options = parser.parse_args()
    rows = options.rows // LOGS * LOGS
    worst = 0.0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        addresses = {"duckdb": str(folder / "chain.duckdb")}
        if "postgres" in options.targets:
            addresses["postgres"] = stack.enter_context(postgres_server())
        if "clickhouse" in options.targets:
            addresses["clickhouse"] = stack.enter_context(clickhouse_server())
        master = stack.enter_context(spark_cluster(folder, workers=2, cores=1))
        portal = stack.enter_context(template_portal(rows // LOGS + 50, LOGS))
        print(f"{rows:,} rows; two workers of one core on {os.cpu_count()} cores\n")
        print(f"| target | seconds | rows/s | {' | '.join(f'{one}, MB' for one in KINDS)} "
              "| largest worker, MB |")  # fmt: skip
        print("|---|---|---|---|---|---|---|", flush=True)
        for kind in options.targets:
            seconds, peaks = run(master, portal, kind, addresses[kind], rows)
            if kind != "duckdb":
                worst = max(worst, peaks.held[KINDS[0]])
            held = " | ".join(f"{peaks.held[one]:,.0f}" for one in KINDS)
            print(f"| {kind} | {seconds:,.0f} | {rows / seconds:,.0f} | {held} | "
                  f"{peaks.worker:,.0f} |", flush=True)  # fmt: skip
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end")
    print(f"the driver's Python held {worst:,.0f} MB at most (limit {options.limit} MB)")
    return 0 if worst <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
