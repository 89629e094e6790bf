"""`headwater maintain`, as an operator types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import InvalidOptionError, LakePathError, LakeUnsupportedError
from headwater.targets import parquet_target
from headwater.targets.delta import DeltaSettings
from headwater.testing.conformance.model import LOG, log
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


def test_a_folder_of_parquet_files_needs_no_maintenance(tmp_path: Path) -> None:
    target = parquet_target(tmp_path)
    target.bind("one")
    target.recover()
    target.close()
    with pytest.raises(LakeUnsupportedError, match="needs no maintenance"):
        run("maintain", str(tmp_path))


def test_what_is_not_named_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "typo"):
        with pytest.raises(LakePathError, match="no Iceberg catalog and no Delta table is there"):
            run("maintain", str(place))
    assert list(tmp_path.iterdir()) == []  # nothing is made of a name that is wrong
    with pytest.raises(InvalidOptionError):
        run("maintain")
    with pytest.raises(InvalidOptionError, match="name=value"):
        run("maintain", "--property", "nonsense")
