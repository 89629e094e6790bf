"""Administers a ClickHouse server outside a run: changes the state first, then the rows above it.

There are no transactions and no locks. A change begins a new epoch, so that a stream that runs
stops (E2016), and ends the stream's statements. What a crash in the middle leaves are rows above
the stored cursor, or of a stream without one: the stream's next start removes them, and so does
the same command.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headwater.core import PipeState
from headwater.core.rooms import clickhouse_room
from headwater.errors import (
    ClickHouseServerError,
    ClickHouseTableError,
    ClickHouseWriterError,
    DistributedTableError,
    InvalidOptionError,
    SchemaFileError,
    VerifyError,
)
from headwater.targets.admin import (
    COLLAPSING,
    DELETION,
    REPLACING,
    Admin,
    BlockRows,
    Move,
    MoveKind,
    StreamStatus,
    TableStatus,
    check_reset,
    find_stream,
    plan_move,
)
from headwater.targets.clickhouse.catalog import LISTED, Catalog
from headwater.targets.clickhouse.client import ClickHouseClient
from headwater.targets.clickhouse.layout import (
    Family,
    Layout,
    Table,
    create_table,
    create_view,
    read_layout,
    readers_of,
)
from headwater.targets.clickhouse.side_tables import LeasedConfig, SideTables
from headwater.targets.clickhouse.sql import DELETED, TableName, compose, parse_name
from headwater.targets.clickhouse.state import ClickHouseSettings, Lease, SyncTable
from headwater.targets.clickhouse.target import ClickHouseTarget
from headwater.targets.clickhouse.transfer import Attempts
from headwater.targets.clickhouse.undo import Undo
from headwater.targets.clickhouse.versioned import is_log
from headwater.targets.compare import COUNT
from headwater.targets.contract import SideTable
from headwater.targets.database import Callbacks
from headwater.targets.schema_file import SchemaFile
from headwater.targets.side_rows import PREFIX, stored_id
from headwater.targets.sql.tokens import CLICKHOUSE
from headwater.targets.text import Fragment

_UNDO = {
    Family.COLLAPSING: COLLAPSING,
    Family.REPLACING: REPLACING,
    Family.OTHER: DELETION,
}


_SYSTEM = ("system", "information_schema", "INFORMATION_SCHEMA")


@dataclass(frozen=True, slots=True)
class _OwnedStream:
    """A stream whose earlier writers have been told to stop."""

    lease: Lease
    sync: SyncTable
    layouts: list[Layout]

    @property
    def undo(self) -> Undo:
        """What takes the stream's rows back."""
        return Undo(self.lease)

    def remove_above(self, number: int) -> None:
        """Remove the stream's rows above a block, its own side rows too."""
        for layout in self.layouts:
            self.undo.above(layout, number)

    def empty(self, layout: Layout) -> None:
        """Remove all rows of the stream; at once where all are its own and no view follows."""
        if (
            readers_of(self.lease.client, layout)
            or layout.stream_column is not None
            or is_log(layout)
        ):
            self.undo.above(layout, -1)
            return
        self.lease.run(
            "ALTER TABLE <table> DELETE WHERE <condition>", settings=DELETED, table=layout.name
        )


class ClickHouseAdmin(Admin):
    """Administers the streams of one table of state; runs in the process of the command.

    `on_statement` is called with each statement before it is sent.
    """

    def __init__(self, url: str, database: str | None, table: str) -> None:
        self.on_statement: Callable[[str], None] | None = None
        self._client = client = ClickHouseClient(url)
        self._settings = ClickHouseSettings(database=database, table=table)
        self._sync = TableName(database or client.database, table)
        self._registry = self._sync.suffixed(LISTED)

    def streams(self) -> list[StreamStatus]:
        """Return all streams; one without a cursor was interrupted before its first commit."""
        with self._connected() as client:
            registered = self._registered(client)
            ids = {self._stream_of(row) for row in registered}
            if client.has(self._sync):
                rows = client.rows("SELECT DISTINCT id FROM <sync> FINAL", sync=self._sync)
                ids |= {row["id"] for row in rows}
            return [
                StreamStatus(
                    stream_id,
                    self._state(client, stream_id),
                    self._tables(client, stream_id, registered),
                )
                for stream_id in sorted(ids)
            ]

    def move(
        self, stream_id: str, number: int, *, block_hash: str | None = None, force: bool = False
    ) -> Move:
        """Move a cursor, then the data: what a fork does, at any depth."""
        stream = find_stream(self.streams(), stream_id)
        with self._connected() as client:
            self._layouts(client, stream_id)  # a table that is something else now is named as such
        plan_move(stream, number, block_hash, force=force)  # a refusal stops no writer
        with self._taken_over(stream_id) as owned:
            now = StreamStatus(stream_id, owned.sync.load(), stream.tables)
            move = plan_move(now, number, block_hash, force=force)
            for layout in owned.layouts:
                owned.undo.check_reach(layout, move.number)
            if move.kind is MoveKind.AHEAD:  # what a crash has left must not count from here on
                owned.remove_above(now.state.number)
            if move.kind is MoveKind.BELOW:
                owned.sync.replace(move.state)
            else:
                owned.sync.roll_back(move.state)
            if move.kind is not MoveKind.AHEAD:
                owned.remove_above(move.number)
            self._make_sure(stream_id, owned.sync.is_ours)
        return move

    def reset(self, stream_id: str, *, force: bool = False, keep_data: bool = False) -> None:
        """Forget a stream, then remove its rows, unless they are kept."""
        check_reset(find_stream(self.streams(), stream_id).state, force=force)
        with self._taken_over(stream_id) as owned:
            check_reset(owned.sync.load(), force=force)
            if keep_data:  # first, or else a start would remove them
                self._forget_tables(owned, "NOT startsWith(name, {prefix:String})")
            owned.lease.renew(is_new=True)  # a start may find no state from here on
            owned.sync.replace(PipeState())
            LeasedConfig(owned.lease).remove()
            SideTables(Catalog(owned.lease), owned.lease).forget()
            for layout in owned.layouts:
                if not keep_data or layout.name.name.startswith(PREFIX):
                    owned.empty(layout)
            self._forget_tables(owned)
            self._make_sure(stream_id, owned.sync.is_empty)

    def read_blocks(self, stream_id: str, table: str, first: int, last: int) -> BlockRows:
        """Return the rows of a table that are of these blocks; undone ones cancel out."""
        name = parse_name(table, self._sync.database)
        with self._connected() as client:
            layouts = [layout for layout in self._layouts(client, stream_id) if layout.name == name]
            layout = layouts[0] if layouts else read_layout(client, name, Table(table))
            if layout is None:
                raise VerifyError("there is no such table", table=name)
            shown = [column for column in layout.values if column != layout.stream_column]
            count, final, rest = {
                Family.COLLAPSING: ("sum(<sign>)", "", "GROUP BY <shown> HAVING <counted> != 0"),
                Family.REPLACING: ("1", "FINAL", "AND <deleted> = 0"),
                Family.OTHER: ("1", "", ""),
            }[layout.family]
            rows = client.query(
                "SELECT <shown>, toInt64(<count>) AS <counted> FROM <table> <final> "
                "WHERE <block> BETWEEN {first:UInt64} AND {last:UInt64} AND <own> <rest>",
                {"first": first, "last": last, "stream": stream_id},
                shown=shown,
                count=compose(count, sign=layout.sign),
                counted=COUNT,
                table=name,
                final=Fragment(final),
                block=layout.block_column,
                own=layout.own,
                rest=compose(rest, shown=shown, counted=COUNT, deleted=layout.deleted),
            )
            rooms = {name: clickhouse_room(kind) for name, kind in layout.columns.items()}
            return BlockRows(rows, layout.block_column, rooms)

    def target(self, stream_id: str) -> ClickHouseTarget:
        """Return a target for the stream's side tables; it leaves the user's tables alone."""
        find_stream(self.streams(), stream_id)
        callbacks = Callbacks.check(lambda store, data: None, None, writer="store")
        own = replace(self._settings, id=stream_id)
        return ClickHouseTarget(self._client, None, callbacks, None, own)

    def setup(
        self,
        schema: SchemaFile,
        side_tables: Sequence[SideTable] = (),
        *,
        change_log: bool = False,
    ) -> list[str]:
        """Create the tables of the state, of the stream's own rows, and the user's."""
        if change_log:
            raise InvalidOptionError("ClickHouse has no change log: it is for PostgreSQL, DuckDB")
        with self._connected() as client:
            return prepare_place(self._lease(client, ""), schema, side_tables)

    # --- one stream -------------------------------------------------------------------------------

    @contextmanager
    def _connected(self) -> Iterator[ClickHouseClient]:
        client = self._client.copy(on_statement=self.on_statement)
        try:
            client.attempts = 1  # a wrong address is said at once
            client.run("SELECT 1", settings={"database": "default"})
            client.attempts, client.wait_s = self._settings.attempts, self._settings.wait_s
            yield client
        finally:
            client.close()

    @contextmanager
    def _taken_over(self, stream_id: str) -> Iterator[_OwnedStream]:
        """Stop the stream's writer; a table that cannot be undone is refused before that."""
        with self._connected() as client:
            layouts = self._layouts(client, stream_id)
            lease = self._lease(client, stream_id)
            lease.create()
            lease.begin(lambda: True)
            sync = SyncTable(lease, self._settings.max_rows)
            yield _OwnedStream(lease, sync, layouts)

    def _make_sure(self, stream_id: str, stored: bool) -> None:
        if not stored:
            raise ClickHouseWriterError(
                "a writer has stored its state meanwhile, so the change does not count: stop it, "
                "then do this again",
                stream=stream_id,
            )

    def _state(self, client: ClickHouseClient, stream_id: str) -> PipeState:
        if not client.has(self._sync):
            return PipeState()
        lease = self._lease(client, stream_id)
        return SyncTable(lease, self._settings.max_rows).load()

    def _lease(self, client: ClickHouseClient, stream_id: str) -> Lease:
        return Lease(client, self._sync, stream_id)

    @contextmanager
    def _side(self, stream_id: str) -> Iterator[SideTables]:
        with self._connected() as client:
            lease = self._lease(client, stream_id)
            yield SideTables(Catalog(lease), lease)

    # --- its tables -------------------------------------------------------------------------------

    def _registered(self, client: ClickHouseClient) -> list[dict[str, str]]:
        """Return which stream writes which table; the Pipes SDK keeps no such list."""
        if not client.has(self._registry):
            return []
        return client.rows("SELECT * FROM <all> FINAL ORDER BY database, name", all=self._registry)

    def _stream_of(self, registered: dict[str, str]) -> str:
        """Return the stream that writes a table; side tables are noted under `Lease.own_id`."""
        noted = registered["id"]
        if not registered["name"].startswith(PREFIX):
            return noted
        return noted.removeprefix(stored_id(self._sync.name, ""))

    def _layouts(self, client: ClickHouseClient, stream_id: str) -> list[Layout]:
        """Return the stream's tables as far as they exist, its side tables too."""
        layouts = [
            read_layout(
                client,
                TableName(row["database"], row["name"]),
                Table(
                    row["name"],
                    block_column=row["block_column"],
                    stream_column=row["stream_column"] or None,
                ),
            )
            for row in self._registered(client)
            if self._stream_of(row) == stream_id
        ]
        return [layout for layout in layouts if layout is not None]

    def _tables(
        self, client: ClickHouseClient, stream_id: str, registered: Sequence[dict[str, str]]
    ) -> tuple[TableStatus, ...]:
        names = [TableName(row["database"], row["name"]) for row in registered]
        statuses = []
        for row, name in zip(registered, names, strict=True):
            if row["id"] != stream_id or name.name.startswith(PREFIX):
                continue
            undo = _undo_of(client, name)
            if undo is not None:
                shown = name.name if name.database == self._sync.database else str(name)
                own = bool(row["stream_column"])
                statuses.append(TableStatus(shown, undo, names.count(name) > 1, own))
        return tuple(statuses)

    def _forget_tables(self, owned: _OwnedStream, which: str = "1") -> None:
        if owned.lease.client.has(self._registry):
            owned.lease.run(
                "DELETE FROM <all> WHERE id IN {ids:Array(String)} AND <which> AND <condition>",
                {"ids": [owned.lease.stream_id, owned.lease.own_id], "prefix": PREFIX},
                settings=DELETED,
                all=self._registry,
                which=Fragment(which),
            )


def _undo_of(client: ClickHouseClient, name: TableName) -> str | None:
    """Return how rows are taken back; None of a table that is gone."""
    try:
        layout = read_layout(client, name, None)
    except (ClickHouseTableError, DistributedTableError):
        return "impossible"  # it was replaced by something else, which a move will say
    return None if layout is None else _UNDO[layout.family]


# --- preparing a place ----------------------------------------------------------------------------


def prepare_place(lease: Lease, schema: SchemaFile, side_tables: Sequence[SideTable]) -> list[str]:
    """Create what is missing; return the names of what was created.

    Names without a database are of the state's, as in a stream. All of a schema is read before
    anything is created, but there are no transactions: what was created before a statement that
    fails stays.
    """
    client, sync, catalog = lease.client, lease.sync, Catalog(lease)
    asked = [
        (
            parse_name(table.name, sync.database),
            Table(table.name, order_by=table.key, types=table.types),
            table.schema,
        )
        for table in schema.tables
    ]
    statements = CLICKHOUSE.split(schema.sql)
    anywhere = {"database": "default"}
    for place, sql in enumerate(statements, 1):
        problem = f"statement {place} cannot be read; nothing was created"
        _run(client, f"EXPLAIN AST {sql}", problem, anywhere)
    for database in dict.fromkeys((client.database, sync.database)):
        client.create_database(database)
    before = _all_tables(client)
    lease.create()
    SyncTable(lease, 1).create()
    catalog.create()
    Attempts(client, sync.suffixed("__attempts")).create()
    SideTables(catalog, lease).create(side_tables)
    LeasedConfig(lease).create()
    for name, declared, columns in asked:
        with _explained(f"{name} cannot be created; what was created before it stays"):
            create_table(client, name, declared, columns)
        layout = read_layout(client, name, declared)
        if layout is not None:
            create_view(client, layout)
    _run_all(client, sync.database, statements)
    created = _all_tables(client) - before
    return sorted(name.name if name.database == sync.database else str(name) for name in created)


def _run_all(client: ClickHouseClient, database: str, statements: Sequence[str]) -> None:
    """Run a user's statements, each once, in one session: SET and USE work."""
    once = client.copy()
    once.attempts, once.database = 1, database
    session = {"session_id": f"headwater-{secrets.token_hex(8)}"}
    try:
        for place, sql in enumerate(statements, 1):
            _run(once, sql, f"statement {place} failed; what was created before it stays", session)
    finally:
        once.close()


def _run(
    client: ClickHouseClient, sql: str, problem: str, settings: dict[str, str] | None = None
) -> None:
    with _explained(problem):
        client.run(sql, settings=settings)


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Turn the server's refusal into one of the schema."""
    try:
        yield
    except ClickHouseServerError as error:
        raise SchemaFileError(problem, reason=error.facts.get("reason")) from error


def _all_tables(client: ClickHouseClient) -> set[TableName]:
    rows = client.rows(
        "SELECT database, name FROM system.tables WHERE NOT has({system:Array(String)}, database) "
        "AND NOT startsWith(name, '.inner')",
        {"system": _SYSTEM},
    )
    return {TableName(row["database"], row["name"]) for row in rows}


ADMIN = ClickHouseAdmin
