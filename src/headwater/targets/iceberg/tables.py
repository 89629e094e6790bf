"""The tables of one stream in an Iceberg catalog: found, made, renamed; and its table of state.

There is no commit over several tables. So the state, a table of its own, is committed last, and
first in a rollback. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table as PyIcebergTable

from headwater.core import PipeState
from headwater.errors import (
    EvolveError,
    LakeForeignWriteError,
    LakeSchemaError,
    StateMissingError,
)
from headwater.targets.iceberg.catalog import create_namespace
from headwater.targets.iceberg.inner import DataFile
from headwater.targets.iceberg.schemas import iceberg_schema, partition_spec, sort_order
from headwater.targets.iceberg.snapshots import block_of
from headwater.targets.iceberg.state_table import StateTable
from headwater.targets.iceberg.stream_table import NAMESPACE, PROPERTIES, StreamTable
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import NAME, IcebergSettings, Table
from headwater.targets.lake.state import STREAM, StoredStream
from headwater.targets.lake.table import Announce, LakeTable, LakeTables, Lead


class StreamTables(LakeTables[DataFile]):
    """The tables of one stream, by name. `owned`: the catalog is closed with them.

    `automatic` ones need no declaration: they are those of the namespace that name the stream.
    """

    open: dict[str, StreamTable]  # type: ignore[assignment]

    def __init__(
        self,
        catalog: Catalog,
        stream_id: str,
        declared: Mapping[str, Table],
        settings: IcebergSettings,
        announce: Announce = lambda step: None,
        *,
        automatic: bool = False,
        owned: bool = True,
    ) -> None:
        super().__init__(stream_id, declared, announce, automatic=automatic)
        self._catalog = catalog
        self._namespace = settings.namespace
        self._settings = settings
        self._owned = owned
        self._ours = {STREAM: stream_id, NAMESPACE: settings.namespace}
        self.state = StateTable(catalog, settings.namespace, stream_id, self._ends)

    def load(self) -> StoredStream | None:
        """Read the state, then the tables; nothing is taken over."""
        stored = self.state.load()
        self._load_tables()
        if stored.epoch:
            self.state.stored = stored
            return stored
        for table in self.open.values():
            snapshot = table.stored.current_snapshot()
            block = None if snapshot is None else block_of(snapshot)
            if block is not None and block[0] >= 0:
                if self.state.load().epoch:  # another start has begun meanwhile
                    break
                raise StateMissingError(
                    "no cursor is stored, but tables of the stream are",
                    stream=self.stream_id,
                    state=self.state.name,
                    tables=table.name,
                )
        return None

    def take_over(self, before: StoredStream | None) -> StoredStream:
        """Begin an epoch, or look whether another writer has begun one; then load the tables."""
        if before is not None:
            self.state.check()
        else:
            if self.state.load().epoch == 0:
                self.load()
            self.state.take_over()
        self._load_tables()
        for name, end in self.state.known.items():
            if name in self.open:
                self.open[name].check_follows(end)
        return self.state.check()  # what was loaded is of no later writer, and commits build on it

    def _ends(self, state: PipeState) -> dict[str, int]:
        """Return the snapshot of each table that a state ends in."""
        snapshots = {name: table.landing(state) for name, table in self.open.items()}
        return {
            name: snapshot.snapshot_id
            for name, snapshot in snapshots.items()
            if snapshot is not None
        }

    def check(self) -> object:
        """Refuse to go on if another writer of the stream has begun."""
        return self.state.check()

    @property
    def side(self) -> Place:
        """Where files of the stream itself are kept."""
        return self.state.place

    def lead(self, stored: StoredStream) -> Lead[DataFile]:
        """Return the table of state."""
        return self.state

    def in_order(self) -> list[Lead[DataFile]]:
        """Return the table of state, then the others."""
        return [self.state, *self.open.values()]

    def swept(self) -> list[LakeTable[DataFile]]:
        """Return the tables, and that of the state."""
        return [*self.open.values(), self._made(Table(self.state.name), self.state.table)]

    def close(self) -> None:
        """Let go of the catalog; the caller's own stays open."""
        if self._owned:
            self._catalog.close()

    def identifier(self, name: str) -> str:
        """Return the whole name of a table."""
        return name if "." in name else f"{self._namespace}.{name}"

    def _load_tables(self) -> None:
        """Load the declared tables that exist, and those of the stream that need no declaration.

        Raises:
            LakeForeignWriteError: a declared table belongs to another stream.
        """
        self.open = {}
        for name, declared in self.declared.items():
            try:
                stored = self._catalog.load_table(self.identifier(name))
            except NoSuchTableError:
                continue
            self.open[name] = self._adopt(self._made(declared, stored))
        for name in self._undeclared() if self.automatic else ():
            try:
                stored = self._catalog.load_table(self.identifier(name))
            except NoSuchTableError:  # it was dropped meanwhile
                continue
            if self._ours.items() <= stored.properties.items():
                self.open[name] = self._made(Table(name), stored)

    def _undeclared(self) -> list[str]:
        """Return the tables of the namespace that were not declared, whosever they are."""
        namespace = tuple(self._namespace.split("."))
        known = {self.identifier(name) for name in self.declared} | {self.state.name}
        try:
            identifiers = self._catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            return []
        return [name for *_, name in identifiers if self.identifier(name) not in known]

    def _made(self, declared: Table, stored: PyIcebergTable) -> StreamTable:
        return StreamTable(declared, stored, self._settings, self.check)

    def _is_own(self, identifier: str) -> bool:
        """Tell whether a table is there and belongs to this stream."""
        try:
            stored = self._catalog.load_table(identifier)
        except NoSuchTableError:
            return False
        return bool(stored.properties.get(STREAM) == self.stream_id)

    def check_rename(self, old: str, new: str) -> None:
        """Refuse a new name for a table of the stream that another table has."""
        before, after = self.identifier(old), self.identifier(new)
        if self._is_own(before) and self._catalog.table_exists(after):
            raise EvolveError("a table of the new name is there already", old=before, new=after)

    def rename(self, old: str, new: str) -> None:
        """Give a table of the stream a new name; its files stay where they are."""
        before, after = self.identifier(old), self.identifier(new)
        if not self._is_own(before):
            return  # it was renamed before, or this stream has none of this name
        create_namespace(self._catalog, after.rpartition(".")[0])
        try:
            self._catalog.rename_table(before, after)
        except NotImplementedError:
            raise EvolveError(
                "this catalog renames no tables: keep the output's name", old=before, new=after
            ) from None

    def _create(self, name: str, columns: pa.Schema, stored: StoredStream) -> StreamTable:
        """Make a table. A writer that was replaced may have made it, and may write it until it
        finds the commit of this epoch there.
        """
        declared = self.declared.get(name)
        if declared is None:
            if not NAME.fullmatch(name) or "." in name:
                raise LakeSchemaError(
                    "a table that is not declared is named by letters, digits, _ and -", table=name
                )
            declared = Table(name)
        schema = iceberg_schema(columns)
        identifier = self.identifier(name)
        self._announce(f"create table {name}")
        create_namespace(self._catalog, identifier.rpartition(".")[0])
        try:
            stored_table = self._catalog.create_table(
                identifier,
                schema,
                partition_spec=partition_spec(declared.partition_by, schema, name),
                sort_order=sort_order(declared, schema),
                properties={**PROPERTIES, **declared.properties, **self._ours},
            )
        except TableAlreadyExistsError:
            stored_table = self._catalog.load_table(identifier)
        table = self._adopt(self._made(declared, stored_table))
        self._claim(table, stored)
        return table

    def _adopt(self, table: StreamTable) -> StreamTable:
        """Refuse a table of another stream; take one that the user has made."""
        owner = table.stored.properties.get(STREAM)
        if owner is None:
            current = table.stored.current_snapshot()
            if (
                current is not None
                and current.summary
                and int(current.summary.additional_properties.get("total-records", "0"))
            ):
                raise LakeForeignWriteError(
                    "the table holds rows that no stream has written", table=table.name
                )
            with table.stored.transaction() as change:
                change.set_properties({**PROPERTIES, **self._ours})
            return table
        namespace = table.stored.properties.get(NAMESPACE, self._namespace)
        if (owner, namespace) != (self.stream_id, self._namespace):
            raise LakeForeignWriteError(
                "the table belongs to another stream",
                table=table.name,
                stream=owner,
                state_in=namespace,
            )
        return table
