"""Spark's own Iceberg connector reads what a stream has written: rows, forks, time travel.

    python benchmarks/lake/read_with_spark.py PYTHON JARS

PYTHON is that of an environment with the PySpark that Iceberg's runtime jar is for; JARS are that
jar and SQLite's JDBC driver, separated by a comma. Without them it says so, and does nothing: there
is no such jar for the newest Spark.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from headwater.targets.iceberg import IcebergSettings, iceberg_target, table
from headwater.testing.conformance import apply_changes
from headwater.testing.conformance.model import Rig, balance, log, upsert

READER = """
import sys
from pyspark.sql import SparkSession
folder, jars = sys.argv[1:]
prefix = "spark.sql.catalog.headwater"
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
builder = builder.config("spark.ui.enabled", "false")
builder = builder.config(prefix, "org.apache.iceberg.spark.SparkCatalog")
builder = builder.config(prefix + ".type", "jdbc").config(prefix + ".warehouse", folder)
spark = builder.config(prefix + ".uri", f"jdbc:sqlite:{folder}/catalog.db").getOrCreate()
counted = "SELECT count(*) AS n, max(block_number) AS last FROM headwater.default.log"
now = spark.sql(counted).first()
held = spark.sql("SELECT value FROM headwater.default.balances").collect()
snapshots = spark.sql(
    "SELECT snapshot_id, summary['headwater.block'] AS block "
    "FROM headwater.default.log.snapshots WHERE summary['headwater.block'] = '26'"
).collect()
then = spark.sql(f"{counted} VERSION AS OF {snapshots[-1].snapshot_id}").first()
print("read", spark.version, tuple(now), [one.value for one in held], tuple(then))
"""


def write(folder: str) -> None:
    """Write blocks 1 to 29, three rows each, and go back to 27."""
    target: Any = iceberg_target(
        folder,
        tables=[
            table("log", partition_by="truncate(10, block_number)", order_by=["log_index"]),
            table("balances", key=["owner", "token"]),
        ],
        on_data=apply_changes,
        settings=IcebergSettings(maintain_every=8, compact_files=3),
    )
    target.bind("one")
    target.recover()
    rig = Rig(target, lambda name: [], [])
    for number in range(1, 30):
        rows = (log(number, 1, 2, 3), upsert(balance("a", "t", number)))
        rig.block(number, *rows, final=number - 4)
    rig.roll_back(27)
    target.close()


def main() -> None:
    if len(sys.argv) != 3:
        print("not run: name a Python with PySpark for Iceberg's jar, and the jars")
        return
    python, jars = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        script = Path(folder, "reader.py")
        script.write_text(READER)
        ran = subprocess.run(
            [python, str(script), folder, jars], capture_output=True, text=True, check=True
        )
    found = next(one for one in ran.stdout.splitlines() if one.startswith("read"))
    print(found)
    assert found.endswith("(81, 27) ['27'] (78, 26)"), "Spark reads what was written"


if __name__ == "__main__":
    main()
