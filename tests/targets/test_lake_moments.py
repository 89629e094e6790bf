"""Readers of several tables, while the stream commits and the chain forks: one block for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headwater.errors import LakePathError, NothingStoredError
from headwater.targets import (
    ParquetSettings,
    ParquetTarget,
    Rollover,
    delta_target,
    iceberg_target,
    lake_moment,
    parquet_target,
)
from headwater.targets.delta.tables import StreamTables
from headwater.targets.lake.admin import LakeMoment
from headwater.targets.lake.paths import Place
from headwater.testing.conformance.model import LOG, PLAIN, Change, Rig, log
from headwater.testing.conformance.suite import apply_changes

TABLES = [LOG, PLAIN]


def plain_files(path: Any, **options: Any) -> ParquetTarget:
    """Return a target of Parquet files that publishes at every commit."""
    settings = ParquetSettings(rollover=Rollover(bytes=None, seconds=None))
    return parquet_target(path, settings=settings, **options)


def changes(number: int, branch: str) -> list[Change]:
    """Write the same rows into two tables."""
    rows = pa.table({"block_number": [number], "log_index": [0], "value": [f"{branch}{number}"]})
    return [log(number, f"{branch}{number}"), Change("insert", PLAIN, (), rows)]


def read(kind: str, path: Path, moment: LakeMoment) -> list[list[str]]:
    """Read both tables at their versions."""
    versions = moment.versions
    found = []
    for name in TABLES:
        if kind == "parquet":
            rows = ds.dataset(list(moment.files[name])).to_table()
        elif kind == "delta":
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
@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_all_tables_are_read_at_one_block_before_every_step_of_a_commit_and_a_fork(
    kind: str, tmp_path: Path
) -> None:
    make: Any = {"iceberg": iceberg_target, "delta": delta_target, "parquet": plain_files}[kind]
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
        first, second = read(kind, tmp_path, moment)
        assert first == second, step
        looks.append((moment.block.number, first))

    target.on_step = look
    rig.block(3, *changes(3, "a"), final=1)
    rig.roll_back(1)
    rig.block(2, *changes(2, "b"), branch="b", final=1)
    look("at the end")
    chains |= {3: ["a1", "a2", "a3"]}
    if kind == "parquet":
        rig.settle(2)
        look("when it is final")
    assert {number for number, _ in looks} == ({1, 2} if kind == "parquet" else {1, 2, 3})
    assert looks[-1] == (2, ["a1", "b2"])
    assert all(rows in (chains[number], ["a1", "b2"]) for number, rows in looks)


def test_where_no_moment_can_be_read_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(LakePathError):
        lake_moment(tmp_path)
    for stream_id in ("one", "two"):
        target = plain_files(tmp_path, tables=[f"{LOG}_{stream_id}"], on_data=lambda tx, data: None)
        target.bind(stream_id)
        target.recover()
        Rig(target, lambda name: [], []).block(1, final=1)
        target.close()
    with pytest.raises(LakePathError, match="one, two"):
        lake_moment(tmp_path)
    assert lake_moment(tmp_path, "two").versions == {}
    with pytest.raises(NothingStoredError):
        lake_moment(tmp_path, "three")


def test_files_of_a_writer_that_was_replaced_are_of_no_moment() -> None:
    """They lie beside those that its successor published, until the next start removes them."""
    place = f"memory://bucket/{uuid4().hex}"
    rows: list[str] = []
    for start in (1, 2):
        target = plain_files(place, tables=[LOG], on_data=apply_changes)
        target.bind("one")
        rig = Rig(target, lambda name: [], [])
        state = target.recover()
        if state.cursor is not None:
            rig.model.settle(state)
        for number in (2 * start - 1, 2 * start):
            rig.block(number, log(number, f"a{number}"), final=number)
            rows.append(f"a{number}")
        target.close()
    folder = Place.of(place)
    for stale in ("000000000003-000000000003", "000000000003-000000000004"):
        folder.replace(f"{LOG}/{stale}-e000001.parquet", b"rows that do not count")
    found: list[str] = []
    for uri in lake_moment(place).files[LOG]:
        with folder.open(uri.removeprefix(f"{folder.uri}/")) as file:
            found += pq.read_table(file)["value"].to_pylist()
    assert found == rows


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
