"""The project of examples/pipelines, run by `spark-pipelines` on a chain that forks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from headwater.spark.streaming.journal import decode_segment
from headwater.testing import simulated_portal
from tests.stream.truth import transfers

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("HEADWATER_CONNECT_PYTHON")  # one that has what Spark Connect asks for
NEEDED = ("pandas", "grpc_status", "google.rpc")


def lacks_connect() -> bool:
    try:
        return any(find_spec(name) is None for name in NEEDED)
    except ModuleNotFoundError:
        return True


pytestmark = pytest.mark.skipif(
    PYTHON is None and lacks_connect(),
    reason="spark-pipelines was not run: pyspark[connect] is not installed",
)


@pytest.mark.parametrize("runs", [2])
def test_the_tables_of_the_example_equal_the_chain(tmp_path: Path, runs: int) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "pipelines", project)
    spec = project / "spark-pipeline.yml"
    place = (project / "storage").as_uri()
    spec.write_text(spec.read_text().replace("file:///tmp/headwater-pipelines/storage", place))
    python = PYTHON or sys.executable
    with simulated_portal(seed=7, blocks=60, finality_depth=20) as portal:
        for _ in range(runs):
            done = subprocess.run(
                [
                    *(Path(sys.executable).parent / "spark-pipelines", "run", "--spec", str(spec)),
                    *("--conf", "spark.sql.catalogImplementation=hive"),
                ],
                cwd=project,
                env={
                    **os.environ,
                    "HEADWATER_PORTAL": portal.url,
                    "HEADWATER_JOURNAL": str(project / "journal"),
                    "PYSPARK_PYTHON": python,
                    "PYSPARK_DRIVER_PYTHON": python,
                    "PYTHONPATH": str(ROOT / "src"),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
            newest = max((project / "journal").glob("*.arrow"))
            end = decode_segment(newest.read_bytes(), newest.name).after
            assert end.hash == portal.chain.head.hash
            rows = ds.dataset(project / "spark-warehouse" / "transfers", exclude_invalid_files=True)
            found = rows.to_table(columns=["block_number", "block_hash", "log_index"]).to_pylist()
            expected = transfers(portal.chain, portal.chain.canonical())
            assert sorted(tuple(one.values()) for one in found) == sorted(
                (number, block_hash, index) for number, block_hash, index, *_ in expected
            )
            portal.extend(2)
            portal.fork(4)
    assert end.forks == runs - 1
