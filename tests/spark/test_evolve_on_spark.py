"""A definition that grew, where executors fill what was added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater import evm
from headwater.targets import duckdb_target
from headwater.testing import simulated_portal
from tests.stream.pool_truth import SWAP_EVENT, pools_of
from tests.stream.test_evolve import (
    APPROVALS,
    FIRST,
    KINDS,
    MORE,
    SOME,
    follow,
    held,
    stream,
    targets,
    texts,
)


@pytest.mark.guarantee("EVOLVE-1")
@pytest.mark.parametrize("kind", KINDS)
def test_executors_fill_outputs_and_columns(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """With a transform of DataFrames in between, and with factories' children to be found."""
    target = targets(kind, tmp_path)

    def large(data: Any) -> Any:
        some = data["sent"].where(F.col("transaction_index") > 1)
        return {**data, "sent": some}

    before = {**FIRST, "sent": SOME}
    options: dict[str, Any] = {"far": 20, "first_span": 40, "spark": spark}
    with simulated_portal(seed=11, blocks=150, finality_depth=15) as portal:
        swaps = evm.events(SWAP_EVENT, contracts=pools_of(portal.chain))
        after = {**FIRST, "sent": MORE, "approvals": APPROVALS, "swaps": swaps}
        follow(stream(portal, before, **options).pipe(large), target())
        follow(stream(portal, after, **options).pipe(large), target())
        truth = duckdb_target(tmp_path / "fresh.duckdb")
        follow(stream(portal, after, spark=spark).pipe(large), truth)
        for name in after:
            assert held(truth, name)
            assert texts(held(target(), name)) == texts(held(truth, name))
