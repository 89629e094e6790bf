"""Maintenance inside a stream and beside it, and places with odd names, in all formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.errors import LakePathError
from headwater.targets.admin import open_admin
from headwater.targets.delta import DeltaSettings, delta_target
from headwater.targets.iceberg import IcebergSettings, iceberg_target, table
from headwater.targets.lake.settings import LakeSettings
from headwater.targets.parquet import parquet_target
from headwater.testing.conformance.model import BALANCES, KEY, LOG, Rig, balance, log, upsert
from headwater.testing.conformance.suite import apply_changes
from tests.targets.test_lake_admin import KINDS, TABLES, rows

SETTINGS: dict[str, LakeSettings] = {
    "iceberg": IcebergSettings(maintain_every=0, compact_files=2, grace_s=0),
    "delta": DeltaSettings(maintain_every=0, compact_files=2, retention_hours=0),
}
MAKE: dict[str, Any] = {"iceberg": iceberg_target, "delta": delta_target, "parquet": parquet_target}


def started(kind: str, path: Path) -> Rig:
    tables = [LOG, table(BALANCES, key=KEY)]
    target = MAKE[kind](path, tables=tables, on_data=apply_changes, settings=SETTINGS[kind])
    target.bind("one")
    target.recover()
    return Rig(target, lambda name: rows(kind, path, name), [LOG, BALANCES])


def files(path: Path) -> list[int]:
    """Return the sizes of all data files; checkpoints of a log are none."""
    found = [one for one in path.rglob("*.parquet") if one.parent.name != "_delta_log"]
    return sorted(one.stat().st_size for one in found)


@pytest.mark.guarantee("LAKE-8")
@pytest.mark.parametrize("kind", TABLES)
def test_maintenance_inside_and_beside_leave_the_same_and_a_fork_goes_back_through_both(
    kind: str, tmp_path: Path
) -> None:
    inside, beside = (started(kind, tmp_path / name) for name in ("inside", "beside"))
    for rig, name in ((inside, "inside"), (beside, "beside")):
        for number in range(1, 9):
            changes = log(number, number), upsert(balance("all", "t", number))
            rig.block(number, *changes, final=min(number, 5))
        if name == "inside":
            rig.target.maintain()  # type: ignore[attr-defined]
        else:
            admin: Any = open_admin(str(tmp_path / name))
            admin.maintain("one", SETTINGS[kind])
    assert files(tmp_path / "inside") == files(tmp_path / "beside")
    for rig in (inside, beside):
        rig.check()
        rig.roll_back(6)
        rig.check()
        rig.block(7, log(7, "b"), upsert(balance("all", "t", 70)), branch="b", final=5)
        rig.check()
        rig.target.close()
    assert files(tmp_path / "inside") == files(tmp_path / "beside")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a b", "#", "?", "100%25", "ü+é", "it's"])
def test_a_folder_has_any_name_or_is_refused_before_anything_is_made(
    kind: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if kind == "parquet":
        target: Any = parquet_target(path, tables=[LOG], on_data=apply_changes)
        target.bind("one")
        target.recover()
        rig = Rig(target, lambda table: rows(kind, path, table), [])
        rig.block(1, log(1, 1), final=1)
        target.capabilities.finish()
        assert len(rows(kind, path, LOG)) == 1
        target.close()
        target = parquet_target(path, tables=[LOG], on_data=apply_changes)
        target.bind("one")
        assert target.recover().number == 1
        target.close()
        return
    if set(name) & set("#?%"):
        with pytest.raises(LakePathError, match="different places"):
            started(kind, path)
        assert not path.exists()
        return
    rig = started(kind, path)
    for number in range(1, 6):
        rig.block(number, log(number, number), upsert(balance("all", "t", number)), final=3)
    rig.target.maintain()  # type: ignore[attr-defined]
    rig.roll_back(4)
    rig.check()
    rig.target.close()
    admin: Any = open_admin(str(path))
    assert admin.maintain("one", SETTINGS[kind])
    again = started(kind, path)
    again.model = rig.model
    again.check()
    again.target.close()


@pytest.mark.parametrize("uri", ["s3://bucket/a#b", "s3://bucket/a%20b"])
@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_prefix_that_engines_read_differently_is_refused(kind: str, uri: str) -> None:
    with pytest.raises(LakePathError):
        MAKE[kind](uri)
