"""Administers the streams of an Iceberg catalog.

`headwater maintain` takes no stream over: one that runs goes on, and finds its files rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from pyiceberg.catalog import Catalog

from headwater.core import BlockCursor, PipeState
from headwater.targets.iceberg.catalog import CatalogName
from headwater.targets.iceberg.inner import DataFile
from headwater.targets.iceberg.stream_table import NAMESPACE as STATE_IN
from headwater.targets.iceberg.tables import StreamTables
from headwater.targets.iceberg.target import IcebergTarget
from headwater.targets.lake.admin import LakeAdmin, LakeMoment
from headwater.targets.lake.authors import slug
from headwater.targets.lake.settings import NAMESPACE, IcebergSettings, Table
from headwater.targets.lake.state import STREAM
from headwater.targets.lake.table import LakeTables

_DEFAULT = f"{NAMESPACE}."  # of tables that are named without a namespace


class IcebergAdmin(LakeAdmin[DataFile]):
    """Administers the catalog of an `iceberg_target`: a directory, a name, or properties."""

    undo = "snapshots"

    def __init__(
        self, address: str | Path | Mapping[str, str], schema: str | None = None, table: str = ""
    ) -> None:
        self._name = CatalogName.of(address)

    @contextmanager
    def lakes(self) -> Iterator[Mapping[str, LakeTables[DataFile]]]:
        """Return the tables of each stream in the catalog."""
        with closing(self._name.open(create=False)) as catalog:
            yield {
                one: StreamTables(catalog, one, declared, IcebergSettings(namespace=namespace))
                for one, (namespace, declared) in _streams(catalog).items()
            }

    def shown(self, name: str) -> str | None:
        """Return the name of a table; without the namespace that is the default."""
        return name.removeprefix(_DEFAULT)

    def ends_in(self, tables: LakeTables[DataFile]) -> LakeMoment | None:
        """Tables are committed before the state, and put back after it."""
        assert isinstance(tables, StreamTables), "made here"
        stored = tables.load()
        assert stored is not None, "the stream is there"
        found = {name: one.landing(stored.state) for name, one in tables.open.items()}
        if not _goes_on(tables.state.load().state, stored.state.cursor):
            return None
        versions = {name: one.snapshot_id for name, one in found.items() if one is not None}
        return self._moment(stored, versions)

    def _writer(self, stream_id: str) -> IcebergTarget:
        with closing(self._name.open(create=False)) as catalog:
            namespace, declared = _streams(catalog)[stream_id]
        settings = IcebergSettings(id=stream_id, namespace=namespace)
        return IcebergTarget.of(self._name, declared, None, settings)


def _streams(catalog: Catalog) -> dict[str, tuple[str, dict[str, Table]]]:
    """Return the streams of a catalog: the namespace of the state, and the tables."""
    owned: dict[str, list[tuple[str, str]]] = {}
    for parts in catalog.list_namespaces():
        for identifier in catalog.list_tables(parts):
            properties = catalog.load_table(identifier).properties
            if STREAM in properties:
                place = (".".join(identifier), properties.get(STATE_IN, ""))
                owned.setdefault(properties[STREAM], []).append(place)
    found = {}
    for stream_id, places in owned.items():
        state = f".headwater_{slug(stream_id)}"
        states = [name.removesuffix(state) for name, _ in places if name.endswith(state)]
        namespace = next(iter(states), next((one for _, one in places if one), NAMESPACE))
        names = [
            name
            for name, own in places
            if not name.endswith(state) and (own or namespace) == namespace
        ]
        found[stream_id] = namespace, {name: Table(name) for name in names}
    return found


def _goes_on(state: PipeState, cursor: BlockCursor | None) -> bool:
    """Tell whether a state follows a cursor: then no fork has taken its block."""
    if cursor is None or cursor.number <= state.undo_floor:
        return True
    chain = {one.number: one.hash for one in state.rollback_chain}
    return cursor.number in chain and chain[cursor.number] == cursor.hash


ADMIN = IcebergAdmin
