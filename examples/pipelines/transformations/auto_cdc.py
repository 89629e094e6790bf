"""The same table kept by AUTO CDC, where a table format that can merge is set up (Delta).

The changelog is what AUTO CDC wants: one key, one sequence, and deletes that say so. Set
HEADWATER_AUTO_CDC to the table format's name to switch this on.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

if table_format := os.environ.get("HEADWATER_AUTO_CDC"):
    META = ["_change_type", "_commit_timestamp", "_sign", "_finalized"]

    @dp.temporary_view
    def changes() -> DataFrame:
        """The changelog, as a stream."""
        return SparkSession.active().readStream.table("transfer_changes")

    for name, kind in (("transfers_now", 1), ("transfers_history", 2)):
        dp.create_streaming_table(name, format=table_format)
        dp.create_auto_cdc_flow(
            target=name,
            source="changes",
            keys=["_row_id"],
            sequence_by="_commit_version",
            apply_as_deletes="_change_type = 'delete'",
            except_column_list=META,
            stored_as_scd_type=kind,
        )
