"""The whole path: a fresh process, as a user starts it, from its start to its end.

`program.py` backfills ERC-20 transfers (100 to a block, zstd on the wire) by the default path into
nothing, PostgreSQL (with a primary key, tracked), ClickHouse or DuckDB. `--work` is what it does
with the rows on their way; several kinds of work take turns, so that they can be compared on a
machine that does other things, too. The first pass is cold: the process starts, Spark does not run
yet. With `--passes 2` the same process does it once more into another table, with Spark warm. CPU
seconds are those of driver + JVM + Python workers; portal and database are counted apart. Memory is
the sum of the proportional sizes (PSS) of these processes, at its peak. With `--repeat` figures are
medians. `--kill` ends the process with SIGKILL after some commits, starts it again, and tells when
the next commit came.

    python benchmarks/path/bench_path.py noop --work none,select --passes 2 --repeat 3
    python benchmarks/path/bench_path.py postgres --logs 1000000 --session given
    python benchmarks/path/bench_path.py noop --work select --outputs 2
    python benchmarks/path/bench_path.py postgres --logs 1000000 --kill 3
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg

from headwater.testing.servers import clickhouse_server, postgres_server
from template_portal import template_portal

PER_BLOCK = 100
MB = 1_000_000
PROGRAM = Path(__file__).with_name("program.py")
TARGETS = ("noop", "postgres", "clickhouse", "duckdb")
KINDS = ("driver", "JVM", "workers")
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
    """Samples what the processes of the program hold: the peak, in MB by kind at that moment."""

    def __init__(self, machine: Machine, driver: int) -> None:
        super().__init__(daemon=True)
        self.peak = dict.fromkeys(KINDS, 0.0)
        self._machine, self._driver = machine, driver
        self._ended = Event()

    def run(self) -> None:
        while not self._ended.wait(0.5):
            held = dict.fromkeys(KINDS, 0.0)
            for pid, name in self._machine.programs():
                kind = "JVM" if name == "java" else "workers"
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


def _asked(portal: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{portal}/asked") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@dataclass
class Passes:
    """What one process has shown."""

    first: float
    wall: list[float]
    cpu: list[dict[str, float]]
    servers: tuple[float, float]
    memory: dict[str, float]


@dataclass
class Bench:
    """A program and what it needs."""

    kind: str
    portal: str
    address: str
    logs: int
    outputs: int
    machine: Machine

    def start(self, passes: int, work: str) -> subprocess.Popen[str]:
        last = self.logs // PER_BLOCK - 1
        command = [sys.executable, str(PROGRAM), self.kind, self.portal, self._place(), str(last)]
        command += [str(passes), str(self.outputs), work]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _place(self) -> str:
        """Return the address of the target: a new file or database for each process."""
        place = self.address.format(f"b{uuid4().hex}")
        if self.kind == "postgres":
            with psycopg.connect(self.address.format("postgres"), autocommit=True) as link:
                link.execute(f"CREATE DATABASE {place.rpartition('/')[2]}")
        return place

    def run(self, passes: int, work: str) -> Passes:
        """Run the program to its end."""
        _asked(self.portal)
        portal_cpu, server = _asked(self.portal)["cpu_s"], self._server_cpu()
        began = time.time()
        with self.start(passes, work) as program:
            memory = Memory(self.machine, program.pid)
            memory.start()
            assert program.stdout is not None
            said = [json.loads(line) for line in program.stdout]
            code = program.wait()
        memory.stop()
        self.machine.wait()
        if code or len(said) != passes:
            raise SystemExit(f"{self.kind}, {work}: exit code {code}, {len(said)} passes")
        portal_cpu = _asked(self.portal)["cpu_s"] - portal_cpu
        return Passes(
            said[0]["first"] - began,
            [one["last"] - (one["began"] if place else began) for place, one in enumerate(said)],
            [one["cpu"] for one in said],
            (portal_cpu, self._server_cpu() - server),
            memory.peak,
        )

    def kill(self, commits: int, work: str) -> str:
        """Kill the program after some commits; tell when the next one commits again."""
        os.environ["BENCH_LIVE"] = "1"
        with self.start(1, work) as program:
            assert program.stdout is not None
            for _, _line in zip(range(commits), program.stdout, strict=False):
                pass
            program.kill()
        began = time.time()
        with self.start(1, work) as program:
            assert program.stdout is not None
            said = [json.loads(line) for line in program.stdout]
        self.machine.wait()
        seconds = said[0]["committed"] - began
        return f"| kill -9 after {commits} commits, then to the next commit | {seconds:.1f} s |"

    def _server_cpu(self) -> float:
        name = {"postgres": "postgres", "clickhouse": "clickhouse"}.get(self.kind)
        return sum(cpu for _, found, cpu in _stats().values() if name and found.startswith(name))


def table(seen: Mapping[str, list[Passes]], passes: int) -> str:
    """Return a table of medians, a row per kind of work."""
    heads = ["first commit", "cold s", f"cold CPU-s ({' + '.join(KINDS)})"]
    heads += ["warm s", "warm CPU-s"] if passes > 1 else []
    heads += ["portal, database CPU-s", "peak MB"]
    lines = [f"| work | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for work, runs in seen.items():
        cells = [f"{median(one.first for one in runs):.1f} s"]
        for place in (0, passes - 1)[:passes]:
            parts = [median(one.cpu[place][kind] for one in runs) for kind in KINDS]
            whole = median(sum(one.cpu[place].values()) for one in runs)
            cells.append(f"{median(one.wall[place] for one in runs):.1f}")
            cells.append(f"{whole:.1f} ({' + '.join(f'{part:.1f}' for part in parts)})")
        cells.append(
            ", ".join(
                f"{median(of):.1f}" for of in zip(*(one.servers for one in runs), strict=True)
            )
        )
        peaks = [f"{median(one.memory[kind] for one in runs):,.0f}" for kind in KINDS]
        whole = median(sum(one.memory.values()) for one in runs)
        cells.append(f"{whole:,.0f} ({' + '.join(peaks)})")
        lines.append(f"| {work} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run(kind: str, options: argparse.Namespace) -> None:
    """Measure one target, and print what was found."""
    blocks = options.logs // PER_BLOCK + 50
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = str(folder / "{}.duckdb")
        if kind == "postgres":
            address = stack.enter_context(postgres_server()).rpartition("/")[0] + "/{}"
        if kind == "clickhouse":
            address = stack.enter_context(clickhouse_server())
        portal = stack.enter_context(template_portal(blocks, PER_BLOCK))
        bench = Bench(kind, portal, address, options.logs, options.outputs, Machine())
        works = options.work.split(",")
        print(f"{kind}, {options.logs:,} logs, outputs: {options.outputs}, runs: {options.repeat}")
        if options.kill:
            print(*(bench.kill(options.kill, work) for work in works), sep="\n")
            return
        seen: dict[str, list[Passes]] = {work: [] for work in works}
        for _ in range(options.repeat):
            for work, runs in seen.items():
                runs.append(bench.run(options.passes, work))
    print(table(seen, options.passes))
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=TARGETS, nargs="?", help="left out: all of them")
    parser.add_argument("--logs", type=int, default=2_000_000)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--outputs", type=int, default=1)
    parser.add_argument("--work", default="none", help="of program.WORKS, with commas between")
    parser.add_argument("--session", choices=("own", "given"), default="own")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="after N commits")
    options = parser.parse_args()
    os.environ["BENCH_SESSION"] = options.session
    for kind in [options.kind] if options.kind else TARGETS:
        run(kind, options)


if __name__ == "__main__":
    main()
