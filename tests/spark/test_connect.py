"""Spark Connect: the data source works, a stream is refused at once, a package can be shipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from headwater import duckdb_target, evm, portal_stream
from headwater.errors import ConnectSessionError
from headwater.spark import register, ship
from headwater.testing import simulated_portal

spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
ship(spark)
register(spark)
with simulated_portal(seed=5, blocks=200, finality_depth=10) as portal:
    options = {"portal": portal.url, "event": "erc20.Transfer", "from_block": 0, "to_block": 150}
    rows = spark.read.format("headwater").options(**options).load()
    table = rows.where("block_number >= 100").select("block_number", "value").toArrow()
    print("read", table.num_rows, max(table["block_number"].to_pylist()))
    events = evm.events("erc20.Transfer", range=(0, 150))
    stream = portal_stream(id="a", portal=portal.url, outputs={"t": events}, spark=spark)
    before = sum(portal.ledger.statuses().values())
    try:
        stream.pipe_to(duckdb_target(sys.argv[1]), progress=False)
    except ConnectSessionError as error:
        print("refused", error.code, sum(portal.ledger.statuses().values()) - before)
spark.stop()
"""


def test_the_data_source_works_and_a_stream_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "a.duckdb")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    said = done.stdout.split()
    assert done.returncode == 0, done.stderr[-3000:]
    assert said[0] == "read"
    assert int(said[1]) > 50
    assert said[2:] == ["150", "refused", "E5019", "0"]
    assert not (tmp_path / "a.duckdb").exists()
