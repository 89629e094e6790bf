"""Rows that lie on executors: staged by the tasks in parallel, published by the driver's commit.

Each attempt of a task encodes its rows and copies them, in one transaction, into a stage table, as
bytes that COPY takes, under a number of its own, and returns that number. The driver copies what
attempts have committed into the table itself, inside the batch's transaction, while other tasks
still run. In the end it compares: if it has copied an attempt that Spark does not count (it failed
after its commit, or lost a race), the transaction begins again with those that Spark counts. A
stage that a crash leaves behind is dropped at the next start.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import psycopg
import pyarrow as pa

from headwater.errors import REGISTRY
from headwater.targets.postgres.changes import TryAgain
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.sql import TableName, compose
from headwater.targets.postgres.stage_writer import (
    RECEIPT_COLUMNS,
    StageWriter,
    block_range,
    map_in_arrow,
)
from headwater.targets.postgres.transfer import Transfer

__all__ = ["Distributed", "Staging", "block_range"]

_DROP_WAIT = "SET lock_timeout = '2s'"  # a task that nobody waits for may still be writing
_POLL_S = 0.02
Rows = Iterator[bytes]
Publish = Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Staged:
    """What the tasks of one frame have put into a stage, as far as Spark counts them."""

    name: TableName
    attempts: dict[int, int]  # how many pieces each has written
    num_rows: int
    blocks: tuple[int | None, int | None, int]


class Distributed:
    """A frame whose rows lie on executors. Used like an Arrow table, within one transaction."""

    def __init__(self, staging: Staging, frame: Any, schema: pa.Schema) -> None:
        self.schema = schema
        self._staging = staging
        self._frame = frame
        self._staged: Staged | None = None

    def select(self, names: Sequence[str]) -> Distributed:
        """Return the same rows with fewer columns."""
        fields = [self.schema.field(one) for one in names]
        return Distributed(self._staging, self._frame.select(*names), pa.schema(fields))

    @property
    def num_rows(self) -> int:
        """How many rows there are, once they are staged."""
        return 0 if self._staged is None else self._staged.num_rows

    @property
    def blocks(self) -> tuple[int | None, int | None, int]:
        """The lowest and the highest block of the rows, and how many have none."""
        return (None, None, 0) if self._staged is None else self._staged.blocks

    def stage(self, transfer: Transfer, block_column: str, publish: Publish | None) -> Rows:
        """Have the tasks stage their rows, and `publish` copy them; without it, return them."""
        self._staged = self._staging.stage(self._frame, transfer, block_column, publish)
        return iter(()) if publish else self._staging.read(self._staged)


class Staging:
    """The stages of one stream: made on the driver outside the batch's transaction, then dropped.

    What was staged for a batch is kept until it is committed: if its transaction has to be tried
    again, its rows are not computed again. So `on_data` must do the same each time.
    """

    def __init__(self, session: Session, dsn: str, stream: str, home: str) -> None:
        self._session = session
        self._dsn = dsn
        self._home = home
        digest = hashlib.blake2b(stream.encode(), digest_size=6).hexdigest()
        self._prefix = f"headwater_stage_{digest}_"
        self._staged: list[Staged] = []
        self._next = 0

    def begin(self) -> None:
        """Note that a batch is written from its beginning."""
        self._next = 0

    def distributed(self, frame: Any) -> Distributed:
        """Wrap a DataFrame; its columns are found out without computing a row."""
        return Distributed(self, frame, frame.limit(0).toArrow().schema)

    def stage(
        self, frame: Any, transfer: Transfer, block_column: str, publish: Publish | None
    ) -> Staged:
        """Stage the rows of a frame, unless an earlier try has, and publish them meanwhile."""
        ordinal, self._next = self._next, self._next + 1
        if ordinal < len(self._staged):
            staged = self._staged[ordinal]
            if publish is not None:
                publish(self.read(staged))
            return staged
        stage = TableName(self._home, self._prefix + secrets.token_hex(6))
        self._connected().run(
            compose(
                "CREATE UNLOGGED TABLE {stage} (attempt BIGINT, place INTEGER, rows BYTEA, "
                "PRIMARY KEY (attempt, place)); "
                "ALTER TABLE {stage} ALTER COLUMN rows SET STORAGE EXTERNAL",
                stage=stage,
            )
        )
        relay = None if publish is None else _Relay(self._session, stage, publish)
        try:
            writer = StageWriter(self._dsn, stage, transfer, block_column)
            receipts = map_in_arrow(frame, writer, RECEIPT_COLUMNS).toArrow().to_pylist()
        except BaseException as error:
            if relay is not None:
                relay.give_up()
            self._drop(stage)
            if not isinstance(error, Exception):
                raise
            raise _coded(error) from error
        staged = _counted(stage, receipts)
        self._staged.append(staged)
        if relay is not None:
            relay.finish(staged)
        return staged

    def read(self, staged: Staged) -> Rows:
        """Yield the rows that count, some thousand at a time."""
        for attempt, pieces in staged.attempts.items():
            yield from _values(self._connected(), staged.name, attempt, pieces)

    def clear(self) -> None:
        """Drop the stages of the batch that was committed, or given up."""
        staged, self._staged, self._next = self._staged, [], 0
        for one in staged:
            self._drop(one.name)

    def sweep(self) -> None:
        """Drop what an earlier run of this stream has left behind. Called before reading."""
        self._staged, self._next = [], 0
        rows = self._connected().rows(
            "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND starts_with(c.relname, $2) AND c.relkind = 'r'",
            [self._home, self._prefix],
        )
        for (name,) in rows:
            self._drop(TableName(self._home, name))

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()

    def _connected(self) -> Session:
        if self._session.lost:
            self._session.connect()
        return self._session

    def _drop(self, stage: TableName) -> None:
        with suppress(psycopg.Error):
            session = self._connected()
            session.run(_DROP_WAIT)
            session.run(compose("DROP TABLE IF EXISTS {stage}", stage=stage))


class _Relay:
    """Publishes what attempts commit, in a thread of its own, while the Spark job runs.

    Nobody else uses the two connections meanwhile: the caller waits for the job.
    """

    def __init__(self, session: Session, stage: TableName, publish: Publish) -> None:
        self._session = session
        self._stage = stage
        self._published: set[int] = set()
        self._staged: Staged | None = None
        self._ended = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(publish,), daemon=True)
        self._thread.start()

    def finish(self, staged: Staged) -> None:
        """Publish the rest; begin again if there was something that does not count."""
        self._staged = staged
        self._end()
        if self._error is not None:
            raise self._error
        if self._published - set(staged.attempts):
            raise TryAgain("an attempt was copied that Spark does not count")

    def give_up(self) -> None:
        """Stop: the job has failed."""
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self, publish: Publish) -> None:
        try:
            publish(self._rows())
        except BaseException as error:  # noqa: BLE001 - raised again where it can be handled
            self._error = error

    def _rows(self) -> Rows:
        while not self._ended.wait(_POLL_S):
            yield from self._new(self._committed())
        if self._staged is None:
            raise InterruptedError("the Spark job has failed")
        yield from self._new(self._staged.attempts)

    def _new(self, attempts: dict[int, int]) -> Rows:
        for attempt, pieces in attempts.items():
            if attempt not in self._published:
                self._published.add(attempt)
                yield from _values(self._session, self._stage, attempt, pieces)

    def _committed(self) -> dict[int, int]:
        return dict(
            self._session.rows(
                compose(
                    "SELECT attempt, count(*)::int FROM {stage} GROUP BY attempt",
                    stage=self._stage,
                )
            )
        )


def _values(session: Session, stage: TableName, attempt: int, pieces: int) -> Rows:
    """Yield what an attempt has written, a few megabytes at a time: memory holds no more."""
    sql = compose("SELECT rows FROM {stage} WHERE attempt = $1 AND place = $2", stage=stage)
    for place in range(pieces):
        yield session.bytes(sql, [attempt, place])


def _counted(stage: TableName, receipts: Iterable[dict[str, Any]]) -> Staged:
    counted = [one for one in receipts if one["rows"]]
    known = [one for one in counted if one["lowest"] is not None]
    return Staged(
        stage,
        {one["attempt"]: one["pieces"] for one in counted},
        sum(one["rows"] for one in counted),
        (
            min((one["lowest"] for one in known), default=None),
            max((one["highest"] for one in known), default=None),
            sum(one["nulls"] for one in counted),
        ),
    )


def _coded(error: Exception) -> Exception:
    """Return the coded error that a task has raised; only its text comes back from an executor."""
    found = re.search(r"\[(E\d{4})\] (.*?)(?:\. Fix:|$)", str(error), re.DOTALL)
    kind = REGISTRY.get(found[1]) if found else None
    return error if kind is None or found is None else kind(found[2])
