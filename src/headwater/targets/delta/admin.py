"""Administers the streams of a folder of Delta tables.

`headwater maintain` takes no stream over: its commits rewrite files and say nothing else, so a
stream that runs goes on. A table that it changes by key at the same moment refuses one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headwater.targets.delta.changes import DataFile
from headwater.targets.delta.tables import StreamTables
from headwater.targets.delta.target import DeltaTarget
from headwater.targets.lake.admin import LakeAdmin, LakeMoment
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import DeltaSettings
from headwater.targets.lake.state import BLOCK
from headwater.targets.lake.table import LakeTables


class DeltaAdmin(LakeAdmin[DataFile]):
    """Administers the folder of a `delta_target`. A fork removes the files of hot blocks."""

    undo = "files"

    def __init__(self, address: str | Place, schema: str | None = None, table: str = "") -> None:
        self._place = address if isinstance(address, Place) else Place.of(address)

    @contextmanager
    def lakes(self) -> Iterator[Mapping[str, LakeTables[DataFile]]]:
        """Return the tables of each stream in the folder."""
        found = StreamTables(self._place, "", {})
        owners = {found.owner(name) for name in found.folders()}
        names = sorted(one for one in owners if one is not None)
        yield {one: StreamTables(self._place, one, {}) for one in names}

    def shown(self, name: str) -> str | None:
        """Return the name of a table's folder."""
        return None if name.startswith("_") else name

    def ends_in(self, tables: LakeTables[DataFile]) -> LakeMoment | None:
        """Tables are committed before the one that leads, and put back after it."""
        stored = tables.load()
        assert isinstance(tables, StreamTables), "made here"
        assert stored is not None, "the stream is there"
        lead = tables.lead(stored)
        number, before = stored.state.number, lead.version
        tables.load()
        found = {name: one.version_at(number) for name, one in tables.open.items()}
        lead.reload()
        since = [int(one[BLOCK]) for one in lead.said() if one["version"] > before]
        versions = {name: one for name, one in found.items() if one is not None}
        if min(since, default=number) < number or len(versions) < len(found):
            return None
        return self._moment(stored, versions)

    def _writer(self, stream_id: str) -> DeltaTarget:
        return DeltaTarget.at(self._place, {}, None, DeltaSettings(id=stream_id))


ADMIN = DeltaAdmin
