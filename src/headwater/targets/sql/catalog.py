"""The tables of a stream: what was declared, what exists, and how a fork undoes each.

How a table is undone is stored beside the state, as a claim: a stream that was restarted with other
declarations still undoes what it has written, and two streams cannot tread on each other unnoticed.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from headwater.errors import HeadwaterError
from headwater.targets.sql.session import Session
from headwater.targets.sql.settings import DeclaredTable
from headwater.targets.sql.text import Fragment, QualifiedName, compose

RESERVED = "___sqd__"


class Undo(StrEnum):
    """How a fork undoes a table: rows go by their block number, or images of rows come back."""

    APPEND_ONLY = "append_only"
    KEYED = "keyed"
    KEYLESS = "keyless"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LaidTable:
    """A table as it is: its primary key, and how it is undone."""

    name: QualifiedName
    key: tuple[str, ...]
    undo: Undo
    block_column: str


Declared = TypeVar("Declared", bound=DeclaredTable)
Layout = TypeVar("Layout", bound=LaidTable)


class ClaimedTables(ABC, Generic[Declared, Layout]):
    """Knows a stream's tables. It caches; `forget` after a transaction that failed."""

    table: ClassVar[type[Any]]
    undeclared: ClassVar[type[HeadwaterError]]
    refused: ClassVar[type[HeadwaterError]]
    other_key: ClassVar[type[HeadwaterError]]
    not_shared: ClassVar[type[HeadwaterError]]
    differ: ClassVar[str] = "differ"
    same_table: ClassVar[Fragment] = Fragment("table_schema = $1 AND table_name = $2")

    def __init__(
        self,
        session: Session,
        stream_id: str,
        claims: QualifiedName,
        declared: Iterable[Declared],
        *,
        automatic: bool,
    ) -> None:
        self._session = session
        self._id = stream_id
        self._claims = claims
        self._declared = {one.name.folded: one for one in declared}
        self._automatic = automatic
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._checked: set[tuple[tuple[str, str], pa.Schema]] = set()

    def forget(self) -> None:
        """Look at everything again."""
        self._layouts.clear()
        self._checked.clear()

    def declared(self, name: QualifiedName) -> Declared:
        """Return a declaration; refuse a table that nobody declared."""
        found = self._declared.get(name.folded)
        if found is None and self._automatic:
            found = self._declared[name.folded] = self.table(name)
        if found is None:
            declared = [str(one.name) for one in self._declared.values()]
            raise self.undeclared("a table that was not declared", table=name, declared=declared)
        return found

    def layout(self, name: QualifiedName) -> Layout | None:
        """Return how a declared table is now; None while it does not exist."""
        found = self._layouts.get(name.folded)
        if found is None:
            found = self._find(self.declared(name))
            if found is not None:
                self._layouts[name.folded] = found
        return found

    def prepare(
        self,
        name: QualifiedName,
        schema: pa.Schema,
        key: Sequence[str] | None,
        types: Mapping[str, str] | None = None,
    ) -> Layout:
        """Return the table for a frame's rows: created if need be, compared if it exists.

        `key` is the primary key that the write relies on, `types` are column types of a new table
        where nobody has declared others.
        """
        layout = self.layout(name)
        if layout is None:
            declared = self.declared(name)
            declared = replace(declared, types={**(types or {}), **declared.types})
            self.create_table(declared, schema, key)
            layout = self.layout(name)
            assert layout is not None, "it was just created"
        if (name.folded, schema) not in self._checked:
            self._compare(layout, schema)
            self._checked.add((name.folded, schema))
        if key is not None and set(map(self._fold, key)) != set(map(self._fold, layout.key)):
            raise self.other_key(
                "the table has another primary key, or none",
                table=name,
                wanted=list(key),
                key=list(layout.key),
            )
        return layout

    def _claimants(self, name: QualifiedName) -> dict[str, str]:
        """Return the streams that have claimed a table, and how each undoes it."""
        query = "SELECT id, undo FROM {claims} WHERE {same_table}"
        sql = compose(query, claims=self._claims, same_table=self.same_table)
        return dict(self._session.rows(sql, name.folded))

    def _claim(self, layout: Layout) -> None:
        """Store how the table is undone; refuse what contradicts an earlier claim."""
        claims = self._claimants(layout.name)
        mine = claims.pop(self._id, None)
        if mine not in (None, layout.undo.value):
            raise self.refused(
                "the table was declared otherwise when it was first written",
                table=layout.name,
                then=mine,
                now=layout.undo.value,
            )
        if claims and Undo.APPEND_ONLY in (layout.undo, *claims.values()):
            raise self.not_shared(
                "an append-only table cannot be shared by two streams",
                table=layout.name,
                streams=sorted([*claims, self._id]),
            )
        if mine is None:
            self._session.run(
                compose(
                    "INSERT INTO {claims} VALUES ($1, $2, $3, $4, $5, $6, $7)", claims=self._claims
                ),
                [
                    self._id,
                    layout.name.schema,
                    layout.name.name,
                    layout.undo.value,
                    json.dumps(layout.key),
                    layout.block_column,
                    self._remark(layout),
                ],
            )

    def _refuse_names(self, name: QualifiedName, schema: pa.Schema) -> None:
        names = [self._fold(one) for one in schema.names]
        twice = {one for one in names if names.count(one) > 1}
        reserved = {one for one in names if one.startswith(RESERVED)}
        if twice or reserved or not names:
            raise self.refused(
                f"a frame needs columns whose names {self.differ} and do not begin with {RESERVED}",
                table=name,
                columns=sorted(twice | reserved),
            )

    def _fold(self, column: str) -> str:
        """Return what two spellings of one column have in common."""
        return column

    # --- what each database does in its own way ---------------------------------------------------

    @abstractmethod
    def create(self) -> None:
        """Create the table of claims."""

    @abstractmethod
    def undoable(self) -> list[Layout]:
        """Return every table that this stream has ever claimed and that still exists."""

    @abstractmethod
    def create_table(
        self, declared: Declared, schema: pa.Schema, key: Sequence[str] | None
    ) -> None:
        """Create a table for rows of this schema."""

    @abstractmethod
    def _find(self, declared: Declared) -> Layout | None:
        """Look at a table, decide how it is undone, and claim it."""

    @abstractmethod
    def _compare(self, layout: Layout, schema: pa.Schema) -> None:
        """Refuse a frame whose columns the table lacks or cannot hold."""

    @abstractmethod
    def _remark(self, layout: Layout) -> object:
        """Return what the last column of a claim says."""
