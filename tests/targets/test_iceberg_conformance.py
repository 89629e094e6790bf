"""Iceberg keeps the promises of every target, at every file that is written and every commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFile

from headwater.targets.iceberg import IcebergSettings, IcebergTarget, iceberg_target, table
from headwater.targets.lake.target import SWEEP_S
from headwater.testing.conformance import TargetConformance, apply_changes
from tests.sampling import every, is_whole
from tests.targets import points


@pytest.mark.guarantee("STATE-2")
class TestIcebergTarget(TargetConformance):
    sample = every(16)
    side_tables = keeps_config = True
    shares = exclusive = False  # a table has one stream; the newest writer wins
    settings = IcebergSettings(maintain_every=4, final_snapshots=1, compact_files=3, grace_s=0)
    keyless = False  # rows without a key are those of any append: `log` has them
    walks = 3
    walk_steps = 40 if is_whole() else 16

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.places = (tmp_path / str(number) for number in itertools.count())
        self.hook: Callable[[], None] = lambda: None
        self.reader: Catalog | None = None
        self._watch_files(monkeypatch)
        self.fresh()
        yield
        self.close_reader()

    def _watch_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        create = PyArrowFile.create

        def watched_create(file: Any, overwrite: bool = False) -> Any:
            self.hook()
            return create(file, overwrite)

        monkeypatch.setattr(PyArrowFile, "create", watched_create)

    def close_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None

    def fresh(self) -> None:
        self.close_reader()
        self.path = next(self.places)
        self.hook = lambda: None

    def make_target(self, stream_id: str) -> IcebergTarget:
        self.hook = lambda: None
        target = iceberg_target(
            self.path,
            tables=["log", table("balances", key=["owner", "token"])],
            on_data=apply_changes,
            settings=self.settings,
        )
        target.clock = itertools.count(step=2 * SWEEP_S).__next__  # sweeps whenever it maintains
        target.bind(stream_id)
        return target

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        if self.reader is None:
            self.reader = load_catalog(
                "headwater",
                type="sql",
                uri=f"sqlite:///{self.path}/catalog.db",
                warehouse=str(self.path),
            )
        try:
            found: list[dict[str, Any]] = (
                self.reader.load_table(f"default.{name}").scan().to_arrow().to_pylist()
            )
        except NoSuchTableError:
            return []
        return found

    def watch_io(self, target: IcebergTarget, hook: Callable[[], None]) -> None:
        watching = points.watching("Iceberg", hook)
        target.on_step = watching
        self.hook = lambda: watching("write metadata")
