"""Spark Connect on a standalone cluster, on a forking chain: examples/pipelines, and a program.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
import pytest

from headwater.spark.streaming.journal import decode_segment
from headwater.testing import PortalServer, simulated_portal
from tests.spark.streaming.micro_batches import canonical
from tests.spark_servers import spark_cluster, spark_connect_server
from tests.stream.truth import transfers
from tests.targets.postgres_places import database

ROOT = Path(__file__).parents[3]
JAR = os.environ.get("HEADWATER_AUTO_CDC_JAR")  # spark-catalyst, of its tests
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
SPEC = "spark-pipeline.yml"
Keys = list[tuple[int, str, int]]


def settings(jar: str | None) -> dict[str, str]:
    cheap = {
        "spark.sql.shuffle.partitions": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
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


@dataclass(frozen=True)
class Server:
    """A Spark Connect server. With a jar its catalog `lake` has tables that Spark can merge."""

    address: str
    folder: Path
    jar: str | None


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    jar: str | None = request.param
    folder = tmp_path_factory.mktemp("connect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with (
            spark_cluster(folder, workers=1, cores=1) as master,
            spark_connect_server(folder, master=master, settings=settings(jar)) as address,
        ):
            yield Server(address, folder, jar)


@pytest.fixture
def run(
    server: Server, portal: PortalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Return what runs the project once, and returns the folder of its tables.

    With a jar AUTO CDC keeps tables, too: in memory, and copied into the folder afterwards.
    """
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "pipelines", project)
    spec = (project / SPEC).read_text()
    spec = spec.replace("file:///tmp/headwater-pipelines/storage", (project / "storage").as_uri())
    if server.jar is not None:
        monkeypatch.setenv("HEADWATER_AUTO_CDC", "lake.main")
    (project / SPEC).write_text(spec)
    monkeypatch.setenv("HEADWATER_PORTAL", portal.url)
    monkeypatch.setenv("HEADWATER_JOURNAL", str(project / "journal"))
    command = str(Path(sys.executable).parent / "spark-pipelines")
    tables = server.folder / "tables"

    def call(*words: str) -> None:
        done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    def run() -> Path:
        call(command, "--remote", server.address, "run", "--spec", SPEC)
        if server.jar is not None:
            call(sys.executable, "-c", COPY, server.address, str(tables))
        return tables

    if server.jar is not None:
        call(sys.executable, "-c", MAKE, server.address)
    return run


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
@pytest.mark.parametrize("server", [None], indirect=True)
def test_the_tables_of_the_example_equal_the_chain(run: Run, portal: PortalServer) -> None:
    for tables, _ in follow(run, portal):
        assert keys(rows_of(tables / "transfers").to_pylist()) == canonical(portal)
        received = rows_of(tables / "received").to_pylist()
        rows = transfers(portal.chain, portal.chain.canonical())
        assert {(one["address"], one["to"]): one["transfers"] for one in received} == Counter(
            (token, receiver) for *_, token, _, receiver, value in rows if len(value) <= 30
        )


@pytest.mark.skipif(JAR is None, reason="HEADWATER_AUTO_CDC_JAR names no catalog that can merge")
@pytest.mark.parametrize("server", [JAR], indirect=True)
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


PROGRAM = """
import sys
from contextlib import closing
from dataclasses import replace
from threading import Event
from pyspark.sql import SparkSession
from headwater import duckdb_target, evm, portal_stream, postgres_target
from headwater.spark import register, ship
from headwater.spark.streaming import collapse
from headwater.testing import simulated_portal
from tests.stream.truth import transfers

address, folder, target, other = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
ship(spark)
register(spark)
with simulated_portal(seed=5, blocks=200, finality_depth=10) as portal:
    options = {"portal": portal.url, "event": "erc20.Transfer", "from_block": 0, "to_block": 150}
    rows = spark.read.format("headwater").options(**options).load()
    table = rows.where("block_number >= 100").select("block_number", "value").toArrow()
    print("read", table.num_rows, max(table["block_number"].to_pylist()))
    for depth in (3, 0):
        changes = spark.readStream.format("headwater").options(portal=portal.url, far=50,
            event="erc20.Transfer", journal=f"{folder}/journal").load()
        changes.writeStream.format("parquet").trigger(availableNow=True).option(
            "checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/rows").awaitTermination()
        changes = spark.readStream.format("headwater").options(portal=portal.url, far=50,
            event="erc20.Transfer", journal=f"{folder}/journal-of-target").load()
        changes.writeStream.format("headwater").trigger(availableNow=True).option(
            "checkpointLocation", f"{folder}/checkpoint-of-target").options(
            target=target, dbtable="transfers").start().awaitTermination()
        if depth:
            portal.fork(depth)
    with closing(postgres_target(target)) as written:
        held = written.query("SELECT block_hash FROM transfers")["block_hash"].to_pylist()
    kept = {block.hash for block in portal.chain.canonical()}
    print("target", len(set(held)) > 50, set(held) <= kept)
    stored = spark.read.parquet(f"{folder}/rows")
    orphaned = {row[0] for row in stored.where("_sign < 0").select("block_hash").collect()}
    left = {row[0] for row in collapse(stored).select("block_hash").collect()}
    known = {block.hash for block in portal.chain.canonical()}
    print("changelog", len(orphaned) > 0, len(left) > 50, left <= known)
    def wrote(target):
        columns = "SELECT block_number, block_hash, log_index FROM transfers"
        return sorted(tuple(row.values()) for row in target.query(columns).to_pylist())
    def even(data):
        return {"transfers": data["transfers"].where("block_number % 2 = 0")}
    def follow(stream, target, keep):
        reached = Event()
        def look(event):
            cursor = event.state.cursor
            if cursor is not None and cursor.hash == portal.chain.head.hash:
                reached.set()
        handle = stream.start(target, on_event=look)
        for depth in (0, 4):
            reached.clear()
            if depth:
                portal.fork(depth)
                portal.extend(2)
            assert reached.wait(300), handle.exception()
        handle.stop()
        chain = transfers(portal.chain, portal.chain.canonical())
        return wrote(target) == sorted(row[:3] for row in chain if keep(row))
    events = evm.events("erc20.Transfer", range=(0, None))
    outputs = {"transfers": events}
    stream = portal_stream(id="a", portal=portal.url, outputs=outputs, spark=spark, far=50)
    into = postgres_target(other)
    print("stream", follow(stream, into, lambda row: True))
    (kind,) = into.query("SELECT pg_typeof(value)::text AS kind FROM transfers LIMIT 1").to_pylist()
    print("numbers", kind["kind"])
    piped = replace(stream.pipe(even), id="b")
    print("piped", follow(piped, duckdb_target(f"{folder}/b.duckdb"), lambda row: row[0] % 2 == 0))
spark.stop()
"""


@pytest.mark.parametrize("server", [None], indirect=True)
def test_data_source_writer_and_streams_work_from_another_process(
    server: Server, tmp_path: Path
) -> None:
    """A program, whose package is shipped: a changelog that the server alone writes into a target,
    and streams whose history executors read, with and without a transform, through a fork."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.address, str(tmp_path), database(), database()],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.split()
    assert done.returncode == 0, done.stderr[-3000:]
    assert said[0] == "read"
    assert int(said[1]) > 50
    assert said[2:6] == ["150", "target", "True", "True"]
    assert said[6:10] == ["changelog", "True", "True", "True"]
    assert said[10:] == ["stream", "True", "numbers", "numeric", "piped", "True"]
