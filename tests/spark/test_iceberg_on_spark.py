"""Executors write the files of Iceberg tables, exactly once, on a disk and on S3."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from headwater import StopRequested, evm, portal_stream
from headwater.pipeline import Committed, Event, RolledBack, Settled
from headwater.targets.iceberg import IcebergSettings, iceberg_target, table, tx
from headwater.targets.lake.files import FilePlan, write_distributed
from headwater.testing import simulated_portal
from tests.stream.truth import COLUMNS, transfers
from tests.targets.lake_places import SECRET_KEY, bucket

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Dies:
    """Does what a plan does; the first worker is killed once its files are written."""

    def __init__(self, real: FilePlan, marker: Path) -> None:
        self.real = real
        self.marker = marker

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        receipts = list(self.real(batches, part))
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            yield from receipts
            return
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.guarantee("RANGE-1")
def test_a_backfill_and_forks_leave_what_the_chain_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, marker = write_distributed, tmp_path / "died"

    def dying(plan: Any, rows: Any) -> Any:
        return real(Dies(plan, marker), rows)  # type: ignore[arg-type]

    monkeypatch.setattr(tx, "write_distributed", dying)
    place = bucket()
    catalog = {
        "name": "lake",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": place.uri,
        **place.options,
    }
    events: list[Event] = []
    with simulated_portal(seed=5, blocks=420, finality_depth=12) as portal:

        def on_event(event: Event) -> None:
            events.append(event)
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                if len(portal.chain.forks) < 2:
                    portal.fork(3)
                else:
                    raise StopRequested

        target = iceberg_target(
            catalog,
            tables=[table("transfers", partition_by="truncate(100, block_number)")],
            settings=IcebergSettings(maintain_every=5, compact_files=2),
        )
        portal_stream(
            id="transfers",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer", range=0)},
            spark=spark,
            far=50,
            first_span=150,
            poll_interval_s=0.01,
        ).pipe_to(target, on_event=on_event)
        assert max(event.blocks for event in events if isinstance(event, Committed)) > 100
        assert sum(isinstance(event, RolledBack) for event in events) == 2
        expected = transfers(portal.chain, portal.chain.canonical())
    assert marker.exists(), "a worker was killed after it had written its files"
    opened = load_catalog(**catalog)
    names = [one.strip('" ') for one in COLUMNS.split(",")]
    rows = opened.load_table("default.transfers").scan(selected_fields=tuple(names)).to_arrow()
    opened.close()
    found = sorted(tuple(row[name] for name in names) for row in rows.to_pylist())
    assert found == sorted(expected)
    assert SECRET_KEY not in repr(target.__dict__)
