"""Iceberg as a target: files first, then a snapshot per block in each table, then the state.

A rollback moves references, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from pyiceberg.catalog import Catalog

from headwater.core import BlockCursor, PipeState
from headwater.core.several import Several
from headwater.errors import InvalidOptionError
from headwater.targets.database import OnData
from headwater.targets.iceberg.catalog import CatalogName
from headwater.targets.iceberg.inner import DataFile
from headwater.targets.iceberg.stream_table import NAMESPACE as STATE_IN
from headwater.targets.iceberg.tables import StreamTables
from headwater.targets.lake.admin import LakeAdmin, LakeMoment
from headwater.targets.lake.settings import (
    NAME,
    NAMESPACE,
    Declared,
    IcebergSettings,
    Table,
    declared_tables,
)
from headwater.targets.lake.state import STREAM, slug
from headwater.targets.lake.table import LakeTables
from headwater.targets.lake.target import LakeTarget
from headwater.targets.lake.tx import Tx
from headwater.targets.sql.aggregates import Aggregate, plan_aggregates


class IcebergTarget(LakeTarget[DataFile]):
    """Made by `iceberg_target`. A catalog that was opened before stays open."""

    def _open_tables(self) -> StreamTables:
        assert isinstance(self._settings, IcebergSettings), "given by `iceberg_target`"
        owned = isinstance(self.place, CatalogName)
        catalog = self.place.open() if owned else self.place
        automatic = self._on_data is None
        return StreamTables(
            catalog, self._id, self._declared, self._settings, self._announce,
            automatic=automatic, owned=owned,
        )  # fmt: skip


def iceberg_target(
    catalog: str | Path | Mapping[str, str] | Catalog,
    *,
    tables: Several[Declared] | None = None,
    on_data: OnData[Tx[DataFile]] | None = None,
    aggregates: Iterable[Aggregate] = (),
    unrepresentable: str = "replace",
    settings: IcebergSettings | None = None,
) -> IcebergTarget:
    """Write a stream to Iceberg tables.

    Args:
        catalog: a directory, which then holds tables and catalog; the name of a catalog that
            pyiceberg is configured with; properties as pyiceberg takes them, such as
            `{"type": "rest", "uri": …}`; or a catalog of pyiceberg's, which stays open.
        tables: every table that `on_data` writes, as a name, `table(...)`, or the `TableSchema` of
            changes that `tx.apply` applies. Without `on_data`, only those that need more than
            their name, or that are in another namespace.
        on_data: `on_data(tx, data)` or `on_data(tx, data, ctx)`, called for each batch; again if
            the batch had to be repeated. Left out, each output is inserted into the table of its
            own name.
        aggregates: tables that sum up outputs, made by `aggregate(...)`; each batch rewrites the
            files that hold its keys.
        unrepresentable: what is done with a value that a column cannot hold: `"replace"` it by the
            nearest one, `"null"`, `"skip"` its row, or `"stop"`. Counted and told in any case.
        settings: the stream id, the namespace, how much is kept and rewritten.
    """
    plans = plan_aggregates(aggregates)
    declared = declared_tables(tables, plans, on_data=on_data)
    for name in declared:
        if not NAME.fullmatch(name):
            raise InvalidOptionError("a table is named `name` or `namespace.name`", got=repr(name))
    named = catalog if isinstance(catalog, Catalog) else CatalogName.of(catalog)
    return IcebergTarget(
        named, declared, on_data, settings or IcebergSettings(), unrepresentable, plans
    )


_DEFAULT = f"{NAMESPACE}."  # of tables that are named without a namespace


class IcebergAdmin(LakeAdmin[DataFile]):
    """Administers the catalog of an `iceberg_target`: a directory, a name, or properties.

    Maintenance takes no stream over: one that runs goes on, and finds its files rewritten.
    """

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
                stream_id: StreamTables(
                    catalog, stream_id, declared, IcebergSettings(namespace=namespace)
                )
                for stream_id, (namespace, declared) in _streams(catalog).items()
            }

    def shown(self, name: str) -> str | None:
        """Return the name of a table; without the namespace that is the default."""
        return name.removeprefix(_DEFAULT)

    def ends_in(self, tables: LakeTables[DataFile]) -> LakeMoment | None:
        """Tables are committed before the state, and put back after it."""
        assert isinstance(tables, StreamTables), "made here"
        stored = tables.load()
        assert stored is not None, "the stream is there"
        snapshots = {name: table.landing(stored.state) for name, table in tables.open.items()}
        if not _goes_on(tables.state.load().state, stored.state.cursor):
            return None
        versions = {
            name: snapshot.snapshot_id
            for name, snapshot in snapshots.items()
            if snapshot is not None
        }
        return self._moment(stored, versions)

    def _writer(self, stream_id: str) -> IcebergTarget:
        with closing(self._name.open(create=False)) as catalog:
            namespace, declared = _streams(catalog)[stream_id]
        settings = IcebergSettings(id=stream_id, namespace=namespace)
        return IcebergTarget(self._name, declared, None, settings)


def _streams(catalog: Catalog) -> dict[str, tuple[str, dict[str, Table]]]:
    """Return the streams of a catalog: the namespace of the state, and the tables."""
    owned: dict[str, list[tuple[str, str]]] = {}
    for parts in catalog.list_namespaces():
        for identifier in catalog.list_tables(parts):
            properties = catalog.load_table(identifier).properties
            if STREAM in properties:
                place = (".".join(identifier), properties.get(STATE_IN, ""))
                owned.setdefault(properties[STREAM], []).append(place)
    streams = {}
    for stream_id, places in owned.items():
        state = f".headwater_{slug(stream_id)}"
        states = [name.removesuffix(state) for name, _ in places if name.endswith(state)]
        namespace = next(iter(states), next((own for _, own in places if own), NAMESPACE))
        names = [
            name
            for name, own in places
            if not name.endswith(state) and (own or namespace) == namespace
        ]
        streams[stream_id] = namespace, {name: Table(name) for name in names}
    return streams


def _goes_on(state: PipeState, cursor: BlockCursor | None) -> bool:
    """Tell whether a state follows a cursor: then no fork has taken its block."""
    if cursor is None or cursor.number <= state.undo_floor:
        return True
    chain = {cursor.number: cursor.hash for cursor in state.rollback_chain}
    return cursor.number in chain and chain[cursor.number] == cursor.hash


ADMIN = IcebergAdmin
