"""Which inner parts of pyiceberg and delta-rs the lakes are made of, and where they are used."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import deltalake
import pytest
from deltalake.transaction import AddAction, RemoveAction
from pyiceberg.table.update.schema import UpdateSchema

import headwater.targets
from headwater.errors import MissingExtraError
from headwater.targets.extras import import_extra
from headwater.targets.iceberg import inner

FOLDER = Path(headwater.targets.__file__).parent
PUBLIC = {  # of pyiceberg: what its documentation shows
    "pyiceberg.catalog", "pyiceberg.exceptions", "pyiceberg.schema", "pyiceberg.types",
    "pyiceberg", "pyiceberg.table", "pyiceberg.table.sorting", "pyiceberg.partitioning",
    "pyiceberg.transforms", "pyiceberg.typedef", "pyiceberg.utils.config",
}  # fmt: skip
IN_PATHS = {"pyiceberg.io.pyarrow"}  # executors of tables on an object store open files with it
DELTA = {"deltalake", "deltalake.exceptions", "deltalake.schema", "deltalake.transaction"}
METHODS = (
    "alter", "create", "create_checkpoint", "create_write_transaction", "get_add_actions",
    "history", "metadata", "schema", "transaction_version", "update_incremental", "vacuum",
    "version",
)  # fmt: skip


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports names of."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_inner_parts_of_pyiceberg_are_used_through_one_module() -> None:
    for path in FOLDER.rglob("*.py"):
        found = {one for one in imported(path) if one.partition(".")[0] == "pyiceberg"}
        if path.name == "inner.py":
            assert found - PUBLIC == {
                "pyiceberg.conversions", "pyiceberg.io.pyarrow", "pyiceberg.manifest",
                "pyiceberg.table.refs", "pyiceberg.table.snapshots",
            }  # fmt: skip
        else:
            assert found <= PUBLIC | (IN_PATHS if path.name == "paths.py" else set()), path
    for name in inner.__all__:
        assert hasattr(inner, name)
    for name in ("AddSnapshotUpdate", "SetSnapshotRefUpdate", "RemoveSnapshotsUpdate",
                 "AssertTableUUID", "AssertRefSnapshotId"):  # fmt: skip
        assert hasattr(inner.update, name)
    assert hasattr(UpdateSchema, "_commit")


def test_parts_of_delta_rs_are_those_that_its_documentation_shows() -> None:
    for path in FOLDER.rglob("*.py"):
        assert {one for one in imported(path) if one.partition(".")[0] == "deltalake"} <= DELTA
    assert {AddAction.__name__, RemoveAction.__name__} == {"AddAction", "RemoveAction"}
    for name in METHODS:
        assert hasattr(deltalake.DeltaTable, name)


def test_a_version_that_lacks_a_part_is_named_with_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As deltalake before 1.6.4, which has no `RemoveAction`."""
    monkeypatch.delattr("deltalake.transaction.RemoveAction")
    for name in [one for one in sys.modules if one.startswith("headwater.targets.delta")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(headwater.targets, "delta", raising=False)
    with pytest.raises(MissingExtraError, match=r"E0009.*version of deltalake.*RemoveAction"):
        import_extra("delta", "delta_target")
