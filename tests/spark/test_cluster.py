"""A standalone cluster: the pipeline on it, while its driver and its executors are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from headwater.testing import simulated_portal
from headwater.testing.servers import spark_cluster
from tests.stream.truth import COLUMNS, transfers
from tests.targets.postgres_places import database

ROOT = Path(__file__).parents[2]
LAST = 299

DRIVER = """
import os, signal, sys
from pathlib import Path
from headwater import evm, portal_stream
from headwater.spark import local_session
from headwater.targets import postgres_target
from headwater.targets.postgres import table
from headwater.spark.executors import map_in_arrow

master, portal, dsn, folder, dies = sys.argv[1:]
spark = local_session("cluster", **{
    "spark.master": master, "spark.executor.memory": "512m", "spark.cores.max": 1,
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]})
marker = Path(folder, "executor-killed")

def kill_the_executor_once(batches, marker=str(marker)):
    # a worker is a child of its daemon, which is a child of the executor
    for batch in batches:
        for row in range(batch.num_rows):
            yield batch.slice(row, 1)
        try:
            open(marker, "x").close()
        except FileExistsError:
            continue
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()
        os.kill(int(daemon[1]), signal.SIGKILL)

def dying(data):
    frame = data["transfers"]
    columns = frame.limit(0).toArrow().schema
    return {"transfers": map_in_arrow(frame.dataframe, kill_the_executor_once, columns)}

stream = portal_stream(
    id="s", portal=portal, spark=spark, far=50, first_span=150, largest_span=150,
    outputs={"transfers": evm.events("erc20.Transfer", range=(0, 299))})
target = postgres_target(
    dsn, tables=[table("transfers", append_only=True)],
    on_data=lambda tx, data: tx.insert("transfers", data["transfers"]))
states = []

def watch(sql):
    states.append(sql.startswith('INSERT INTO "public"."sync" '))
    if dies == "yes" and sum(states) == 2:  # its rows are copied, its commit is not sent
        os.kill(os.getpid(), signal.SIGKILL)

target.on_statement = watch
(stream if dies == "yes" else stream.pipe(dying)).pipe_to(target)
"""


@pytest.mark.guarantee("STATE-2")
def test_a_killed_driver_and_a_killed_executor_leave_what_the_chain_says(tmp_path: Path) -> None:
    """kill -9 of the driver before it commits its second batch, then of an executor that sends."""
    dsn = database()
    with (
        spark_cluster(tmp_path) as master,
        simulated_portal(seed=5, blocks=LAST + 21, finality_depth=20) as portal,
    ):
        arguments = (master, portal.url, dsn, str(tmp_path))
        killed = run(*arguments, "yes")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        with psycopg.connect(dsn) as connection:
            ((cursor, rows),) = connection.execute(
                "SELECT max(current_number), (SELECT max(block_number) FROM transfers) FROM sync"
            ).fetchall()
        assert 0 < rows <= cursor < LAST
        finished = run(*arguments, "no")
        assert finished.returncode == 0, finished.stderr
        assert (tmp_path / "executor-killed").exists()
        expected = transfers(portal.chain, portal.chain.canonical()[: LAST + 1])
    with psycopg.connect(dsn) as connection:
        query = f"SELECT {COLUMNS}::text FROM transfers ORDER BY 1, 3"
        assert connection.execute(query.encode()).fetchall() == expected
        found = connection.execute("SELECT max(current_number) FROM sync").fetchone()
        assert found == (LAST,)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the driver in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )


@pytest.mark.walk  # tests/spark/test_backfill_path.py counts the bytes that reach the driver
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
