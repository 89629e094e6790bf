"""One connection per file and process, one session per target.

DuckDB locks a file for the process that opened it, so all targets of a process that write one file
share its connection; each has a cursor, and with it a transaction, of its own. Writing transactions
take turns: two streams in one file never meet a conflict.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any

import duckdb
import pyarrow as pa

from headwater.errors import (
    DuckDBDiskFullError,
    DuckDBFileError,
    DuckDBPathError,
    StreamInUseError,
)
from headwater.targets.text import Part, compose, quote

MEMORY = ":memory:"
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")  # the system's words
_OPEN: dict[str, SharedFile] = {}
_GUARD = Lock()
_NUMBERS = itertools.count(1)
_KEPT = "64MB"  # of the file in memory, between two statements of a backfill
_TO_CLOSE = "128MB"  # what DuckDB may use to write its last checkpoint
_LIMIT = "SELECT current_setting('memory_limit')"


class SharedFile:
    """A DuckDB file that this process holds, and the streams that write it."""

    def __init__(
        self, key: str, connection: duckdb.DuckDBPyConnection, *, is_limited: bool
    ) -> None:
        self.key = key
        self.is_limited = is_limited
        self.connection = connection
        self.turn = RLock()
        self.streams: set[tuple[str, ...]] = set()
        self.users = 0
        self._own_limit = self._limit

    @property
    def _limit(self) -> str:
        return str(self.connection.execute(_LIMIT).fetchall()[0][0])

    @contextmanager
    def limited_to(self, size: str) -> Iterator[None]:
        """Have DuckDB let go of what it keeps above a size, for a moment; what is in use stays.

        Not if the user has set a limit. The connection is not in a transaction, which an error
        would end.
        """
        if self.is_limited or self._limit != self._own_limit:
            yield
            return
        try:
            with suppress(duckdb.OutOfMemoryException):
                self.connection.execute(f"SET memory_limit = '{size}'")
            yield
        finally:
            self.connection.execute("RESET memory_limit")

    def close(self) -> None:
        """Write what the log holds into the file, and close it.

        Closing alone would do the same without a limit: 3 million rows take a gigabyte. What
        fails here leaves the log, which the next opening reads.
        """
        with suppress(duckdb.Error), self.limited_to(_TO_CLOSE):
            self.connection.execute("CHECKPOINT")
        self.connection.close()


class Session:
    """A target's own cursor. `on_statement` is called before each statement, for tests and logs.

    Runs on the driver. What is not committed when the process dies is gone when it is opened again.
    """

    def __init__(
        self,
        file: SharedFile,
        stream: tuple[str, ...] | None,
        on_statement: Callable[[str], None] | None = None,
    ) -> None:
        self._file = file
        self._stream = stream
        self._cursor = file.connection.cursor()
        self.on_statement = on_statement

    def run(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> None:
        """Run a statement for its effect; there is no plan to keep, whatever `prepare` says."""
        self._execute(compose(sql, **parts) if parts else sql, params)

    def rows(
        self, sql: str, params: Sequence[object] = (), *, prepare: bool = False, **parts: Part
    ) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        return self._execute(compose(sql, **parts) if parts else sql, params).fetchall()

    def arrow(self, sql: str, params: Sequence[object] = (), **parts: Part) -> pa.Table:
        """Run a query and return a table; integers without bound come as decimal text."""
        sql = compose(sql, **parts) if parts else sql
        self._announce(sql)
        relation = self._cursor.sql(sql, params=list(params))
        kinds = [str(kind) for kind in relation.types]
        if "BIGNUM" in kinds:
            names = map(quote, relation.columns)
            relation = relation.project(
                ", ".join(
                    f"#{index}::VARCHAR AS {name}" if kind == "BIGNUM" else f"#{index} AS {name}"
                    for index, (name, kind) in enumerate(zip(names, kinds, strict=True), 1)
                )
            )
        return relation.to_arrow_table()

    def identity(self) -> int:
        """Return which transaction this is."""
        ((number,),) = self.rows("SELECT txid_current()")
        return int(number)

    def statements(self, sql: str) -> list[tuple[str, str]]:
        """Split SQL into statements: the name of the kind, and the text."""
        return [
            (statement.type.name, statement.query)
            for statement in self._cursor.extract_statements(sql)
        ]

    @contextmanager
    def frame(self, rows: pa.Table) -> Iterator[str]:
        """Let statements see an Arrow table under the name that is yielded; nothing is copied."""
        name = f"__headwater_frame_{next(_NUMBERS)}"
        source = _Rows(rows)
        self._cursor.register(name, source)
        yield name
        self._cursor.unregister(name)  # after an error the rollback does it
        source.rows = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything inside, or nothing.

        Raises:
            DuckDBDiskFullError: there is no room for it; DuckDB may want the file opened again.
        """
        with self._file.turn, _room(self._file.key):
            self.run("BEGIN TRANSACTION")
            try:
                yield
                self.run("COMMIT")
            except BaseException:
                with suppress(duckdb.Error):
                    self._cursor.execute("ROLLBACK")
                raise

    def trim(self) -> None:
        """Have DuckDB let go of most of the file that it keeps in memory, between two statements.

        By itself it keeps up to 80 % of the machine's memory. The limit stands for a moment, so
        that no statement fails by it. It is not touched if the user has set one, or while another
        session of this process might run a statement.
        """
        with _GUARD:
            if self._file.users == 1:
                with self._file.limited_to(_KEPT):
                    pass

    def close(self) -> None:
        """Release the file; the last session closes it."""
        with _GUARD:
            self._cursor.close()
            if self._stream is not None:
                self._file.streams.discard(self._stream)
            self._file.users -= 1
            if self._file.users == 0:
                _OPEN.pop(self._file.key, None)
                self._file.close()

    def _execute(self, sql: str, params: Sequence[object]) -> duckdb.DuckDBPyConnection:
        self._announce(sql)
        return self._cursor.execute(sql, list(params))

    def _announce(self, sql: str) -> None:
        if self.on_statement is not None:
            self.on_statement(sql)


def open_session(
    path: str | Path,
    config: Mapping[str, Any],
    stream: tuple[str, ...] | None,
    memory: str,
    on_statement: Callable[[str], None] | None = None,
) -> Session:
    """Open a file, or share the instance that this process has open.

    `stream` is what only one target may hold at a time; None only reads. `memory` tells databases
    in memory apart, which have no path.
    """
    key = memory if str(path) == MEMORY else str(Path(path).resolve())
    with _GUARD:
        file = _OPEN.get(key)
        if file is None:
            limited = key == memory or not config.keys().isdisjoint(("memory_limit", "max_memory"))
            file = SharedFile(key, _connect(path, config), is_limited=limited)
        if stream in file.streams:
            raise StreamInUseError("this stream is already being written", stream=stream, path=path)
        session = Session(file, stream, on_statement)
        _OPEN[key] = file
        file.users += 1
        if stream is not None:
            file.streams.add(stream)
    return session


class _Rows:
    """A table that DuckDB scans as often as it likes, until it is taken away.

    A transaction keeps every object that was registered in it to its end, and a large one has many.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.rows: pa.Table | None = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as Arrow's libraries hand them to each other."""
        assert self.rows is not None, "a frame is scanned while it is there"
        return self.rows.__arrow_c_stream__(requested_schema)


@contextmanager
def _room(path: str) -> Iterator[None]:
    """Raise an error with its code where the disk is full."""
    try:
        yield
    except duckdb.Error as error:
        if not any(text in str(error) for text in _FULL):
            raise
        reason = str(error).splitlines()[0]
        raise DuckDBDiskFullError("no room is left", path=path, reason=reason) from error


def _connect(path: str | Path, config: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
    try:
        return duckdb.connect(str(path), config=dict(config))
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        if "set lock on file" in reason:
            raise DuckDBFileError(
                "another process holds the file", path=path, reason=reason
            ) from error
        what = "the file cannot be opened"
        if "No such file or directory" in reason:
            what = "the folder of the file does not exist"
        elif "not a valid DuckDB" in reason or "Is a directory" in reason:
            what = "there is something else than a DuckDB database"
        raise DuckDBPathError(what, path=path, reason=reason) from error
