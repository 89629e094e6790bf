"""Tables `headwater_<name>` beside the state: rows that the stream keeps for itself.

Runs on the driver, inside the transaction of a batch, a rollback, or a settlement. Streams share
the tables; each sees its own rows alone. Also tables that this run has not asked for are undone: a
stream may run without a part of it for a while.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from headwater.errors import HeadwaterError
from headwater.targets.contract import SideTable
from headwater.targets.side_rows import KEY, STREAM, check_side_table, side_rows, with_stream
from headwater.targets.sql.session import Session
from headwater.targets.sql.text import Fragment, QualifiedName, columns, compose, quote


class SideRows(ABC):
    """The side rows of one stream. Each database says how tables are named, found and filled."""

    refused: ClassVar[type[HeadwaterError]]

    def __init__(self, session: Session, schema: str, stream_id: str) -> None:
        self._session = session
        self._schema = schema
        self._id = stream_id
        self._tables: dict[str, SideTable] = {}

    def create(self, tables: Sequence[SideTable]) -> None:
        """Create what is missing, and refuse tables of other columns."""
        held = self._held() if tables else {}
        for table in tables:
            self._tables[table.name] = check_side_table(table)
            name = self._name(table.name)
            fields = [pa.field(STREAM, pa.string()), *table.columns]
            wanted = {field.name: self._type(field) for field in fields}
            if name.name not in held:
                self._create(name, wanted)
            elif held[name.name] != wanted:
                raise self.refused(
                    "a table of the stream's own has other columns",
                    table=name,
                    wanted=wanted,
                    found=held[name.name],
                )

    def write(self, rows: Mapping[str, Any]) -> None:
        """Add the rows of a batch."""
        for name, frame in rows.items():
            self._add(name, frame, only_new=False)

    def remove_above(self, number: int) -> None:
        """Take out what blocks above a number brought, in every side table that there is."""
        for table, held in self._held().items():
            if list(held)[:3] == [STREAM, *KEY]:
                self._session.run(
                    compose(
                        "DELETE FROM {table} WHERE stream_id = $1 AND block_number > $2",
                        table=QualifiedName(self._schema, table),
                    ),
                    [self._id, number],
                )

    def read(
        self,
        name: str,
        after: tuple[int, int] | None,
        up_to_block: int | None,
        limit: int | None,
    ) -> pa.Table:
        """Return rows in the order of their keys."""
        table = self._tables[name]
        conditions, params = ["stream_id = $1"], list[object]([self._id])
        if after is not None:
            conditions.append("(block_number, ordinal) > ($2, $3)")
            params += after
        if up_to_block is not None:
            params.append(up_to_block)
            conditions.append(f"block_number <= ${len(params)}")
        found = self._session.arrow(
            compose(
                "SELECT {names} FROM {table} WHERE {conditions} "
                "ORDER BY block_number, ordinal {limit}",
                names=table.columns.names,
                table=self._name(name),
                conditions=Fragment(" AND ".join(conditions)),
                limit=Fragment("" if limit is None else f"LIMIT {int(limit)}"),
            ),
            params,
        )
        return found.cast(table.columns)

    def settle(self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]) -> None:
        """Remove rows up to a key, then add rows; those whose key is there stay as they are."""
        self._session.run(
            compose(
                "DELETE FROM {table} WHERE stream_id = $1 AND (block_number, ordinal) <= ($2, $3)",
                table=self._name(name),
            ),
            [self._id, *up_to],
        )
        for other, rows in moved.items():
            self._add(other, rows, only_new=True)

    def _add(self, name: str, frame: Any, *, only_new: bool) -> None:
        rows = with_stream(self._id, side_rows(self._tables[name], frame))
        if rows.num_rows:
            self._insert(name, rows, only_new=only_new)

    def _create(self, name: QualifiedName, types: Mapping[str, str]) -> None:
        parts = [f"{quote(column)} {kind}" for column, kind in types.items()]
        parts.append(f"PRIMARY KEY ({columns([STREAM, *KEY])})")
        self._session.run(
            compose("CREATE TABLE {table} ({parts})", table=name, parts=Fragment(", ".join(parts)))
        )

    def _held(self) -> dict[str, dict[str, str]]:
        """Return the columns with their types of all tables whose name begins like a side table."""
        found: dict[str, dict[str, str]] = {}
        for table, column, kind in self._columns():
            found.setdefault(table, {})[column] = kind
        return found

    # --- what each database does in its own way ---------------------------------------------------

    @abstractmethod
    def _name(self, name: str) -> QualifiedName:
        """Return the table of a side table's rows."""

    @abstractmethod
    def _type(self, field: pa.Field) -> str:
        """Return the type of a column."""

    @abstractmethod
    def _columns(self) -> list[tuple[str, str, str]]:
        """Return table, column and type of every table in the schema that may be a side table."""

    @abstractmethod
    def _insert(self, name: str, rows: pa.Table, *, only_new: bool) -> None:
        """Add rows; with `only_new` those whose key is there stay as they are."""
