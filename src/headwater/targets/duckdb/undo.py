"""The undo log: what was there before a hot block changed it, and how it comes back.

Each table has `<table>__snapshots`: all its columns, the operation, the block and the stream. A
keyed table keeps before-images, the earliest per row and block; of a row that did not exist it
keeps that it was inserted. A keyless table keeps every row that came or went, which is enough,
because what it holds is a sum. Everything is set-based, in the transaction of the change itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import TableSchemaError
from headwater.targets.duckdb.session import Session
from headwater.targets.sql.catalog import RESERVED, Layout, Undo
from headwater.targets.sql.text import Fragment, QualifiedName, columns, compose, equal, quote

OPERATION = RESERVED + "operation"
BLOCK = RESERVED + "block_number"
STREAM = RESERVED + "id"
TIMES, GROUP = RESERVED + "times", RESERVED + "group"


class UndoLog:
    """The undo data of one stream. Runs on the driver, inside a transaction."""

    def __init__(self, session: Session, stream_id: str) -> None:
        self._session = session
        self._id = stream_id
        self._ready: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Look again at which logs exist."""
        self._ready.clear()

    # --- keeping ----------------------------------------------------------------------------------

    def inserted(self, layout: Layout, block: int, names: list[str], source: Fragment) -> None:
        """Keep that the rows of `source` come into being; rows whose key exists are left out."""
        new = Fragment("")
        if layout.undo is Undo.KEYED:
            same = equal(layout.key, "old", "new")
            new = compose(
                "WHERE NOT EXISTS (FROM {table} AS old WHERE {same})",
                table=layout.name,
                same=same,
            )
        self._keep(layout, block, "INSERT", names, Fragment(f"{source} AS new {new}"), "new.")

    def made(self, layout: Layout, block: int, names: list[str], source: Fragment) -> None:
        """Keep that the rows of `source` come into being; none of their keys exists."""
        self._keep(layout, block, "INSERT", names, Fragment(f"{source} AS new"), "new.")

    def changed(self, layout: Layout, block: int, operation: str, rows: Fragment) -> None:
        """Keep the rows `old` of the table as they are now; `rows` names them and chooses."""
        self._keep(layout, block, operation, layout.stored, rows, "old.")

    def compared(self, layout: Layout, block: int, before: str) -> None:
        """Keep every difference between a copy taken before a change and the table now."""
        names, same = layout.stored, equal(layout.key, "old", "now")
        if layout.undo is Undo.KEYLESS:
            for operation, one, other in (("DELETE", before, None), ("INSERT", None, before)):
                rows = compose(
                    "(FROM {one} EXCEPT ALL FROM {other}) AS old",
                    one=one or layout.name,
                    other=other or layout.name,
                )
                self._keep(layout, block, operation, names, rows, "old.")
            return
        gone = "(FROM {before} EXCEPT FROM {table}) AS old"
        kept = gone + " WHERE {no} EXISTS (FROM {table} AS now WHERE {same})"
        came = "{table} AS old WHERE NOT EXISTS (FROM {before} AS now WHERE {same})"
        for operation, template in (("UPDATE", kept), ("DELETE", kept), ("INSERT", came)):
            rows = compose(
                template,
                before=before,
                table=layout.name,
                no=Fragment("NOT" if operation == "DELETE" else ""),
                same=same,
            )
            self._keep(layout, block, operation, names, rows, "old.")

    def _keep(
        self,
        layout: Layout,
        block: int,
        operation: str,
        names: list[str],
        rows: Fragment,
        prefix: str,
    ) -> None:
        earliest = "ON CONFLICT DO NOTHING" if layout.undo is Undo.KEYED else ""
        self._session.run(
            compose(
                "INSERT INTO {log} ({names}, {operation}, {block}, {stream}) "
                "SELECT {values}, ?, ?, ? FROM {rows} {earliest}",
                log=self._log(layout),
                names=names,
                operation=OPERATION,
                block=BLOCK,
                stream=STREAM,
                values=columns(names, prefix),
                rows=rows,
                earliest=Fragment(earliest),
            ),
            [operation, block, self._id],
        )

    def _log(self, layout: Layout) -> QualifiedName:
        """Return the table's log, with all the columns that the table has."""
        log = layout.name.snapshots
        if log.folded in self._ready:
            return log
        parts = [f"{quote(name)} {kind}" for name, kind in _types(layout).items()]
        parts += [f"{OPERATION} VARCHAR NOT NULL", f"{BLOCK} BIGINT NOT NULL"]
        parts += [f"{STREAM} VARCHAR NOT NULL"]
        if layout.undo is Undo.KEYED:
            parts.append(f"PRIMARY KEY ({STREAM}, {BLOCK}, {columns(layout.key)})")
        self._session.run(
            compose(
                "CREATE TABLE IF NOT EXISTS {log} ({parts})",
                log=log,
                parts=Fragment(", ".join(parts)),
            )
        )
        self._complete(layout, log)
        self._ready.add(log.folded)
        return log

    def _complete(self, layout: Layout, log: QualifiedName) -> None:
        """Add the columns that the table was given since the log was made."""
        held = dict(
            self._session.rows(
                "SELECT lower(column_name), data_type FROM duckdb_columns() "
                "WHERE database_name = current_database() AND lower(schema_name) = ? "
                "AND lower(table_name) = ?",
                log.folded,
            )
        )
        for name, kind in _types(layout).items():
            if name.lower() not in held:
                self._session.run(
                    compose(
                        "ALTER TABLE {log} ADD COLUMN {name} {kind}",
                        log=log,
                        name=name,
                        kind=Fragment(kind),
                    )
                )
            elif held[name.lower()] != kind:
                raise TableSchemaError(
                    "a column has another type than in the table's undo log",
                    table=layout.name,
                    column=name,
                    type=kind,
                    log=held[name.lower()],
                )

    # --- undoing ----------------------------------------------------------------------------------

    def restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Put every table back to what it was at a block, and forget what came after.

        Rows that came go first, those of children before those of their parents.
        """
        for layout in reversed(layouts):
            self._remove(layout, number)
        for layout in layouts:
            self._bring_back(layout, number)

    def holds_above(self, layouts: Sequence[Layout], number: int) -> bool:
        """Tell whether there is anything to restore: images, or rows of append-only tables."""
        for layout in layouts:
            log = layout.name.snapshots
            if layout.undo is Undo.APPEND_ONLY:
                found = self._session.rows(
                    compose(
                        "SELECT 1 FROM {table} WHERE {block} > ? LIMIT 1",
                        table=layout.name,
                        block=layout.block_column,
                    ),
                    [number],
                )
            elif self._exists(layout):
                found = self._session.rows(
                    compose(
                        "SELECT 1 FROM {log} WHERE {stream} = ? AND {block} > ? LIMIT 1",
                        log=log,
                        stream=STREAM,
                        block=BLOCK,
                    ),
                    [self._id, number],
                )
            else:
                continue
            if found:
                return True
        return False

    def _remove(self, layout: Layout, number: int) -> None:
        """Take out what blocks above a number brought."""
        match layout.undo:
            case Undo.APPEND_ONLY:
                self._session.run(
                    compose(
                        "DELETE FROM {table} WHERE {block} > ?",
                        table=layout.name,
                        block=layout.block_column,
                    ),
                    [number],
                )
            case Undo.KEYED if self._exists(layout):
                self._session.run(
                    compose(
                        "DELETE FROM {table} AS now USING ({images}) AS old "
                        "WHERE {same} AND old.{operation} = 'INSERT'",
                        table=layout.name,
                        images=self._earliest(layout),
                        same=equal(layout.key, "now", "old"),
                        operation=OPERATION,
                    ),
                    [self._id, number],
                )
            case Undo.KEYLESS if self._exists(layout):
                self._session.run(
                    compose(
                        "DELETE FROM {table} WHERE rowid IN ("
                        "WITH net AS MATERIALIZED ({net}) SELECT now.rowid FROM {table} AS now "
                        "JOIN net ON {same} WHERE net.{times} > 0 "
                        "QUALIFY row_number() OVER (PARTITION BY net.{group}) <= net.{times})",
                        table=layout.name,
                        net=self._net(layout),
                        same=equal(layout.stored, "now", "net", nulls=True),
                        times=TIMES,
                        group=GROUP,
                    ),
                    [self._id, number],
                )
            case _:
                pass

    def _bring_back(self, layout: Layout, number: int) -> None:
        """Bring back what blocks above a number changed or took, and forget that they did."""
        if layout.undo is Undo.APPEND_ONLY or not self._exists(layout):
            return
        self._session.run(
            self._restore_keyed(layout)
            if layout.undo is Undo.KEYED
            else compose(
                "INSERT INTO {table} ({names}) SELECT {names} FROM "
                "(SELECT *, unnest(range(-{times})) FROM ({net}) WHERE {times} < 0)",
                table=layout.name,
                names=layout.stored,
                times=TIMES,
                net=self._net(layout),
            ),
            [self._id, number],
        )
        self._session.run(
            compose(
                "DELETE FROM {log} WHERE {stream} = ? AND {block} > ?",
                log=layout.name.snapshots,
                stream=STREAM,
                block=BLOCK,
            ),
            [self._id, number],
        )

    def prune(self, layout: Layout, number: int) -> None:
        """Forget what lies at or below a number."""
        if layout.undo is not Undo.APPEND_ONLY and self._exists(layout):
            self._session.run(
                compose(
                    "DELETE FROM {log} WHERE {stream} = ? AND {block} <= ?",
                    log=layout.name.snapshots,
                    stream=STREAM,
                    block=BLOCK,
                ),
                [self._id, number],
            )

    def _exists(self, layout: Layout) -> bool:
        log = layout.name.snapshots
        return log.folded in self._ready or bool(
            self._session.rows(
                "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() "
                "AND lower(schema_name) = ? AND lower(table_name) = ?",
                log.folded,
            )
        )

    def _restore_keyed(self, layout: Layout) -> str:
        names = layout.stored
        rest = [name for name in names if name not in layout.key]
        assign = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in rest)
        return compose(
            "INSERT INTO {table} ({names}) SELECT {names} FROM ({images}) AS old "
            "WHERE {operation} <> 'INSERT' ON CONFLICT ({key}) DO {action}",
            table=layout.name,
            names=names,
            images=self._earliest(layout),
            operation=OPERATION,
            key=layout.key,
            action=Fragment(f"UPDATE SET {assign}" if rest else "NOTHING"),
        )

    def _earliest(self, layout: Layout) -> Fragment:
        """Return the query of the oldest image of each row above a block."""
        return compose(
            "FROM {log} WHERE {stream} = ? AND {block} > ? "
            "QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {block}) = 1",
            log=layout.name.snapshots,
            stream=STREAM,
            block=BLOCK,
            key=layout.key,
        )

    def _net(self, layout: Layout) -> Fragment:
        """Return the query of how often each row came (or, below zero, went) above a block."""
        return compose(
            "SELECT {names}, sum(CASE {operation} WHEN 'INSERT' THEN 1 ELSE -1 END)::BIGINT "
            "AS {times}, row_number() OVER () AS {group} "
            "FROM {log} WHERE {stream} = ? AND {block} > ? GROUP BY {names}",
            names=layout.stored,
            operation=OPERATION,
            times=TIMES,
            group=GROUP,
            block=BLOCK,
            log=layout.name.snapshots,
            stream=STREAM,
        )


def _types(layout: Layout) -> dict[str, str]:
    return {one: layout.columns[one].type for one in layout.stored}
