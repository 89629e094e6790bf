"""Spark's own connectors read what a stream has written: rows, forks, rewritten files, time travel.

`HEADWATER_LAKE_JARS` names a folder with the jars: Iceberg's runtime and SQLite's driver, Delta's
connector with what it needs. They come per version of Spark; where there is none, this is not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headwater.targets.delta import DeltaSettings, delta_target
from headwater.targets.delta import table as delta_table
from headwater.targets.iceberg import IcebergSettings, iceberg_target
from headwater.targets.iceberg import table as iceberg_table
from headwater.testing.conformance import apply_changes
from headwater.testing.conformance.model import BALANCES, KEY, LOG, Rig, balance, log, upsert

VERSION = ".".join(pyspark.__version__.split(".")[:2])
JARS = Path(os.environ.get("HEADWATER_LAKE_JARS", "/nonexistent"))
NEEDED = {
    "iceberg": (f"iceberg-spark-runtime-{VERSION}_*.jar", "sqlite-jdbc-*.jar"),
    "delta": (f"delta-spark_{VERSION}_*.jar", "delta-storage-*.jar", "antlr4-runtime-*.jar"),
}
COUNTED = "SELECT count(*), max(block_number)"

ICEBERG = f"""
prefix = "spark.sql.catalog.headwater"
builder.config(prefix, "org.apache.iceberg.spark.SparkCatalog")
builder.config(prefix + ".type", "jdbc").config(prefix + ".warehouse", folder)
spark = builder.config(prefix + ".uri", f"jdbc:sqlite:{{folder}}/catalog.db").getOrCreate()
now = spark.sql("{COUNTED} FROM headwater.default.{LOG}").first()
held = spark.sql("SELECT value FROM headwater.default.{BALANCES}").collect()
(found,) = spark.sql(
    "SELECT snapshot_id FROM headwater.default.{LOG}.snapshots "
    "WHERE summary['headwater.block'] = '26' ORDER BY committed_at DESC LIMIT 1"
).first()
then = spark.sql(f"{COUNTED} FROM headwater.default.{LOG} VERSION AS OF {{found}}").first()
"""
DELTA = f"""
builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
spark = builder.config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()
table = f"delta.`{{folder}}/{LOG}`"
now = spark.sql(f"{COUNTED} FROM {{table}}").first()
held = spark.sql(f"SELECT value FROM delta.`{{folder}}/{BALANCES}`").collect()
then = spark.sql(f"{COUNTED} FROM {{table}} VERSION AS OF {{version}}").first()
"""
READER = """
import sys
from pyspark.sql import SparkSession
folder, jars, version = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
{read}
print("read", tuple(now), [one.value for one in held], tuple(then))
"""


def target_of(kind: str, folder: Path) -> Any:
    if kind == "iceberg":
        return iceberg_target(
            folder,
            tables=[
                iceberg_table(LOG, partition_by="truncate(10, block_number)"),
                iceberg_table(BALANCES, key=KEY),
            ],
            on_data=apply_changes,
            settings=IcebergSettings(maintain_every=8, compact_files=3),
        )
    return delta_target(
        folder,
        tables=[LOG, delta_table(BALANCES, key=KEY)],
        on_data=apply_changes,
        settings=DeltaSettings(maintain_every=8, compact_files=3),
    )


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_sparks_own_connector_reads_the_tables_of_a_stream(kind: str, tmp_path: Path) -> None:
    jars = [next(iter(sorted(JARS.glob(name))[-1:]), None) for name in NEEDED[kind]]
    if None in jars:
        pytest.skip(f"HEADWATER_LAKE_JARS names no {kind} connector for Spark {VERSION}")
    target = target_of(kind, tmp_path)
    target.bind("one")
    target.recover()
    rig = Rig(target, lambda name: [], [])
    for number in range(1, 30):
        rows = (log(number, 1, 2, 3), upsert(balance("a", "t", number)))
        rig.block(number, *rows, final=number - 4)
    rig.roll_back(27)
    target.close()
    version = at_block(tmp_path, 26) if kind == "delta" else 0
    script = tmp_path / "reader.py"
    script.write_text(READER.format(read=ICEBERG if kind == "iceberg" else DELTA))
    command = [sys.executable, str(script), str(tmp_path), ",".join(map(str, jars)), str(version)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "read (81, 27) ['27'] (78, 26)" in ran.stdout


def at_block(folder: Path, number: int) -> int:
    """Return the newest version of a Delta table that ends with a block."""
    from deltalake import DeltaTable

    found = DeltaTable(folder / LOG).history()
    return next(int(one["version"]) for one in found if one.get("headwater.block") == str(number))
