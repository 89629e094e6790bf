"""History in DuckDB: what was there before a hot block changed it, and how it comes back.

Everything runs inside the transaction that changes the tables, a set at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes import TableSchema
from headwater.errors import DuplicateInsertError, TableMismatchError
from headwater.targets.duckdb.dialect import DUCKDB, TableName
from headwater.targets.duckdb.merge import (
    TYPES,
    Lent,
    as_json,
    coded,
    from_text,
    give_back,
    kinds_in,
    lend,
    merge,
    shape_of,
)
from headwater.targets.duckdb.merge_order import are_independent
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.tx import Tx
from headwater.targets.sql.change_log.names import agreed, table_name
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
from headwater.targets.sql.merge.shape import Shape
from headwater.targets.sql.text import (
    Fragment,
    QualifiedName,
    columns,
    compose,
    equal,
    literal,
    quote,
)

_IMAGES = "__headwater_images"


class DuckDBHistory(HistoryRows):
    """The tables of one stream and their history. Runs on the driver, inside transactions."""

    _history: QualifiedName

    # --- opening ----------------------------------------------------------------------------------

    def open(self, tx: Tx) -> None:
        """Create what is missing, and look at the tables. Doing it again changes nothing."""
        session = tx.session
        self._create_own(session)
        self.shapes.clear()
        for declared in self._names.tables:
            name = table_name(declared)
            self.shapes[name] = agreed(self._find(session, declared), declared)
        self._stager = Stager(self.shapes)

    def _create_own(self, session: Session) -> None:
        session.run(compose("CREATE SCHEMA IF NOT EXISTS {schema}", schema=self._history.schema))
        session.run(
            compose(
                "CREATE TABLE IF NOT EXISTS {history} (id BIGINT PRIMARY KEY, op VARCHAR, "
                "table_name VARCHAR, pk VARCHAR, prev_value VARCHAR, block_num BIGINT, "
                "stream_id VARCHAR NOT NULL)",
                history=self._history,
            )
        )
        layout = DUCKDB.read_table(session, self._history)
        lacking = [one for one in COLUMNS if layout is None or one not in layout.columns]
        if lacking:
            raise TableMismatchError(
                "this is not a history table of ours",
                table=self._history.full,
                lacking=", ".join(lacking),
            )
        session.run(
            compose(
                "CREATE INDEX IF NOT EXISTS {index} ON {history} (block_num)",
                index=f"{self._history.name}_block_num",
                history=self._history,
            )
        )
        session.run(
            compose(
                "CREATE TABLE IF NOT EXISTS {cursors} (id VARCHAR PRIMARY KEY, cursor VARCHAR, "
                "block_num BIGINT, block_id VARCHAR)",
                cursors=self._cursors,
            )
        )

    def _find(self, session: Session, declared: str | TableSchema) -> Shape:
        table = TableName.parse(table_name(declared))
        if isinstance(declared, TableSchema):
            parts = [f"{quote(one)} {TYPES[kind]}" for one, kind in declared.columns.items()]
            session.run(compose("CREATE SCHEMA IF NOT EXISTS {schema}", schema=table.schema))
            session.run(
                compose(
                    "CREATE TABLE IF NOT EXISTS {table} ({parts}, PRIMARY KEY ({key}))",
                    table=table,
                    parts=Fragment(", ".join(parts)),
                    key=declared.key,
                )
            )
        layout = DUCKDB.read_table(session, table)
        if layout is None:
            rows = session.rows(
                "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() "
                "AND lower(schema_name) = ? ORDER BY 1",
                [table.folded[0]],
            )
            raise unknown_table(table.full, rows)
        if not layout.key:
            raise keyless_table(table.full, layout.columns)
        return shape_of(table_name(declared), layout)

    # --- changing ---------------------------------------------------------------------------------

    def apply(self, tx: Tx, folded: pa.Table, floor: int) -> None:
        """Apply folded changes; keep what was there for blocks above `floor`."""
        session = tx.session
        order = list(self.shapes)
        first = self._first_id(session)
        for staged in self._rounds(session, folded, floor):
            staged.sort(key=lambda one: order.index(one.shape.name))
            with coded():
                lent = [
                    lend(
                        session,
                        one,
                        TableName.parse(one.shape.full_name),
                        at,
                        one.shape.columns if one.newest > floor else (),
                    )
                    for at, one in enumerate(staged)
                ]
                for one in lent:
                    if TRANSIENT in one.staged.kinds:
                        _refuse_duplicates(session, one)
                self._keep(session, lent, floor, first)
                merge(session, lent)
                give_back(session, lent)

    def _rounds(self, session: Session, folded: pa.Table, floor: int) -> Iterator[list[Staged]]:
        """Yield changes in as few rounds as the tables allow: each reads and rewrites much."""
        lowest, highest = (one.as_py() for one in pc.min_max(folded["block_number"]).values())
        several = folded.num_rows and max(lowest, floor) < highest
        if several and are_independent(session, self.shapes.values()):
            return self._stager.rounds_by_key(folded)
        return self._stager.rounds(folded, floor)

    def _first_id(self, session: Session) -> int:
        """Return an id above all others in the history."""
        ((newest,),) = session.rows(compose("SELECT max(id) FROM {history}", history=self._history))
        return int(newest or 0) + 1

    def _keep(self, session: Session, lent: Sequence[Lent], floor: int, first: int) -> None:
        """Write the history of a round; ids are in the order of all changes of a commit."""
        hot = [one for one in lent if one.staged.newest > floor]
        if not hot:
            return
        queries = [self._history_rows(one, floor) for one in hot]
        session.run(
            compose(
                "INSERT INTO {history} (id, op, table_name, pk, prev_value, block_num, stream_id) "
                "SELECT ?::BIGINT + place, op, table_name, pk, prev_value, block, ? "
                "FROM ({rows}) AS kept ORDER BY place",
                history=self._history,
                rows=Fragment(" UNION ALL ".join(queries)),
            ),
            [first, self._id],
        )

    def _history_rows(self, lent: Lent, floor: int) -> str:
        shape = lent.staged.shape
        key = [(one, f"s.k{at}", shape.columns[one].type) for at, one in enumerate(shape.key)]
        row = [(one.name, lent.image(one.name), one.type) for one in shape.columns.values()]
        return compose(
            "SELECT s.place, CASE WHEN s.here IS NULL THEN 'I' WHEN {deletes} THEN 'D' "
            "ELSE 'U' END AS op, {name} AS table_name, {pk} AS pk, CASE WHEN s.here "
            "IS NOT NULL THEN {row} END AS prev_value, s.block FROM {stage} AS s "
            "WHERE s.block > {floor} "
            "AND CASE WHEN s.here IS NULL THEN {makes} ELSE NOT {leaves} END",
            deletes=kinds_in("s", DELETE),
            name=literal(shape.full_name),
            pk=as_json(key),
            row=as_json(row),
            stage=lent.source,
            floor=Fragment(str(floor)),
            makes=kinds_in("s", INSERT, REPLACE, UPSERT, ABSENT),
            leaves=kinds_in("s", ABSENT, TRANSIENT),
        )

    # --- undoing ----------------------------------------------------------------------------------

    def revert(self, session: Session, number: int) -> None:
        """Put every table back to what it was at a block; also those no longer declared.

        Rows that came go first, tables that refer to others before those.
        """
        order = {one.full_name: at for at, one in enumerate(self.shapes.values())}
        names = sorted(self._touched(session, number), key=lambda name: order.get(name, -1))
        shapes = []
        for at, name in enumerate(names):
            layout = DUCKDB.read_table(session, TableName.parse(name))
            if layout is None or not layout.key:
                raise TableMismatchError("a table that must be restored is gone", table=name)
            shape = shape_of(name, layout)
            self._read_images(session, shape, f"{_IMAGES}_{at}", number)
            shapes.append(shape)
        images = [(shape, f"{_IMAGES}_{at}") for at, shape in enumerate(shapes)]
        for shape, image in reversed(images):
            _take_out(session, shape, image)
        for shape, image in images:
            _bring_back(session, shape, image)
            session.run(compose("DROP TABLE {image}", image=image))
        session.run(
            compose(
                "DELETE FROM {history} WHERE stream_id = ? AND block_num > ?",
                history=self._history,
            ),
            [self._id, number],
        )

    def _read_images(self, session: Session, shape: Shape, image: str, number: int) -> None:
        """Read the oldest image of each row; columns that came since keep what they hold."""
        texts = json.dumps(dict.fromkeys(shape.columns, "VARCHAR"))
        values = ", ".join(_restored(shape, name) for name in shape.columns)
        key = " AND ".join(
            f"now.{quote(one)} = {from_text(f'kept.key.{quote(one)}', shape.columns[one].type)}"
            for one in shape.key
        )
        session.run(
            compose(
                "CREATE OR REPLACE TEMP TABLE {image} AS SELECT {values}, kept.op AS __op FROM "
                "(SELECT op, from_json(pk, {texts}) AS key, "
                "from_json(coalesce(prev_value, pk), {texts}) AS old, "
                "json_keys(coalesce(prev_value, pk)) AS names FROM {history} "
                "WHERE stream_id = ? AND block_num > ? AND table_name = ? "
                "QUALIFY row_number() OVER (PARTITION BY pk ORDER BY block_num, id) = 1) AS kept "
                "LEFT JOIN {table} AS now ON {key}",
                image=image,
                values=Fragment(values),
                texts=literal(texts),
                history=self._history,
                table=TableName.parse(shape.full_name),
                key=Fragment(key),
            ),
            [self._id, number, shape.full_name],
        )


def _take_out(session: Session, shape: Shape, image: str) -> None:
    """Remove rows that came into being; where values may change hands, all that will come back."""
    table = TableName.parse(shape.full_name)
    unique = session.rows(
        "SELECT 1 FROM duckdb_constraints() WHERE database_name = current_database() "
        "AND lower(schema_name) = ? AND lower(table_name) = ? AND constraint_type = 'UNIQUE'",
        table.folded,
    )
    session.run(
        compose(
            "DELETE FROM {table} AS now USING {image} AS old WHERE {same} AND {gone}",
            table=table,
            image=image,
            same=equal(shape.key, "now", "old"),
            gone=Fragment("true" if unique else "old.__op = 'I'"),
        )
    )


def _bring_back(session: Session, shape: Shape, image: str) -> None:
    names = list(shape.columns)
    rest = [name for name in names if name not in shape.key]
    assign = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in rest)
    session.run(
        compose(
            "INSERT INTO {table} ({names}) SELECT {values} FROM {image} AS old "
            "WHERE old.__op <> 'I' ON CONFLICT ({key}) DO {action}",
            table=TableName.parse(shape.full_name),
            names=names,
            values=columns(names, "old."),
            image=image,
            key=shape.key,
            action=Fragment(f"UPDATE SET {assign}" if rest else "NOTHING"),
        )
    )


def _restored(shape: Shape, name: str) -> str:
    kind, old = shape.columns[name].type, f"kept.old.{quote(name)}"
    known = f"list_contains(kept.names, {literal(name)})"
    return (
        f"CASE WHEN {known} THEN {from_text(old, kind)} ELSE now.{quote(name)} END AS {quote(name)}"
    )


def _refuse_duplicates(session: Session, lent: Lent) -> None:
    rows = session.rows(
        compose(
            "SELECT {key}, s.block FROM {stage} AS s WHERE {transient} "
            "AND s.here IS NOT NULL LIMIT 1",
            key=Fragment(", ".join(f"s.k{at}" for at in range(len(lent.staged.shape.key)))),
            stage=lent.source,
            transient=kinds_in("s", TRANSIENT),
        )
    )
    for *key, block in rows:
        raise DuplicateInsertError(
            "a row is inserted while it is there",
            table=lent.staged.shape.name,
            key=", ".join(map(str, key)),
            block=block,
        )
