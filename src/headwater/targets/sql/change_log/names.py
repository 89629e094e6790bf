"""What a user declares for a history target: its tables, and the names of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headwater.changes import TableSchema
from headwater.errors import InvalidOptionError, TableDeclarationError, TableMismatchError
from headwater.targets.sql.merge.shape import Shape

HISTORY, CURSORS = "substreams_history", "cursors"


@dataclass(frozen=True, slots=True)
class Names:
    """The tables of a history target. A name alone stands for a table that is in the database."""

    tables: tuple[str | TableSchema, ...]
    history: str = HISTORY
    cursors: str = CURSORS

    @classmethod
    def of(cls, tables: Iterable[str | TableSchema], history: str, cursors: str) -> Names:
        """Check what the user gave."""
        given = tuple(tables)
        names = [table_name(one) for one in given]
        if isinstance(tables, str) or not given or len(set(names)) < len(names):
            raise TableDeclarationError(
                "tables= takes a list of names and TableSchemas, each table once", tables=names
            )
        if history == cursors or {history, cursors} & set(names):
            raise InvalidOptionError(
                "the tables of the target itself need names of their own",
                history_table=history,
                cursors_table=cursors,
            )
        return cls(given, history, cursors)


def table_name(table: str | TableSchema) -> str:
    """Return the name by which changes call a table."""
    return table if isinstance(table, str) else table.name


def agreed(shape: Shape, declared: str | TableSchema) -> Shape:
    """Return a table as it is, with what its declaration says of it.

    Raises:
        TableMismatchError: the two contradict each other; the table's names are listed.
    """
    if isinstance(declared, str):
        return shape
    if set(declared.key) != set(shape.key):
        raise TableMismatchError(
            "the table's primary key is not the declared one",
            table=shape.name,
            declared=", ".join(declared.key),
            key=", ".join(shape.key) or "none",
        )
    columns = dict(shape.columns)
    for name, kind in declared.columns.items():
        held = columns.get(name)
        wider = held is not None and (held.kind, kind) == ("decimal", "integer")
        if held is None or not (held.kind == kind or wider):
            raise TableMismatchError(
                "the table lacks a declared column"
                if held is None
                else "a column holds another kind of values than declared",
                table=shape.name,
                column=name,
                declared=kind,
                found=", ".join(shape.columns) if held is None else held.type,
            )
        columns[name] = replace(held, kind=kind)
    return replace(shape, columns=columns)
