"""Spark Connect: data source and changelog work, `pipe_to` is refused, a package can be shipped."""

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
from headwater.spark.streaming import collapse
from headwater.testing import simulated_portal

spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
ship(spark)
register(spark)
with simulated_portal(seed=5, blocks=200, finality_depth=10) as portal:
    options = {"portal": portal.url, "event": "erc20.Transfer", "from_block": 0, "to_block": 150}
    rows = spark.read.format("headwater").options(**options).load()
    table = rows.where("block_number >= 100").select("block_number", "value").toArrow()
    print("read", table.num_rows, max(table["block_number"].to_pylist()))
    folder = sys.argv[2]
    for depth in (3, 0):
        changes = spark.readStream.format("headwater").options(portal=portal.url, far=50,
            event="erc20.Transfer", journal=f"{folder}/journal").load()
        changes.writeStream.format("parquet").trigger(availableNow=True).option(
            "checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/rows").awaitTermination()
        if depth:
            portal.fork(depth)
    stored = spark.read.parquet(f"{folder}/rows")
    orphaned = {row[0] for row in stored.where("_sign < 0").select("block_hash").collect()}
    left = {row[0] for row in collapse(stored).select("block_hash").collect()}
    known = {block.hash for block in portal.chain.canonical()}
    print("changelog", len(orphaned) > 0, len(left) > 50, left <= known)
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
        [sys.executable, "-c", PROGRAM, str(tmp_path / "a.duckdb"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    said = done.stdout.split()
    assert done.returncode == 0, done.stderr[-3000:]
    assert said[0] == "read"
    assert int(said[1]) > 50
    assert said[2:7] == ["150", "changelog", "True", "True", "True"]
    assert said[7:] == ["refused", "E5019", "0"]
    assert not (tmp_path / "a.duckdb").exists()
