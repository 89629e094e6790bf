"""Streams of a lake that an operator moves, forgets and looks at, in all three formats."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from headwater.core import PipeState
from headwater.errors import (
    CursorMoveError,
    EvolveError,
    LakeCommandError,
    LakePathError,
    LakeWriterError,
    NothingStoredError,
    ParquetWriterError,
)
from headwater.targets.admin import MoveKind, open_admin
from headwater.targets.delta import delta_target
from headwater.targets.iceberg import iceberg_target, table
from headwater.targets.lake.paths import Place
from headwater.targets.parquet import ParquetSettings, parquet_target
from headwater.testing.conformance.model import (
    BALANCES,
    KEY,
    LOG,
    Change,
    Rig,
    balance,
    log,
    upsert,
)
from headwater.testing.conformance.suite import apply_changes
from tests.targets.lake_places import bucket

TABLES = ["iceberg", "delta"]
KINDS = [*TABLES, "parquet"]


class Crashed(BaseException):
    """The process ends here."""


def made(kind: str, path: Path) -> Any:
    keyed = table(BALANCES, key=KEY)
    target: Any
    if kind == "parquet":
        target = parquet_target(path, tables=[LOG], on_data=apply_changes)
    elif kind == "delta":
        target = delta_target(path, tables=[LOG, keyed], on_data=apply_changes)
    else:
        target = iceberg_target(path, tables=[LOG, keyed], on_data=apply_changes)
    target.bind("one")
    return target


def started(kind: str, path: Path, final: int = 3) -> Rig:
    """Write six blocks."""
    target = made(kind, path)
    target.recover()
    names = [LOG] if kind == "parquet" else [LOG, BALANCES]
    rig = Rig(target, lambda name: rows(kind, path, name), names)
    for number in range(1, 7):
        rig.block(number, *changes(kind, number), final=min(number, final))
    return rig


def changes(kind: str, number: int) -> list[Change]:
    inserted = [log(number, f"row {number}")]
    return inserted if kind == "parquet" else [*inserted, upsert(balance("all", "t", number))]


def rows(kind: str, path: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]]
    if kind == "parquet":
        files = sorted((path / name).glob("[0-9]*.parquet"))
        return [row for one in files for row in pq.read_table(one, partitioning=None).to_pylist()]
    if kind == "delta":
        if not (path / name / "_delta_log").exists():
            return []
        found = DeltaTable(path / name).to_pyarrow_table().to_pylist()
        return found
    place = {"uri": f"sqlite:///{path}/catalog.db", "warehouse": str(path)}
    catalog = load_catalog("headwater", type="sql", **place)
    try:
        found = catalog.load_table(f"default.{name}").scan().to_arrow().to_pylist()
    except NoSuchTableError:
        return []
    finally:
        catalog.close()
    return found


@pytest.mark.guarantee("OPERATE-1")
@pytest.mark.guarantee("OPERATE-2")
@pytest.mark.parametrize("kind", TABLES)
def test_a_cursor_goes_back_with_its_rows_and_the_stream_that_runs_stops(
    kind: str, tmp_path: Path
) -> None:
    rig = started(kind, tmp_path)
    done = open_admin(str(tmp_path)).move("one", 4)
    assert (done.kind, done.number) == (MoveKind.UNDO, 4)
    with pytest.raises(LakeWriterError):
        rig.target.commit((), rig.state)
    rig.target.close()
    rig.target = made(kind, tmp_path)
    state = rig.target.recover()
    assert state == done.state
    rig.model.roll_back(state)
    rig.check()
    rig.block(5, *changes(kind, 5), branch="b", final=3)
    rig.check()
    rig.target.close()
    with pytest.raises(CursorMoveError, match="below what can be undone"):
        open_admin(str(tmp_path)).move("one", 2)
    with pytest.raises(CursorMoveError, match="what final blocks did"):
        open_admin(str(tmp_path)).move("one", 2, force=True)


@pytest.mark.guarantee("OPERATE-1")
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_left_out_by_force_alone(kind: str, tmp_path: Path) -> None:
    rig = started(kind, tmp_path, final=6)
    if kind == "parquet":
        rig.target.capabilities.finish()  # type: ignore[misc]
    rig.target.close()
    before = rows(kind, tmp_path, LOG)
    admin = open_admin(str(tmp_path))
    with pytest.raises(CursorMoveError, match="leave out"):
        admin.move("one", 9)
    assert admin.move("one", 9, force=True).kind is MoveKind.AHEAD
    rig.target = made(kind, tmp_path)
    assert rig.target.recover().number == 9
    assert rows(kind, tmp_path, LOG) == before
    rig.target.close()


def test_a_folder_of_files_goes_back_to_where_files_end(tmp_path: Path) -> None:
    target = parquet_target(tmp_path, tables=[LOG], on_data=apply_changes)
    target.bind("one")
    target.recover()
    rig = Rig(target, lambda name: rows("parquet", tmp_path, name), [LOG])
    for first in (1, 4):
        for number in range(first, first + 3):
            rig.block(number, log(number, number), final=number)
        target.capabilities.finish()  # type: ignore[misc]
    admin = open_admin(str(tmp_path))
    with pytest.raises(ParquetWriterError):
        admin.move("one", 3, force=True)
    target.close()
    with pytest.raises(CursorMoveError, match="both sides"):
        admin.move("one", 5, force=True)
    assert len(rows("parquet", tmp_path, LOG)) == 6
    assert admin.move("one", 3, force=True).kind is MoveKind.BELOW
    assert [one["block_number"] for one in rows("parquet", tmp_path, LOG)] == [1, 2, 3]
    target.bind("one")
    assert target.recover().number == 3
    target.close()


@pytest.mark.guarantee("OPERATE-1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [False, True])
def test_a_stream_that_is_forgotten_begins_anew(kind: str, keep: bool, tmp_path: Path) -> None:
    rig = started(kind, tmp_path, final=6)
    if kind == "parquet":
        rig.target.capabilities.finish()  # type: ignore[misc]
    rig.target.close()
    admin = open_admin(str(tmp_path))
    with pytest.raises(CursorMoveError, match="final data"):
        admin.reset("one")
    admin.reset("one", force=True, keep_data=keep)
    assert admin.streams() == []
    with pytest.raises(NothingStoredError):
        admin.move("one", 1)
    assert bool(rows(kind, tmp_path, LOG)) is keep
    target = made(kind, tmp_path)
    assert target.recover() == PipeState()
    kept = len(rows(kind, tmp_path, LOG))
    assert bool(kept) is (keep and kind != "parquet")
    again = Rig(target, lambda name: rows(kind, tmp_path, name), [LOG])
    for number in (1, 2, 3):
        again.block(number, log(number, number), branch="b", final=1)
    again.roll_back(2)
    if kind != "parquet":
        assert len(rows(kind, tmp_path, LOG)) == kept + 2
    target.close()
    if kind == "parquet":
        return
    last = made(kind, tmp_path)
    assert last.recover() == again.state
    assert len(rows(kind, tmp_path, LOG)) == kept + 2
    last.close()


@pytest.mark.guarantee("OPERATE-1")
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("keep", [False, True])
def test_a_crash_before_any_step_of_that_leaves_the_stream_or_none(
    kind: str, keep: bool, tmp_path: Path
) -> None:
    for at in itertools.count():
        path = tmp_path / str(at)
        path.mkdir()
        rig = started(kind, path)
        rig.target.close()
        target = made(kind, path)
        target.recover()
        target.on_step = crash_at(at)
        crashed = True
        with suppress(Crashed):
            target.forget(keep_data=keep)
            crashed = False
        target.on_step = None
        target.close()
        last = made(kind, path)
        state = last.recover()
        whole = len(rows(kind, path, LOG)), len(rows(kind, path, BALANCES))
        if state.cursor is None:
            assert whole == ((6, 1) if keep else (0, 0))
        else:
            assert (state, whole) == (rig.state, (6, 1))
            assert crashed
        last.close()
        if not crashed:
            return


def crash_at(at: int) -> Callable[[str], None]:
    left = itertools.count()

    def step(name: str) -> None:
        if next(left) == at:
            raise Crashed(name)

    return step


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_lake_cannot_do_is_refused(kind: str, tmp_path: Path) -> None:
    rig = started(kind, tmp_path, final=6)
    if kind == "parquet":
        rig.target.capabilities.finish()  # type: ignore[misc]
    rig.target.close()
    admin = open_admin(str(tmp_path))
    with pytest.raises(LakeCommandError, match="E2613"):
        admin.setup({})  # type: ignore[arg-type]
    if kind == "parquet":
        with pytest.raises(LakeCommandError, match="side tables"):
            admin.target("one")
    else:
        side = admin.target("one")
        assert side.recover().number == 6
        side.close()


def test_a_table_on_an_object_store_is_not_renamed(tmp_path: Path) -> None:
    place = bucket()
    target = delta_target(place.uri, options=place.options)
    target.bind("one")
    target.recover()
    Rig(target, lambda name: [], []).block(1, log(1, 1), final=1)
    before = target.stored_config().read()
    with pytest.raises(EvolveError, match=r"E0018.*object store"):
        target.rename_outputs({"other": "log"}, "begun", "config")
    assert target.stored_config().read() == before
    target.close()


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_storage_that_fails_under_a_command_has_a_code(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(kind, tmp_path).target.close()
    admin: Any = open_admin(str(tmp_path))

    def fail(*given: object) -> None:
        raise OSError("AWS Error SLOW_DOWN")

    monkeypatch.setattr(Place, "read", fail)
    for command in (admin.streams, lambda: admin.maintain(None, ParquetSettings())):
        with pytest.raises(LakePathError, match="SLOW_DOWN"):
            command()
