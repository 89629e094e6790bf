"""The whole path: a fresh process, as a user starts it, from its start to its end.

`program.py` backfills ERC-20 transfers (100 to a block, zstd on the wire) by the default path into
nothing, PostgreSQL (with a primary key, tracked), ClickHouse or DuckDB. Its first pass is cold: the
process starts, Spark does not run yet. With `--passes 2` the same process does it once more into
another table, with Spark warm. CPU seconds are those of the process and of all that it started, JVM
and Python workers included; portal and database are counted apart. Memory is the sum of the
proportional sizes (PSS) of these processes, at its peak. `--kill` ends the process with SIGKILL
after some commits, starts it again, and tells when the next commit came.

    python benchmarks/path/bench_path.py noop --logs 2000000
    python benchmarks/path/bench_path.py postgres --logs 1000000 --passes 2
    python benchmarks/path/bench_path.py postgres --logs 1000000 --kill 3
    python benchmarks/path/bench_path.py duckdb --logs 200000 --transform
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from headwater.testing.servers import clickhouse_server, postgres_server
from template_portal import template_portal

PER_BLOCK = 100
MB = 1_000_000
PROGRAM = Path(__file__).with_name("program.py")
TARGETS = ("noop", "postgres", "clickhouse", "duckdb")
KINDS = ("driver", "JVM", "Python workers")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent ended are waited for here


class Machine:
    """The processes of this machine: those of the program, and those of servers, which are apart.

    Servers run before a program starts, and what descends from them is theirs.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._servers = {pid for pid, _ in self._family(set())}

    def programs(self) -> list[tuple[int, str]]:
        """Return the number and name of each process of the program."""
        return self._family(self._servers)

    def wait(self) -> None:
        """Wait for what the program left behind: its JVM ends a moment after it."""
        deadline = time.monotonic() + 60
        while (left := self.programs()) and time.monotonic() < deadline:
            for pid, _ in left:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.02)

    def _family(self, without: set[int]) -> list[tuple[int, str]]:
        parents = {pid: (parent, name) for pid, (parent, name, _) in _stats().items()}
        found = []
        for pid, (_, name) in parents.items():
            at, above = pid, set[int]()
            while at > 1 and at != os.getpid():
                above.add(at)
                at = parents.get(at, (0, ""))[0]
            if at == os.getpid() and above and not above & without:
                found.append((pid, name))
        return found


def _stats() -> dict[int, tuple[int, str, float]]:
    """Return parent, name and CPU seconds of every process, with those it has waited for."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                cpu = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
                found[int(entry.name)] = (int(fields[1]), name, cpu)
    return found


class Memory(Thread):
    """Samples what the processes of the program hold: the peak, in MB by kind at that moment.

    Also the CPU seconds of Python workers: no process waits for these, so they count nowhere else.
    """

    def __init__(self, machine: Machine, driver: int) -> None:
        super().__init__(daemon=True)
        self.peak = dict.fromkeys(KINDS, 0.0)
        self.workers: dict[int, float] = {}
        self._machine, self._driver = machine, driver
        self._ended = Event()

    def run(self) -> None:
        while not self._ended.wait(0.25):
            held = dict.fromkeys(KINDS, 0.0)
            stats = _stats()
            for pid, name in self._machine.programs():
                above = stats.get(stats.get(pid, (0, "", 0.0))[0], (0, "", 0.0))
                if name == above[1] != "java" and stats.get(above[0], (0, ""))[1] == "java":
                    self.workers[pid] = stats[pid][2]
                kind = "JVM" if name == "java" else "Python workers"
                held["driver" if pid == self._driver else kind] += _proportional_mb(pid)
            if sum(held.values()) > sum(self.peak.values()):
                self.peak = held

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _proportional_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / MB
    return 0.0


def _used() -> float:
    """Return the CPU seconds of all processes that were waited for here, or by those."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _asked(portal: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{portal}/asked") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@dataclass
class Bench:
    """One program and what it needs."""

    kind: str
    portal: str
    address: str
    logs: int
    machine: Machine

    def start(self, passes: int) -> subprocess.Popen[str]:
        last = self.logs // PER_BLOCK - 1
        command = [sys.executable, str(PROGRAM), self.kind, self.portal, self.address, str(last)]
        return subprocess.Popen([*command, str(passes)], stdout=subprocess.PIPE, text=True)

    def run(self, passes: int) -> list[str]:
        """Run the program to its end; return what a reader wants to know, line by line."""
        _asked(self.portal)
        cpu, portal_cpu, server = _used(), _asked(self.portal)["cpu_s"], self._server_cpu()
        began = time.time()
        with self.start(passes) as program:
            memory = Memory(self.machine, program.pid)
            memory.start()
            assert program.stdout is not None
            said = [json.loads(line) for line in program.stdout]
            code = program.wait()
        ended = time.time()
        memory.stop()
        self.machine.wait()
        if code or len(said) != passes:
            raise SystemExit(f"{self.kind}: exit code {code}, {len(said)} passes")
        seen = _asked(self.portal)
        cpu, portal_cpu = _used() - cpu + sum(memory.workers.values()), seen["cpu_s"] - portal_cpu
        cold = ended - began if passes == 1 else said[0]["last"] - began
        rows = [
            ("first request", f"{seen['first_at'] - began:.1f} s"),
            ("first commit", f"{said[0]['first'] - began:.1f} s"),
            ("cold, from process start to end", self._rate(cold, cpu if passes == 1 else None)),
        ]
        rows += [
            ("warm, again in the same process", self._rate(one["last"] - one["began"], None))
            for one in said[1:]
        ]
        held = ", ".join(f"{kind} {mb:,.0f}" for kind, mb in memory.peak.items())
        rows += [
            ("commits", ", ".join(str(one["commits"]) for one in said)),
            ("CPU seconds of portal and database", f"{portal_cpu:.1f}, "
             f"{self._server_cpu() - server:.1f}"),
            ("peak memory, MB (PSS)", f"{sum(memory.peak.values()):,.0f}: {held}"),
        ]  # fmt: skip
        if passes > 1:
            rows.append(("CPU seconds in all", f"{cpu:.1f}"))
        return [f"| {name} | {value} |" for name, value in rows]

    def kill(self, commits: int) -> list[str]:
        """Kill the program after some commits; tell when the next one commits again."""
        os.environ["BENCH_LIVE"] = "1"
        with self.start(1) as program:
            assert program.stdout is not None
            for _, _line in zip(range(commits), program.stdout, strict=False):
                pass
            program.kill()
        began = time.time()
        with self.start(1) as program:
            assert program.stdout is not None
            said = [json.loads(line) for line in program.stdout]
        self.machine.wait()
        first = said[0]["committed"] - began
        return [f"| kill -9 after {commits} commits, then to the next commit | {first:.1f} s |"]

    def _rate(self, seconds: float, cpu: float | None) -> str:
        text = f"{seconds:.1f} s, {self.logs / seconds / 1000:,.0f} k rows/s"
        if cpu is None:
            return text
        return f"{text}; {cpu:.1f} CPU-s, {self.logs / cpu / 1000:,.0f} k rows per CPU-s"

    def _server_cpu(self) -> float:
        name = {"postgres": "postgres", "clickhouse": "clickhouse"}.get(self.kind)
        return sum(cpu for _, found, cpu in _stats().values() if name and found.startswith(name))


def run(kind: str, logs: int, passes: int, kill_after: int) -> None:
    """Measure one target, and print what was found."""
    blocks = logs // PER_BLOCK + 50
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = str(folder / "chain.duckdb")
        if kind == "postgres":
            address = stack.enter_context(postgres_server())
        if kind == "clickhouse":
            address = stack.enter_context(clickhouse_server())
        portal = stack.enter_context(template_portal(blocks, PER_BLOCK))
        bench = Bench(kind, portal, address, logs, Machine())
        lines = bench.kill(kill_after) if kill_after else bench.run(passes)
    print(f"| {kind}, {logs:,} logs | |\n|---|---|")
    print("\n".join(lines))
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=TARGETS, nargs="?", help="left out: all of them")
    parser.add_argument("--logs", type=int, default=2_000_000)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--transform", action="store_true", help="rows pass a Spark transform")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="after N commits")
    options = parser.parse_args()
    if options.transform:
        os.environ["BENCH_TRANSFORM"] = "1"
    for kind in [options.kind] if options.kind else TARGETS:
        run(kind, options.logs, options.passes, options.kill)


if __name__ == "__main__":
    main()
