"""A start, commit, fork or maintenance of Iceberg or Delta that is paused anywhere, and replaced.

Another writer takes over while it stands still, and commits. Whatever the first one does when it
goes on, tables and side files stay as its successor has left them, and it ends in a coded error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from headwater.core import Batch
from headwater.errors import LakeForeignWriteError, LakeWriterError
from headwater.targets.contract import Delivery, SideTable
from headwater.targets.delta import DeltaSettings, delta_target
from headwater.targets.delta import tables as delta_tables
from headwater.targets.iceberg import IcebergSettings, Table, iceberg_target, table
from headwater.targets.iceberg.tables import StreamTables as IcebergTables
from headwater.targets.lake.maintenance import maintain_stream
from headwater.targets.lake.paths import Place
from headwater.testing.conformance.model import (
    BALANCES,
    KEY,
    LOG,
    PLAIN,
    Change,
    Rig,
    balance,
    log,
    plain,
    upsert,
)
from headwater.testing.conformance.suite import apply_changes
from tests.sampling import visit
from tests.targets.lake_places import bucket, delta_options

NOTES = SideTable(
    "notes",
    pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64()), ("text", pa.string())]),
)
ACTIONS = ["first", "recover", "commit", "rollback", "table", "maintain", "evolve", "forget"]
EVERY = {"iceberg": 16, "delta": 12, "iceberg on s3": 90, "delta on s3": 60}
ON_S3 = ["recover", "commit", "rollback"]


class Pause:
    """Calls something once, before the n-th of the steps that are watched while it is on."""

    def __init__(self) -> None:
        self.on, self.seen, self.at = False, 0, -1
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, step: str = "") -> None:
        if not self.on:
            return
        self.seen += 1
        if self.seen - 1 == self.at:
            self.on = False
            self.meanwhile()
            self.on = True

    @contextmanager
    def watching(self, at: int, meanwhile: Callable[[], None]) -> Iterator[None]:
        self.on, self.seen, self.at, self.meanwhile = True, 0, at, meanwhile
        try:
            yield
        finally:
            self.on = False


class WatchedCatalog(SqlCatalog):
    """A catalog that says before it is asked."""

    pause: Pause

    def load_table(self, *given: Any, **more: Any) -> Any:
        self.pause()
        return super().load_table(*given, **more)

    def commit_table(self, *given: Any) -> Any:
        self.pause()
        return super().commit_table(*given)

    def create_table(self, *given: Any, **more: Any) -> Any:
        self.pause()
        return super().create_table(*given, **more)


class RigWithNotes(Rig):
    """Writes a side row with each block."""

    def prepare(self, batch: Batch[tuple[Change, ...]]) -> Batch[Delivery]:
        made = super().prepare(batch)
        rows = [{"block_number": batch.headers[-1].number, "ordinal": 0, "text": "a note"}]
        notes = pa.Table.from_pylist(rows, schema=NOTES.columns)
        return made.with_data(replace(made.data, side={"notes": notes}))


class Lake:
    """An empty place of a format, and writers of it."""

    def __init__(self, kind: str, path: Path, pause: Pause) -> None:
        self.kind, self.path, self.pause = kind.partition(" ")[0], path, pause
        path.mkdir()
        self.bucket = bucket() if kind.endswith("s3") else None

    def target(self) -> Any:
        keyed = table(BALANCES, key=KEY) if self.kind == "iceberg" else BALANCES
        tables: list[Any] = [LOG, keyed, table(PLAIN, evolve=True)]
        if self.kind == "iceberg":
            catalog = WatchedCatalog("x", **self.catalog)
            catalog.pause = self.pause
            settings = IcebergSettings(compact_files=2, maintain_every=0, grace_s=0)
            made: Any = iceberg_target(
                catalog, tables=tables, on_data=apply_changes, settings=settings
            )
        else:
            place = self.bucket
            made = delta_target(
                self.path if place is None else place.uri, tables=tables, on_data=apply_changes,
                options=None if place is None else place.options,
                settings=DeltaSettings(compact_files=2, maintain_every=0, retention_hours=0),
            )  # fmt: skip
        made.on_step = self.pause
        made.bind("one")
        made.open_side_tables([NOTES])
        return made

    @property
    def catalog(self) -> dict[str, str]:
        where, options = f"file://{self.path}", {}
        if self.bucket is not None:
            where, options = self.bucket.uri, self.bucket.options
        return {"uri": f"sqlite:///{self.path}/catalog.db", "warehouse": where, **options}

    def rig(self, target: Any) -> RigWithNotes:
        return RigWithNotes(target, self.rows, [LOG, BALANCES, PLAIN])

    def rows(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]]
        if self.kind == "delta":
            place = self.bucket
            uri = str(self.path) if place is None else place.uri
            options = None if place is None else delta_options(place)
            try:
                read = DeltaTable(f"{uri}/{name}", storage_options=options)
            except TableNotFoundError:
                return []
            found = read.to_pyarrow_table().to_pylist()
            return [without_more(one) for one in found]
        catalog = load_catalog("x", type="sql", **self.catalog)
        try:
            found = catalog.load_table(f"default.{name}").scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        finally:
            catalog.close()
        return [without_more(one) for one in found]


def without_more(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the model has it: without the column that `evolve` adds, if it is null."""
    return {name: value for name, value in row.items() if name != "more" or value is not None}


def wider() -> Change:
    """Return a row with one more column."""
    row = {"note": "wide", "value": None, "more": "more"}
    frame = pa.table({"note": ["wide"], "value": pa.array([None], pa.string()), "more": ["more"]})
    return Change("insert", PLAIN, (row,), frame)


def changes(number: int) -> list[Change]:
    return [log(number, f"row {number}"), upsert(balance("all", "t", number))]


def act(rig: Rig, action: str) -> None:
    if action == "recover":
        rig.target.recover()
    elif action == "first":
        if rig.target.recover().cursor is None:
            rig.block(1, *changes(1), final=0)
    elif action == "commit":
        rig.block(4, *changes(4), final=1)
    elif action == "table":
        rig.block(4, plain("stale"), final=1)
    elif action == "evolve":
        rig.block(4, wider(), final=1)
    elif action == "forget":
        rig.target.forget(keep_data=False)  # type: ignore[attr-defined]
    elif action == "maintain":
        rig.target.maintain()  # type: ignore[attr-defined]
    else:
        rig.roll_back(2)


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Pause:
    watch = Pause()

    class Watched(DeltaTable):
        def __init__(self, *given: Any, **more: Any) -> None:
            watch()
            super().__init__(*given, **more)

        def update_incremental(self) -> None:
            watch()
            super().update_incremental()

        def create_write_transaction(self, *given: Any, **more: Any) -> None:
            watch()
            super().create_write_transaction(*given, **more)

    monkeypatch.setattr(delta_tables, "DeltaTable", Watched)
    for name in ("delete", "files", "create"):
        whole = getattr(Place, name)

        def watched(self: Place, *given: Any, whole: Any = whole, **more: Any) -> Any:
            watch()
            return whole(self, *given, **more)

        monkeypatch.setattr(Place, name, watched)
    return watch


class Play:
    """A writer that does something, is paused at one point, and replaced meanwhile."""

    def __init__(self, lake: Lake, action: str) -> None:
        self.lake, self.action = lake, action
        self.rig = lake.rig(lake.target())
        if action != "first":
            self.rig.target.recover()
            final = 3 if action == "maintain" else 1
            for number in range(1, 4):
                made = [plain(str(number))] if action == "evolve" and number == 1 else []
                self.rig.block(number, *changes(number), *made, final=min(number, final))
            if action == "recover":
                self.rig.target.close()
                self.rig.target = lake.target()
        self.new = lake.rig(lake.target())

    def take_over(self) -> None:
        """Begin as another writer, and commit a block."""
        new, state = self.new, self.new.target.recover()
        if self.action != "first" and state.cursor is not None:
            new.model._kept = list(self.rig.model._kept)
        if state.number == 2:
            new.model.roll_back(state)
        elif state.number > new.state.number:
            new.model.commit(committed(self.action), state)
        assert new.state == state
        number = max(state.number, 0) + 1
        new.block(number, *changes(number), plain("new"), final=1, branch="b")
        new.check()

    def judge(self, error: Exception | None) -> None:
        """Look at what there is after the paused writer went on and ended so."""
        new, target = self.new, self.new.target
        new.check()
        epochs = [one.target._stored.epoch for one in (self.rig, new)]  # type: ignore[attr-defined]
        if error is None and epochs[0] > epochs[1]:
            with pytest.raises(LakeWriterError):  # it has begun after all: it is the later start
                target.commit((), new.state)
            return
        assert error is None or isinstance(error, LakeWriterError), error
        side: Any = target
        held = side.read_side_table("notes").num_rows
        side._side._cache.clear()
        assert side.read_side_table("notes").num_rows == held, "its files are there"
        number = new.state.number + 1
        new.block(number, *changes(number), final=1, branch="b")
        new.check()
        last = self.lake.target()
        assert last.recover() == new.state
        new.check()
        for one in (self.rig.target, target):
            with pytest.raises(LakeWriterError):
                one.commit((), new.state)
        last.close()


@pytest.mark.guarantee("LAKE-3")
@pytest.mark.parametrize(
    ("kind", "action"),
    [(kind, one) for kind in EVERY for one in (ON_S3 if kind.endswith("s3") else ACTIONS)],
)
def test_whoever_is_replaced_while_it_is_paused_changes_nothing(
    kind: str, action: str, tmp_path: Path, pause: Pause
) -> None:
    numbers = itertools.count()

    def stop_at(at: int) -> int | None:
        play = Play(Lake(kind, tmp_path / str(next(numbers)), pause), action)
        error: Exception | None = None
        with pause.watching(at, play.take_over):
            try:
                act(play.rig, action)
            except (LakeWriterError, LakeForeignWriteError) as refused:
                error = refused
        if pause.seen <= at:
            assert error is None
            return pause.seen
        play.judge(error)
        return None

    visit(EVERY[kind], stop_at)


def committed(action: str) -> list[Change]:
    """Return what an action commits, if it was paused only after that."""
    made = {"table": [plain("stale")], "evolve": [wider()]}
    return {**made, "first": changes(1), "commit": changes(4)}[action]


class Died(BaseException):
    """The process ends here."""


class Overtaken:
    """A start that is paused at one point while the writer before it goes on, or dies at it."""

    def __init__(self, lake: Lake, *, dies: bool) -> None:
        self.dies = dies
        self.lake = lake
        self.old, self.new = lake.rig(lake.target()), lake.rig(lake.target())
        self.old.target.recover()
        for number in range(1, 4):
            self.old.block(number, *changes(number), final=1)
        self.kept = list(self.old.model._kept)

    def go_on(self) -> None:
        """Commit a block, with rows of a table that was not there; or die before it counts."""

        def die(step: str) -> None:
            if step in ("store state", f"commit {LOG}"):
                raise Died

        target: Any = self.old.target
        if self.dies:
            target.on_step = die
        try:
            self.old.block(4, *changes(4), plain("stale"), final=1)
        except (LakeWriterError, Died):
            target.close()

    def judge(self) -> None:
        """Fork what the old writer has committed, and go on."""
        new = self.new
        state = new.target.recover()
        new.model._kept = list(self.old.model._kept if state.number == 4 else self.kept)
        assert new.state == state
        new.check()
        new.roll_back(3)
        new.block(4, *changes(40), final=1, branch="b")
        new.check()
        new.block(5, *changes(5), plain("new"), final=1, branch="b")
        new.check()
        new.target.close()
        new.target = self.lake.target()
        assert new.target.recover() == new.state
        new.check()
        new.target.close()


@pytest.mark.guarantee("LAKE-3")
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_start_takes_over_what_the_writer_before_does_meanwhile(
    kind: str, dies: bool, tmp_path: Path, pause: Pause
) -> None:
    numbers = itertools.count()

    def stop_at(at: int) -> int | None:
        play = Overtaken(Lake(kind, tmp_path / str(next(numbers)), pause), dies=dies)
        with pause.watching(at, play.go_on):
            try:
                play.new.target.recover()
            except LakeWriterError:  # it is started again
                play.new.target.close()
        if pause.seen <= at:
            return pause.seen
        play.judge()
        return None

    visit(4, stop_at)


def maintain_beside(lake: Lake) -> None:
    """Do what `headwater maintain` does."""
    settings: Any
    if lake.kind == "iceberg":
        settings = IcebergSettings(compact_files=2, final_snapshots=0, grace_s=0)
        catalog = WatchedCatalog("x", **lake.catalog)
        catalog.pause = lake.pause
        declared = {name: Table.of(name) for name in (f"default.{LOG}", f"default.{BALANCES}")}
        tables: Any = IcebergTables(catalog, "one", declared, settings)
    else:
        settings = DeltaSettings(compact_files=2, retention_hours=0, log_entries=1)
        tables = delta_tables.StreamTables(Place.of(lake.path), "one", {})
    try:
        maintain_stream(tables, settings)
    finally:
        tables.close()


@pytest.mark.guarantee("LAKE-8")
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_stream_commits_and_forks_at_any_step_of_maintenance_beside_it(
    kind: str, tmp_path: Path, pause: Pause
) -> None:
    numbers = itertools.count()

    def stop_at(at: int) -> int | None:
        lake = Lake(kind, tmp_path / str(next(numbers)), pause)
        rig = lake.rig(lake.target())
        rig.target.recover()
        for number in range(1, 8):
            rig.block(number, *changes(number), final=min(number, 5))

        def go_on() -> None:
            rig.block(8, *changes(8), final=5)
            rig.roll_back(6)
            rig.block(7, *changes(70), final=5, branch="b")
            rig.check()

        with pause.watching(at, go_on):
            maintain_beside(lake)
        if pause.seen <= at:
            return pause.seen
        rig.check()
        rig.block(8, *changes(80), final=6, branch="b")
        rig.roll_back(6)
        rig.check()
        rig.block(7, *changes(7), final=6, branch="c")
        rig.check()
        maintain_beside(lake)
        rig.check()
        rig.target.close()
        rig.target = lake.target()
        assert rig.target.recover() == rig.state
        rig.check()
        rig.target.close()
        return None

    visit(3, stop_at)
