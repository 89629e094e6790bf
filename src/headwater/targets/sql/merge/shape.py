"""A table as changes see it: the columns that may be written, its key, what each column can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.changes.declaration import ColumnType, TableSchema


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table in a database.

    `kind` says what changes may do with it, `scale` how many places of a fraction it keeps (None:
    any), `default` the SQL that gives a value where a new row has none.
    """

    name: str
    type: str
    kind: ColumnType
    scale: int | None = None
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A table: `name` as changes spell it, `full_name` with its schema, its stored columns.

    `ambiguous`: the database may take two spellings of a key for the same.
    """

    name: str
    full_name: str
    key: tuple[str, ...]
    columns: Mapping[str, Column]
    ambiguous: bool = False

    def schema(self) -> TableSchema:
        """Return the declaration that changes are checked with."""
        kinds = {one.name: one.kind for one in self.columns.values()}
        return TableSchema(self.name, self.key, kinds)
