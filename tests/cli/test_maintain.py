"""`headwater maintain`, as an operator types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import InvalidOptionError, LakePathError
from headwater.targets import parquet_target
from headwater.targets.delta import DeltaSettings
from headwater.testing.conformance.model import LOG, Rig, log
from headwater.testing.conformance.suite import apply_changes
from tests.cli.test_cursor import run
from tests.targets import test_delta
from tests.targets.test_iceberg import open_catalog, start


def test_snapshots_expire_and_files_are_compacted_while_the_stream_is_open(tmp_path: Path) -> None:
    rig = start(tmp_path, LOG)
    for number in range(1, 21):
        rig.block(number, log(number, number), final=18)
    shown = run(
        "maintain", str(tmp_path), "--id", "one", "--grace-hours", "0", "--final-snapshots", "1"
    )
    assert "one: " in shown
    assert "18 files compacted" in shown
    stored = open_catalog(tmp_path).load_table("default.log")
    assert len(stored.metadata.snapshots) < 6
    rig.block(21, log(21, "next"), final=18)
    rig.check()
    rig.roll_back(19)
    rig.check()
    rig.target.close()
    pairs = ["type=sql", f"uri=sqlite:///{tmp_path}/catalog.db", f"warehouse={tmp_path}"]
    shown = run("maintain", *(part for one in pairs for part in ("--property", one)))
    assert "one: " in shown, "the name of a catalog in a directory is the default"


def test_delta_tables_are_found_by_their_logs(tmp_path: Path) -> None:
    rig = test_delta.started(tmp_path, settings=DeltaSettings(maintain_every=0))
    for number in range(1, 21):
        rig.block(number, log(number, number), final=18)
    shown = run("maintain", str(tmp_path), "--grace-hours", "0")
    assert "one: 18 files compacted, 18 files deleted" in shown
    rig.block(21, log(21, "next"), final=18)
    rig.roll_back(19)
    rig.check()
    shown = run("maintain", f"file://{tmp_path}", "--id", "one")
    assert "one: 0 files compacted" in shown


def test_files_that_wait_for_nobody_are_deleted_from_a_folder_of_parquet_files(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        target = parquet_target(tmp_path, tables=[LOG], on_data=apply_changes)
        target.bind("one")
        target.recover()
        rig = Rig(target, lambda name: [], [])
        if target.recover().cursor is None:
            rig.block(1, log(1, "a"), final=1)
            assert target.capabilities.finish is not None
            target.capabilities.finish()
        target.close()
    waiting = tmp_path / LOG / "_staging"
    waiting.mkdir()
    names = {
        epoch: waiting / f"0000000002-0000000002-one-e{epoch:06d}-00000-0123456789ab-000.parquet"
        for epoch in (1, 2)
    }
    for one in (*names.values(), waiting / "of-another.parquet"):
        one.write_bytes(b"rows")
    shown = run("maintain", str(tmp_path))
    assert "one: 0 files compacted, 1 files deleted" in shown
    left = set(waiting.iterdir())
    assert left == {names[2], waiting / "of-another.parquet"}, "one may be under way"


def test_what_is_not_named_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "typo"):
        with pytest.raises(LakePathError, match="no Iceberg catalog and no Delta table is there"):
            run("maintain", str(place))
    assert list(tmp_path.iterdir()) == []  # nothing is made of a name that is wrong
    with pytest.raises(InvalidOptionError):
        run("maintain")
    with pytest.raises(InvalidOptionError, match="name=value"):
        run("maintain", "--property", "nonsense")
