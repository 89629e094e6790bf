"""A process of the long soak: one stream, made with the public interface, that follows the head.

    python -m tests.simulation.follower KIND PORTAL PLACE FOLDER

Every few seconds it writes a line of figures about itself to `FOLDER/samples`: memory, handles, and
the rows and files that it keeps beside the data. While `FOLDER/slow` exists its target is slow.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from headwater.core import Flush
from headwater.core.messages import Event
from headwater.stream.portal import portal_stream
from headwater.targets.clickhouse import ClickHouseSettings, clickhouse_target
from headwater.targets.clickhouse import table as clickhouse_table
from headwater.targets.duckdb import duckdb_target
from headwater.targets.duckdb import table as duckdb_table
from headwater.targets.postgres import postgres_target
from headwater.targets.postgres import table as postgres_table
from tests.simulation.tables import LATEST, TRANSFERS, Shape

EVERY_S = 5.0
SLOW_S = 0.25  # what a batch costs more while the target is slow
FAR = 50  # blocks behind finality at which Spark takes over


class Follower:
    """What the process does. `shape` names its tables."""

    def __init__(self, kind: str, place: str, folder: Path) -> None:
        self.shape = Shape("long", latest=kind != "ClickHouse", sums=kind != "ClickHouse")
        self.folder = folder
        self._next = 0.0
        self._target = self._make(kind, place)
        self._bookkeeping, self._undo = _counts(kind, self.shape)

    def run(self, portal: str, tokens: list[str]) -> None:
        """Follow the head until a signal."""
        stream = portal_stream(
            id="long",
            portal=portal,
            outputs=self.shape.outputs(tokens, ""),
            flush=Flush(blocks=20, seconds=0.5),
            far=FAR,
            first_span=200,
        )
        stream.pipe_to(self._target, on_event=self._sample)

    def _make(self, kind: str, place: str) -> Any:
        shape = self.shape
        if kind == "ClickHouse":
            table = clickhouse_table(shape.name(TRANSFERS))
            settings = ClickHouseSettings(max_rows=1000)
            return clickhouse_target(place, tables=[table], on_data=self._write, settings=settings)
        declare = postgres_table if kind == "PostgreSQL" else duckdb_table
        tables = [declare(shape.name(TRANSFERS), append_only=True)]
        tables += [declare(shape.name(LATEST), key=["token"])]
        make: Any = postgres_target if kind == "PostgreSQL" else duckdb_target
        aggregates = shape.aggregates()
        return make(place, tables=tables, on_data=self._write, aggregates=aggregates)

    def _write(self, tx: Any, data: Mapping[str, Any]) -> None:
        if (self.folder / "slow").exists():
            time.sleep(SLOW_S)
        self.shape.write(tx, data)

    def _sample(self, event: Event) -> None:
        """Write figures, now and then. Called by the loop, after each of its steps."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        files = list(_files(Path(os.environ["TMPDIR"])))
        line = {
            "at": time.time(),
            "pid": os.getpid(),
            "cursor": -1 if event.state.cursor is None else event.state.cursor.number,
            "memory": _memory(os.getpid()),
            "spark": sum(map(_memory, _children(os.getpid()))),
            "handles": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - it changes while we look
            "chain": len(event.state.rollback_chain),
            "bookkeeping": self._count(self._bookkeeping),
            "undo": self._count(self._undo),
            "files": len(files),
            "file_bytes": sum(files),
        }
        with (self.folder / "samples").open("a") as out:
            out.write(json.dumps(line) + "\n")

    def _count(self, sql: str) -> int:
        """Count rows; none while their table is not there."""
        with suppress(psycopg.Error, duckdb.Error):
            return int(self._target.query(sql).to_pylist()[0]["n"]) if sql else 0
        return 0


def _counts(kind: str, shape: Shape) -> tuple[str, str]:
    """Return the queries that count rows of state, and rows of undo."""
    count = "SELECT count(*) AS n FROM"
    if kind == "ClickHouse":
        return f"{count} sync", ""
    logs = [f'"{shape.name(one)}__snapshots"' for one in shape.tables[1:]]
    union = " UNION ALL ".join(f"SELECT 1 FROM {one}" for one in logs)
    return f"{count} sync", f"{count} ({union}) AS every"


def _memory(pid: int) -> int:
    """Return the bytes of memory that a process holds; 0 once it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _children(parent: int) -> Iterator[int]:
    """Yield the processes below one, Spark's JVM and workers."""
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in map(int, task.read_text().split()):
            yield pid
            yield from _children(pid)


def _files(folder: Path) -> Iterator[int]:
    """Yield the sizes of the files below a folder, which may vanish meanwhile."""
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118
            except OSError:
                continue


def main() -> None:
    """Run from the command line."""
    kind, portal, place, folder, *tokens = sys.argv[1:]
    Follower(kind, place, Path(folder)).run(portal, tokens)


if __name__ == "__main__":
    main()
