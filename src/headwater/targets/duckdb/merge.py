"""Merges changes into tables of DuckDB, by a few statements per table and round.

A table's rows are looked for once, when changes are loaded: what a row holds stands beside its
change, and statements find the row by its number. Tables that refer to others are declared after
them, because DuckDB checks foreign keys at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.declaration import ColumnType
from headwater.errors import ChangeRefusedError, DuplicateInsertError
from headwater.targets.duckdb.dialect import DUCKDB, INTEGER_TYPES, as_json
from headwater.targets.duckdb.session import Session
from headwater.targets.sql.changes import (
    ADD,
    CHANGING,
    GIVEN,
    LOWER,
    RAISE,
    Column,
    Rounds,
    Shape,
    TableChanges,
)
from headwater.targets.sql.layout import Column as StoredColumn
from headwater.targets.sql.layout import Layout, Undo
from headwater.targets.sql.merger import Loaded, Merger
from headwater.targets.text import Fragment, quote

_SMALL = re.compile(r"U?(BIGINT|INTEGER|SMALLINT|TINYINT)")
_PLAIN_KEYS = re.compile(INTEGER_TYPES.pattern + "|VARCHAR|BOOLEAN|BLOB")
_LOADED = "__headwater_changes"
_LISTED, _FOUND, _READ_PER_FOUND = 50, 2048, 400


class DuckDBMerger(Merger):
    """Applies changes to tables of DuckDB."""

    types: ClassVar = {
        "text": "VARCHAR",
        "integer": "BIGNUM",
        "decimal": "DECIMAL(38,18)",
        "boolean": "BOOLEAN",
        "timestamp": "TIMESTAMP WITH TIME ZONE",
        "date": "DATE",
        "bytes": "BLOB",
        "json": "JSON",
    }
    sum_types = ("HUGEINT", "BIGNUM")
    _kinds: ClassVar = {kind: name for name, kind in types.items()}

    def _kind(self, column: StoredColumn) -> ColumnType:
        if INTEGER_TYPES.fullmatch(column.type):
            return "integer"
        if column.type.startswith("DECIMAL") or column.type in ("FLOAT", "DOUBLE"):
            return "decimal"
        if column.type.startswith("TIMESTAMP"):
            return "timestamp"
        return self._kinds.get(column.type, "text")

    def _is_ambiguous(self, column: StoredColumn) -> bool:
        return not _PLAIN_KEYS.fullmatch(column.type)

    def rounds(
        self, rounds: Rounds, shapes: Collection[Shape], folded: pa.Table, floor: int
    ) -> Iterator[list[TableChanges]]:
        """Yield changes in as few rounds as the tables allow: each reads and rewrites much."""
        lowest, highest = (number.as_py() for number in pc.min_max(folded["block_number"]).values())
        several = folded.num_rows and max(lowest, floor) < highest
        if several and are_independent(self._session, shapes):
            return rounds.by_key(folded)
        return rounds.by_block(folded, floor)

    def _load(self, changes: TableChanges, layout: Layout, at: int, *, hot: bool) -> Loaded:
        """Put changes into a temporary table, in the types of their columns.

        What rows hold now is put beside them: all of it if it is captured, or the columns that
        changes build on. They lie in the order of the rows, because DuckDB updates rows in any
        other far more slowly.
        """
        captured = layout.stored if hot and layout.undo is not Undo.NONE else ()
        images = tuple(dict.fromkeys([*captured, *_built_on(changes)]))
        name, key = f"{_LOADED}_{at}", changes.shape.key
        current = [f"now.{quote(column)} AS o{i}" for i, column in enumerate(images)]
        same = " AND ".join(f"now.{quote(column)} = s.key_{i}" for i, column in enumerate(key))
        with (
            self._session.frame(changes.frame) as view,
            _looked_up(self._session, changes, layout),
        ):
            self._session.run(
                "CREATE OR REPLACE TEMP TABLE {name} AS SELECT s.*, {found} "
                "FROM (SELECT {values} FROM {view}) AS s LEFT JOIN {table} AS now ON {same} "
                "ORDER BY here, s.place",
                name=name,
                found=Fragment(", ".join(["now.rowid AS here", *current])),
                values=Fragment(
                    ", ".join(_typed(changes, field) for field in changes.frame.schema)
                ),
                view=view,
                table=layout.name,
                same=Fragment(same),
            )
        kinds = {name: column.type for name, column in layout.columns.items()}
        row = [(column, f"s.o{images.index(column)}", kinds[column]) for column in captured]
        return Loaded(
            changes,
            layout,
            source=Fragment(quote(name)),
            found=Fragment(f"{quote(name)} AS s"),
            here=Fragment("(s.here IS NOT NULL)"),
            same=Fragment("now.rowid = s.here"),
            lacks=Fragment("s.here IS NULL"),
            key_json=as_json(
                ((column, f"s.key_{i}", kinds[column]) for i, column in enumerate(key)), texts=True
            ),
            row_json=as_json(row),
            images=images,
        )

    def _merge(self, loaded: Sequence[Loaded]) -> None:
        """Run deletions, children first, then changes, then new rows, parents first."""
        statements = [self.statements(table) for table in loaded]
        for name, parts in (
            ("gone", reversed(statements)),
            ("changed", statements),
            ("made", statements),
        ):
            for part in parts:
                if name in part:
                    self._session.run(part[name])
        for table in loaded:
            self._session.run(f"DROP TABLE {table.source}")

    def _held(self, loaded: Loaded, name: str) -> str:
        column = loaded.changes.shape.columns[name]
        value = f"s.o{loaded.images.index(name)}" if name in loaded.images else "NULL"
        same = _computed(column, grows=False) == column.type
        return value if same else f"CAST(CAST({value} AS VARCHAR) AS BIGNUM)"

    def _stored(self, loaded: Loaded, name: str, held: str | None) -> str:
        column, value = loaded.changes.shape.columns[name], super()._stored(loaded, name, held)
        same = _computed(column, grows=False) == column.type
        return f"CAST({value if same else f'CAST({value} AS VARCHAR)'} AS {column.type})"

    @contextmanager
    def _coded(self, layouts: Sequence[Layout]) -> Iterator[None]:
        """Raise an error with its code where DuckDB refuses a change."""
        try:
            yield
        except (duckdb.DataError, duckdb.IntegrityError, duckdb.InvalidInputException) as error:
            reason = str(error).splitlines()[0]
            if "primary key" in reason.lower():
                raise DuplicateInsertError(
                    "a row is inserted while it is there", reason=reason
                ) from error
            raise ChangeRefusedError("the table refuses a change", reason=reason) from error


def are_independent(session: Session, shapes: Collection[Shape]) -> bool:
    """Tell whether no row's change can be refused because of another row. Runs on the driver.

    Then changes of several blocks may be merged in another order than that of the blocks. Not where
    values are unique beside the key, or refer to rows; and where two spellings may be one key, only
    the order of blocks tells rows apart.
    """
    if any(shape.ambiguous for shape in shapes):
        return False
    bound = session.rows(
        "SELECT lower(schema_name), lower(table_name), constraint_type = 'FOREIGN KEY' "
        "FROM duckdb_constraints() WHERE database_name = current_database() "
        "AND constraint_type IN ('UNIQUE', 'FOREIGN KEY') UNION ALL "
        "SELECT lower(schema_name), lower(table_name), false FROM duckdb_indexes() "
        "WHERE database_name = current_database() AND is_unique AND NOT is_primary"
    )
    mine = {DUCKDB.name(shape.full_name).folded for shape in shapes}
    return not any(refers or (schema, table) in mine for schema, table, refers in bound)


@contextmanager
def _looked_up(session: Session, changes: TableChanges, layout: Layout) -> Iterator[None]:
    """Let a join find few rows of a large table by its index; it reads the whole table otherwise.

    DuckDB does so where a join's smaller side is turned into a list of values. A row found that way
    costs as much as reading some hundreds, so this is for few changes only.
    """
    count = changes.frame.num_rows
    usual = len(changes.shape.key) > 1 or not _LISTED < count < _FOUND
    if not usual:
        rows = session.rows(
            "SELECT estimated_size, current_setting('dynamic_or_filter_threshold') "
            "FROM duckdb_tables() WHERE database_name = current_database() "
            "AND lower(schema_name) = $1 AND lower(table_name) = $2",
            layout.name.folded,
        )
        usual = not rows or rows[0][0] < count * _READ_PER_FOUND
    if usual:
        yield
        return
    session.run(f"SET dynamic_or_filter_threshold = {count}")
    try:
        yield
    finally:
        with suppress(duckdb.TransactionException):  # an error may have ended the transaction
            session.run(f"SET dynamic_or_filter_threshold = {int(rows[0][1])}")


def _built_on(changes: TableChanges) -> list[str]:
    """Return the columns whose new values depend on what they hold."""
    if not changes.kinds & CHANGING:
        return []
    return [name for name in changes.steps if name not in changes.always]


def _typed(changes: TableChanges, field: pa.Field) -> str:
    """Return a column of the frame as its type; numbers that are computed with have room."""
    name, place = str(field.name), changes.place_of(field.name)
    if place is None or place[0] == GIVEN:
        return name
    step, column = place
    if column.kind == "bytes":
        return f"unhex(substr({name}, 3)) AS {name}"
    kind = column.type if step == "key" else _computed(column, grows=step in (ADD, RAISE, LOWER))
    return f"CAST({name} AS {kind}) AS {name}"


def _computed(column: Column, *, grows: bool) -> str:
    """Return the type in which a column is computed: DuckDB's casts between wide integers fail."""
    if column.kind != "integer":
        return column.type
    if _SMALL.fullmatch(column.type):
        return "HUGEINT" if grows else column.type
    return "BIGNUM"
