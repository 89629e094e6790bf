"""Maintains the streams of a folder of Delta tables from outside: for `headwater maintain`.

It takes no stream over: its commits rewrite files and say nothing else, so a stream that runs goes
on. A table that the stream changes by key at the same moment refuses one of the two.
"""

from __future__ import annotations

from headwater.errors import LakeForeignWriteError
from headwater.targets.delta.maintenance import Maintenance
from headwater.targets.delta.tables import StreamTables
from headwater.targets.delta.target import DeltaSettings, read_state
from headwater.targets.lake.paths import Place

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
            list(tables.open.values()), stream_id, floor, settings, tables.announce, bounded=False
        )
        try:
            return {**work.run(), "swept": work.sweep()}
        except LakeForeignWriteError:
            continue
    raise LakeForeignWriteError("tables change all the time", tables=", ".join(tables.open))
