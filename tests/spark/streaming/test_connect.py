"""The project of examples/pipelines, by Spark Connect, on a standalone cluster, on a forking chain.

The server is the driver of a cluster whose master, worker and executor are processes of their own.
So one run shows the changelog and its helpers on all three. The journal is a folder that the driver
reaches: executors get hot blocks with their tasks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
import pytest

from headwater.spark.streaming.journal import decode_segment
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.servers import spark_cluster, spark_connect_server
from tests.spark.streaming.micro_batches import canonical
from tests.stream.truth import transfers

ROOT = Path(__file__).parents[3]
JAR = os.environ.get("HEADWATER_AUTO_CDC_JAR")  # spark-catalyst, of its tests
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
SPEC = "spark-pipeline.yml"
Keys = list[tuple[int, str, int]]


def settings(jar: str | None) -> dict[str, str]:
    cheap = {
        "spark.sql.shuffle.partitions": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executorEnv.PYTHONPATH": str(ROOT / "src"),
    }
    if jar is None:
        return cheap
    return {
        **cheap,
        "spark.driver.extraClassPath": jar,
        "spark.executor.extraClassPath": jar,
        "spark.sql.catalog.lake": CATALOG,
    }


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=7, blocks=40, finality_depth=10) as portal:
        yield portal


MAKE = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.remote(sys.argv[1]).getOrCreate().sql("CREATE NAMESPACE lake.main")
"""
COPY = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
for name in ("transfers_now", "transfers_history"):
    if spark.catalog.tableExists(f"lake.main.{name}"):
        spark.table(f"lake.main.{name}").write.mode("overwrite").parquet(f"{sys.argv[2]}/{name}")
"""
Run = Callable[[], Path]


@pytest.fixture
def run(
    portal: PortalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Run]:
    """Return what runs the project once, and returns the folder of its tables.

    With a jar AUTO CDC keeps tables, too: in memory, and copied into the folder afterwards.
    """
    jar: str | None = request.param
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "pipelines", project)
    spec = (project / SPEC).read_text()
    spec = spec.replace("file:///tmp/headwater-pipelines/storage", (project / "storage").as_uri())
    if jar is not None:
        monkeypatch.setenv("HEADWATER_AUTO_CDC", "lake.main")
    (project / SPEC).write_text(spec)
    monkeypatch.setenv("HEADWATER_PORTAL", portal.url)
    monkeypatch.setenv("HEADWATER_JOURNAL", str(project / "journal"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    command = str(Path(sys.executable).parent / "spark-pipelines")
    with (
        spark_cluster(tmp_path, workers=1, cores=1) as master,
        spark_connect_server(tmp_path, master=master, settings=settings(jar)) as remote,
    ):

        def call(*words: str) -> None:
            done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

        def run() -> Path:
            call(command, "--remote", remote, "run", "--spec", SPEC)
            if jar is not None:
                call(sys.executable, "-c", COPY, remote, str(tmp_path / "tables"))
            return tmp_path / "tables"

        if jar is not None:
            call(sys.executable, "-c", MAKE, remote)
        yield run


def rows_of(table: Path) -> pa.Table:
    """Read a table without Spark."""
    return ds.dataset(table, exclude_invalid_files=True).to_table()


def keys(rows: list[dict[str, Any]]) -> Keys:
    return sorted((one["block_number"], one["block_hash"], one["log_index"]) for one in rows)


def follow(run: Run, portal: PortalServer) -> Iterator[tuple[Path, Keys]]:
    """Run the project before and after a fork; yield the tables, and the rows that are orphaned."""
    orphaned: Keys = []
    for forks in range(2):
        tables = run()
        newest = max(Path(os.environ["HEADWATER_JOURNAL"]).glob("*.arrow"))
        end = decode_segment(newest.read_bytes(), newest.name).after
        assert (end.hash, end.forks) == (portal.chain.head.hash, forks)
        yield tables, orphaned
        before = canonical(portal)
        portal.extend(2)
        portal.fork(4)
        orphaned = [one for one in before if one not in canonical(portal)]
        assert orphaned


@pytest.mark.guarantee("STREAM-6")
@pytest.mark.parametrize("run", [None], indirect=True)
def test_the_tables_of_the_example_equal_the_chain(run: Run, portal: PortalServer) -> None:
    for tables, _ in follow(run, portal):
        assert keys(rows_of(tables / "transfers").to_pylist()) == canonical(portal)
        received = rows_of(tables / "received").to_pylist()
        rows = transfers(portal.chain, portal.chain.canonical())
        assert {(one["address"], one["to"]): one["transfers"] for one in received} == Counter(
            (token, receiver) for *_, token, _, receiver, value in rows if len(value) <= 30
        )


@pytest.mark.skipif(JAR is None, reason="HEADWATER_AUTO_CDC_JAR names no catalog that can merge")
@pytest.mark.parametrize("run", [JAR], indirect=True)
def test_auto_cdc_keeps_the_rows_of_now_and_those_that_were(run: Run, portal: PortalServer) -> None:
    for tables, orphaned in follow(run, portal):
        check_auto_cdc(tables, portal, orphaned)


def check_auto_cdc(tables: Path, portal: PortalServer, orphaned: Keys) -> None:
    """SCD 1 holds the rows of now; SCD 2 those that were, too, with the version that ended them."""
    assert keys(rows_of(tables / "transfers_now").to_pylist()) == canonical(portal)
    if not (tables / "transfers_history").exists():
        assert pyspark.__version__.startswith("4.2."), "newer ones have SCD 2"
        return
    history = rows_of(tables / "transfers_history").to_pylist()
    assert keys([one for one in history if one["__END_AT"] is None]) == canonical(portal)
    ended = [one for one in history if one["__END_AT"] is not None]
    assert keys(ended) == orphaned
    assert all(one["__START_AT"] < one["__END_AT"] for one in ended)
