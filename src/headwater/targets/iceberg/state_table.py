"""The state of a stream in an Iceberg catalog: a table without rows, whose snapshots say it.

Each state is the summary of a snapshot of `headwater_<stream>`. The catalog lets it in only if the
snapshot before it is the one that this writer has seen: so a writer that was replaced stores
nothing, and what it has stored last is what the next one reads. Runs on the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, StringType

from headwater.core import PipeState
from headwater.errors import LakeForeignWriteError, LakeWriterError
from headwater.targets.iceberg.catalog import create_namespace
from headwater.targets.iceberg.inner import DataFile
from headwater.targets.iceberg.snapshots import TableChange, properties_of
from headwater.targets.iceberg.stream_table import PROPERTIES, place_of
from headwater.targets.lake.paths import Place
from headwater.targets.lake.state import STREAM, StoredStream, slug
from headwater.targets.lake.table import Change, Lead

_SCHEMA = Schema(NestedField(field_id=1, name="stream_id", field_type=StringType(), required=False))
_KEPT = 3  # snapshots: for people who look
_STARTS = 5
_ENDS = "headwater.tables"  # the snapshot of each table that the state ends in


class StateTable(Lead[DataFile]):
    """What is stored of one stream. `stored` is what was read or written last.

    `ends` returns the snapshot of each table that a state ends in; it is written down with the
    state. `known` are those that were read: each table still comes from there, or others have taken
    it back.
    """

    is_lead = True

    def __init__(
        self,
        catalog: Catalog,
        namespace: str,
        stream_id: str,
        ends: Callable[[PipeState], dict[str, int]],
    ) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self.name = f"{namespace}.headwater_{slug(stream_id)}"
        self._id = stream_id
        self.stored = StoredStream(stream_id)
        self.known: dict[str, int] = {}
        self._ends = ends
        self._table: Table | None = None

    def load(self) -> StoredStream:
        """Read what is stored; a stream that was never here has an empty state and epoch 0."""
        try:
            self._table = self._catalog.load_table(self.name)
        except NoSuchTableError:
            return StoredStream(self._id)
        current = self._table.current_snapshot()
        if current is None:
            return StoredStream(self._id)
        said = properties_of(current)
        self.known = json.loads(said.get(_ENDS, "{}"))
        return StoredStream.from_properties(said)

    def take_over(self) -> StoredStream:
        """Begin the next epoch: no earlier writer can store anything from here on.

        Raises:
            LakeWriterError: others begin at the same moment, again and again.
        """
        for _ in range(_STARTS):
            stored = self.load()
            if self._table is None:
                self._create()
                stored = self.load()  # another start may have made it, and stored something
            next_one = replace(stored, epoch=stored.epoch + 1)
            try:
                self._write(next_one, self.known)
            except CommitFailedException:
                continue
            return self.stored
        raise LakeWriterError("other writers of the stream begin all the time", stream=self._id)

    def store(self, stored: StoredStream) -> None:
        """Replace what is stored, in one step.

        Raises:
            LakeWriterError: another writer has begun.
            LakeForeignWriteError: others change the table all the time.
        """
        before, ends = self.stored, self._ends(stored.state)
        for _ in range(_STARTS):
            try:
                self._write(stored, ends)
            except CommitFailedException:  # others may have let its snapshots expire
                current = self.load()
                if current == stored:  # it was let in after all
                    break
                if current != before:
                    raise self.replaced() from None
            else:
                break
        else:
            raise LakeForeignWriteError("the table is changed by others", table=self.name)
        self.stored = stored

    step = "store state"

    def commit(self, several: Sequence[Change[DataFile]], stored: StoredStream) -> None:
        """Store what counts from now on: the commit point."""
        self.store(stored)

    def way_back(self, stored: StoredStream, *, claim: bool = False) -> str:
        """Return that there is one: what is stored is replaced."""
        return self.name

    def go_back(self, way: Any, stored: StoredStream, *, claim: bool = False) -> bool:
        """Store what a rollback leads to; a start has claimed the table when it took over."""
        if not claim:
            self.store(stored)
        return False

    def check(self) -> StoredStream:
        """Read again what is stored; refuse to go on if another writer has begun."""
        stored = self.load()
        if stored.epoch != self.stored.epoch:
            raise self.replaced()
        self.stored = stored
        return stored

    def replaced(self) -> LakeWriterError:
        """Return the error of a writer that has been replaced."""
        return LakeWriterError(
            "another writer of the stream has begun", stream=self._id, epoch=self.stored.epoch
        )

    @property
    def table(self) -> Table:
        """The table itself."""
        assert self._table is not None, "take_over creates it"
        return self._table

    @property
    def place(self) -> Place:
        """Where files of the stream itself are kept."""
        return place_of(self.table)

    def _create(self) -> None:
        create_namespace(self._catalog, self._namespace)
        try:
            self._table = self._catalog.create_table(
                self.name,
                _SCHEMA,
                properties={
                    **PROPERTIES,
                    STREAM: self._id,
                    "comment": "State of a Headwater stream, in the summary of the newest snapshot",
                },
            )
        except TableAlreadyExistsError:
            self._table = self._catalog.load_table(self.name)

    def _write(self, stored: StoredStream, ends: Mapping[str, int]) -> None:
        assert self._table is not None, "take_over creates it"
        old = self._table.metadata.snapshots[: -_KEPT + 1]
        change = TableChange(self._table)
        change.add((), (), {**stored.to_properties(), _ENDS: json.dumps(ends)})
        change.expire([snapshot.snapshot_id for snapshot in old])
        try:
            change.commit()
        except CommitFailedException:
            change.abandon()
            raise
        self.stored = stored
        for snapshot in old:
            with suppress(Exception):  # it is swept later
                self._table.io.delete(snapshot.manifest_list)
