"""What executors make of an output is what the driver makes of it: same code, same deltas."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater.targets.sql.aggregate_tables import find_columns
from headwater.targets.sql.aggregates import aggregate, compute_delta, plan_aggregates

LARGEST = 2**256 - 1


@pytest.mark.guarantee("AGG-1")
def test_deltas_of_executors_are_those_of_the_driver(spark: SparkSession) -> None:
    """However many partitions the rows are in, and in whatever order."""
    size = 5000
    rows = pa.table(
        {
            "block_number": [n // 7 for n in range(size)],
            "log_index": [n % 7 for n in range(size)],
            "from": [f"a{n % 11}" for n in range(size)],
            "to": [f"a{n % 13}" for n in range(size)],
            "value": [None if n % 5 == 0 else str(LARGEST - n) for n in range(size)],
            "time": pa.array([n * 1000 for n in range(size)], pa.timestamp("us", "UTC")),
            "note": [f"row {n}" if n % 3 else None for n in range(size)],
        }
    )
    given = [
        aggregate(
            "t",
            source="rows",
            keys={"owner": "to"},
            add={"amount": "value", "n": 1},
            min={"smallest": "value", "first": "time"},
            max={"largest": "value"},
            last=["note"],
        ),
        aggregate(
            "t", source="rows", keys={"owner": "from"}, sub={"amount": "value"}, last=["note"]
        ),
    ]
    (plan,) = plan_aggregates(given)
    frame = spark.createDataFrame(rows).repartition(5)
    local, far = {"rows": rows}, {"rows": frame}
    columns = find_columns(plan, local)
    assert find_columns(plan, far) == columns
    numeric = columns.numeric
    near, distant = (compute_delta(plan, data, numeric) for data in (local, far))
    assert near.sort_by("k0").to_pylist() == distant.sort_by("k0").to_pylist()
    assert near.num_rows == 13
