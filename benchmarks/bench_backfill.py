"""How fast Spark fetches, decodes and takes in history, beside decoding alone.

The simulator serves from its cache in a child process. The limit is what this process does with the
same lines in memory: parse and decode, one core, no network, no Spark. The backfill does the same
work on executors, in the tasks that would write the rows, and adds HTTP, the check of every header
and Spark's scheduling; rows are thrown away. Memory of driver, JVM and Python workers is sampled
meanwhile.

Two shares of the limit are printed: of rows per second, and of rows per second that the cores would
give by the CPU time that was used, which neighbours on the machine distort less. One of them must
reach 60 %.

    python benchmarks/bench_backfill.py
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headwater.core import BlockRange, Blocks
from headwater.decode import decode_outputs, evm
from headwater.portal import HttpTransport, PortalClient, Request
from headwater.spark import local_session, read_span, warm_up
from headwater.testing import ChainSim, ContentSettings, PortalServer, PortalSim

LIMIT = 0.6  # of the rate of decoding alone
MB = 1_000_000
RESULTS = Path(__file__).with_name("RESULTS.md")
OUTPUT = evm.events("erc20.Transfer")
OUTPUTS = {"transfers": OUTPUT}
EVERYWHERE = {"transfers": [BlockRange(0)]}
STEP = 500
KINDS = ("driver", "JVM", "Python workers")


@dataclass(frozen=True, slots=True)
class Rate:
    """Work, the time it took, and the CPU time of all processes that did it."""

    name: str
    rows: int
    size: int
    seconds: float
    cpu_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / self.cpu_s

    def shares(self, limit: Rate, cores: int) -> tuple[float, float]:
        """Return which part of the limit this is, by the clock and by CPU time."""
        return (
            self.rows_per_s / limit.rows_per_s,
            self.rows_per_cpu_s * cores / limit.rows_per_cpu_s,
        )

    def row(self, limit: Rate, cores: int) -> str:
        clock, cpu = self.shares(limit, cores)
        return (
            f"| {self.name} | {self.rows_per_s / 1000:,.0f} | {self.size / MB / self.seconds:,.0f}"
            f" | {clock:.0%} | {self.rows_per_cpu_s / 1000:,.0f} | {cpu:.0%} |"
        )


@dataclass(slots=True)
class Usage:
    """Resident megabytes and CPU seconds so far."""

    megabytes: float = 0.0
    cpu_s: float = 0.0


@dataclass
class Memory:
    """Samples resident memory of this process and its descendants, but for the simulator."""

    simulator: int
    samples: list[dict[str, Usage]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self._stop.wait(0.2):
            self.samples.append(usage(os.getpid(), self.simulator))

    def stop(self) -> None:
        self._stop.set()

    def peak(self, kind: str, part: slice) -> float:
        return max((one[kind].megabytes for one in self.samples[part]), default=0.0)

    def lines(self) -> Iterator[str]:
        half = len(self.samples) // 2
        for kind in KINDS:
            first, second = self.peak(kind, slice(0, half)), self.peak(kind, slice(half, None))
            yield f"| {kind} | {first:,.0f} | {second:,.0f} |"


def usage(root: int, without: int) -> dict[str, Usage]:
    """Return what a process and its descendants use, by kind of process."""
    found = {kind: Usage() for kind in KINDS}
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                processes[int(entry.name)] = (name, rest.split())
    family = {root}
    for pid in sorted(processes):
        name, fields = processes[pid]
        if pid == without or (pid != root and int(fields[1]) not in family):
            continue
        family.add(pid)
        kind = "driver" if pid == root else "JVM" if name == "java" else "Python workers"
        found[kind].megabytes += int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / MB
        found[kind].cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def cpu_seconds(simulator: int) -> float:
    return sum(one.cpu_s for one in usage(os.getpid(), simulator).values())


def serve(blocks: int, logs: int) -> None:
    """Be the simulator: print the address, and end when told to."""
    content = ContentSettings(transactions_per_block=logs / 2, transfers_per_transaction=2)
    chain = ChainSim(7, content=content)
    chain.grow(blocks - 1)
    chain.finalize(chain.head.number)
    sim = PortalSim(
        chain, blocks_per_answer=blocks, chunk_bytes=None, encodings=(), cache_bytes=4_000 * MB
    )
    with PortalServer(sim) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def fill_cache(url: str, blocks: int) -> None:
    """Have every line rendered once, so that rendering is not what is measured."""
    with closing(HttpTransport(url)) as transport:
        for first in range(0, blocks, STEP):
            body = OUTPUT.query.body(first, min(first + STEP, blocks) - 1)
            response = transport.send(Request("POST", "finalized-stream", body))
            with closing(response):
                for _ in response.chunks():
                    pass


def decode_alone(url: str, blocks: int) -> Rate:
    """Parse and decode everything in this process; only that is timed."""
    rows = size = 0
    seconds = cpu_s = 0.0
    with closing(PortalClient(url)) as client:
        for answer in client.read(OUTPUT.query, BlockRange(0, blocks - 1), finalized=True):
            if isinstance(answer, Blocks):
                began, cpu = time.perf_counter(), time.process_time()
                decoded = decode_outputs(OUTPUTS, answer.lines, EVERYWHERE)
                seconds += time.perf_counter() - began
                cpu_s += time.process_time() - cpu
                rows += decoded.tables["transfers"].num_rows
                size += sum(map(len, answer.lines))
    return Rate("parse and decode alone, 1 core", rows, size, seconds, cpu_s)


def run(
    url: str, blocks: int, count: int, cores: int, simulator: int
) -> tuple[Rate, list[Rate], Memory]:
    """Backfill the whole range through Spark to nowhere, several times."""
    spark = local_session(
        "bench", **{"spark.master": f"local[{cores}]", "spark.driver.memory": "2g"}
    )
    warm_up(spark)
    limits = [decode_alone(url, blocks)]
    passes = []
    memory = Memory(simulator)
    whole = BlockRange(0, blocks - 1)
    for number in range(count + 1):
        if number == 1:  # the pass before it has warmed the JVM up
            threading.Thread(target=memory.watch, daemon=True).start()
        cpu, began = cpu_seconds(simulator), time.perf_counter()
        span = read_span(spark, url, OUTPUTS, EVERYWHERE, OUTPUT.query, whole)
        span.frames["transfers"].executor_rows().run(drop, pa.schema([]))
        seconds = time.perf_counter() - began
        cpu = cpu_seconds(simulator) - cpu
        name = f"Spark, {cores} cores, {len(span.parts)} tasks, pass {number}"
        passes.append(Rate(name, limits[0].rows, span.report().bytes_read, seconds, cpu))
        print(passes[-1].row(limits[0], cores), flush=True)
    memory.stop()
    limits.append(decode_alone(url, blocks))
    spark.stop()
    return max(limits, key=lambda one: one.rows_per_s), passes, memory


def drop(batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
    """Do nothing with the rows of a part, on an executor."""
    for _ in batches:
        pass
    yield from ()


def record(text: str) -> None:
    """Replace the section "Backfill" of the results file."""
    heading = "## Backfill\n"
    before, found, after = RESULTS.read_text().partition(heading)
    rest = "".join(after.partition("\n## ")[1:]) if found else ""
    RESULTS.write_text(before.rstrip() + "\n\n" + heading + "\n" + text + rest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--logs", type=int, default=200, help="logs per block, on average")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--no-record", action="store_true", help="leave RESULTS.md alone")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.blocks, options.logs)
        return 0
    arguments = ["--serve", "--blocks", str(options.blocks), "--logs", str(options.logs)]
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().strip()
        fill_cache(url, options.blocks)
        limit, passes, memory = run(url, options.blocks, options.passes, options.cores, server.pid)
        server.stdin.close()
    shares = [one.shares(limit, options.cores) for one in passes]
    best = [max(one[way] for one in shares) for way in (0, 1)]
    command = (
        f"python benchmarks/bench_backfill.py --blocks {options.blocks} --logs {options.logs} "
        f"--passes {options.passes} --cores {options.cores}"
    )
    table = "\n".join([limit.row(limit, 1), *(one.row(limit, options.cores) for one in passes)])
    used = "\n".join(memory.lines())
    text = (
        f"`{command}`\n\nERC-20 transfers from the simulator's cache over HTTP, on executors, and"
        f" dropped there;\n{limit.rows:,} rows, {limit.size / MB:,.0f} MB of lines per pass;"
        f" Python {platform.python_version()},\nload average {os.getloadavg()[0]:.1f} at the end"
        f" on {os.cpu_count()} cores. Exit code 1 below {LIMIT:.0%} by the clock.\n\n"
        f"| | k rows/s | MB/s | of the limit | k rows per CPU second | of the limit, by CPU |\n"
        f"|---|---|---|---|---|---|\n{table}\n\n"
        f"Peak resident memory in MB over passes 1 to {options.passes}, first and second half"
        f" (heap limit 2 GB):\n\n| process | first half | second half |\n|---|---|---|\n{used}\n"
    )
    print(text)
    if not options.no_record:
        record(text)
    print(f"best: {best[0]:.0%} by the clock (needed: {LIMIT:.0%}), {best[1]:.0%} by CPU")
    return 0 if best[0] >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
