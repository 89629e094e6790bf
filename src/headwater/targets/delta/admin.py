"""Shows and maintains the streams of a folder of Delta tables from outside a run.

`headwater maintain` takes no stream over: its commits rewrite files and say nothing else, so a
stream that runs goes on. A table that it changes by key at the same moment refuses one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headwater.errors import LakeForeignWriteError
from headwater.targets.admin import find_stream
from headwater.targets.delta.maintenance import Maintenance
from headwater.targets.delta.settings import DeltaSettings
from headwater.targets.delta.tables import StreamTables
from headwater.targets.delta.target import read_state, side_place
from headwater.targets.lake.admin import BLOCK_COLUMN, LakeAdmin, LakeMoment
from headwater.targets.lake.paths import Place
from headwater.targets.lake.side import Files, side_status
from headwater.targets.lake.state import BLOCK, StoredStream
from headwater.targets.lake.tx import TableRewritten
from headwater.targets.side_rows import SideStatus

_ATTEMPTS = 5


def maintain_folder(
    place: Place, *, stream_id: str | None = None, settings: DeltaSettings | None = None
) -> dict[str, dict[str, int]]:
    """Compact, checkpoint and sweep the tables of all streams, or of one; return what was done.

    Raises:
        LakeForeignWriteError: a table changes all the time.
    """
    streams = [stream_id] if stream_id is not None else _streams(place)
    return {one: _maintain(place, one, settings or DeltaSettings()) for one in streams}


def _streams(place: Place) -> list[str]:
    found = _tables(place, "")
    owners = {found.owner(name) for name in found.folders()}
    return sorted(one for one in owners if one is not None)


def _tables(place: Place, stream_id: str) -> StreamTables:
    return StreamTables(place, stream_id, {}, True, lambda step: None)


def _maintain(place: Place, stream_id: str, settings: DeltaSettings) -> dict[str, int]:
    tables = _tables(place, stream_id)
    for _ in range(_ATTEMPTS):
        tables.load()
        stored = read_state(tables)
        if stored is None:
            return {}
        floor = stored.state.undo_floor
        for one in tables.open.values():
            one.read_undo(floor)
        work = Maintenance(
            list(tables.open.values()), stream_id, stored.epoch, floor, settings, tables.announce,
            bounded=False,
        )  # fmt: skip
        try:
            return {**work.run(), "swept": work.sweep()}
        except TableRewritten:
            continue
    raise LakeForeignWriteError("tables change all the time", tables=", ".join(tables.open))


class DeltaAdmin(LakeAdmin):
    """Reads the folder of a `delta_target`. A fork removes the files of hot blocks."""

    undo = "files"

    def side_tables(self, stream_id: str) -> dict[str, SideStatus]:
        """Return how much each side table holds of a stream."""
        stored = {one.stream_id: one for one in self._stored()}.get(stream_id)
        return super().side_tables(stream_id) if stored is None else side_status(stored.side)

    def _side_files(self, stream_id: str) -> tuple[Place, Files] | None:
        stored = {one.stream_id: one for one in self._stored()}.get(stream_id)
        return (
            None
            if stored is None
            else (side_place(Place.of(self._address), stream_id), stored.side)
        )

    def moment(self, stream_id: str) -> LakeMoment:
        """Read the state, then the tables, then whether the chain has forked meanwhile.

        Tables are committed before the one that leads, and put back after it.
        """
        find_stream(self.streams(), stream_id)
        tables = _tables(Place.of(self._address), stream_id)
        for _ in range(_ATTEMPTS):
            tables.load()
            stored, lead = read_state(tables), tables.lead
            assert stored is not None, "the stream is there"
            assert lead is not None, "the stream is there"
            number, before = stored.state.number, lead.version
            tables.load()
            found = {name: one.version_at(number) for name, one in tables.open.items()}
            lead.reload()
            since = [int(one[BLOCK]) for one in lead.said() if one["version"] > before]
            versions = {name: one for name, one in found.items() if one is not None}
            if min(since, default=number) >= number and len(versions) == len(found):
                shown = {name: one for name, one in versions.items() if name[0] != "_"}
                return LakeMoment(stream_id, stored.state.cursor, shown)
        raise LakeForeignWriteError("the chain forks all the time", stream=stream_id)

    def _stored(self) -> Iterator[StoredStream]:
        place = Place.of(self._address)
        for one in _streams(place):
            tables = _tables(place, one)
            tables.load()
            stored = read_state(tables)
            if stored is not None:
                yield stored

    def _tables(self, stream_id: str) -> list[str]:
        tables = _tables(Place.of(self._address), stream_id)
        tables.load()
        return [name for name in tables.open if not name.startswith("_")]

    def _rows(self, stream_id: str, table: str, first: int, last: int) -> pa.Table:
        tables = _tables(Place.of(self._address), stream_id)
        tables.load()
        one = tables.open[table]
        wanted = {BLOCK_COLUMN: (first, last)}
        return one.read([file for file in one.live().values() if one.may_hold(file, wanted)])


ADMIN = DeltaAdmin
