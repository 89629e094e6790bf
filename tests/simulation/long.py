"""The long soak: real processes that follow a forking chain for half an hour and more.

    python -m tests.simulation.long --minutes 30         # make soak LONG=1 MINUTES=30

A process each writes PostgreSQL, ClickHouse and DuckDB, through a fork storm: one fork a second, 1
to 64 blocks deep. Now and then a process is stopped until Spark has to catch up, a target is slow
for minutes, and the process on DuckDB is killed. At the end every table must equal the chain, and
what a process holds must have come to a plateau: the second half may not grow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from headwater.targets.clickhouse import ClickHouseClient
from headwater.targets.duckdb import duckdb_target
from headwater.targets.postgres import postgres_target
from headwater.testing.chain.tree import ChainSim, ContentSettings
from headwater.testing.oracle import DisagreementError
from headwater.testing.portal.dataset import PortalSim
from headwater.testing.portal.server import PortalServer
from headwater.testing.servers.clickhouse import clickhouse_server
from headwater.testing.servers.postgres import postgres_server
from tests.simulation.tables import Shape, difference, expected, in_order

DEPTHS = (1, 1, 2, 3, 4, 8, 16, 32, 64)
FINALITY = 70  # blocks behind the head: below the deepest fork
STOP_S = 40.0  # how long a process is stopped, so that Spark has to catch up
JUDGED_MINUTES = 10  # a shorter run has no second half after the start
Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of a process: its key, what it is called, its unit, what growth is none.

    Growth is that of a line through the second half, from its begin to its end; it may be a share
    of the mean, or so many units, whichever is more.
    """

    key: str
    title: str
    scale: float = 1.0
    share: float = 0.15
    units: float = 5.0


SERIES = (
    Series("memory", "memory of the process, MB", 2**20, 0.10, 25.0),
    Series("spark", "memory of Spark's processes, MB", 2**20, 0.25, 100.0),
    Series("handles", "open handles", share=0.15, units=8.0),
    Series("bookkeeping", "rows of state", share=0.3, units=60.0),
    Series("undo", "rows of undo", share=0.5, units=150.0),
    Series("files", "temporary files", share=0.5, units=40.0),
)


@dataclass(slots=True)
class Followed:
    """One process that follows the head, and what became of it."""

    kind: str
    place: str
    folder: Path
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0
    stops: int = 0
    restarts: int = 0
    slow_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    def start(self) -> None:
        """Start it, or start it again."""
        files = self.folder / "tmp"
        files.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(files), "SPARK_LOCAL_DIRS": str(files)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def watch(self) -> None:
        """Read new samples; start the process again if it has ended by itself."""
        path = self.folder / "samples"
        lines = path.read_text().splitlines() if path.exists() else []
        self.samples += [json.loads(line) for line in lines[len(self.samples) :]]
        if self.process is not None and self.process.poll() is not None:
            self.restarts += 1
            self.start()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it has started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill it, and start it again."""
        self.kills += 1
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.start()

    def stop(self) -> None:
        """End it as an operator does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()

    @property
    def cursor(self) -> int:
        """The block that it reported last."""
        return self.samples[-1]["cursor"] if self.samples else -1


class LongSoak:
    """Everything that runs: chain, portal, servers, processes."""

    def __init__(self, seed: int, folder: Path, stack: ExitStack, console: Console) -> None:
        self._dice = Random(f"long {seed}")
        self._console = console
        content = ContentSettings(transactions_per_block=3, transfers_per_transaction=1)
        self.chain = ChainSim(seed, content=content)
        self.chain.grow(600)
        self.chain.finalize(600 - FINALITY)
        self.tokens = list(self.chain.population.tokens)[:3]
        self.server = stack.enter_context(PortalServer(PortalSim(self.chain, seed=seed)))
        clickhouse = stack.enter_context(clickhouse_server()).rstrip("/")
        client = ClickHouseClient(clickhouse)
        client.run("CREATE DATABASE long")
        client.close()
        places = {
            "PostgreSQL": stack.enter_context(postgres_server()),
            "ClickHouse": f"{clickhouse}/long?fsync_metadata=0",
            "DuckDB": str(folder / "long.duckdb"),
        }
        self.followed = [self._follow(kind, place, folder) for kind, place in places.items()]
        for one in self.followed:
            stack.callback(one.signal, signal.SIGKILL)
            one.start()

    def _follow(self, kind: str, place: str, folder: Path) -> Followed:
        own = folder / kind
        own.mkdir()
        command = [sys.executable, "-m", "tests.simulation.follower", kind]
        command += [self.server.url, place, str(own), *self.tokens]
        return Followed(kind, place, own, command)

    def run(self, seconds: float) -> None:
        """Let the chain grow and fork, and the processes suffer."""
        began = time.monotonic()
        plan = self._plan(seconds)
        resume: list[tuple[float, Followed]] = []
        said = 0.0
        while (now := time.monotonic() - began) < seconds:
            self._move_chain()
            while plan and plan[0][0] <= now:
                _, what, one = plan.pop(0)
                self._note(f"{what} {one.kind}")
                if what == "stop":
                    one.stops += 1
                    one.signal(signal.SIGSTOP)
                    resume.append((now + STOP_S, one))
                elif what == "kill":
                    one.kill()
                elif what == "slow":
                    (one.folder / "slow").touch()
                else:
                    (one.folder / "slow").unlink(missing_ok=True)
            for due, one in [each for each in resume if each[0] <= now]:
                resume.remove((due, one))
                one.signal(signal.SIGCONT)
            for one in self.followed:
                one.watch()
            if now - said > 30:
                said = now
                self._say(now)
            time.sleep(1)
        for _, one in resume:
            one.signal(signal.SIGCONT)

    def _plan(self, seconds: float) -> list[tuple[float, str, Followed]]:
        """Say what happens to which process when; the first minute is quiet."""
        postgres, clickhouse, duckdb = self.followed
        found: list[tuple[float, str, Followed]] = []
        for minute in range(1, int(seconds // 60)):
            found.append((minute * 60.0, "kill", duckdb))
            if minute % 5 == 2:
                found.append((minute * 60.0 + 20, "stop", postgres))
            if minute % 5 == 4:
                found.append((minute * 60.0 + 20, "stop", clickhouse))
        for one, at in ((postgres, 0.3), (clickhouse, 0.65)):
            found.append((at * seconds, "slow", one))
            found.append(((at + 0.1) * seconds, "fast", one))
            one.slow_s = 0.1 * seconds
        return sorted(found, key=lambda each: each[0])

    def _move_chain(self) -> None:
        """One second of the chain: a few blocks, one fork."""
        chain, dice = self.chain, self._dice
        with chain.lock:
            chain.extend(4)
            depth = min(
                dice.choice(DEPTHS),
                len(chain.canonical((chain.finalized or chain.head).number + 1)),
            )
            chain.fork(depth, depth)
            chain.finalize(chain.head.number - FINALITY)

    def rest(self, limit_s: float = 600.0) -> None:
        """Let the chain rest, wait until all is read, end the processes and compare."""
        for one in self.followed:
            (one.folder / "slow").unlink(missing_ok=True)
        with self.chain.lock:
            self.chain.extend(1)
        deadline = time.monotonic() + limit_s
        while any(one.cursor < self.chain.head.number for one in self.followed):
            if time.monotonic() > deadline:
                where = {one.kind: one.cursor for one in self.followed}
                raise DisagreementError(f"at {where}, not at {self.chain.head.number}")
            time.sleep(1)
            for one in self.followed:
                one.watch()
        for one in self.followed:
            one.stop()
        for one in self.followed:
            self._compare(one)

    def _compare(self, one: Followed) -> None:
        keyed = one.kind != "ClickHouse"
        shape = Shape("long", latest=keyed, sums=keyed)
        wanted = expected(self.chain, self.chain.canonical(), self.tokens, shape)
        held = {}
        for table in shape.tables:
            name = shape.name(table) + ("" if keyed else "_live")
            held[table] = in_order(shape, table, _rows(one, f"SELECT * FROM {name}"))
        said = difference(held, wanted)
        if said:
            raise DisagreementError(f"{one.kind}: {said}")
        rows = {table: len(rows) for table, rows in held.items()}
        self._note(f"{one.kind} equals the chain at {self.chain.head.number}: {rows}")

    def _say(self, now: float) -> None:
        head = self.chain.head.number
        lags = ", ".join(f"{one.kind} {head - one.cursor} behind" for one in self.followed)
        self._note(f"{now:6.0f} s  head {head:,}  forks {len(self.chain.forks):,}  {lags}")

    def _note(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _rows(one: Followed, sql: str) -> list[dict[str, Any]]:
    reader: Any
    if one.kind == "ClickHouse":
        reader = ClickHouseClient(one.place)
    else:
        reader = (postgres_target if one.kind == "PostgreSQL" else duckdb_target)(one.place)
    found: list[dict[str, Any]] = reader.query(sql).to_pylist()
    return found


def growth(values: Sequence[float]) -> float:
    """Return how much a line through the second half grows from its begin to its end."""
    half = list(values[len(values) // 2 :])
    if len(half) < 3:
        return 0.0
    slope, _ = statistics.linear_regression(range(len(half)), half)
    return slope * (len(half) - 1)


def plateaus(followed: Sequence[Followed]) -> list[tuple[str, str, float, float, bool]]:
    """Return, of each process and figure: its mean, the growth of its second half, if that is none.

    A process that is killed begins anew each time: only what it stores is looked at.
    """
    found = []
    for one in followed:
        for series in SERIES:
            if one.kills and series.key in ("memory", "spark", "handles"):
                continue
            values = [sample[series.key] / series.scale for sample in one.samples]
            if not values:
                continue
            mean, grown = statistics.fmean(values), growth(values)
            allowed = max(series.units, series.share * mean)
            found.append((one.kind, series.title, mean, grown, grown <= allowed))
    return found


def plot(followed: Sequence[Followed], chain: str, path: Path) -> None:
    """Draw every figure over time, a line per process. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), dpi=80, facecolor="white")
    colours = {"PostgreSQL": "#2563eb", "ClickHouse": "#d97706", "DuckDB": "#0d9488"}
    begin = min(one.samples[0]["at"] for one in followed if one.samples)
    for place, series in enumerate(SERIES, 1):
        axes = figure.add_subplot(2, 3, place)
        for one in followed:
            minutes = [(sample["at"] - begin) / 60 for sample in one.samples]
            values = [sample[series.key] / series.scale for sample in one.samples]
            axes.plot(minutes, values, color=colours[one.kind], linewidth=1.0, label=one.kind)
        axes.set_title(series.title, fontsize=9, loc="left")
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        if place > 3:
            axes.set_xlabel("minutes", fontsize=8)
    figure.axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(chain, fontsize=10, x=0.01, ha="left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format=path.suffix.removeprefix("."))


def save(soak: LongSoak, seconds: float, path: Path) -> None:
    """Write the figures to a file, for `docs/reliability.md`."""
    depths = [len(record.orphaned_hashes) for record in soak.chain.forks]
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds),
        "blocks": soak.chain.head.number,
        "forks": len(depths),
        "deepest": max(depths, default=0),
        "processes": {
            one.kind: {
                "kills": one.kills,
                "stops": one.stops,
                "restarts": one.restarts,
                "slow_seconds": round(one.slow_s),
                "samples": len(one.samples),
            }
            for one in soak.followed
        },
        "plateaus": [
            {"process": kind, "figure": title, "mean": round(mean, 1), "growth": round(grown, 1),
             "none": fine}
            for kind, title, mean, grown, fine in plateaus(soak.followed)
        ],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make soak LONG=1", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="what the chain and its forks are")
    parser.add_argument("--results", type=Path, default=Path(".soak/long.json"), help="figures")
    parser.add_argument("--picture", type=Path, default=Path(".soak/long.png"), help="plots")
    options = parser.parse_args()
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="headwater-long-"))
    began = time.monotonic()
    with ExitStack() as stack:
        soak = LongSoak(options.seed, folder, stack, console)
        try:
            soak.run(options.minutes * 60)
            soak.rest()
        finally:
            took = time.monotonic() - began
            if all(one.samples for one in soak.followed):
                save(soak, took, options.results)
                forks = len(soak.chain.forks)
                plot(soak.followed, f"{took / 60:.0f} minutes, {forks:,} forks", options.picture)
            for one in soak.followed:
                console.print(f"{one.kind}: log {one.folder / 'log'}", highlight=False)
        judged = options.minutes >= JUDGED_MINUTES
        if not judged:
            console.print(
                f"growth is judged from {JUDGED_MINUTES} minutes on: a start always grows"
            )
        found = plateaus(soak.followed)
        bad = [each for each in found if judged and not each[-1]]
        for kind, title, mean, grown, fine in found:
            said = "plateau" if fine else "[red]GROWS[/red]" if judged else "grows"
            console.print(f"{kind:11} {title:36} {mean:10.1f} {grown:+9.1f}  {said}")
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(f"picture: {options.picture}", highlight=False)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
