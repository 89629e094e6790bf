"""A standalone cluster: the pipeline on it, while driver, workers and answers are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headwater.targets import duckdb_target
from headwater.targets.clickhouse import ClickHouseClient
from headwater.testing import StallAfter, simulated_portal
from tests.spark.test_executor_python import bare_python
from tests.spark_servers import spark_cluster
from tests.stream.truth import COLUMNS, transfers
from tests.targets import clickhouse_places
from tests.targets.postgres_places import database

ROOT = Path(__file__).parents[2]
SPAN = 60
NAMES = [one.strip('" ') for one in COLUMNS.split(",")]
PASSWORD = "portal-password-of-this-test"


@pytest.mark.guarantee("STATE-2")
def test_what_is_lost_on_a_cluster_leaves_what_the_chain_says_in_every_target(
    tmp_path: Path,
) -> None:
    """Two workers fill PostgreSQL, ClickHouse, DuckDB and three lakes; rows are shuffled first.

    A first driver is killed between the commits of two targets. Then, in one span, an answer of the
    portal hangs, so that one of a task and its copy never ends, and a worker with its executor is
    killed in the middle of a job: rows, files of the shuffle and rows that Spark kept are gone. The
    Python of the workers does not have this package, and the portal asks for a password.
    """
    last = 3 * SPAN - 1
    dsn, clickhouse = database(), clickhouse_places.database()
    (tmp_path / "events").mkdir()
    with (
        spark_cluster(tmp_path, workers=2, cores=1) as master,
        simulated_portal(
            seed=5, blocks=last + 21, finality_depth=20, auth=("user", PASSWORD)
        ) as portal,
    ):
        given = {
            "master": master,
            "portal": portal.url.replace("://", f"://user:{PASSWORD}@"),
            "postgres": dsn,
            "clickhouse": clickhouse,
            "folder": str(tmp_path),
            "span": SPAN,
            "last": last,
        }
        lose_driver(given)
        # not before: the first driver may have read on before it died
        portal.sim.faults.add(StallAfter(100), from_block=(last + 1 - SPAN, last + 1 - SPAN))
        with driver({**given, "dies": False}) as finished:
            kill_worker(tmp_path / "working", finished)
            said = finished.communicate()[0]
        assert finished.returncode == 0, said[-3000:]
        assert portal.ledger.faults()["stall-after"] == 1
        expected = transfers(portal.chain, portal.chain.canonical()[: last + 1])

    found = rows_of(dsn, clickhouse, tmp_path)
    assert {name: rows == expected for name, rows in found.items()} == dict.fromkeys(found, True)
    check_events(tmp_path / "events")
    logs = [one for one in tmp_path.rglob("*") if one.name in ("stderr", "stdout", "log")]
    assert len(logs) > 6, "of a master, two workers and their executors"
    shown = [one for one in (*logs, *(tmp_path / "events").iterdir()) if PASSWORD in text(one)]
    assert shown == []


def lose_driver(given: dict[str, Any]) -> None:
    """Have a driver that is killed between two commits; all but one target have the same rows."""
    with driver({**given, "dies": True}) as killed:
        said = killed.communicate()[0]
    assert killed.returncode == -signal.SIGKILL, said[-3000:]
    found = rows_of(given["postgres"], given["clickhouse"], Path(given["folder"]))
    after = {name: len(rows) for name, rows in found.items()}
    most = after.pop("clickhouse")
    assert 0 < min(after.values()) == max(after.values()) < most, after


def kill_worker(sign: Path, driver: subprocess.Popen[str]) -> None:
    """Kill a worker with its executor, as a machine is lost, once a task there is at work."""
    while not (sign.exists() and sign.read_text().endswith("\n")):
        assert driver.poll() is None, driver.communicate()[0][-3000:]
        time.sleep(0.05)
    worker = int(sign.read_text())
    assert b"org.apache.spark.deploy.worker.Worker" in Path(f"/proc/{worker}/cmdline").read_bytes()
    os.killpg(worker, signal.SIGKILL)


def check_events(folder: Path) -> None:
    """Read from Spark's own log that tasks had copies, and that a stage was tried again."""
    newest = max(folder.iterdir(), key=lambda one: one.name)
    events = [json.loads(line) for line in newest.read_text().splitlines()]
    ended = [one for one in events if one["Event"] == "SparkListenerTaskEnd"]
    assert any(one["Task Info"]["Speculative"] for one in ended)
    reasons = {one["Task End Reason"]["Reason"] for one in ended}
    assert reasons >= {"FetchFailed", "ExecutorLostFailure"}
    stages = [one["Stage Info"] for one in events if one["Event"].endswith("StageCompleted")]
    assert max(one["Stage Attempt ID"] for one in stages) > 0


def rows_of(dsn: str, clickhouse: str, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each target holds, in order."""
    with psycopg.connect(dsn) as connection:
        query = f"SELECT {COLUMNS}::text FROM transfers ORDER BY 1, 3"
        found = {"postgres": connection.execute(query.encode()).fetchall()}
    client = ClickHouseClient(clickhouse)
    names = ", ".join(f'"{name}"' for name in NAMES[:-1])
    catalog = load_catalog(
        "headwater", type="sql", uri=f"sqlite:///{folder}/iceberg/catalog.db",
        warehouse=f"{folder}/iceberg",
    )  # fmt: skip
    tables = {
        "clickhouse": client.query(f"SELECT {names}, toString(value) AS value FROM transfers_live"),
        "iceberg": catalog.load_table("default.transfers").scan().to_arrow(),
        "delta": DeltaTable(f"{folder}/delta/transfers").to_pyarrow_table(),
        "parquet": pq.read_table(f"{folder}/parquet/transfers"),
        "duckdb": duckdb_target(f"{folder}/a.duckdb").query("FROM transfers"),
    }
    client.close()
    catalog.close()
    for name, table in tables.items():
        rows = [tuple(row[column] for column in NAMES) for row in table.to_pylist()]
        found[name] = sorted(rows, key=lambda row: (row[0], row[2]))
    return found


@contextmanager
def driver(given: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Run a driver in a process of its own; kill it if the test fails."""
    folder = Path(given["folder"])
    (folder / "given.json").write_text(json.dumps(given))
    python = bare_python(folder, "-S", path=sysconfig.get_paths()["purelib"])
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("cluster_run.py")), f"{folder}/given.json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def text(file: Path) -> str:
    return file.read_text(errors="replace")


def test_the_driver_stays_small_on_a_cluster_of_two_workers() -> None:
    """A span of half a million rows, which takes 160 MB and more where it is collected."""
    command = ["benchmarks/bench_cluster.py", "--rows", "500000", "--targets", "clickhouse"]
    done = subprocess.run(
        [sys.executable, *command, "--limit", "250"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
