"""Lakes of the simulation: Parquet, Delta and Iceberg, in a folder or on an S3 server.

Rows are read with the formats' own libraries; only the cursor is what the product says it is.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from headwater.errors import LakePathError, NothingStoredError
from headwater.stream.extensions import MISSING
from headwater.stream.factory_index import CHILDREN
from headwater.targets.admin import open_admin
from headwater.targets.delta import DeltaSettings, delta_target
from headwater.targets.delta import table as delta_table
from headwater.targets.delta import tables as delta_tables
from headwater.targets.iceberg import IcebergSettings, iceberg_target
from headwater.targets.iceberg import table as iceberg_table
from headwater.targets.iceberg.target import IcebergAdmin
from headwater.targets.lake.paths import Place as Files
from headwater.targets.lake.target import SWEEP_S
from headwater.targets.parquet import ParquetSettings, Rollover, parquet_target
from tests.simulation.places import MEMORY, Engines, Place, Stored, ranges_in
from tests.simulation.tables import LATEST, POOLS, SUMS, Shape, in_order, pools_in
from tests.targets.lake_places import (
    Bucket,
    delta_options,
    maintain_catalog,
    maintain_folder,
    optimize,
    rewrite_as_spark,
)


class Lake(Place):
    """A folder of its own, in memory where the machine has such a folder, or a bucket."""

    children = False  # nothing but the stream itself reads those of a lake

    def __init__(self, engines: Engines, *, remote: bool) -> None:
        folder = str(MEMORY) if os.access(MEMORY, os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="headwater-soak-", dir=folder))
        self._bucket: Bucket | None = engines.bucket() if remote else None
        self._options = self._bucket.options if self._bucket else None
        self._path = self._bucket.uri if self._bucket else str(self._folder / "lake")
        self.kind = f"{self.format} on S3" if remote else self.format
        self._turns = itertools.count()  # of maintenance: by another engine, then by Headwater

    format: ClassVar[str]

    def read(self, shape: Shape) -> Stored:
        """Read with the format's own library."""
        with self.environment(), self.still():
            cursor = self._cursor(shape)
            last = -1 if cursor is None else cursor.number
            tables = {
                one: in_order(shape, one, self._rows(shape.name(one), last)) for one in shape.tables
            }
            side = self._side(shape, is_there=cursor is not None)
        lacks = frozenset() if shape.swaps and self.side_tables else frozenset({POOLS})
        tables |= {POOLS: pools_in(side[CHILDREN.name]["address"].to_pylist())}
        return Stored(
            self.kind,
            cursor,
            tables,
            missing=ranges_in(side[MISSING.name].to_pylist()),
            lacks=lacks,
            final_only=self.final_only,
        )

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Let commands reach the S3 server: an address alone says nothing of credentials."""
        found = Files.of

        def of(path: str | Path, options: Any = None) -> Files:
            return found(path, options or self._options)

        with patch.object(Files, "of", of):
            yield

    def admin(self, shape: Shape) -> Any:
        """Look at the folder as a command would."""
        return open_admin(self._path)

    def rival(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target of another id."""
        return self._target(shape, "rival")

    def _target(self, shape: Shape, stream_id: str | None = None) -> Any:
        raise NotImplementedError

    def watch(self, target: Any, hook: Callable[[str], None]) -> None:
        """Have the target tell each step."""
        target.on_step = hook

    def close(self) -> None:
        """Remove the folder; buckets go with their server."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _cursor(self, shape: Shape) -> Any:
        try:
            streams = self.admin(shape).streams()
        except (LakePathError, NothingStoredError):  # nothing is there yet
            return None
        return next((one.state.cursor for one in streams if one.id == shape.stream), None)

    def _side(self, shape: Shape, *, is_there: bool) -> dict[str, pa.Table]:
        """Read what a stream keeps for itself, as a command would."""
        wanted = {CHILDREN: shape.swaps, MISSING: self.gives_up}
        admin = self.admin(shape) if is_there and self.side_tables else None
        return {
            one.name: one.columns.empty_table()
            if admin is None or not is_wanted
            else admin.read_side_table(shape.stream, one)
            for one, is_wanted in wanted.items()
        }

    def _rows(self, table: str, last: int) -> list[dict[str, Any]]:
        raise NotImplementedError


class ParquetPlace(Lake):
    """Files of final rows. They are published at every commit."""

    format = "Parquet"
    final_only = True
    side_tables = False

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target on the folder."""
        return self._target(shape)

    def _target(self, shape: Shape, stream_id: str | None = None) -> Any:
        return parquet_target(
            self._path,
            tables=[shape.name(one) for one in shape.tables],
            on_data=shape.on_data(),
            options=self._options,
            settings=ParquetSettings(rollover=Rollover(bytes=None, seconds=None), id=stream_id),
        )

    def _rows(self, table: str, last: int) -> list[dict[str, Any]]:
        """Read all files; what a crash has left above the cursor does not count yet."""
        place = Files.of(self._path, self._options)
        names = [one.name for one in place.files(table)] if table in place.folders() else []
        found: list[dict[str, Any]] = []
        for name in names:
            if name.endswith(".parquet") and "/_" not in name:
                with place.open(name) as file:
                    found += pq.ParquetFile(file).read().to_pylist()
        return [row for row in found if row["block_number"] <= last]


class DeltaPlace(Lake):
    """Delta tables that are compacted all the time."""

    format = "Delta"
    keyed = sums = applies = evolves = maintained = True
    transactional = False  # several tables are never changed at once
    _settings = DeltaSettings(maintain_every=3, compact_files=3, retention_hours=0)

    def __init__(self, engines: Engines, *, remote: bool) -> None:
        super().__init__(engines, remote=remote)
        self.renames = not remote  # folders of an object store have no names of their own

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target on the folder."""
        return self._target(shape)

    def _target(self, shape: Shape, stream_id: str | None = None) -> Any:
        target = delta_target(
            self._path,
            tables=declared(shape, delta_table),
            on_data=shape.on_data(),
            aggregates=shape.aggregates(),
            options=self._options,
            settings=replace(self._settings, id=stream_id),
        )
        target.clock = itertools.count(step=2 * SWEEP_S).__next__  # it sweeps at once
        return target

    def maintain(self) -> None:
        """Compact and sweep from outside, as `headwater maintain` does, or as another engine."""
        if next(self._turns) % 2 == 0:
            self._optimize()
        elif self._bucket is not None or Path(self._path).exists():
            maintain_folder(Files.of(self._path, self._options), settings=self._settings)

    def _optimize(self) -> None:
        """Compact and checkpoint all tables with delta-rs, hot blocks too."""
        place = Files.of(self._path, self._options)
        options = delta_options(self._bucket) if self._bucket else None
        for name in place.folders():
            if "_delta_log" in place.under(name).folders():
                optimize(f"{self._path}/{name}", options)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Open each table once: that is most of what a look costs."""
        held: dict[str, DeltaTable] = {}

        def opened(uri: str, storage_options: Any = None) -> DeltaTable:
            if uri not in held:
                held[uri] = DeltaTable(uri, storage_options=storage_options)
            return held[uri]

        with patch.object(delta_tables, "DeltaTable", opened):
            yield

    def _rows(self, table: str, last: int) -> list[dict[str, Any]]:
        place = Files.of(self._path, self._options)
        if table not in place.folders() or "_delta_log" not in place.under(table).folders():
            return []
        options = delta_options(self._bucket) if self._bucket else None
        found = DeltaTable(f"{self._path}/{table}", storage_options=options).to_pyarrow_table()
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


class IcebergPlace(Lake):
    """Iceberg tables in a catalog of SQLite; their files are in a folder or a bucket."""

    format = "Iceberg"
    keyed = sums = applies = evolves = maintained = True
    transactional = False  # several tables are never changed at once
    _settings = IcebergSettings(maintain_every=3, final_snapshots=1, compact_files=3, grace_s=0)

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return a target on the catalog."""
        return self._target(shape)

    def _target(self, shape: Shape, stream_id: str | None = None) -> Any:
        target = iceberg_target(
            self._catalog(),
            tables=declared(shape, iceberg_table),
            on_data=shape.on_data(),
            aggregates=shape.aggregates(),
            settings=replace(self._settings, id=stream_id),
        )
        target.clock = itertools.count(step=2 * SWEEP_S).__next__  # it sweeps at once
        return target

    def admin(self, shape: Shape) -> Any:
        """Look at the catalog as a command would."""
        return IcebergAdmin(self._catalog(), None, "sync")

    def maintain(self) -> None:
        """Compact, expire and sweep as `headwater maintain` does, or rewrite as Spark does."""
        if not (self._folder / "catalog.db").exists():
            return
        if next(self._turns) % 2:
            maintain_catalog(self._catalog(), settings=self._settings)
            return
        catalog = load_catalog(**self._catalog())
        is_there = catalog.namespace_exists("default")
        for _, name in catalog.list_tables("default") if is_there else ():
            stored = catalog.load_table(f"default.{name}")
            if not name.startswith("headwater_") and stored.current_snapshot() is not None:
                rewrite_as_spark(stored)
        catalog.close()

    def _catalog(self) -> Mapping[str, str]:
        self._folder.mkdir(exist_ok=True)
        return {
            "name": "lake",
            "type": "sql",
            "uri": f"sqlite:///{self._folder}/catalog.db",
            "warehouse": self._path,
            **(self._options or {}),
        }

    def _cursor(self, shape: Shape) -> Any:
        if not (self._folder / "catalog.db").exists():
            return None
        return super()._cursor(shape)

    def _rows(self, table: str, last: int) -> list[dict[str, Any]]:
        if not (self._folder / "catalog.db").exists():
            return []
        catalog = load_catalog(**self._catalog())
        try:
            found: pa.Table = catalog.load_table(f"default.{table}").scan().to_arrow()
        except NoSuchTableError:
            return []
        finally:
            catalog.close()
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


def declared(shape: Shape, table: Callable[..., Any]) -> list[Any]:
    """Declare the tables that a stream writes, but for sums, which declare their own."""
    if shape.changes:
        return list(shape.schemas())
    keys = {LATEST: ("token",)}
    own = [one for one in shape.tables if one != SUMS]
    return [table(shape.name(one), key=keys.get(one, ())) for one in own]


LAKES = {one.format: one for one in (ParquetPlace, DeltaPlace, IcebergPlace)}
