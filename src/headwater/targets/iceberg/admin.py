"""Shows and maintains the streams of an Iceberg catalog from outside a run.

`headwater maintain` takes no stream over: one that runs goes on, and finds its files rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as PyIcebergTable

from headwater.core import BlockCursor, PipeState
from headwater.errors import LakeForeignWriteError, LakePathError
from headwater.targets.iceberg.maintenance import Maintenance
from headwater.targets.iceberg.settings import CatalogName, IcebergSettings, Table
from headwater.targets.iceberg.snapshots import properties_of
from headwater.targets.iceberg.tables import StreamTable, place_of
from headwater.targets.lake.admin import BLOCK_COLUMN, LakeAdmin, LakeMoment
from headwater.targets.lake.paths import Place
from headwater.targets.lake.side import Files, side_status
from headwater.targets.lake.state import STATE, STREAM, StoredStream
from headwater.targets.side_rows import SideStatus

_ATTEMPTS = 5
_DEFAULT = "default."  # the namespace of tables that are named without one


def maintain_catalog(
    given: str | Path | Mapping[str, str],
    *,
    stream_id: str | None = None,
    settings: IcebergSettings | None = None,
) -> dict[str, dict[str, int]]:
    """Expire, compact and sweep the tables of all streams, or of one; return what was done.

    Raises:
        LakePathError: the catalog cannot be loaded.
        LakeForeignWriteError: a table changes all the time.
    """
    catalog = CatalogName.of(given).open(create=False)
    try:
        tables = _tables_by_stream(catalog)
        wanted = [one for one in tables if stream_id in (None, one)]
        return {
            one: _maintain(catalog, tables[one], settings or IcebergSettings()) for one in wanted
        }
    finally:
        catalog.close()


def _tables_by_stream(catalog: Catalog) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for namespace in catalog.list_namespaces():
        for identifier in catalog.list_tables(namespace):
            owner = catalog.load_table(identifier).properties.get(STREAM)
            if owner is not None:
                found.setdefault(owner, []).append(".".join(identifier))
    return found


def _maintain(catalog: Catalog, names: list[str], settings: IcebergSettings) -> dict[str, int]:
    for _ in range(_ATTEMPTS):
        stored, states, tables = _load(catalog, names)
        if stored is None:
            return {}
        work = Maintenance(tables, stored, settings, bounded=False)
        try:
            return {**work.run(), "swept": work.sweep(states)}
        except CommitFailedException:
            continue
    raise LakeForeignWriteError("tables change all the time", tables=", ".join(names))


def _load(
    catalog: Catalog, names: list[str]
) -> tuple[StoredStream | None, list[PyIcebergTable], list[StreamTable]]:
    """Return what is stored of a stream, its table of state, and its tables."""
    stored, states, tables = None, [], []
    for name in names:
        one = catalog.load_table(name)
        current = one.current_snapshot()
        said = {} if current is None else properties_of(current)
        if STATE in said:
            stored = StoredStream.from_properties(said)
            states.append(one)
        else:
            tables.append(StreamTable(Table(name), one))
    return stored, states, tables


class IcebergAdmin(LakeAdmin):
    """Reads the catalog of an `iceberg_target`: a directory, or a name that pyiceberg knows."""

    undo = "snapshots"

    def side_tables(self, stream_id: str) -> dict[str, SideStatus]:
        """Return how much each side table holds of a stream."""
        stored = {one.stream_id: one for one in self._stored()}.get(stream_id)
        return super().side_tables(stream_id) if stored is None else side_status(stored.side)

    def _side_files(self, stream_id: str) -> tuple[Place, Files] | None:
        with _opened(self._address) as catalog:
            for names in _tables_by_stream(catalog).values():
                stored, states, _ = _load(catalog, names)
                if stored is not None and stored.stream_id == stream_id:
                    return place_of(states[0]), stored.side
        return None

    def moment(self, stream_id: str) -> LakeMoment:
        """Read the state, then the tables, then whether the chain has forked meanwhile."""
        with _opened(self._address) as catalog:
            for _ in range(_ATTEMPTS):
                names = _tables_by_stream(catalog).get(stream_id, [])
                stored, _, _ = _load(catalog, names)
                if stored is None:
                    break
                _, _, tables = _load(catalog, names)
                found = {one.name: one.landing(stored.state) for one in tables}
                after, _, _ = _load(catalog, names)
                if after is not None and _goes_on(after.state, stored.state.cursor):
                    versions = {
                        name.removeprefix(_DEFAULT): one.snapshot_id
                        for name, one in found.items()
                        if one is not None
                    }
                    return LakeMoment(stream_id, stored.state.cursor, versions)
            else:
                raise LakeForeignWriteError("the chain forks all the time", stream=stream_id)
        raise LakePathError("no such stream has stored anything", stream=stream_id)

    def _stored(self) -> Iterator[StoredStream]:
        with _opened(self._address) as catalog:
            for names in _tables_by_stream(catalog).values():
                stored, _, _ = _load(catalog, names)
                if stored is not None:
                    yield stored

    def _tables(self, stream_id: str) -> list[str]:
        with _opened(self._address) as catalog:
            names = _tables_by_stream(catalog).get(stream_id, [])
            _, states, tables = _load(catalog, names)
            found = [one.declared.name for one in tables] if states else names
            return [one.removeprefix(_DEFAULT) for one in found]

    def _rows(self, stream_id: str, table: str, first: int, last: int) -> pa.Table:
        with _opened(self._address) as catalog:
            found = catalog.load_table(table if "." in table else _DEFAULT + table)
            if BLOCK_COLUMN not in {one.name for one in found.schema().fields}:
                return pa.table({})
            wanted = f"{BLOCK_COLUMN} >= {int(first)} AND {BLOCK_COLUMN} <= {int(last)}"
            files = [one.file for one in found.scan(row_filter=wanted).plan_files()]
            return StreamTable(Table(table), found).read(files)


def _goes_on(state: PipeState, cursor: BlockCursor | None) -> bool:
    """Tell whether a state follows a cursor: then no fork has taken its block."""
    if cursor is None or cursor.number <= state.undo_floor:
        return True
    chain = {one.number: one.hash for one in state.rollback_chain}
    return cursor.number in chain and chain[cursor.number] == cursor.hash


def _opened(address: str) -> closing[Catalog]:
    return closing(CatalogName.of(address).open(create=False))


ADMIN = IcebergAdmin
