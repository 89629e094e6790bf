"""Merges changes into tables of PostgreSQL, by one statement per round.

PostgreSQL checks foreign keys at the end of a statement, so parents and children may come and go in
any order within a round. All parts of the statement see the tables as they were before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.errors import UniqueViolation

from headwater.changes.declaration import ColumnType
from headwater.errors import ChangeRefusedError, DuplicateInsertError, PostgresTableError
from headwater.targets.postgres.encode import INTEGERS
from headwater.targets.postgres.transfer import (
    SentColumn,
    Transfer,
    copy_in,
    in_key_order,
)
from headwater.targets.postgres.types import KINDS, SCALARS
from headwater.targets.sql.changes import (
    ADD,
    GIVEN,
    INSERT,
    LOWER,
    RAISE,
    SET,
    TRANSIENT,
    TableChanges,
)
from headwater.targets.sql.layout import Column, Layout
from headwater.targets.sql.merger import Loaded, Merger
from headwater.targets.text import Fragment, Part, compose, quote

BULK = 10_000  # rows from which on it pays to look at them before planning
_BINARY = {"text", "character varying", "bytea", *INTEGERS}
_PLAIN_KEYS = {*_BINARY, "numeric", "boolean"}
_OWN = {"place": "bigint", "block": "bigint", "kind": "text"}


class PostgresMerger(Merger):
    """Applies changes to tables of PostgreSQL."""

    types: ClassVar = {
        "text": "text",
        "integer": "numeric",
        "decimal": "numeric",
        "boolean": "boolean",
        "timestamp": "timestamp with time zone",
        "date": "date",
        "bytes": "bytea",
        "json": "jsonb",
    }
    sum_types = ("numeric", "numeric")
    insert_note = Fragment("OVERRIDING SYSTEM VALUE")

    def _kind(self, column: Column) -> ColumnType:
        if column.bare == "numeric" and column.scale == 0:
            return "integer"
        return KINDS.get(column.bare, "text")

    def _is_ambiguous(self, column: Column) -> bool:
        return column.bare not in _PLAIN_KEYS

    @staticmethod
    def arrange(changes: TableChanges) -> TableChanges:
        """Sort new rows as `copy_in` would."""
        if changes.kinds != {INSERT}:
            return changes
        return replace(changes, frame=in_key_order(changes.frame, "key_0"), sorted=True)

    def _copied(self, changes: TableChanges, layout: Layout, *, hot: bool) -> TableChanges:
        """Copy new rows of final blocks straight into a table that refers to none.

        Only if that is all there is to do. What is left are rows that came and went, which have to
        be compared with the table.
        """
        shape, kinds = changes.shape, changes.kinds
        others = kinds - {INSERT, TRANSIENT} or set(changes.steps) != changes.always
        if hot or layout.refers or others or shape.ambiguous:
            return changes
        names = {name: f"key_{at}" for at, name in enumerate(shape.key)}
        names |= {name: changes.operand(name, SET) for name in changes.steps}
        sent = [_sent(changes, layout, changes.frame.schema.field(name)) for name in names.values()]
        if any(column.cast for column in sent):
            return changes
        new = pc.equal(changes.frame["kind"], INSERT)
        new_rows = changes.frame if kinds == {INSERT} else changes.frame.filter(new)
        rows = new_rows.select(list(names.values())).rename_columns(list(names))
        pairs = zip(names, sent, strict=True)
        transfer = Transfer(
            tuple(SentColumn(name, column.type, column.bare) for name, column in pairs)
        )
        with _fitting(changes):
            key = () if changes.sorted else shape.key
            copy_in(self._session, layout.name, transfer, rows, key)
        left = changes.frame.filter(pc.invert(new))
        return replace(changes, frame=left, kinds=kinds - {INSERT}, steps={}, always=frozenset())

    def _load(self, changes: TableChanges, layout: Layout, at: int, *, hot: bool) -> Loaded:
        """Copy changes into a temporary table."""
        transfer = Transfer(tuple(_sent(changes, layout, field) for field in changes.frame.schema))
        with _fitting(changes):
            table = self._session.temporary.fill(transfer, changes.frame)
        if changes.frame.num_rows >= BULK:
            self._session.run(
                "ANALYZE {table} (kind, key_0); SET LOCAL jit = off; SET LOCAL work_mem = '64MB'",
                table=table,
            )
        key = changes.shape.key
        source = transfer.read(table)
        same = Fragment(
            " AND ".join(f"now.{quote(name)} = s.key_{i}" for i, name in enumerate(key))
        )
        gaps: dict[str, Part] = {"source": source, "table": layout.name, "same": same}
        pairs = ", ".join(
            f"{_key_text(f's.key_{i}', layout.columns[name].bare)} AS {quote(name)}"
            for i, name in enumerate(key)
        )
        return Loaded(
            changes,
            layout,
            source,
            found=compose("{source} AS s LEFT JOIN {table} AS now ON {same}", **gaps),
            here=Fragment(f"(now.{quote(key[0])} IS NOT NULL)"),
            same=same,
            lacks=compose("NOT EXISTS (SELECT FROM {table} AS now WHERE {same})", **gaps),
            key_json=compose(
                "(SELECT row_to_json(key)::text FROM (SELECT {pairs}) AS key)",
                pairs=Fragment(pairs),
            ),
            row_json=Fragment("row_to_json(now)::text"),
        )

    def _merge(self, loaded: Sequence[Loaded]) -> None:
        """Run one statement: each part that changes a table comes after the one before."""
        parts: list[str] = []
        for at, table in enumerate(loaded):
            after = ""
            for name, statement in self.statements(table).items():
                parts.append(f"{name}{at} AS ({statement}{after} RETURNING 1)")
                after = compose(" AND (SELECT count(*) FROM {part}) >= 0", part=f"{name}{at}")
        if parts:
            self._session.run("WITH {parts} SELECT 1", parts=Fragment(",\n".join(parts)))

    @contextmanager
    def _coded(self, layouts: Sequence[Layout]) -> Iterator[None]:
        """Raise an error with its code where the server refuses a change."""
        primary = {layout.primary for layout in layouts}
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


@contextmanager
def _fitting(changes: TableChanges) -> Iterator[None]:
    """Name the table whose columns cannot hold a value."""
    try:
        yield
    except PostgresTableError as error:
        raise ChangeRefusedError(
            "a value does not fit its column", table=changes.shape.name, reason=error.__cause__
        ) from error


def _key_text(value: str, kind: str) -> str:
    """Return SQL for a value of a key as the Substreams sink has it in JSON: a text."""
    return f"(to_json({value}) #>> '{{}}')" if kind in SCALARS else value


def _sent(changes: TableChanges, layout: Layout, field: pa.Field) -> SentColumn:
    """Return how a column of the frame travels: in the table's own type where that has a form."""
    name = field.name
    place = changes.place_of(name)
    if place is None:
        return SentColumn(name, _OWN[name], _OWN[name])
    step, column = place
    if step == GIVEN:
        return SentColumn(name, "boolean", "boolean")
    stored = layout.columns[column.name]
    if step in (ADD, RAISE, LOWER) and column.kind in ("integer", "decimal"):
        if column.kind == "integer":
            return SentColumn(name, "numeric", "numeric")
        return SentColumn(name, "text", "text", "numeric")
    if stored.bare in _BINARY:
        return SentColumn(name, stored.bare, stored.bare)
    if stored.bare == "numeric" and column.kind == "integer":
        return SentColumn(name, "numeric", "numeric")
    return SentColumn(name, "text", "text", stored.type)
