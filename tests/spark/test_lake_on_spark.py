"""Executors write the files of lake tables, exactly once; the driver commits them. On S3."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from headwater.targets.delta import DeltaSettings, delta_target
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.iceberg import IcebergSettings, iceberg_target, table
from headwater.targets.lake import tx
from headwater.targets.lake.files import FilePlan, write_distributed
from headwater.targets.lake.paths import Place
from headwater.targets.parquet import parquet_target
from headwater.targets.parquet.state import read_stored
from tests.spark.whole_stream import fill_through_forks
from tests.stream.truth import COLUMNS, transfers
from tests.targets.lake_places import SECRET_KEY, Bucket, bucket, delta_options

NAMES = [one.strip('" ') for one in COLUMNS.split(",")]
Read = Callable[[], tuple[pa.Table, int | None]]
"""Returns the rows as another reader finds them, and the last block if that is not the head."""

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Dies:
    """Does what a plan does; the first worker is killed once its files are written."""

    def __init__(self, real: FilePlan, marker: Path) -> None:
        self.real = real
        self.place = real.place
        self.marker = marker

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        receipts = list(self.real(batches, part))
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            yield from receipts
            return
        os.kill(os.getpid(), signal.SIGKILL)


def iceberg(place: Bucket, folder: Path) -> tuple[Any, Read]:
    catalog = {
        "name": "lake",
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": place.uri,
        **place.options,
    }

    def read() -> tuple[pa.Table, int | None]:
        opened = load_catalog(**catalog)
        rows = opened.load_table("default.transfers").scan(selected_fields=tuple(NAMES)).to_arrow()
        opened.close()
        return rows, None

    target = iceberg_target(
        catalog,
        tables=[table("transfers", partition_by="truncate(100, block_number)")],
        settings=IcebergSettings(maintain_every=5, compact_files=2),
    )
    return target, read


def delta(place: Bucket, folder: Path) -> tuple[Any, Read]:
    def read() -> tuple[pa.Table, int | None]:
        stored = DeltaTable(f"{place.uri}/transfers", storage_options=delta_options(place))
        return stored.to_pyarrow_table(columns=NAMES), None

    settings = DeltaSettings(maintain_every=5, compact_files=2)
    return delta_target(place.uri, options=place.options, settings=settings), read


def plain_files(place: Bucket, folder: Path) -> tuple[Any, Read]:
    def read() -> tuple[pa.Table, int | None]:
        where = Place.of(place.uri, place.options)
        stored = read_stored(where, "transfers")
        assert stored is not None
        files = ds.dataset(where.path_of("transfers"), filesystem=where.filesystem)
        return files.to_table(columns=NAMES), stored.state.number

    return parquet_target(place.uri, options=place.options), read


@pytest.mark.guarantee("RANGE-1")
@pytest.mark.parametrize("make", [iceberg, delta, plain_files], ids=lambda one: one.__name__)
def test_a_backfill_and_forks_leave_what_the_chain_says(
    make: Callable[[Bucket, Path], tuple[Any, Read]],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marker = tmp_path / "died"

    def dying(plan: Any, rows: Any, tally: Any) -> Any:
        return write_distributed(Dies(plan, marker), rows, tally)  # type: ignore[arg-type]

    def near(frame: Any) -> pa.Table:
        assert executor_rows(frame) is None, "rows of a backfill never come to the driver"
        return to_arrow(frame)

    monkeypatch.setattr(tx, "write_distributed", dying)
    monkeypatch.setattr(tx, "to_arrow", near)
    target, read = make(bucket(), tmp_path)
    chain = fill_through_forks(spark, target)
    rows, last = read()
    expected = transfers(chain, chain.canonical(0, last))
    assert marker.exists(), "a worker was killed after it had written its files"
    assert last is None or last > 200
    assert sorted(tuple(row[name] for name in NAMES) for row in rows.to_pylist()) == expected
    assert SECRET_KEY not in repr(target.__dict__)
