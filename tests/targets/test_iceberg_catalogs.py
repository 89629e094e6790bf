"""Catalogs other than SQLite's: REST over HTTP, Glue on moto's server, Hive's metastore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from headwater.errors import LakeForeignWriteError, LakeWriterError
from headwater.targets.iceberg import IcebergSettings, IcebergTarget, iceberg_target, table
from headwater.testing.conformance.model import BALANCES, KEY, LOG, Rig, balance, log, upsert
from headwater.testing.conformance.suite import apply_changes
from tests.targets.hive_metastore import hive_metastore
from tests.targets.lake_places import ACCESS_KEY, SECRET_KEY, bucket, maintain_catalog
from tests.targets.rest_catalog import rest_catalog


@contextmanager
def rest(folder: Path) -> Iterator[dict[str, str]]:
    with rest_catalog(folder / "rest") as address:
        yield {"type": "rest", "uri": address}


@contextmanager
def glue(folder: Path) -> Iterator[dict[str, str]]:
    place = bucket()
    yield {
        "type": "glue",
        "warehouse": place.uri,
        "glue.endpoint": place.options["s3.endpoint"],
        "glue.region": "us-east-1",
        "glue.access-key-id": ACCESS_KEY,
        "glue.secret-access-key": SECRET_KEY,
        **place.options,
    }


@contextmanager
def hive(folder: Path) -> Iterator[dict[str, str]]:
    with hive_metastore(folder / "hive") as address:
        yield {"type": "hive", "uri": address, "warehouse": f"file://{folder}/hive/warehouse"}


def made(catalog: Mapping[str, str]) -> IcebergTarget:
    target = iceberg_target(
        catalog,
        tables=[LOG, table(BALANCES, key=KEY)],
        on_data=apply_changes,
        settings=IcebergSettings(maintain_every=4, final_snapshots=1, compact_files=2),
    )
    target.bind("one")
    return target


@pytest.mark.parametrize("kind", [rest, hive, glue], ids=lambda kind: kind.__name__)
def test_a_stream_is_written_undone_maintained_and_fenced(kind: Any, tmp_path: Path) -> None:
    with kind(tmp_path) as catalog:
        target = made(catalog)
        target.recover()
        opened = load_catalog("reader", **catalog)

        def read(name: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (
                opened.load_table(f"default.{name}").scan().to_arrow().to_pylist()
            )
            return found

        rig = Rig(target, read, [LOG, BALANCES])
        for number in range(1, 9):
            rig.block(number, log(number, "x"), upsert(balance("a", "t", number)), final=number - 3)
        rig.check()
        rig.roll_back(6)
        rig.check()
        assert "one" in maintain_catalog(catalog)
        rig.check()
        rig.block(7, log(7, "y"), branch="b")
        rig.check()
        new = made(catalog)
        assert new.recover() == rig.state
        with pytest.raises(LakeWriterError):
            rig.block(8, log(8, "zombie"), branch="b")
        new.close()
        target.close()
        other = made(catalog)
        other.bind("two")
        with pytest.raises(LakeForeignWriteError):
            other.recover()
        other.close()
        opened.close()
