"""The same table kept by AUTO CDC, where a catalog is set up whose tables Spark itself can merge.

The changelog is what AUTO CDC wants: one key, one sequence, and deletes that say so. Set
HEADWATER_AUTO_CDC to the catalog and database ("lake.main") to switch this on. Spark 4.2 keeps the
rows of now (SCD 1); Spark 4.3 keeps also those that were, with the versions between which they were
(SCD 2).
"""

import os

import pyspark
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

if place := os.environ.get("HEADWATER_AUTO_CDC"):
    META = ["_change_type", "_commit_timestamp", "_sign", "_finalized"]
    kinds = {"transfers_now": 1}
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3):
        kinds["transfers_history"] = 2

    @dp.temporary_view
    def changes() -> DataFrame:
        """The changelog, as a stream."""
        return SparkSession.active().readStream.table("transfer_changes")

    for name, kind in kinds.items():
        dp.create_streaming_table(f"{place}.{name}")
        dp.create_auto_cdc_flow(
            target=f"{place}.{name}",
            source="changes",
            keys=["_row_id"],
            sequence_by="_commit_version",
            apply_as_deletes="_change_type = 'delete'",
            except_column_list=META,
            stored_as_scd_type=kind,
        )
