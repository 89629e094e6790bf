"""Merging staged changes into tables of PostgreSQL: one statement per round, whatever it holds.

PostgreSQL checks foreign keys at the end of a statement, so parents and children may come and go in
any order within a round. All parts of the statement see the tables as they were before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.errors import UniqueViolation

from headwater.changes.declaration import ColumnType
from headwater.errors import (
    ChangeKeyError,
    ChangeRefusedError,
    DuplicateInsertError,
    PostgresTableError,
)
from headwater.targets.postgres.encode import INTEGERS
from headwater.targets.postgres.layout import Layout
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.transfer import Lane, Transfer, copy_in
from headwater.targets.postgres.tx import Tx
from headwater.targets.sql import catalog
from headwater.targets.sql.merge.expressions import changed, made
from headwater.targets.sql.merge.frames import (
    ABSENT,
    ADD,
    DELETE,
    GIVEN,
    INSERT,
    LOWER,
    RAISE,
    REPLACE,
    SET,
    TRANSIENT,
    UPDATE,
    UPSERT,
    Staged,
)
from headwater.targets.sql.merge.shape import Column, Shape
from headwater.targets.sql.text import Fragment, QualifiedName, compose, literal, quote

TYPES: dict[ColumnType, str] = {
    "text": "text",
    "integer": "numeric",
    "decimal": "numeric",
    "boolean": "boolean",
    "timestamp": "timestamp with time zone",
    "date": "date",
    "bytes": "bytea",
    "json": "jsonb",
}
_KINDS: dict[str, ColumnType] = {
    **dict.fromkeys(INTEGERS, "integer"),
    "numeric": "decimal",
    "real": "decimal",
    "double precision": "decimal",
    "boolean": "boolean",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp",
    "date": "date",
    "bytea": "bytes",
    "json": "json",
    "jsonb": "json",
}
SCALARS = {*_KINDS, "text", "character varying", "character", "uuid"} - {"json", "jsonb"}
BULK = 10_000  # rows from which on it pays to look at them before planning
_BINARY = {"text", "character varying", "bytea", *INTEGERS}
_PLAIN_KEYS = {*_BINARY, "numeric", "boolean"}


@dataclass(frozen=True, slots=True)
class Lent:
    """Staged changes that SQL can select from, and the table that they go to."""

    staged: Staged
    layout: Layout
    source: Fragment

    @property
    def same(self) -> Fragment:
        """The condition that a row `now` of the table is the one a change `s` is about."""
        key = self.staged.shape.key
        return Fragment(" AND ".join(f"now.{quote(one)} = s.k{at}" for at, one in enumerate(key)))


def shape_of(name: str, layout: Layout) -> Shape:
    """Return a table as changes see it; computed columns are left out."""
    held = [layout.columns[one] for one in layout.stored]
    columns = {
        one.name: Column(one.name, one.type, _kind(one), one.scale, one.default) for one in held
    }
    ambiguous = any(layout.columns[one].bare not in _PLAIN_KEYS for one in layout.key)
    return Shape(name, layout.name.full, layout.key, columns, ambiguous)


def lend(tx: Tx, staged: Staged, layout: Layout) -> Lent:
    """Put staged changes where SQL can select from them."""
    transfer = Transfer(tuple(_lane(staged, layout, one) for one in staged.frame.schema))
    with _fitting(staged):
        table = tx.lend(transfer, staged.frame)
    if staged.frame.num_rows >= BULK:
        tx.session.run(
            compose(
                "ANALYZE {table} (kind, k0); SET LOCAL jit = off; SET LOCAL work_mem = '64MB'",
                table=table,
            )
        )
    source = compose("(SELECT {values} FROM {table})", values=transfer.values(), table=table)
    lent = Lent(staged, layout, source)
    if staged.shape.ambiguous:
        _refuse_spellings(tx.session, lent)
    return lent


def insert_directly(session: Session, staged: Staged, layout: Layout) -> Staged | None:
    """Copy new rows straight into their table if that is all there is to do; else return None.

    Returns what is left: rows that came and went, which have to be compared with the table.
    """
    shape, kinds = staged.shape, staged.kinds
    if kinds - {INSERT, TRANSIENT} or set(staged.lanes) != staged.always or shape.ambiguous:
        return None
    numbers = {name: f"{SET}{at}" for at, name in enumerate(shape.columns)}
    names = {one: f"k{at}" for at, one in enumerate(shape.key)}
    names |= {one: numbers[one] for one in staged.lanes}
    lanes = [_lane(staged, layout, staged.frame.schema.field(one)) for one in names.values()]
    if any(one.cast for one in lanes):
        return None
    new = pc.equal(staged.frame["kind"], INSERT)
    rows = staged.frame.filter(new).select(list(names.values())).rename_columns(list(names))
    pairs = zip(names, lanes, strict=True)
    transfer = Transfer(tuple(Lane(name, one.type, one.bare) for name, one in pairs))
    with _fitting(staged):
        copy_in(session, layout.name, transfer, transfer.encode(rows.schema, rows.to_batches()))
    left = staged.frame.filter(pc.invert(new))
    return replace(staged, frame=left, kinds=kinds - {INSERT}, lanes={}, always=frozenset())


@contextmanager
def _fitting(staged: Staged) -> Iterator[None]:
    """Name the table whose columns cannot hold a value."""
    try:
        yield
    except PostgresTableError as error:
        raise ChangeRefusedError(
            "a value does not fit its column", table=staged.shape.name, reason=error.__cause__
        ) from error


def merge(session: Session, lent: Sequence[Lent]) -> None:
    """Apply the changes of one round."""
    parts = [part for at, one in enumerate(lent) for part in _parts(one, at)]
    if parts:
        session.run(compose("WITH {parts} SELECT 1", parts=Fragment(",\n".join(parts))))


def met(session: Session, lent: Lent, kind: str) -> list[tuple[str, int]]:
    """Return keys and blocks of changes of a kind whose row is there; a few suffice."""
    keys = " || ', ' || ".join(f"s.k{at}::text" for at in range(len(lent.staged.shape.key)))
    rows = session.rows(
        compose(
            "SELECT {keys}, s.block FROM {source} AS s JOIN {table} AS now ON {same} "
            "WHERE s.kind = {kind} LIMIT 3",
            keys=Fragment(keys),
            source=lent.source,
            table=lent.layout.name,
            same=lent.same,
            kind=literal(kind),
        )
    )
    return [(str(key), int(block)) for key, block in rows]


def kinds_in(alias: str, *kinds: str) -> Fragment:
    """Return the condition that a change is of one of these kinds."""
    return Fragment(f"{alias}.kind IN ({', '.join(literal(one) for one in kinds)})")


def _parts(lent: Lent, at: int) -> list[Fragment]:
    """Return deletions, changes and new rows of a table, each after the one before."""
    staged, kinds = lent.staged, lent.staged.kinds
    parts: list[Fragment] = []
    before = Fragment("")

    def add(name: str, template: str, **gaps: Fragment | QualifiedName) -> None:
        nonlocal before
        label = Fragment(f"{name}{at}")
        body = compose(
            template,
            table=lent.layout.name,
            source=lent.source,
            same=lent.same,
            before=before,
            **gaps,
        )
        parts.append(Fragment(f"{label} AS ({body} RETURNING 1)"))
        before = compose("AND (SELECT count(*) FROM {label}) >= 0", label=label)

    if kinds & {DELETE, REPLACE}:
        add(
            "gone",
            "DELETE FROM {table} AS now USING {source} AS s WHERE {same} AND {these} {before}",
            these=kinds_in("s", DELETE, REPLACE),
        )
    names = list(staged.lanes)
    if kinds & {UPDATE, UPSERT} and names:
        assign = ", ".join(
            f"{quote(one)} = {changed(staged, one, 'now.' + quote(one))}" for one in names
        )
        add(
            "changed",
            "UPDATE {table} AS now SET {assign} FROM {source} AS s "
            "WHERE {same} AND {these} {before}",
            assign=Fragment(assign),
            these=kinds_in("s", UPDATE, UPSERT),
        )
    if kinds & {INSERT, REPLACE, UPSERT, ABSENT}:
        targets = ", ".join(quote(one) for one in (*staged.shape.key, *names))
        values = [f"s.k{index}" for index in range(len(staged.shape.key))]
        values += [made(staged, one) for one in names]
        add(
            "made",
            "INSERT INTO {table} ({targets}) OVERRIDING SYSTEM VALUE SELECT {values} "
            "FROM {source} AS s WHERE ({these} OR ({maybe} AND NOT EXISTS "
            "(SELECT FROM {table} AS now WHERE {same}))) {before}",
            targets=Fragment(targets),
            values=Fragment(", ".join(values)),
            these=kinds_in("s", INSERT, REPLACE),
            maybe=kinds_in("s", UPSERT, ABSENT),
        )
    return parts


def _lane(staged: Staged, layout: Layout, field: pa.Field) -> Lane:
    """Return how a column of the frame travels: in the table's own type where that has a form."""
    name, index = field.name, field.name[1:]
    if name in ("place", "block"):
        return Lane(name, "bigint", "bigint")
    if name == "kind":
        return Lane(name, "text", "text")
    if name[0] == GIVEN:
        return Lane(name, "boolean", "boolean")
    shape = staged.shape
    place = shape.key[int(index)] if name[0] == "k" else list(shape.columns)[int(index)]
    stored, kind = layout.columns[place], shape.columns[place].kind
    if name[0] in (ADD, RAISE, LOWER) and kind in ("integer", "decimal"):
        whole = kind == "integer"
        return Lane(name, "numeric", "numeric") if whole else Lane(name, "text", "text", "numeric")
    if stored.bare in _BINARY:
        return Lane(name, stored.bare, stored.bare)
    if stored.bare == "numeric" and kind == "integer":
        return Lane(name, "numeric", "numeric")
    return Lane(name, "text", "text", stored.type)


def _kind(column: catalog.Column) -> ColumnType:
    if column.bare == "numeric" and column.scale == 0:
        return "integer"
    return _KINDS.get(column.bare, "text")


def _refuse_spellings(session: Session, lent: Lent) -> None:
    """Refuse two spellings of one key: they were folded apart, and the table has one row."""
    keys = Fragment(", ".join(f"k{at}" for at in range(len(lent.staged.shape.key))))
    rows = session.rows(
        compose(
            "SELECT row_to_json(twice)::text FROM (SELECT {keys} FROM {source} AS s "
            "WHERE NOT {twin} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1) AS twice",
            keys=keys,
            source=lent.source,
            twin=kinds_in("s", ABSENT),
        )
    )
    if rows:
        raise ChangeKeyError(
            "the table takes two keys for the same", table=lent.staged.shape.name, key=rows[0][0]
        )


@contextmanager
def coded(primary: Collection[str]) -> Iterator[None]:
    """Give what the database refuses its code; `primary` are the constraints of primary keys."""
    try:
        yield
    except psycopg.Error as error:
        shown = str(error.diag.message_primary or error).strip()
        detail = error.diag.message_detail or ""
        facts = {"table": error.diag.table_name, "constraint": error.diag.constraint_name}
        if isinstance(error, UniqueViolation) and facts["constraint"] in primary:
            raise DuplicateInsertError(
                "a row is inserted while it is there", table=facts["table"], detail=detail
            ) from error
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            raise ChangeRefusedError(shown, **facts, detail=detail) from error
        raise
