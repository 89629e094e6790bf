"""One table of a stream in Spark's catalog: what a format must do, and what all formats share.

A format keeps three promises, or the table is refused at the start. A commit adds rows, removes
those above a block, and says its `Record`, all at once. A commit is let in only if the newest one
of the stream is that of the same writer, and rows were changed by nobody else since; so a writer
that was replaced changes nothing. And the record can be read again, whatever maintenance is done.

A `Record` says who wrote a commit, and the state that it leads to. The rollback chain is as long as
the chain is hot, so most records hold only the entries that are new; now and then, and where
entries have gone, one holds all (`whole`). `fold` reads them, newest first.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headwater.core import PipeState
from headwater.core.codec import dump_state, load_state
from headwater.core.state import Chain
from headwater.errors import (
    InvalidOptionError,
    LakeForeignWriteError,
    LakeStorageError,
    LakeWriterError,
    SparkTableError,
    StoredStateError,
)
from headwater.targets.lake.state import (
    CONFIG,
    EPOCH,
    PREFIX,
    STATE,
    STREAM,
    check_format,
    position,
)

if TYPE_CHECKING:
    from headwater.spark.catalog_tables import CatalogTables

BLOCK_NUMBER = "block_number"
ATTEMPTS = 5  # at a table whose files others rewrite
WHOLE_EVERY = 64  # records
_NUMBER, _WRITER, _FLOOR = f"{PREFIX}commit", f"{PREFIX}writer", f"{PREFIX}chain-from"
_FINAL = f"{PREFIX}final-before"
_KNOWN = (STREAM, EPOCH, STATE, _NUMBER, _WRITER)
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
        name = str(text)
        whole = rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern})){{2,}}"
        if not re.fullmatch(whole, name):
            raise InvalidOptionError('a table is named "catalog.schema.table"', got=repr(text))
        return cls(tuple((a.replace("``", "`") or b) for a, b in _PART.findall(name)))

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
class Record:
    """What one commit says. `number` counts the commits of an epoch, `writer` is this start's own.

    `floor` is the first block of the rollback chain, of which `state` holds the part that is new;
    None if it holds all. `final` is the last block that was final before this commit: a place to
    go on from where nothing tells whether the commit counts.
    """

    stream: str
    epoch: int
    number: int
    writer: str
    state: PipeState
    floor: int | None = None
    final: PipeState = PipeState()  # noqa: RUF009 - immutable
    config: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it tells the whole state by itself."""
        return self.floor is None

    def is_of(self, other: Record) -> bool:
        """Tell whether both are of one writer."""
        return (self.epoch, self.writer) == (other.epoch, other.writer)

    def is_same(self, other: Record) -> bool:
        """Tell whether both are of one commit."""
        return self.is_of(other) and self.number == other.number

    def at_final(self) -> Record:
        """Return it with the state of the last block that is final whether it counts or not."""
        return replace(self, state=self.final, floor=None)

    def next(self, state: PipeState, *, config: str | None = None, deletes: bool = False) -> Record:
        """Return the record of the next commit of the same writer; `self.state` is whole."""
        known = self.state.rollback_chain
        new = tuple(cursor for cursor in state.rollback_chain if cursor.number > self.state.number)
        grows = bool(new) and state.rollback_chain == tuple(
            cursor for cursor in (*known, *new) if cursor.number >= state.rollback_chain[0].number
        )
        is_short = grows and config is None and (self.number + 1) % WHOLE_EVERY != 0
        return Record(
            self.stream,
            self.epoch,
            self.number + 1,
            self.writer,
            replace(state, rollback_chain=new) if is_short else state,
            state.rollback_chain[0].number if is_short else None,
            at_mark(self.state),
            self.config if config is None else config,
        )

    def to_properties(self) -> dict[str, str]:
        """Return it as texts by name."""
        said = {
            **position(self.stream, self.epoch, self.state),
            _NUMBER: str(self.number),
            _WRITER: self.writer,
            STATE: dump_state(self.state),
            _FINAL: dump_state(self.final),
        }
        if self.floor is not None:
            said[_FLOOR] = str(self.floor)
        elif self.config is not None:
            said[CONFIG] = self.config
        return said

    @classmethod
    def from_properties(cls, said: Mapping[str, str]) -> Record | None:
        """Read what `to_properties` wrote; None if it is no record. Refuse what is incomplete."""
        if STATE not in said:
            return None
        check_format(said)
        try:
            stream, epoch, state, number, writer = (said[name] for name in _KNOWN)
            return cls(
                stream,
                int(epoch),
                int(number),
                writer,
                load_state(state),
                int(said[_FLOOR]) if _FLOOR in said else None,
                load_state(said[_FINAL]) if _FINAL in said else PipeState(),
                said.get(CONFIG),
            )
        except (KeyError, ValueError) as error:
            raise StoredStateError(
                "the record of a commit cannot be read", reason=repr(error)[:80]
            ) from error


def at_mark(state: PipeState) -> PipeState:
    """Return the state in which nothing is known but the last final block."""
    mark = state.finalized
    return PipeState() if mark is None else PipeState(mark, mark, (mark,))


def fold(records: Iterable[Record]) -> Record | None:
    """Return the newest of some records with its whole state; they come newest first.

    Where commits between it and the last whole record have expired, their blocks are missing in the
    rollback chain, which is allowed: a fork goes back further, at most to the last final block.
    """
    newest: Record | None = None
    chain: Chain = ()
    config = None
    for record in records:
        newest = record if newest is None else newest
        chain, config = (*record.state.rollback_chain, *chain), record.config
        if record.is_whole:
            break
    if newest is None or newest.floor is None:
        return newest
    kept = tuple(block for block in chain if block.number >= newest.floor)
    state = replace(newest.state, rollback_chain=kept)
    return replace(newest, state=state, floor=None, config=config)


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
        self.last = newest = fold(self._records())
        if newest is not None and newest.stream != self._stream:
            raise LakeForeignWriteError(
                "the table belongs to another stream", table=self.name, stream=newest.stream
            )
        if newest is None and self._has_rows(-1):
            raise LakeForeignWriteError("the table holds rows of no stream", table=self.name)
        return newest

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
            newest = self.last
            if newest is not None and (known is None or not newest.is_same(known)):
                if newest.epoch >= record.epoch:
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
            before, newest = self.last, self.look()
            if newest is None or before is None or newest.is_same(before):
                raise
        else:
            newest = self.look()
        return newest is not None and newest.is_same(record)

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
