"""One table of a stream in Spark's catalog: what a format must do, and what all formats share.

A format keeps three promises, or the table is refused at the start. A commit adds rows, removes
those above a block, and says its `Record`, all at once. A commit is let in only if the newest one
of the stream is that of the same writer, and rows were changed by nobody else since; so a writer
that was replaced changes nothing. And the record can be read again, whatever maintenance is done.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headwater.core import PipeState
from headwater.errors import (
    InvalidOptionError,
    LakeForeignWriteError,
    LakeStorageError,
    LakeWriterError,
    SparkTableError,
)
from headwater.targets.spark_table.records import Record, fold

if TYPE_CHECKING:
    from headwater.spark.catalog_tables import CatalogTables

BLOCK_NUMBER = "block_number"
ATTEMPTS = 5  # at a table whose files others rewrite
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.\s]+)")


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """The name of a table, in parts: the catalog, one or more namespaces, the table."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: object) -> Name:
        """Read a name as Spark writes it.

        Raises:
            InvalidOptionError: it has fewer than three parts, or is none.
        """
        given = str(text)
        whole = rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern})){{2,}}"
        if not re.fullmatch(whole, given):
            raise InvalidOptionError('a table is named "catalog.schema.table"', got=repr(text))
        return cls(tuple((a.replace("``", "`") or b) for a, b in _PART.findall(given)))

    def __str__(self) -> str:
        return ".".join(map(quoted, self.parts))

    def of(self, part: str) -> str:
        """Return the name of a part of the table: a branch, or a table of metadata."""
        return f"{self}.{quoted(part)}"

    @property
    def catalog(self) -> str:
        """The catalog, quoted."""
        return quoted(self.parts[0])

    @property
    def within(self) -> str:
        """The name within its catalog, quoted."""
        return ".".join(map(quoted, self.parts[1:]))


def quoted(name: str) -> str:
    """Return an identifier in quotes."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class Write:
    """What one commit does: rows above a block go, others come; either may be left out."""

    frame: Any = None
    above: int | None = None


class StreamTable(ABC):
    """One table, as this writer has left it. `last` is the newest record, with its whole state."""

    def __init__(self, tables: CatalogTables, name: Name, columns: Any, stream: str) -> None:
        self.name = name
        self.columns = columns
        self.last: Record | None = None
        self._tables = tables
        self._stream = stream

    def look(self) -> Record | None:
        """Read the newest record, and remember what was looked at: the next commit follows it.

        Raises:
            LakeForeignWriteError: it is another stream's, or others have changed rows.
            StateMissingError: nothing tells any more how far the stream was.
        """
        self.last = found = fold(self._records())
        if found is not None and found.stream != self._stream:
            raise LakeForeignWriteError(
                "the table belongs to another stream", table=self.name, stream=found.stream
            )
        if found is None and self._has_rows(-1):
            raise LakeForeignWriteError("the table holds rows of no stream", table=self.name)
        return found

    def claim(self, record: Record) -> bool:
        """Begin an epoch, in a commit that removes what lies above its block.

        False if a start of an earlier epoch has been faster: it is to be looked at again.

        Raises:
            LakeWriterError: a start of this epoch or a later one has been.
        """
        known = self.last
        for _ in range(ATTEMPTS):
            if self._let_in(record, Write(above=record.state.number)):
                self.last = record
                return True
            found = self.last
            if found is not None and (known is None or not found.is_same(known)):
                if found.epoch >= record.epoch:
                    raise self._replaced()
                return False
        raise self._restless()

    def commit(self, write: Write, state: PipeState, config: str | None = None) -> None:
        """Add and remove rows, and say the state, all at once.

        Raises:
            LakeWriterError: another start has begun.
            LakeForeignWriteError: others have changed rows.
        """
        known = self.last
        assert known is not None, "a table is claimed first"
        record = known.next(state, config=config)
        for _ in range(ATTEMPTS):
            if self._let_in(record, write):
                self.last = replace(record, state=state, floor=None)
                return
            if self.last is None or not self.last.is_same(known):
                raise self._replaced()
        raise self._restless()

    def _let_in(self, record: Record, write: Write) -> bool:
        """Make a commit; if it is not let in, or nobody knows, look what there is now."""
        try:
            if self._try(record, write):
                return True
        except (LakeStorageError, SparkTableError):
            before, found = self.last, self.look()
            if found is None or before is None or found.is_same(before):
                raise
        else:
            found = self.look()
        return found is not None and found.is_same(record)

    def _has_rows(self, above: int, within: str | None = None) -> bool:
        place = within or str(self.name)
        filtered = f" WHERE {quoted(BLOCK_NUMBER)} > {above}" if above >= 0 else ""
        return bool(self._tables.sql(f"SELECT 1 FROM {place}{filtered} LIMIT 1"))  # noqa: S608

    def _refuse(self, changed: Sequence[str]) -> None:
        """Refuse commits of others that may have changed rows."""
        if changed:
            raise LakeForeignWriteError(
                "others have changed rows", table=self.name, operations=", ".join(changed)
            )

    def _replaced(self) -> LakeWriterError:
        return LakeWriterError("another writer of the stream has begun", table=self.name)

    def _restless(self) -> LakeForeignWriteError:
        return LakeForeignWriteError("others rewrite the table all the time", table=self.name)

    # --- what each format does in its own way -----------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Refuse a table that cannot keep the promises. Nothing is changed.

        Raises:
            SparkTableError: it cannot.
        """

    @abstractmethod
    def _records(self) -> Iterable[Record]:
        """Return the records of the commits that count, newest first; refuse rows of others."""

    @abstractmethod
    def _try(self, record: Record, write: Write) -> bool:
        """Make a commit that follows what was looked at; False if that is not the newest."""

    def epochs(self) -> int:
        """Return the highest epoch that any start has taken here, let in or not."""
        return 0 if self.last is None else self.last.epoch

    def never_empty(self) -> list[str]:
        """Return the columns that cannot hold an empty text."""
        return []

    @abstractmethod
    def claimed(self) -> None:
        """Remove what earlier starts have left, and leave what one long after this one needs."""
