"""A Python of executors that cannot do the work is named, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.core.retry import RetryPolicy
from headwater.errors import ExecutorPythonError, InvalidOptionError
from headwater.portal import portal_address
from headwater.spark import ship
from headwater.spark.parts import Part, PartReader, RawRows
from headwater.targets import duckdb_target
from headwater.testing import PortalServer
from tests.shared import HANG_S
from tests.spark.conftest import ALL, TRANSFER

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, traceback
from pyspark.sql import SparkSession
from headwater import duckdb_target, evm, portal_stream
from headwater.errors import ExecutorPythonError
from headwater.spark import ship
from headwater.testing import simulated_portal

session = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
with simulated_portal(seed=5, blocks=200, finality_depth=10) as portal:
    events = evm.events("erc20.Transfer", range=(0, 150))
    stream = portal_stream(
        id="a", portal=portal.url, outputs={"t": events}, spark=session, far=20, first_span=100
    )
    without, shipped = sys.argv[1:]
    try:
        stream.pipe_to(duckdb_target(without), progress=False)
    except ExecutorPythonError:
        traceback.print_exc()
    ship(session)
    stream.pipe_to(duckdb_target(shipped), progress=False)
"""


def bare_python(folder: Path, *options: str, path: str = "") -> Path:
    """Make a command that runs Python without this package; `path` is what it has instead."""
    bare = folder / "python"
    bare.write_text(
        "#!/bin/sh\n"
        f"PYTHONPATH=$(echo \"$PYTHONPATH\" | tr : '\\n' | grep -vx '{ROOT}/src' | paste -sd: -)\n"
        f'export PYTHONPATH="$PYTHONPATH:{path}"\n'
        f'exec "{sys.executable}" {" ".join(options)} "$@"\n'
    )
    bare.chmod(0o755)
    return bare


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executors")


@pytest.fixture(scope="module")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program whose executors get the package only when they have failed without it.

    They have pyspark, pyarrow and so on, and not headwater: no `.pth` file is read.
    """
    python = bare_python(folder, "-S", path=sysconfig.get_paths()["purelib"])
    looked = subprocess.run(
        [str(python), "-c", "import pyarrow, msgspec, headwater"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert "No module named 'headwater'" in looked.stderr
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *(str(folder / f"{name}.duckdb") for name in "ab")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        check=False,
    )


def test_executors_whose_python_lacks_headwater_are_named(
    ran: subprocess.CompletedProcess[str], folder: Path
) -> None:
    """In a session of the user's own; nothing is written."""
    coded = [one for one in ran.stderr.splitlines() if "ExecutorPythonError: [E5014]" in one]
    assert coded, ran.stderr[-3000:]
    last = coded[-1]  # the JVM may still write to the same stream afterwards
    assert "No module named 'headwater'" in last
    assert "PYSPARK_PYTHON or spark.pyspark.python" in last
    assert duckdb_target(folder / "a.duckdb").query("FROM sync").num_rows == 0


def test_a_package_that_was_shipped_is_enough(
    ran: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert ran.returncode == 0, ran.stderr[-3000:]
    target = duckdb_target(folder / "b.duckdb")
    assert target.query("SELECT max(block_number) AS last FROM t").to_pylist() == [{"last": 150}]


def test_executors_with_another_version_are_named(portal: PortalServer) -> None:
    reader = PartReader(portal_address(portal.url), TRANSFER.query, RawRows(), None, RetryPolicy())
    with pytest.raises(ExecutorPythonError, match=r"driver=0\.0\.1"):
        next(replace(reader, version="0.0.1").read(Part(0, ALL)))


def test_only_a_session_gets_the_package() -> None:
    with pytest.raises(InvalidOptionError, match="takes the Spark session"):
        ship("spark")


def test_a_forked_process_that_ends_leaves_the_zip_of_its_parent() -> None:
    program = (
        "import os, sys\n"
        "from headwater.spark.session import _archive\n"
        "path = _archive()\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(path.exists())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.stdout == "True\n", done.stderr
