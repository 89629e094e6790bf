"""What `import headwater` gives: all that most programs need, and nothing heavy before its use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import clickhouse_target, duckdb_target, postgres_target, table
from headwater.errors import InvalidOptionError
from headwater.targets.duckdb import table as own_table
from tests.shared import HANG_S

HEAVY = ("duckdb", "grpc", "numpy", "psycopg", "py4j", "pyarrow", "pyspark", "urllib3")
TARGETS: dict[str, Any] = {
    "duckdb": lambda tables: duckdb_target(":memory:", tables=tables),
    "postgres": lambda tables: postgres_target("postgresql://x/y", tables=tables),
    "clickhouse": lambda tables: clickhouse_target("http://127.0.0.1:1/x", tables=tables),
}


@pytest.mark.parametrize("name", ["headwater", "headwater.cli"])
def test_an_import_of_the_package_or_its_commands_loads_nothing_heavy(name: str) -> None:
    code = f"import sys, {name}; print([one for one in {HEAVY} if one in sys.modules])"
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert made.stdout.strip() == "[]"


@pytest.mark.parametrize("name", headwater.__all__)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    found = getattr(headwater, name)
    assert found.__doc__ or name == "Event"


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        headwater.nonsense  # noqa: B018


def test_the_package_is_typed() -> None:
    assert (Path(str(headwater.__file__)).parent / "py.typed").is_file()


# --- one table for every target -------------------------------------------------------------------


@pytest.mark.parametrize("make", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("tables", ["transfers", table("transfers"), 7, [7], [None]])
def test_tables_are_a_list_of_names_and_tables(make: Any, tables: object) -> None:
    """A bare name would be taken for as many tables as it has letters."""
    with pytest.raises(InvalidOptionError, match="E0007"):
        make(tables)


@pytest.mark.parametrize("make", TARGETS.values(), ids=TARGETS)
def test_what_all_targets_can_do_is_declared_the_same_way(make: Any) -> None:
    make([table("transfers", block_column="height", types={"value": "BIGINT"}), "others"])
    make([])


def test_a_target_refuses_what_it_cannot_do_when_it_is_made() -> None:
    with pytest.raises(InvalidOptionError, match=r"E0007.*transfers.*unknown=engine, order_by"):
        TARGETS["duckdb"]([table("transfers", engine="MergeTree", order_by=["a"])])
    with pytest.raises(InvalidOptionError, match=r"E0007.*unknown=key.*known=.*order_by"):
        TARGETS["clickhouse"]([table("transfers", key=["a"])])
    with pytest.raises(InvalidOptionError, match=r"E0007.*list of columns"):
        TARGETS["postgres"]([table("transfers", key="a")])


def test_each_target_exports_the_one_declaration() -> None:
    assert own_table is table
    for name in ("clickhouse", "delta", "iceberg", "parquet", "postgres"):
        assert importlib.import_module(f"headwater.targets.{name}").table is table
