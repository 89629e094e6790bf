"""Knows the tables of a stream: what was declared, what exists, which stream's rows they hold.

A stream notes a table in `sync__tables` before it writes the first row. So a restart finds the rows
that a crash has left, and never removes the rows of another stream. Runs on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headwater.errors import (
    ClickHouseSharedTableError,
    ClickHouseTableError,
    ClickHouseUndeclaredError,
    EvolveError,
)
from headwater.targets.clickhouse.client import every_row, ignoring_refusal
from headwater.targets.clickhouse.layout import (
    Layout,
    Table,
    add_columns,
    create_index,
    create_table,
    create_view,
    drop_view,
    prepare_undo,
    read_layout,
    read_layouts,
    readers_of,
    renew_view,
)
from headwater.targets.clickhouse.sql import DELETED, TableName, parse_name
from headwater.targets.clickhouse.state import Lease
from headwater.targets.side_rows import PREFIX, STREAM

logger = logging.getLogger("headwater.targets.clickhouse")


LISTED = "__tables"
"""How the list of written tables is called, after the table of state that it stands beside."""
_LISTS = (
    "SELECT database, name FROM system.tables "
    "WHERE endsWith(name, {suffix:String}) AND engine LIKE '%MergeTree'"
)


class Catalog:
    """Caches what is known of the tables. `managed`: the target undoes them and refuses others."""

    def __init__(
        self,
        lease: Lease,
        declared: Sequence[Table] = (),
        *,
        automatic: bool = False,
        managed: bool = True,
    ) -> None:
        self.name = lease.sync.suffixed(LISTED)
        self._client = lease.client
        self._lease = lease
        self._id = lease.stream_id
        self._database = lease.sync.database
        self._declared = {parse_name(table.name, self._database): table for table in declared}
        self._automatic = automatic
        self._managed = managed
        self._layouts: dict[TableName, Layout] = {}
        self._versions: dict[TableName, int] = {}
        self._written: list[dict[str, str]] | None = None
        self._cursor: int | None = None
        self._has_written = False  # a table was noted before this start

    def begin(self, cursor: int | None) -> None:
        """Take note where the stream stands: at a start, and once its first batch is committed."""
        self._cursor = cursor
        self._has_written = any(
            row["id"] == self._id and not row["name"].startswith(PREFIX)
            for row in self._registered()
        )

    def create(self) -> None:
        """Create the list of written tables."""
        self._client.run(
            f"CREATE TABLE IF NOT EXISTS {self.name} (id String, database String, "
            "name String, block_column String, stream_column String) "
            "ENGINE = ReplacingMergeTree ORDER BY (id, database, name)"
        )

    def parse(self, text: str) -> TableName:
        """Read the name of a table."""
        return parse_name(text, self._database)

    def declare(self, table: Table) -> None:
        """Add a table to those that were declared."""
        self._declared[self.parse(table.name)] = table

    def forget(self) -> None:
        """Read everything again when it is needed next."""
        self._layouts.clear()
        self._versions.clear()
        self._written = None

    def tracked(self) -> list[Layout]:
        """Return every table that the stream has written or may write, as far as they exist."""
        names = dict.fromkeys(self._declared)
        for row in self._registered():
            name = TableName(row["database"], row["name"])
            ours = self._managed or row["name"].startswith(PREFIX)
            if row["id"] != self._lease.id_in(name) or not ours:
                continue
            names[name] = None
            if name not in self._declared:
                self._declared[name] = Table(
                    row["name"],
                    block_column=row["block_column"],
                    stream_column=row["stream_column"] or None,
                    live_view=not row["name"].startswith(PREFIX),
                )
        missing = {name: self._declared[name] for name in names if name not in self._layouts}
        described = read_layouts(self._client, missing)
        for name, layout in described.items():
            self._admit(name, layout)
        return [self._layouts[name] for name in names if name in self._layouts]

    def prepare(self, name: TableName, schema: pa.Schema) -> Layout:
        """Return a table that is about to be written; create it if there is none."""
        layout = self.admitted(name)
        if layout is not None:
            return layout
        declared = self._declaration(name)
        create_table(self._client, name, declared or Table(name.name), schema)
        layout = self.admitted(name)
        assert layout is not None, "it was created"
        return layout

    def widen(self, name: TableName, schema: pa.Schema) -> None:
        """Add the columns of a frame that a table lacks, and show them in its view."""
        layout = self.admitted(name)
        if layout is None:
            return
        declared = self._declaration(name) or Table(name.name)
        lacking = [field for field in schema if field.name not in layout.columns]
        if lacking:
            self._lease.check()
            add_columns(self._client, layout, declared, lacking)
            del self._layouts[name]
            layout = self.admitted(name)
            assert layout is not None, "it is there"
        if declared.live_view:
            renew_view(self._client, layout)

    def rename(self, old: TableName, new: TableName) -> None:
        """Give a table of this stream another name, with its view. Safe to repeat after a crash.

        The new name is noted first, the old one forgotten last: the stream finds its rows whenever
        it is interrupted. Called after `check_rename`.
        """
        ours = {row["name"] for row in self._registered() if row["id"] == self._id}
        before, after = self.described(old), self.described(new)
        if before is None and (after is None or new.name not in ours):
            return  # no row of it has come yet, or the transforms name it otherwise
        if before is not None:
            self._note(new, before)
            self._lease.check()
            drop_view(self._client, before)
            self._client.run("RENAME TABLE <old> TO <new>", old=old, new=new)
        self._withdraw(old)
        self._declared.pop(old, None)
        self.forget()
        self.admitted(new)

    def check_rename(self, old: TableName, new: TableName) -> None:
        """Make sure that a table can be given another name, if it is there. Nothing is changed.

        Raises:
            EvolveError: other streams, or materialized views, use the table; or the name is taken.
        """
        layout = self.described(old)
        if layout is None:
            return
        self._written = None  # another stream may have noted the table since it was read
        others = [
            row["id"]
            for row in self._registered()
            if (row["database"], row["name"]) == (old.database, old.name) and row["id"] != self._id
        ]
        views = readers_of(self._client, layout)
        if others or views or self.described(new) is not None:
            raise EvolveError(
                "a table can be renamed if its new name is free, and no other stream and no "
                "materialized view uses it; rename it yourself, or keep the output's name",
                table=old,
                new=new,
                streams=sorted(others),
                views=views,
            )

    def check_new(self, name: TableName) -> None:
        """Refuse the table of an output that was added, if it holds rows."""
        layout = self.described(name)
        if layout is not None and self.holds_rows(layout):
            raise EvolveError(
                "the table of an output that was added holds rows already; drop or rename it",
                table=name,
            )

    def first_block(self, name: TableName, behind: int) -> int | None:
        """Return the first block of a table; `behind` if it is empty, None if it is not there."""
        layout = self.admitted(name)
        if layout is None:
            return None
        rows = self._client.rows(
            "SELECT toInt64(<block>) AS headwater_block FROM <table> <final> WHERE <own> "
            "ORDER BY <block> LIMIT 1",
            {"stream": self._id},
            block=layout.block_column,
            table=layout.name,
            final=layout.final,
            own=layout.own,
        )
        return int(rows[0]["headwater_block"]) if rows else behind

    def described(self, name: TableName) -> Layout | None:
        """Return a table as the server describes it; nothing is created or noted."""
        return read_layout(self._client, name, self._declared.get(name))

    def is_managed(self, name: TableName) -> bool:
        """Tell whether the target undoes forks in a table."""
        return name in self._declared

    def existing(self, name: TableName) -> Layout:
        """Return a table that a user names, declared or not; with the index that undo needs."""
        layout = self._layouts.get(name) or self.described(name)
        if layout is None:
            raise ClickHouseTableError("there is no such table", table=name)
        if not layout.indexed and layout.block_column in layout.columns:
            create_index(self._client, layout)
        return layout

    def knows_something(self) -> bool:
        """Tell whether tables of the stream are listed, or hold rows with its id."""
        if any(row["id"] in (self._id, self._lease.own_id) for row in self._registered()):
            return True
        declared = {name: table for name, table in self._declared.items() if table.stream_column}
        layouts = read_layouts(self._client, declared)
        return any(self.holds_rows(layout) for layout in layouts.values())

    def next_version(self, layout: Layout) -> int:
        """Return a version that is higher than all in a table of the Replacing family."""
        if not layout.version:
            return 0
        if layout.name not in self._versions:
            rows = self._client.rows(
                "SELECT toInt64(max(<version>)) AS n FROM <table>",
                version=layout.version,
                table=layout.name,
            )
            self._versions[layout.name] = int(rows[0]["n"])
        self._versions[layout.name] += 1
        return self._versions[layout.name]

    def forget_versions(self) -> None:
        """Read versions again: rows were taken back with versions that are not known here."""
        self._versions.clear()

    # --- owners -----------------------------------------------------------------------------------

    def _declaration(self, name: TableName) -> Table | None:
        """Return what was declared of a table; None where the user undoes forks."""
        declared = self._declared.get(name)
        if declared is None and self._automatic:
            declared = self._declared[name] = Table(name.name)
        if declared is None and self._managed:
            raise ClickHouseUndeclaredError("a table that was not declared", table=name)
        return declared

    def admitted(self, name: TableName) -> Layout | None:
        """Return a table after making sure that its rows can be told from others', once."""
        if name in self._layouts:
            return self._layouts[name]
        layout = read_layout(self._client, name, self._declaration(name))
        if layout is not None:
            self._admit(name, layout)
        return self._layouts.get(name)

    def _admit(self, name: TableName, described: Layout) -> None:
        """Make sure that the rows of a table can be told from others', and keep its layout."""
        declared = self._declared.get(name)
        layout: Layout | None = described
        if declared is not None:
            self._check_owner(name, described)
            if declared.live_view:
                create_view(self._client, described)
            if not (described.indexed and described.deduplicates):
                prepare_undo(self._client, described)
                layout = read_layout(self._client, name, declared)
        if layout is not None:
            self._layouts[name] = layout

    def _check_owner(self, name: TableName, layout: Layout) -> None:
        """Refuse a table in which rows of others could be removed; note it otherwise.

        Another stream may note it at any time, so the list is read again, and once more after our
        own note: of two that note a table at one moment both see the other.
        """
        if self._refuse_others(name, layout):
            return
        self._refuse_rows(layout)
        self._note(name, layout)
        try:
            self._refuse_others(name, layout)
        except ClickHouseSharedTableError:
            self._withdraw(name)
            raise

    def _refuse_rows(self, layout: Layout) -> None:
        """Refuse a table whose rows are not this stream's, as far as that can be told.

        It has noted each table before its first row. Rows below the cursor may be its own all the
        same, of the Pipes SDK or under a name that the table had before; undo leaves them alone.
        """
        if layout.stream_column:
            return
        if self._cursor is None:
            foreign, said = self.holds_rows(layout), "the stream has not committed any"
        else:
            foreign = self._has_written and self.holds_rows(layout, above=self._cursor)
            said = "the stream has not written it, and some are of blocks that it has not reached"
        if foreign:
            self._lease.check()  # they may be those of a writer that has taken over
            raise ClickHouseSharedTableError(f"the table holds rows, but {said}", table=layout.name)

    def _refuse_others(self, name: TableName, layout: Layout) -> bool:
        """Refuse a table that another stream writes; tell whether this stream has noted it."""
        self._written = None
        own, own_id = layout.stream_column or "", self._lease.id_in(name)
        here = {row["id"]: row for row in self._registered() if _is_of(row, name)}
        noted = here.pop(own_id, None) is not None
        elsewhere = [row for row in self._registered_elsewhere() if _is_of(row, name)]
        others = [*here.values(), *elsewhere]
        same = [row["list"] for row in elsewhere if row["id"] == own_id]
        if same or (others and (not own or any(row["stream_column"] != own for row in others))):
            raise ClickHouseSharedTableError(
                "another stream writes this table too",
                table=name,
                streams=sorted(row["id"] for row in others),
                **({"of_the_same_id_in": sorted(same)} if same else {}),
            )
        return noted

    def adopt_side_rows(self) -> None:
        """Take over side rows that an earlier release stored under the id alone.

        They are noted before they get their new id, and the old note goes last: an interrupted
        start is repeated. Called under the lease, for a stream that has committed.

        Raises:
            ClickHouseSharedTableError: a stream of the same id has stored rows among them.
        """
        if self._id == self._lease.own_id:
            return
        for entry in self._registered():
            name = TableName(entry["database"], entry["name"])
            if entry["id"] != self._id or not name.name.startswith(PREFIX):
                continue
            mixed = [
                row["list"]
                for row in self._registered_elsewhere()
                if row["id"] == self._id and _is_of(row, name)
            ]
            if mixed:
                raise ClickHouseSharedTableError(
                    "an earlier release has mixed rows of streams of the same id: reset this "
                    "stream, or the others, by headwater cursor reset --state-table, and start "
                    "it anew",
                    table=name,
                    stream=self._id,
                    others=sorted(mixed),
                )
            layout = self.described(name)
            if layout is not None:
                self._note(name, replace(layout, stream_column=entry["stream_column"]))
                self._rename_rows(layout)
            self._withdraw(name, self._id)

    def _rename_rows(self, layout: Layout) -> None:
        """Give side rows the id that tells them apart: each comes with its own negative."""
        rest = [column for column in layout.columns if column not in (STREAM, *layout.marks)]
        self._lease.run(
            "INSERT INTO <table> (<stream>, <rest>, <sign>) SELECT if(headwater_sign = 1, "
            "{own:String}, <stream>), <rest>, headwater_sign FROM <table> FINAL "
            "ARRAY JOIN [1, -1] AS headwater_sign WHERE <stream> = {plain:String} AND <condition>",
            {"own": self._lease.own_id, "plain": self._id},
            settings=every_row(),
            table=layout.name,
            stream=STREAM,
            rest=rest,
            sign=layout.sign,
        )

    def _note(self, name: TableName, layout: Layout) -> None:
        """Note that the stream writes a table."""
        self._lease.run(
            "INSERT INTO <all> (id, database, name, block_column, stream_column) "
            "SELECT {id:String}, {database:String}, {name:String}, {block:String}, "
            "{stream:String} WHERE <condition>",
            {
                "id": self._lease.id_in(name),
                **name.params,
                "block": layout.block_column,
                "stream": layout.stream_column or "",
            },
            all=self.name,
        )
        self._written = None

    def _withdraw(self, name: TableName, noted_id: str = "") -> None:
        """Forget that the stream writes a table, as it was noted."""
        self._lease.run(
            "DELETE FROM <all> WHERE id = {id:String} AND database = {database:String} "
            "AND name = {name:String} AND <condition>",
            {"id": noted_id or self._lease.id_in(name), **name.params},
            settings=DELETED,
            all=self.name,
        )
        self._written = None

    def holds_rows(self, layout: Layout, above: int = -1) -> bool:
        """Tell whether rows above a block count; the stream's, if a column says whose they are."""
        rows = self._client.rows(
            "SELECT count() AS headwater_count FROM <table> <final> "
            "WHERE <block> > {above:Int64} AND <own>",
            {"stream": self._lease.id_in(layout.name), "above": above},
            table=layout.name,
            final=layout.final,
            block=layout.block_column,
            own=layout.own,
        )
        return bool(rows[0]["headwater_count"])

    def _registered_elsewhere(self) -> list[dict[str, str]]:
        """Return what streams whose state is in other tables write; `list` says where it is noted.

        A list that this user may not read, or that is just dropped, says nothing.
        """
        entries: list[dict[str, str]] = []
        for table in self._client.rows(_LISTS, {"suffix": LISTED}):
            listed = TableName(table["database"], table["name"])
            if listed == self.name:
                continue
            with ignoring_refusal():
                rows = self._client.rows(
                    "SELECT id, database, name, stream_column FROM <all> FINAL", all=listed
                )
                entries += [row | {"list": str(listed)} for row in rows]
        return entries

    def _registered(self) -> list[dict[str, str]]:
        """Return which stream writes which table, as it was when a table was last looked at."""
        if self._written is None:
            self._written = self._client.rows("SELECT * FROM <all> FINAL", all=self.name)
        return self._written


def _is_of(row: Mapping[str, str], name: TableName) -> bool:
    """Tell whether a row of a list is of a table."""
    return (row["database"], row["name"]) == (name.database, name.name)
