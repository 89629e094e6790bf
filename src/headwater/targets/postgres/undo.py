"""Undoes a fork in PostgreSQL: one statement puts every table back, whatever refers to what.

PostgreSQL checks foreign keys at the end of a statement. So all tables are restored in one: no
order of tables has to be found, and cycles and references of a table to itself need no care. Per
row the oldest image above the cursor counts: a row that was inserted is deleted, any other becomes
what it was. Append-only tables lose their rows by block number.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.errors import ExclusionViolation, UniqueViolation

from headwater.errors import RewindError
from headwater.targets.postgres.dialect import TableName
from headwater.targets.sql.layout import Layout, Undo
from headwater.targets.sql.merger import Loaded
from headwater.targets.sql.undo import BLOCK, OPERATION, STREAM, UndoLog
from headwater.targets.text import Fragment, QualifiedName, columns, compose, equal, quote

_PLANS = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit")


class PostgresUndoLog(UndoLog):
    """The undo data of one stream in PostgreSQL. Triggers capture what writes change."""

    def _capture_rows(self, loaded: Loaded) -> None:
        """Leave it to the triggers."""

    def _restore(self, layouts: Sequence[Layout], number: int) -> None:
        """Restore all tables together.

        Where values of a unique column have changed hands, rows cannot be put back in place. They
        are replaced, unless foreign keys act when rows go: then those are taken off meanwhile.
        """
        if not layouts:
            return
        self._adopt(layouts, number)
        muted = self._mute(layouts)
        self._restore_all(layouts, number)
        if muted:
            self._session.run("SET CONSTRAINTS ALL IMMEDIATE")
        for sql in muted:
            self._session.run(sql)

    def _adopt(self, layouts: Sequence[Layout], number: int) -> None:
        """Take over images without a stream: triggers of the Pipes SDK have made them.

        It installs them whenever it starts, also while this stream runs. Where several streams
        write a table it cannot be told whose images they are.
        """
        for layout in layouts:
            if layout.undo is not Undo.KEYED:
                continue
            lacking = compose("{stream} IS NULL AND {block} > $1", stream=STREAM, block=BLOCK)
            log = layout.name.snapshots
            if not layout.shared:
                self._session.run(
                    "UPDATE {log} SET {stream} = $2 WHERE {lacking}",
                    [number, self._id],
                    log=log,
                    stream=STREAM,
                    lacking=lacking,
                )
            elif self._session.rows(
                "SELECT FROM {log} WHERE {lacking} LIMIT 1", [number], log=log, lacking=lacking
            ):
                raise RewindError(
                    "undo data of the Pipes SDK in a table that several streams write",
                    table=layout.name,
                    wanted=number,
                )

    def _mute(self, layouts: Sequence[Layout]) -> list[Fragment]:
        """Switch off the triggers of the user's, whose work is restored; return what undoes it."""
        rows = self._session.rows(
            "SELECT n.nspname, c.relname, t.tgname, t.tgenabled FROM pg_trigger AS t "
            "JOIN pg_class AS c ON c.oid = t.tgrelid "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE NOT t.tgisinternal AND t.tgparentid = 0 AND t.tgenabled IN ('O', 'A') "
            "AND NOT starts_with(t.tgname, 'sqd_') AND c.oid = ANY($1::regclass[])",
            [[relation.quoted for layout in layouts for relation in layout.relations]],
        )
        again = []
        for schema, table, name, enabled in rows:
            owner = TableName(schema, table)
            self._session.run("ALTER TABLE {table} DISABLE TRIGGER {name}", table=owner, name=name)
            how = Fragment("ENABLE ALWAYS" if enabled == "A" else "ENABLE")
            again.append(
                compose("ALTER TABLE {table} {how} TRIGGER {name}", table=owner, how=how, name=name)
            )
        return again

    def _restore_all(self, layouts: Sequence[Layout], number: int) -> None:
        delicate = [layout for layout in layouts if layout.unique and layout.acted_upon]
        if not delicate:
            self._restore_at_once(
                layouts, number, {layout.name for layout in layouts if layout.unique}
            )
            return
        replaced = {layout.name for layout in layouts if layout.unique and not layout.acted_upon}
        self._session.run("SAVEPOINT headwater_undo")
        try:
            self._restore_at_once(layouts, number, replaced)
        except (UniqueViolation, ExclusionViolation):
            self._session.run("ROLLBACK TO SAVEPOINT headwater_undo")
            taken_off = [sql for layout in delicate for sql in self._take_off(layout)]
            self._restore_at_once(layouts, number, replaced | {layout.name for layout in delicate})
            self._session.run("SET CONSTRAINTS ALL IMMEDIATE")
            for sql in taken_off:
                self._session.run(sql)

    def _take_off(self, layout: Layout) -> list[Fragment]:
        """Drop the foreign keys that refer to a table; return what puts them on again."""
        rows = self._session.rows(
            "SELECT n.nspname, c.relname, k.conname, pg_get_constraintdef(k.oid) "
            "FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE k.contype = 'f' AND k.conparentid = 0 AND k.confrelid = $1::regclass",
            [layout.name.quoted],
        )
        again = []
        for schema, table, name, definition in rows:
            owner = TableName(schema, table)
            self._session.run("ALTER TABLE {table} DROP CONSTRAINT {name}", table=owner, name=name)
            again.append(
                compose(
                    "ALTER TABLE {table} ADD CONSTRAINT {name} {definition}",
                    table=owner,
                    name=name,
                    definition=Fragment(definition),
                )
            )
        return again

    def _restore_at_once(
        self, layouts: Sequence[Layout], number: int, replaced: set[QualifiedName]
    ) -> None:
        parts: list[str] = []
        for index, layout in enumerate(layouts):
            if layout.undo is Undo.APPEND_ONLY:
                gone = "gone{i} AS (DELETE FROM {table} WHERE {block} > $2::bigint)"
                i, block = Fragment(str(index)), layout.block_column
                parts.append(compose(gone, i=i, table=layout.name, block=block))
            else:
                parts += self._keyed(layout, index, replace=layout.name in replaced)
        for plan in _PLANS:  # rows are found by key: the cost is theirs, not the table's
            self._session.run(f"SET LOCAL {plan} = off")
        self._session.run("SET LOCAL work_mem = '64MB'")
        self._session.run(
            "WITH {parts} SELECT $1::text, $2::bigint",
            [self._id, number],
            parts=Fragment(",\n".join(parts)),
        )
        for plan in _PLANS:
            self._session.run(f"SET LOCAL {plan} TO DEFAULT")

    def _keyed(self, layout: Layout, index: int, *, replace: bool) -> list[str]:
        log, names = self.log(layout), layout.stored
        rest = [
            name for name in names if name not in layout.key and not layout.columns[name].identity
        ]
        what: dict[str, QualifiedName | Sequence[str] | str] = {
            "i": Fragment(str(index)),
            "table": layout.name,
            "images": log.images(self._session, layout, self._id),
            "forget": log.forget(layout),
            "names": names,
            "values": columns(names, "old."),
            "operation": OPERATION,
            "same": equal(layout.key, "now", "old"),
            "assign": Fragment(", ".join(f"{quote(name)} = old.{quote(name)}" for name in rest)),
            "goes": Fragment("true" if replace else f"old.{quote(OPERATION)} = 'INSERT'"),
            "lacks": Fragment("true" if replace else compose(
                "NOT EXISTS (SELECT FROM {table} AS now WHERE {same})",
                table=layout.name, same=equal(layout.key, "now", "old"),
            )),
        }  # fmt: skip
        parts = [
            "image{i} AS MATERIALIZED ({images})",
            "gone{i} AS (DELETE FROM {table} AS now USING image{i} AS old "
            "WHERE {same} AND {goes} RETURNING 1)",
            "forgotten{i} AS ({forget})",
        ]
        if rest and not replace:
            parts.append(
                "changed{i} AS (UPDATE {table} AS now SET {assign} FROM image{i} AS old "
                "WHERE {same} AND old.{operation} <> 'INSERT' "
                "AND (SELECT count(*) FROM gone{i}) >= 0 RETURNING 1)"
            )
        what["after"] = Fragment(f"{'changed' if rest and not replace else 'gone'}{index}")
        parts.append(
            "back{i} AS (INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE "
            "SELECT {values} FROM image{i} AS old WHERE old.{operation} <> 'INSERT' "
            "AND {lacks} AND (SELECT count(*) FROM {after}) >= 0)"
        )
        return [compose(part, **what) for part in parts]
