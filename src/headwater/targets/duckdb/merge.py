"""Merging staged changes into tables of DuckDB: a few statements per table and round.

A table's rows are looked for once, when changes are staged: what a row holds stands beside its
change, and statements find the row by its number. Deletions come before changes, changes before new
rows; tables that refer to others are declared after them, because DuckDB checks foreign keys at
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from headwater.changes.declaration import ColumnType
from headwater.errors import ChangeKeyError, ChangeRefusedError, DuplicateInsertError
from headwater.targets.duckdb.session import Session
from headwater.targets.duckdb.types import INTEGER_TYPES
from headwater.targets.sql.catalog import Layout
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
    UPDATE,
    UPSERT,
    Staged,
)
from headwater.targets.sql.merge.shape import Column, Shape
from headwater.targets.sql.text import Fragment, QualifiedName, compose, quote

TYPES: dict[ColumnType, str] = {
    "text": "VARCHAR",
    "integer": "BIGNUM",
    "decimal": "DECIMAL(38,18)",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "date": "DATE",
    "bytes": "BLOB",
    "json": "JSON",
}
_KINDS = {kind: name for name, kind in TYPES.items()}
_SMALL = re.compile(r"U?(BIGINT|INTEGER|SMALLINT|TINYINT)")
_PLAIN_KEYS = re.compile(INTEGER_TYPES.pattern + "|VARCHAR|BOOLEAN|BLOB")
_STAGE = "__headwater_stage"
_LISTED, _FOUND, _READ_PER_FOUND = 50, 2048, 400


@dataclass(frozen=True, slots=True)
class Lent:
    """Staged changes in a temporary table, and the table that they go to.

    Beside each change stand `here`, the number of its row or null if there is none, and what that
    row holds in the columns `images`.
    """

    staged: Staged
    table: QualifiedName
    source: str
    images: tuple[str, ...]

    def image(self, name: str) -> str:
        """Return what a column holds in the row that a change `s` is about; null if not kept."""
        return f"s.o{self.images.index(name)}" if name in self.images else "NULL"


def shape_of(name: str, layout: Layout) -> Shape:
    """Return a table as changes see it, without computed columns."""
    held = [layout.columns[one] for one in layout.stored]
    columns = {
        one.name: Column(one.name, one.type, _kind(one.type), one.scale, one.default)
        for one in held
    }
    ambiguous = any(not _PLAIN_KEYS.fullmatch(layout.columns[one].type) for one in layout.key)
    return Shape(name, layout.name.full, layout.key, columns, ambiguous)


def lend(
    session: Session, staged: Staged, table: QualifiedName, at: int, images: Iterable[str] = ()
) -> Lent:
    """Put staged changes into a temporary table, in the types of their columns.

    What rows hold now is put beside them: the columns `images`, and those that changes build on.
    They lie in the order of the rows, because DuckDB updates rows in any other far more slowly.
    """
    lent = Lent(
        staged, table, f"{_STAGE}_{at}", tuple(dict.fromkeys([*images, *_built_on(staged)]))
    )
    with session.frame(staged.frame) as view, looked_up(session, staged, table):
        session.run(
            compose(
                "CREATE OR REPLACE TEMP TABLE {stage} AS SELECT s.*, {found} "
                "FROM (SELECT {values} FROM {view}) AS s LEFT JOIN {table} AS now ON {same} "
                "ORDER BY here, s.place",
                stage=lent.source,
                found=found(lent.images),
                values=typed(staged),
                view=view,
                table=table,
                same=same_key(staged.shape),
            )
        )
    if staged.shape.ambiguous:
        _refuse_spellings(session, lent)
    return lent


def typed(staged: Staged) -> Fragment:
    """Return the columns of a frame of changes, in the types of the table's columns."""
    return Fragment(", ".join(_value(staged, field) for field in staged.frame.schema))


def found(images: Iterable[str]) -> Fragment:
    """Return the number of a row `now`, and what it holds in some columns."""
    held = [f"now.{quote(name)} AS o{at}" for at, name in enumerate(images)]
    return Fragment(", ".join(["now.rowid AS here", *held]))


def same_key(shape: Shape) -> Fragment:
    """Return the condition that a row `now` of the table is the one a change `s` is about."""
    return Fragment(" AND ".join(f"now.{quote(one)} = s.k{at}" for at, one in enumerate(shape.key)))


@contextmanager
def looked_up(session: Session, staged: Staged, table: QualifiedName) -> Iterator[None]:
    """Let a join find few rows of a large table by its index; it reads the whole table otherwise.

    DuckDB does so where a join's smaller side is turned into a list of values. A row found that way
    costs as much as reading some hundreds, so this is for few changes only.
    """
    changes = staged.frame.num_rows
    usual = len(staged.shape.key) > 1 or not _LISTED < changes < _FOUND
    if not usual:
        rows = session.rows(
            "SELECT estimated_size, current_setting('dynamic_or_filter_threshold') "
            "FROM duckdb_tables() WHERE database_name = current_database() "
            "AND lower(schema_name) = ? AND lower(table_name) = ?",
            table.folded,
        )
        usual = not rows or rows[0][0] < changes * _READ_PER_FOUND
    if usual:
        yield
        return
    session.run(f"SET dynamic_or_filter_threshold = {changes}")
    try:
        yield
    finally:
        with suppress(duckdb.TransactionException):  # an error may have ended the transaction
            session.run(f"SET dynamic_or_filter_threshold = {int(rows[0][1])}")


def give_back(session: Session, lent: Sequence[Lent]) -> None:
    """Drop the temporary tables."""
    for one in lent:
        session.run(compose("DROP TABLE {stage}", stage=one.source))


def merge(session: Session, lent: Sequence[Lent]) -> None:
    """Apply the changes of one round."""
    for one in reversed(lent):
        if one.staged.kinds & {DELETE, REPLACE}:
            _run(
                session,
                one,
                "DELETE FROM {table} AS now USING {stage} AS s "
                "WHERE now.rowid = s.here AND {these}",
                these=kinds_in("s", DELETE, REPLACE),
            )
    for one in lent:
        names = list(one.staged.lanes)
        if one.staged.kinds & {UPDATE, UPSERT} and names:
            types = one.staged.shape.columns
            assign = ", ".join(
                f"{quote(name)} = "
                + stored(changed(one.staged, name, held(one.image(name), types[name])), types[name])
                for name in names
            )
            _run(
                session,
                one,
                "UPDATE {table} AS now SET {assign} FROM {stage} AS s "
                "WHERE now.rowid = s.here AND {these}",
                assign=Fragment(assign),
                these=kinds_in("s", UPDATE, UPSERT),
            )
    for one in lent:
        if one.staged.kinds & {INSERT, REPLACE, UPSERT, ABSENT}:
            _insert(session, one)


def kinds_in(alias: str, *kinds: str) -> Fragment:
    """Return the condition that a change is of one of these kinds."""
    return Fragment(f"{alias}.kind IN ({', '.join(repr(one) for one in kinds)})")


def as_json(pairs: Sequence[tuple[str, str, str]]) -> Fragment:
    """Return SQL for a JSON object of (name, value, type of the value), exact when it is read back.

    Integers of any length, booleans and text are what they are; of anything else JSON holds the
    text, because a reader would round it or write it otherwise.
    """
    parts = []
    for name, value, kind in pairs:
        if is_nested(kind):
            value = f"to_json({value})::VARCHAR"
        elif kind not in ("VARCHAR", "BOOLEAN") and not INTEGER_TYPES.fullmatch(kind):
            value = f"{value}::VARCHAR"
        parts.append("'" + name.replace("'", "''") + f"': {value}")
    return Fragment(f"to_json({{{', '.join(parts)}}})::VARCHAR")


def from_text(value: str, kind: str) -> str:
    """Return SQL that reads back what `as_json` wrote."""
    return f"CAST({value}::JSON AS {kind})" if is_nested(kind) else f"CAST({value} AS {kind})"


def is_nested(kind: str) -> bool:
    """Tell whether a type is of lists, structs or maps."""
    return kind.endswith("]") or kind.startswith(("STRUCT", "MAP"))


def _insert(session: Session, lent: Lent) -> None:
    staged, names = lent.staged, list(lent.staged.lanes)
    values = [f"s.k{index}" for index in range(len(staged.shape.key))]
    values += [stored(made(staged, name), staged.shape.columns[name]) for name in names]
    _run(
        session,
        lent,
        "INSERT INTO {table} ({targets}) SELECT {values} FROM {stage} AS s WHERE {these} "
        "OR ({maybe} AND s.here IS NULL)",
        targets=Fragment(", ".join(quote(one) for one in (*staged.shape.key, *names))),
        values=Fragment(", ".join(values)),
        these=kinds_in("s", INSERT, REPLACE),
        maybe=kinds_in("s", UPSERT, ABSENT),
    )


def _run(session: Session, lent: Lent, template: str, **gaps: Fragment) -> None:
    session.run(compose(template, table=lent.table, stage=lent.source, **gaps))


def _built_on(staged: Staged) -> list[str]:
    """Return the columns whose new values depend on what they hold."""
    if not staged.kinds & {UPDATE, UPSERT}:
        return []
    return [name for name in staged.lanes if name not in staged.always]


def _value(staged: Staged, field: pa.Field) -> str:
    """Return a column of the frame as its type; numbers that are computed with have room."""
    name = str(field.name)
    index = name[1:]
    if name in ("place", "block", "kind") or name[0] == GIVEN:
        return name
    shape = staged.shape
    place = shape.columns[
        shape.key[int(index)] if name[0] == "k" else list(shape.columns)[int(index)]
    ]
    if place.kind == "bytes":
        return f"unhex(substr({name}, 3)) AS {name}"
    kind = place.type if name[0] == "k" else _computed(place, name[0] in (ADD, RAISE, LOWER))
    return f"CAST({name} AS {kind}) AS {name}"


def _computed(column: Column, grows: bool) -> str:
    """Return the type in which a column is computed: DuckDB's casts between wide integers fail."""
    if column.kind != "integer":
        return column.type
    if _SMALL.fullmatch(column.type):
        return "HUGEINT" if grows else column.type
    return "BIGNUM"


def held(value: str, column: Column) -> str:
    """Return what a column holds in the type in which it is computed."""
    same = _computed(column, grows=False) == column.type
    return value if same else f"CAST(CAST({value} AS VARCHAR) AS BIGNUM)"


def stored(value: str, column: Column) -> str:
    """Return a computed value in the type of its column."""
    same = _computed(column, grows=False) == column.type
    return f"CAST({value if same else f'CAST({value} AS VARCHAR)'} AS {column.type})"


def _kind(kind: str) -> ColumnType:
    if INTEGER_TYPES.fullmatch(kind):
        return "integer"
    if kind.startswith("DECIMAL") or kind in ("FLOAT", "DOUBLE"):
        return "decimal"
    if kind.startswith("TIMESTAMP"):
        return "timestamp"
    return _KINDS.get(kind, "text")


def _refuse_spellings(session: Session, lent: Lent) -> None:
    """Refuse two spellings of one key: they were folded apart, and the table has one row."""
    keys = Fragment(", ".join(f"k{at}" for at in range(len(lent.staged.shape.key))))
    rows = session.rows(
        compose(
            "SELECT {keys} FROM {stage} AS s WHERE NOT {twin} GROUP BY {keys} "
            "HAVING count(*) > 1 LIMIT 1",
            keys=keys,
            stage=lent.source,
            twin=kinds_in("s", ABSENT),
        )
    )
    if rows:
        raise ChangeKeyError(
            "the table takes two keys for the same",
            table=lent.staged.shape.name,
            key=", ".join(map(str, rows[0])),
        )


@contextmanager
def coded() -> Iterator[None]:
    """Give what the database refuses its code."""
    try:
        yield
    except (duckdb.DataError, duckdb.IntegrityError, duckdb.InvalidInputException) as error:
        reason = str(error).splitlines()[0]
        if "primary key" in reason.lower():
            raise DuplicateInsertError(
                "a row is inserted while it is there", reason=reason
            ) from error
        raise ChangeRefusedError("the table refuses a change", reason=reason) from error
