"""Readers of lakes as users have them, and a stream that they look at before each of its steps.

A `Polled` stream commits, forks, dies, maintains and sweeps by a script. Before every step of I/O
each reader opens the table anew and reads it, and reads again what it opened some steps ago: the
first must be the state of the chain before the call that is under way, or the one after it; the
second must be what it was.
"""

from __future__ import annotations

import copy
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headwater.core import PipeState
from headwater.errors import LakePathError, NothingStoredError
from headwater.targets import delta_target, iceberg_target, lake_moment
from headwater.targets.delta import DeltaSettings
from headwater.targets.delta import table as delta_table
from headwater.targets.iceberg import IcebergSettings
from headwater.targets.iceberg import table as iceberg_table
from headwater.targets.lake.target import LakeTarget
from headwater.testing.conformance import Crash, apply_changes
from headwater.testing.conformance.model import (
    BALANCES,
    KEY,
    LOG,
    Change,
    Contents,
    Rig,
    balance,
    log,
    upsert,
)

TABLES = (LOG, BALANCES)
Rows = list[tuple[Any, ...]]
Read = Callable[[], Rows]
DAY = 86_400
_KEPT = 4  # readings that are still under way


def rows_of(contents: Contents, table: str) -> Rows:
    """Return what a reader must find of a table."""
    found = contents.rows(table)
    return sorted(tuple(row[name] for name in ("block_number", "value")) for row in found) if (
        table == LOG
    ) else sorted((row["owner"], row["value"]) for row in found)  # fmt: skip


def _columns(table: str) -> str:
    return "block_number, value" if table == LOG else "owner, value"


def _duckdb(rows: Any, table: str) -> Rows:
    """Have DuckDB read files, or an Arrow dataset."""
    with duckdb.connect() as db:
        db.execute("SET threads = 1")
        if isinstance(rows, list):
            if not rows:
                return []
            found = db.read_parquet(rows, union_by_name=True)
        else:
            found = db.from_arrow(rows)
        return sorted(found.project(_columns(table)).fetchall())


def _arrow(rows: Any, table: str) -> Rows:
    names = _columns(table).split(", ")
    return sorted(tuple(row[name] for name in names) for row in rows.select(names).to_pylist())


def open_iceberg(folder: Path, table: str, version: int | None = None) -> dict[str, Read]:
    """Open a table as pyiceberg does, at its newest snapshot or another; DuckDB reads its files."""
    catalog = load_catalog(
        "headwater", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder)
    )
    try:
        stored = catalog.load_table(f"default.{table}")
    finally:
        catalog.close()
    scan = stored.scan(snapshot_id=version)
    files = [one.file.file_path for one in scan.plan_files()]
    return {
        "pyiceberg": lambda: _arrow(scan.to_arrow(), table),
        "DuckDB": lambda: _duckdb(files, table),
    }


def open_delta(folder: Path, table: str, version: int | None = None) -> dict[str, Read]:
    """Open a table as delta-rs does, at its newest version or another; DuckDB reads its dataset."""
    stored = DeltaTable(folder / table, version=version)
    dataset = stored.to_pyarrow_dataset()
    return {
        "deltalake": lambda: _arrow(stored.to_pyarrow_table(), table),
        "DuckDB": lambda: _duckdb(dataset, table),
    }


OPEN = {"iceberg": open_iceberg, "delta": open_delta}


class Polled:
    """A stream with two tables, and readers who look at it before each of its steps."""

    def __init__(self, kind: str, folder: Path, *, every: int = 1) -> None:
        self.kind, self.folder = kind, folder
        self.looks: Counter[str] = Counter()
        self.moments: list[int] = []
        self.die_at = 0  # the step of the call under way at which the process dies; 0 is none
        self._every, self._steps, self.steps_of_call = every, 0, 0
        self._allowed = [Contents()]
        self._known: dict[
            str | None, Contents
        ] = {}  # what the tables hold at each block, by its hash
        self._looks_itself = True
        self._reading: deque[tuple[str, Read, Rows]] = deque(maxlen=_KEPT)
        self.rig = Rig(self._target(), lambda name: [], [])
        self.rig.target.recover()

    def _target(self) -> LakeTarget[Any]:
        """Return a target that maintains its tables often, and sweeps whenever it maintains."""
        tables: list[Any]
        target: LakeTarget[Any]
        if self.kind == "iceberg":
            tables = [LOG, iceberg_table(BALANCES, key=KEY)]
            settings = IcebergSettings(maintain_every=3, compact_files=3, final_snapshots=_KEPT)
            target = iceberg_target(
                self.folder, tables=tables, on_data=apply_changes, settings=settings
            )
        else:
            tables = [LOG, delta_table(BALANCES, key=KEY)]
            delta = DeltaSettings(maintain_every=3, compact_files=3)
            target = delta_target(self.folder, tables=tables, on_data=apply_changes, settings=delta)
        target.clock = _days()
        target.on_step = self._step
        target.bind("one")
        return target

    # --- what the stream does ---------------------------------------------------------------------

    def block(self, number: int, branch: str, final: int) -> None:
        """Commit a block: a row of each table is new, and one by key is replaced."""
        changes: list[Change] = [
            log(number, f"{branch}{number}"),
            upsert(
                balance("all", "t", f"{branch}{number}"), balance(f"o{number % 3}", "t", number)
            ),
        ]
        after = copy.deepcopy(self.rig.model.contents)
        for change in changes:
            after.apply(change)
        self._known[f"{branch}{number}"] = after
        self._call(
            after,
            lambda: self.rig.block(number, *changes, branch=branch, final=final),
            lambda state: self.rig.model.commit(changes, state),
        )

    def roll_back(self, number: int) -> None:
        """Have the chain fork; again, if the stream died and has not gone back."""
        while self.rig.state.number > number:
            kept = reversed(self.rig.model._kept)
            before = next(contents for state, contents in kept if state.number <= number)
            self._call(before, lambda: self.rig.roll_back(number), self.rig.model.roll_back)

    @property
    def number(self) -> int:
        """The block that the stream stands at."""
        return self.rig.state.number

    def maintain(self) -> None:
        """Do all maintenance there is, and sweep; no row changes."""
        target: Any = self.rig.target
        self._call(self.rig.model.contents, target.maintain, lambda state: None)

    def age(self, days: float = 2) -> None:
        """Let all files be days older, as where a stream stood still."""
        then = time.time() - days * DAY
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name != "catalog.db":
                os.utime(path, (then, then))

    def _call(
        self, after: Contents, call: Callable[[], object], adopt: Callable[[PipeState], None]
    ) -> None:
        """Make a call, which readers look at; if it dies, the next start is looked at, too.

        `adopt` has the model do as the call, where it was let in before it died.
        """
        self._allowed = [self.rig.model.contents, after]
        self.steps_of_call = 0
        try:
            call()
        except Crash:
            self.die_at = 0
            self.rig.target.close()
            self.rig.target = self._target()
            state = self.rig.target.recover()
            if state != self.rig.state:
                adopt(state)
        self._allowed = [self.rig.model.contents]
        self.look("after")

    # --- what readers do --------------------------------------------------------------------------

    def _step(self, step: str) -> None:
        self._steps, self.steps_of_call = self._steps + 1, self.steps_of_call + 1
        if self.die_at and self.steps_of_call >= self.die_at:
            raise Crash(step)
        if self._steps % self._every == 0 and not step.startswith("write"):
            self.look(step)

    def look(self, step: str) -> None:
        """Read every table by every reader, and go on reading what was opened before."""
        if not self._looks_itself:
            return
        for table in TABLES:
            if not self._is_there(table):
                continue
            allowed = [rows_of(one, table) for one in self._allowed]
            for name, read in OPEN[self.kind](self.folder, table).items():
                found = read()
                assert found in allowed, (
                    f"{name} before {step!r}: {table} holds {found}, which is none of {allowed}"
                )
                self._reading.append((f"{name} of {table}", read, found))
                self.looks[f"{name} {table}"] += 1
        for what, read, expected in [*self._reading][::3]:
            assert read() == expected, f"{what}, opened earlier, has changed before {step!r}"
        self._look_at_all(step)

    def _look_at_all(self, step: str) -> None:
        """Read both tables at one moment: they end in one block, which the stream has had."""
        if not all(map(self._is_there, TABLES)):
            return
        try:
            moment = lake_moment(self.folder, "one")
        except NothingStoredError:
            assert any(
                not rows_of(one, LOG) and not rows_of(one, BALANCES) for one in self._allowed
            ), f"{step}: what was committed is not seen"
            return
        if moment.versions.keys() < set(TABLES):
            assert moment.block is None, f"{step}: {moment} lacks a table"
            return
        found = [
            next(iter(OPEN[self.kind](self.folder, name, moment.versions[name]).values()))()
            for name in TABLES
        ]
        known = [[rows_of(one, name) for name in TABLES] for one in self._allowed]
        assert found in known, f"before {step!r} at {moment}: {found} is none of {known}"
        self.moments.append(moment.block.number if moment.block else -1)

    def follow_by_others(self) -> None:
        """Leave it to another thread to look."""
        self._looks_itself = False

    def look_from_outside(self) -> None:
        """Read both tables at one moment, while the stream goes on in another thread."""
        if not all(map(self._is_there, TABLES)):
            return
        try:
            moment = lake_moment(self.folder, "one")
        except (LakePathError, NothingStoredError):  # it has committed nothing yet
            return
        if moment.block is None:
            return
        found = [
            next(iter(OPEN[self.kind](self.folder, name, moment.versions[name]).values()))()
            for name in TABLES
        ]
        contents = self._known[moment.block.hash]
        assert found == [rows_of(contents, name) for name in TABLES], f"{moment} is torn: {found}"
        self.moments.append(hash(moment.block.hash))

    def _is_there(self, table: str) -> bool:
        if self.kind == "delta":
            return (self.folder / table / "_delta_log").exists()
        return (self.folder / "default" / table / "metadata").exists()


def _days() -> Callable[[], float]:
    """Return a clock on which a sweep is due whenever it is asked for."""
    times = iter(range(0, 1 << 40, 2 * DAY))
    return lambda: next(times)
