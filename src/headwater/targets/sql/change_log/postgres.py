"""History in PostgreSQL: what was there before a hot block changed it, and how it comes back.

Everything runs inside the transaction that changes the tables, a set at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headwater.changes import TableSchema
from headwater.errors import DuplicateInsertError, TableMismatchError
from headwater.targets.postgres.dialect import POSTGRES, TableName
from headwater.targets.postgres.layout import Layout, read_layout
from headwater.targets.postgres.merge import (
    TYPES,
    Lent,
    coded,
    insert_directly,
    kinds_in,
    lend,
    merge,
    met,
    shape_of,
)
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.tx import Tx
from headwater.targets.sql.catalog import Undo
from headwater.targets.sql.change_log.names import Names, agreed, table_name
from headwater.targets.sql.change_log.postgres_undo import HistoryLog
from headwater.targets.sql.change_log.rows import COLUMNS, HistoryRows, keyless_table, unknown_table
from headwater.targets.sql.merge.frames import (
    ABSENT,
    DELETE,
    INSERT,
    REPLACE,
    TRANSIENT,
    UPSERT,
    Staged,
    Stager,
)
from headwater.targets.sql.text import Fragment, QualifiedName, compose, literal, quote


class PostgresHistory(HistoryRows):
    """The tables of one stream and their history. Runs on the driver, inside transactions."""

    _history: QualifiedName

    def __init__(self, names: Names, own: Sequence[QualifiedName], stream_id: str | None) -> None:
        super().__init__(names, own, stream_id)
        self._layouts: dict[str, Layout] = {}
        self._primary: set[str] = set()
        self._referring: set[str] = set()

    # --- opening ----------------------------------------------------------------------------------

    def open(self, tx: Tx) -> None:
        """Create what is missing, and look at the tables. Doing it again changes nothing."""
        session = tx.session
        POSTGRES.make_schema(session, self._history.schema)
        self._create_own(session)
        self.shapes.clear()
        for declared in self._names.tables:
            name = table_name(declared)
            self._layouts[name] = layout = self._find(session, declared)
            self.shapes[name] = agreed(shape_of(name, layout), declared)
        relations = [compose("{name}", name=one.name) for one in self._layouts.values()]
        self._refuse_actions(session, relations)
        rows = session.rows(
            "SELECT conname FROM pg_constraint WHERE contype = 'p' "
            "AND conrelid = ANY($1::regclass[])",
            [relations],
        )
        self._primary = {name for (name,) in rows}
        self._referring = {
            name
            for name, layout in self._layouts.items()
            if session.rows(
                "SELECT FROM pg_constraint WHERE contype = 'f' AND conrelid = $1::regclass",
                [compose("{name}", name=layout.name)],
            )
        }
        self._stager = Stager(self.shapes)

    def _create_own(self, session: Session) -> None:
        if not POSTGRES.exists(session, self._history):
            session.run(
                compose(
                    "CREATE TABLE {history} (id BIGSERIAL PRIMARY KEY, op CHAR, table_name TEXT, "
                    "pk TEXT, prev_value TEXT, block_num BIGINT, stream_id TEXT NOT NULL); "
                    "CREATE INDEX {index} ON {history} (stream_id, block_num)",
                    history=self._history,
                    index=TableName.fitted(self._history.name, suffix="_block_num"),
                )
            )
        layout = read_layout(session, self._history)
        assert layout is not None, "it is there"
        lacking = [one for one in COLUMNS if one not in layout.columns]
        if lacking or layout.columns["id"].bare != "bigint":
            raise TableMismatchError(
                "this is not a history table of ours",
                table=self._history.full,
                lacking=", ".join(lacking) or "a 64-bit id",
            )
        if not POSTGRES.exists(session, self._cursors):
            session.run(
                compose(
                    "CREATE TABLE {cursors} (id TEXT PRIMARY KEY, cursor TEXT, "
                    "block_num BIGINT, block_id TEXT)",
                    cursors=self._cursors,
                )
            )

    def _find(self, session: Session, declared: str | TableSchema) -> Layout:
        name = TableName.parse(table_name(declared))
        if isinstance(declared, TableSchema) and not POSTGRES.exists(session, name):
            parts = [f"{quote(one)} {TYPES[kind]}" for one, kind in declared.columns.items()]
            POSTGRES.make_schema(session, name.schema)
            session.run(
                compose(
                    "CREATE TABLE {table} ({parts}, PRIMARY KEY ({key}))",
                    table=name,
                    parts=Fragment(", ".join(parts)),
                    key=declared.key,
                )
            )
        layout = read_layout(session, name)
        if layout is None:
            rows = session.rows(
                "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n "
                "ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') "
                "ORDER BY 1",
                [name.schema],
            )
            raise unknown_table(name.full, rows)
        if not layout.key:
            raise keyless_table(name.full, layout.columns)
        return replace(layout, undo=Undo.KEYED)

    def _refuse_actions(self, session: Session, relations: list[Fragment]) -> None:
        """Refuse foreign keys that change rows by themselves: nothing would keep what was there."""
        rows = session.rows(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'f' "
            "AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd')) "
            "AND confrelid = ANY($1::regclass[]) LIMIT 1",
            [relations],
        )
        for table, constraint in rows:
            raise TableMismatchError(
                "a foreign key changes rows by itself, and a fork could not undo it; declare it "
                "without CASCADE, SET NULL or SET DEFAULT",
                table=table,
                constraint=constraint,
            )

    # --- changing ---------------------------------------------------------------------------------

    def apply(self, tx: Tx, folded: pa.Table, floor: int) -> None:
        """Apply folded changes; keep what was there for blocks above `floor`."""
        session = tx.session
        for staged in self._stager.rounds(folded, floor):
            with coded(self._primary):
                left = [self._inserted(session, one, floor) for one in staged]
                lent = [
                    lend(tx, one, self._layouts[one.shape.name])
                    for one in left
                    if one.frame.num_rows
                ]
                for one in lent:
                    if TRANSIENT in one.staged.kinds:
                        _refuse_duplicates(session, one)
                self._keep(session, lent, floor)
                merge(session, lent)

    def _inserted(self, session: Session, staged: Staged, floor: int) -> Staged:
        """Copy new rows of final blocks straight into a table that refers to none."""
        name = staged.shape.name
        if staged.newest > floor or name in self._referring:
            return staged
        return insert_directly(session, staged, self._layouts[name]) or staged

    def _keep(self, session: Session, lent: Sequence[Lent], floor: int) -> None:
        """Write the history of a round, in the order of its changes."""
        hot = [one for one in lent if one.staged.newest > floor]
        if not hot:
            return
        queries = [self._history_rows(one, floor) for one in hot]
        session.run(
            compose(
                "INSERT INTO {history} (op, table_name, pk, prev_value, block_num, stream_id) "
                "SELECT op, table_name, pk, prev_value, block, $1 FROM ({rows}) AS kept "
                "ORDER BY place",
                history=self._history,
                rows=Fragment(" UNION ALL ".join(queries)),
            ),
            [self._id],
        )

    def _history_rows(self, lent: Lent, floor: int) -> str:
        shape = lent.staged.shape
        pairs = ", ".join(f"s.k{at} AS {quote(one)}" for at, one in enumerate(shape.key))
        return compose(
            "SELECT s.place, CASE WHEN now.{first} IS NULL THEN 'I' WHEN {deletes} THEN 'D' "
            "ELSE 'U' END AS op, {name} AS table_name, (SELECT row_to_json(key)::text "
            "FROM (SELECT {pairs}) AS key) AS pk, CASE WHEN now.{first} IS NOT NULL "
            "THEN row_to_json(now)::text END AS prev_value, s.block "
            "FROM {source} AS s LEFT JOIN {table} AS now ON {same} WHERE s.block > {floor} "
            "AND CASE WHEN now.{first} IS NULL THEN {makes} ELSE NOT {leaves} END",
            first=shape.key[0],
            deletes=kinds_in("s", DELETE),
            name=literal(shape.full_name),
            pairs=Fragment(pairs),
            source=lent.source,
            table=lent.layout.name,
            same=lent.same,
            floor=Fragment(str(floor)),
            makes=kinds_in("s", INSERT, REPLACE, UPSERT, ABSENT),
            leaves=kinds_in("s", ABSENT, TRANSIENT),
        )

    # --- undoing ----------------------------------------------------------------------------------

    def revert(self, session: Session, number: int) -> None:
        """Put every table back to what it was at a block: one statement, whatever refers to what.

        Also tables that are no longer declared: the history names them.
        """
        layouts = []
        for name in self._touched(session, number):
            layout = read_layout(session, TableName.parse(name))
            if layout is None or not layout.key:
                raise TableMismatchError("a table that must be restored is gone", table=name)
            layouts.append(replace(layout, undo=Undo.KEYED))
        HistoryLog(session, self._id, self._history).restore(layouts, number)


def _refuse_duplicates(session: Session, lent: Lent) -> None:
    for key, block in met(session, lent, TRANSIENT):
        raise DuplicateInsertError(
            "a row is inserted while it is there",
            table=lent.staged.shape.name,
            key=key,
            block=block,
        )
