"""Keeps and restores undo data in DuckDB, which has no triggers: callers say what they change.

A keyed table keeps before-images, the earliest per row and block; of a row that did not exist it
keeps that it was inserted. A keyless table keeps every row that came or went, which is enough,
because what it holds is a sum. Everything is set-based, in the transaction of the change itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import TableSchemaError
from headwater.targets.duckdb.session import Session
from headwater.targets.sql.dialect import Dialect
from headwater.targets.sql.layout import RESERVED, Layout, Undo
from headwater.targets.sql.merger import Loaded
from headwater.targets.sql.undo import BLOCK, OPERATION, STREAM, UndoLog
from headwater.targets.text import Fragment, QualifiedName, columns, compose, equal, quote

TIMES, GROUP = RESERVED + "times", RESERVED + "group"
_IMAGES = "__headwater_images"


class DuckDBUndoLog(UndoLog):
    """The undo data of one stream in DuckDB."""

    def __init__(self, session: Session, dialect: Dialect, stream_id: str) -> None:
        super().__init__(session, dialect, stream_id)
        self._ready: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Look again at which logs exist: a transaction has failed."""
        self._ready.clear()

    # --- capturing --------------------------------------------------------------------------------

    def inserted(self, layout: Layout, block: int, names: Sequence[str], source: Fragment) -> None:
        """Keep that the rows of `source` come into being; rows whose key exists are left out."""
        new = Fragment("")
        if layout.undo is Undo.KEYED:
            new = compose(
                "WHERE NOT EXISTS (FROM {table} AS old WHERE {same})",
                table=layout.name,
                same=equal(layout.key, "old", "new"),
            )
        self._keep(layout, block, "INSERT", names, Fragment(f"{source} AS new {new}"), "new.")

    def changed(self, layout: Layout, block: int, operation: str, rows: Fragment) -> None:
        """Keep the rows `old` of the table as they are now; `rows` names them and chooses."""
        self._keep(layout, block, operation, layout.stored, rows, "old.")

    def compared(self, layout: Layout, block: int, before: str) -> None:
        """Keep every difference between a copy taken before a change and the table now."""
        if layout.undo is Undo.KEYLESS:
            gone = "(FROM {before} EXCEPT ALL FROM {table}) AS old"
            came = "(FROM {table} EXCEPT ALL FROM {before}) AS old"
            differences = [("DELETE", gone), ("INSERT", came)]
        else:
            gone = "(FROM {before} EXCEPT FROM {table}) AS old WHERE "
            there = "EXISTS (FROM {table} AS now WHERE {same})"
            came = "{table} AS old WHERE NOT EXISTS (FROM {before} AS now WHERE {same})"
            differences = [
                ("UPDATE", gone + there),
                ("DELETE", f"{gone}NOT {there}"),
                ("INSERT", came),
            ]
        for operation, template in differences:
            rows = compose(
                template, before=before, table=layout.name, same=equal(layout.key, "old", "now")
            )
            self._keep(layout, block, operation, layout.stored, rows, "old.")

    def _capture_rows(self, loaded: Loaded) -> None:
        """Keep the rows that a merge meets, and the keys of those that it makes."""
        layout, block, joined = loaded.layout, loaded.changes.newest, loaded.found
        met = ", ".join(f"s.o{at} AS {quote(name)}" for at, name in enumerate(loaded.images))
        self.changed(
            layout,
            block,
            "UPDATE",
            compose(
                "(SELECT {met} FROM {found} WHERE {here}) AS old",
                met=Fragment(met),
                found=joined,
                here=loaded.here,
            ),
        )
        new = ", ".join(f"s.key_{at} AS {quote(name)}" for at, name in enumerate(layout.key))
        rows = compose(
            "(SELECT {new} FROM {found} WHERE {lacks}) AS new",
            new=Fragment(new),
            found=joined,
            lacks=loaded.lacks,
        )
        self._keep(layout, block, "INSERT", layout.key, rows, "new.")

    def _keep(
        self,
        layout: Layout,
        block: int,
        operation: str,
        names: Sequence[str],
        rows: Fragment,
        prefix: str,
    ) -> None:
        earliest = "ON CONFLICT DO NOTHING" if layout.undo is Undo.KEYED else ""
        self._session.run(
            "INSERT INTO {log} ({names}, {operation}, {block}, {stream}) "
            "SELECT {values}, $1, $2, $3 FROM {rows} {earliest}",
            [operation, block, self._id],
            log=self._complete(layout),
            names=names,
            operation=OPERATION,
            block=BLOCK,
            stream=STREAM,
            values=columns(names, prefix),
            rows=rows,
            earliest=Fragment(earliest),
        )

    def _complete(self, layout: Layout) -> QualifiedName:
        """Return the table's log, with all the columns that the table has."""
        log = layout.name.snapshots
        if log.folded in self._ready:
            return log
        parts = [f"{quote(name)} {layout.columns[name].type}" for name in layout.stored]
        parts += [f"{OPERATION} VARCHAR NOT NULL", f"{BLOCK} BIGINT NOT NULL"]
        parts += [f"{STREAM} VARCHAR NOT NULL"]
        if layout.undo is Undo.KEYED:
            parts.append(f"PRIMARY KEY ({STREAM}, {BLOCK}, {columns(layout.key)})")
        self._session.run(
            "CREATE TABLE IF NOT EXISTS {log} ({parts})", log=log, parts=Fragment(", ".join(parts))
        )
        kept = self._dialect.read_table(self._session, log)
        stored = (
            {} if kept is None else {name.lower(): column for name, column in kept.columns.items()}
        )
        for name in layout.stored:
            kind, old = layout.columns[name].type, stored.get(name.lower())
            if old is None:
                self._session.run(
                    "ALTER TABLE {log} ADD COLUMN {name} {kind}",
                    log=log,
                    name=name,
                    kind=Fragment(kind),
                )
            elif old.type != kind:
                raise TableSchemaError(
                    "a column has another type than in the table's undo log",
                    table=layout.name,
                    column=name,
                    type=kind,
                    log=old.type,
                )
        self._ready.add(log.folded)
        return log

    # --- undoing ----------------------------------------------------------------------------------

    def _exists(self, name: QualifiedName) -> bool:
        return name.folded in self._ready or super()._exists(name)

    def _restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Put tables back one by one: DuckDB checks foreign keys at once.

        Rows that came go first, those of children before those of their parents.
        """
        known = [
            layout
            for layout in layouts
            if layout.undo is Undo.APPEND_ONLY or self._exists(self.log(layout).name(layout))
        ]
        images = [f"{_IMAGES}_{at}" for at in range(len(known))]
        for layout, image in zip(known, images, strict=True):
            self._read_images(layout, image, number)
        for layout, image in reversed(list(zip(known, images, strict=True))):
            self._take_out(layout, image, number)
        for layout, image in zip(known, images, strict=True):
            if layout.undo is not Undo.APPEND_ONLY:
                self._bring_back(layout, image)
                self._session.run("DROP TABLE {image}", image=image)
                self._session.run(self.log(layout).forget(layout), [self._id, number])

    def _read_images(self, layout: Layout, image: str, number: int) -> None:
        """Read what comes back into a temporary table: images, or how often a row came or went."""
        if layout.undo is Undo.APPEND_ONLY:
            return
        query = (
            self._net(layout)
            if layout.undo is Undo.KEYLESS
            else self.log(layout).images(self._session, layout, self._id)
        )
        self._session.run(
            "CREATE OR REPLACE TEMP TABLE {image} AS {query}",
            [self._id, number],
            image=image,
            query=query,
        )

    def _take_out(self, layout: Layout, image: str, number: int) -> None:
        """Remove rows that came into being; where values may change hands, all that come back."""
        if layout.undo is Undo.APPEND_ONLY:
            self._session.run(
                "DELETE FROM {table} WHERE {block} > $1",
                [number],
                table=layout.name,
                block=layout.block_column,
            )
        elif layout.undo is Undo.KEYLESS:
            self._session.run(
                "DELETE FROM {table} WHERE rowid IN (SELECT now.rowid FROM {table} AS now "
                "JOIN {image} AS net ON {same} WHERE net.{times} > 0 "
                "QUALIFY row_number() OVER (PARTITION BY net.{group}) <= net.{times})",
                table=layout.name,
                image=image,
                same=equal(layout.stored, "now", "net", nulls=True),
                times=TIMES,
                group=GROUP,
            )
        else:
            came = compose("old.{operation} = 'INSERT'", operation=OPERATION)
            self._session.run(
                "DELETE FROM {table} AS now USING {image} AS old WHERE {same} AND {gone}",
                table=layout.name,
                image=image,
                same=equal(layout.key, "now", "old"),
                gone=Fragment("true") if layout.unique else came,
            )

    def _bring_back(self, layout: Layout, image: str) -> None:
        """Bring back what was changed or taken."""
        names = layout.stored
        if layout.undo is Undo.KEYLESS:
            self._session.run(
                "INSERT INTO {table} ({names}) SELECT {names} FROM "
                "(SELECT *, unnest(range(-{times})) FROM {image} WHERE {times} < 0)",
                table=layout.name,
                names=names,
                times=TIMES,
                image=image,
            )
            return
        rest = [name for name in names if name not in layout.key]
        assign = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in rest)
        self._session.run(
            "INSERT INTO {table} ({names}) SELECT {names} FROM {image} AS old "
            "WHERE {operation} <> 'INSERT' ON CONFLICT ({key}) DO {action}",
            table=layout.name,
            names=names,
            image=image,
            operation=OPERATION,
            key=layout.key,
            action=Fragment(f"UPDATE SET {assign}" if rest else "NOTHING"),
        )

    def _net(self, layout: Layout) -> Fragment:
        """Return the query of how often each row came (or, below zero, went) above a block."""
        log = self.log(layout)
        return compose(
            "SELECT {names}, sum(CASE {operation} WHEN 'INSERT' THEN 1 ELSE -1 END)::BIGINT "
            "AS {times}, row_number() OVER () AS {group} "
            "FROM {log} WHERE {above} GROUP BY {names}",
            names=layout.stored,
            operation=OPERATION,
            times=TIMES,
            group=GROUP,
            log=log.name(layout),
            above=log.above(layout),
        )
