"""Readers of several tables, while the stream commits and the chain forks: one block for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headwater.errors import LakePathError, LakeUnsupportedError
from headwater.targets import delta_target, iceberg_target, lake_moment, parquet_target
from headwater.targets.delta.tables import StreamTables
from headwater.targets.lake.paths import Place
from headwater.testing.conformance.model import LOG, PLAIN, Change, Rig, log
from headwater.testing.conformance.suite import apply_changes

TABLES = [LOG, PLAIN]


def changes(number: int, branch: str) -> list[Change]:
    """Write the same rows into two tables."""
    rows = pa.table({"block_number": [number], "log_index": [0], "value": [f"{branch}{number}"]})
    return [log(number, f"{branch}{number}"), Change("insert", PLAIN, (), rows)]


def read(kind: str, path: Path, versions: Any) -> list[list[str]]:
    """Read both tables at their versions."""
    found = []
    for name in TABLES:
        if kind == "delta":
            rows = DeltaTable(path / name, version=versions[name]).to_pyarrow_table()
        else:
            uri = f"sqlite:///{path}/catalog.db"
            catalog = load_catalog("headwater", type="sql", uri=uri, warehouse=str(path))
            stored = catalog.load_table(f"default.{name}")
            rows = stored.scan(snapshot_id=versions[name]).to_arrow()
            catalog.close()
        found.append(sorted(rows["value"].to_pylist()))
    return found


@pytest.mark.guarantee("LAKE-6")
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_all_tables_are_read_at_one_block_before_every_step_of_a_commit_and_a_fork(
    kind: str, tmp_path: Path
) -> None:
    make: Any = {"iceberg": iceberg_target, "delta": delta_target}[kind]
    target = make(tmp_path, tables=TABLES, on_data=apply_changes)
    target.bind("one")
    target.recover()
    rig = Rig(target, lambda name: [], [])
    chains = {1: ["a1"], 2: ["a1", "a2"]}
    for number in (1, 2):
        rig.block(number, *changes(number, "a"), final=1)
    looks: list[tuple[int, list[str]]] = []

    def look(step: str) -> None:
        if step.startswith(("write", "delete")):
            return
        moment = lake_moment(tmp_path)
        assert moment.block is not None
        first, second = read(kind, tmp_path, moment.versions)
        assert first == second, step
        looks.append((moment.block.number, first))

    target.on_step = look
    rig.block(3, *changes(3, "a"), final=1)
    rig.roll_back(1)
    rig.block(2, *changes(2, "b"), branch="b", final=1)
    look("at the end")
    chains |= {3: ["a1", "a2", "a3"]}
    assert {number for number, _ in looks} == {1, 2, 3}
    assert looks[-1] == (2, ["a1", "b2"])
    assert all(rows in (chains[number], ["a1", "b2"]) for number, rows in looks)


def test_where_no_moment_can_be_read_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(LakePathError):
        lake_moment(tmp_path)
    target = parquet_target(tmp_path, tables=[LOG], on_data=apply_changes)
    target.bind("one")
    target.recover()
    Rig(target, lambda name: [], []).block(1, log(1, "a"), final=1)
    with pytest.raises(LakeUnsupportedError):
        lake_moment(tmp_path, "one")
    target.close()


def test_what_a_handle_has_not_read_does_not_number_its_commits_anew(tmp_path: Path) -> None:
    """delta-rs lists newer commits in the history of a handle, under the numbers of others."""
    target = delta_target(tmp_path, tables=TABLES, on_data=apply_changes)
    target.bind("one")
    target.recover()
    rig = Rig(target, lambda name: [], [])
    for number in range(1, 4):
        rig.block(number, log(number, number), final=1)
    tables = StreamTables(Place.of(tmp_path), "one", {})
    tables.load()
    early = tables.open[LOG]
    before = [(one["version"], one["headwater.block"]) for one in early.said()]
    for number in range(4, 7):
        rig.block(number, log(number, number), final=1)
    assert [(one["version"], one["headwater.block"]) for one in early.said()] == before
    assert early.version_at(3) == before[0][0]
    target.close()
