"""How the columns of a frame get into the columns of a table.

Values are written in the table's own types where they lie: on the driver or on an executor. Where
binary COPY has no form for a type (uuid, an enumeration), the value travels as text and the server
reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headwater.read_ahead import ReadAhead
from headwater.targets.postgres.encode import (
    CHUNK_ROWS,
    HEADER,
    TRAILER,
    encode,
    encoder,
    is_text,
)
from headwater.targets.postgres.types import bare_type, new_column_type
from headwater.targets.text import Fragment, QualifiedName, compose, quote

if TYPE_CHECKING:
    from headwater.targets.postgres.session import Session
    from headwater.targets.sql.layout import Layout

Encoded = Iterable[bytes | memoryview]
SORTED_ROWS = 2_000  # from how many on it pays to sort them


@dataclass(frozen=True, slots=True)
class SentColumn:
    """One column: its name, the type in which it travels, and what to cast it to on arrival."""

    name: str
    type: str
    bare: str
    cast: str | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """All columns of a frame. It pickles, so that executors can use it."""

    columns: tuple[SentColumn, ...]

    @property
    def names(self) -> list[str]:
        """The columns."""
        return [column.name for column in self.columns]

    @property
    def direct(self) -> bool:
        """Whether the rows can go straight into the table."""
        return not any(column.cast for column in self.columns)

    def read(self, table: QualifiedName) -> Fragment:
        """Return the query of the rows in the table that they have travelled to."""
        values = ", ".join(
            quote(column.name) + (f"::{column.cast} AS {quote(column.name)}" if column.cast else "")
            for column in self.columns
        )
        return compose("(SELECT {values} FROM {table})", values=Fragment(values), table=table)

    def column_list(self) -> str:
        """Return the columns with their types, for a table that rows travel through."""
        return ", ".join(f"{quote(column.name)} {column.type}" for column in self.columns)

    def encode(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[memoryview]:
        """Yield rows in the binary form of COPY. Runs on the driver and on executors."""
        writers = []
        for column, field in zip(self.columns, schema, strict=True):
            writer = encoder(field.type, column.bare)
            assert writer is not None, "frames are compared with their table before"
            writers.append(writer)
        return encode(batches, writers)


def plan_transfer(
    schema: pa.Schema, layout: Layout | None, types: Mapping[str, str] | None = None
) -> Transfer:
    """Plan the way of a frame into a table; without one, into one that `types` would create."""
    columns = []
    for field in schema:
        if layout is None:
            kind = (types or {}).get(field.name) or new_column_type(field)
            bare, cast = bare_type(kind), kind
        else:
            column = layout.columns[field.name]
            kind, bare, cast = column.type, column.bare, column.bare
        if encoder(field.type, bare) is not None:
            columns.append(SentColumn(field.name, kind, bare))
        else:
            columns.append(SentColumn(field.name, "text", "text", cast))
    return Transfer(tuple(columns))


class TemporaryTables:
    """Temporary tables through which frames travel: made once per shape, emptied by each commit.

    A connection has its own; a transaction that fails takes those that it made with it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: dict[tuple[int, Transfer, int], QualifiedName] = {}
        self._used: dict[Transfer, int] = {}

    def begin(self) -> None:
        """Note that all of them are empty: a transaction begins."""
        self._used.clear()

    def forget(self) -> None:
        """Make new ones from now on."""
        self._made.clear()

    def fill(
        self, transfer: Transfer, rows: pa.Table | Iterable[bytes | memoryview]
    ) -> QualifiedName:
        """Copy rows into an empty table; return its name."""
        ordinal = self._used.get(transfer, 0)
        self._used[transfer] = ordinal + 1
        place = (self._session.generation, transfer, ordinal)
        name = self._made.get(place)
        if name is None:
            name = QualifiedName("pg_temp", f"headwater_{len(self._made)}")
            self._session.run(
                "DROP TABLE IF EXISTS {name}; "
                "CREATE TEMPORARY TABLE {bare} ({parts}) ON COMMIT DELETE ROWS",
                name=name,
                bare=name.name,
                parts=Fragment(transfer.column_list()),
            )
            self._made[place] = name
        copy_in(self._session, name, transfer, rows)
        return name


def copy_in(
    session: Session,
    name: QualifiedName,
    transfer: Transfer,
    rows: pa.Table | Iterable[bytes | memoryview],
    key: Sequence[str] = (),
) -> None:
    """Copy rows into a table whose columns have the types in which they travel.

    Rows of the driver are sorted by the key, unless that is empty; many are encoded while the
    server reads those before them.
    """
    sql = compose(
        "COPY {table} ({names}) FROM STDIN (FORMAT binary)", table=name, names=transfer.names
    )
    if not isinstance(rows, pa.Table):
        session.copy(sql, chain([HEADER], rows, [TRAILER]))
        return
    rows = in_key_order(rows, key[0]) if key else rows
    encoded = partial(transfer.encode, rows.schema, rows.to_batches())
    if rows.num_rows <= CHUNK_ROWS:
        session.copy(sql, [HEADER, *encoded(), TRAILER])
        return
    with ReadAhead(encoded) as chunks:
        session.copy(sql, chain([HEADER], chunks, [TRAILER]))


def in_key_order(rows: pa.Table, first: str) -> pa.Table:
    """Return many rows in the order of their key's first column, where that is text.

    An index takes rows that lie side by side in half the time.
    """
    if rows.num_rows < SORTED_ROWS or first not in rows.column_names:
        return rows
    values = rows.column(first)
    return rows.take(pc.sort_indices(values)) if is_text(values.type) else rows


def key_faults(frame: pa.Table, key: list[str]) -> tuple[int, int]:
    """Return how many values of a frame's key are null, and how many rows repeat another's key."""
    missing = sum(int(pc.sum(pc.is_null(frame.column(column))).as_py() or 0) for column in key)
    try:
        distinct = frame.select(key).group_by(key).aggregate([]).num_rows
    except pa.ArrowNotImplementedError:
        distinct = frame.num_rows  # the server will say
    return missing, int(frame.num_rows - distinct)
