"""Rows that lie on executors: staged by the tasks in parallel, published by the driver's commit.

Each attempt of a task copies its rows into a stage table in one transaction, under a number of its
own, and returns that number. The batch's transaction takes the rows of the attempts that Spark
counts, and no others. So an attempt that failed, was repeated, or lost a race leaves nothing; a
stage that a crash leaves behind is dropped at the next start.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa

from headwater.errors import REGISTRY
from headwater.targets.postgres.layout import Layout
from headwater.targets.postgres.session import Session, connect
from headwater.targets.postgres.settings import Table
from headwater.targets.postgres.sql import Fragment, TableName, compose
from headwater.targets.postgres.transfer import Transfer, plan_transfer

ATTEMPT = "___sqd__attempt"
_RECEIPT = pa.schema([("attempt", pa.int64()), ("rows", pa.int64())])
_DROP_WAIT = "SET lock_timeout = '2s'"  # a task that nobody waits for may still be writing


@dataclass(frozen=True, slots=True)
class Staged:
    """A frame whose rows wait in a stage table. Used like a frame, within one transaction."""

    name: TableName
    schema: pa.Schema
    transfer: Transfer
    attempts: tuple[int, ...]
    num_rows: int

    def select(self, names: Sequence[str]) -> Staged:
        """Return the same rows with fewer columns."""
        lanes = {lane.name: lane for lane in self.transfer.lanes}
        return replace(
            self,
            schema=pa.schema([self.schema.field(one) for one in names]),
            transfer=Transfer(tuple(lanes[one] for one in names)),
        )

    def source(self) -> Fragment:
        """Return the query of the rows that count."""
        return compose(
            "(SELECT {values} FROM {stage} WHERE {own})",
            values=self.transfer.values(),
            stage=self.name,
            own=self._own(),
        )

    def block_range(self, session: Session, column: str) -> tuple[Any, Any, int]:
        """Return the lowest and the highest block of the rows, and how many have none."""
        if column not in self.schema.names:
            return None, None, self.num_rows
        return session.rows(
            compose(
                "SELECT min({c}), max({c}), count(*) - count({c}) FROM {stage} WHERE {own}",
                c=column,
                stage=self.name,
                own=self._own(),
            )
        )[0]

    def _own(self) -> Fragment:
        numbers = ",".join(map(str, self.attempts))
        return compose("{a} = ANY('{{{numbers}}}'::bigint[])", a=ATTEMPT, numbers=Fragment(numbers))


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

    def stage(
        self, name: TableName, frame: Any, declared: Table, layout: Layout | None
    ) -> tuple[Staged, bool]:
        """Return a frame's rows in a stage, and whether they were put there just now."""
        ordinal, self._next = self._next, self._next + 1
        if ordinal < len(self._staged):
            return self._staged[ordinal], False
        schema = frame.limit(0).toArrow().schema
        known = layout is not None and all(one in layout.columns for one in schema.names)
        transfer = plan_transfer(schema, layout if known else None, declared.types)
        stage = TableName(self._home, self._prefix + secrets.token_hex(6))
        self._connected().run(
            compose(
                "CREATE UNLOGGED TABLE {stage} ({parts}, {attempt} BIGINT NOT NULL)",
                stage=stage,
                parts=Fragment(transfer.column_list()),
                attempt=ATTEMPT,
            )
        )
        try:
            writer = StageWriter(self._dsn, stage, transfer)
            receipts = map_in_arrow(frame, writer, "attempt bigint, rows bigint").toArrow()
        except Exception as error:
            self._drop(stage)
            raise _coded(error) from error
        counted = [one for one in receipts.to_pylist() if one["rows"]]
        staged = Staged(
            stage,
            schema,
            transfer,
            tuple(one["attempt"] for one in counted),
            sum(one["rows"] for one in counted),
        )
        self._staged.append(staged)
        return staged, True

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


@dataclass(frozen=True, slots=True)
class StageWriter:
    """What a task does with its rows: one COPY, one receipt. Runs on executors; pickles.

    An attempt that is repeated has another number, so its rows do not mix with earlier ones.
    """

    dsn: str
    stage: TableName
    transfer: Transfer

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the rows of a partition and yield the receipt."""
        attempt, rows = secrets.randbits(62), 0

        def counted(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[Any]:
            nonlocal rows
            rows += first.num_rows
            yield first
            for batch in others:
                rows += batch.num_rows
                yield batch

        remaining = (batch for batch in batches if batch.num_rows)
        first = next(remaining, None)
        if first is not None:
            with connect(self.dsn, name="headwater executor") as connection:
                copied = self.transfer.encode(
                    first.schema, counted(first, remaining), attempt.to_bytes(8, "big")
                )
                sql = compose(
                    "COPY {stage} ({names}) FROM STDIN (FORMAT binary)",
                    stage=self.stage,
                    names=[*self.transfer.names, ATTEMPT],
                )
                with connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
                    for chunk in copied:
                        copy.write(chunk)
        yield pa.RecordBatch.from_pylist([{"attempt": attempt, "rows": rows}], schema=_RECEIPT)


def map_in_arrow(frame: Any, function: Any, schema: str) -> Any:
    """Return a DataFrame of what a function makes of each partition's record batches.

    Spark's `mapInArrow` asks for pandas on the driver, although neither it nor the workers use it
    for Arrow; without pandas the same plan is made from the parts that Spark has loaded.
    """
    try:
        return frame.mapInArrow(function, schema)
    except ImportError:
        kind = sys.modules["pyspark.util"].PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        made = sys.modules["pyspark.sql.udf"].UserDefinedFunction(function, schema, evalType=kind)
        names = [f"`{name.replace('`', '``')}`" for name in frame.columns]
        plan = frame._jdf.mapInArrow(made(*(frame[name] for name in names))._jc, False, None)
        return type(frame)(plan, frame.sparkSession)


def _coded(error: Exception) -> Exception:
    """Return the coded error that a task has raised; only its text comes back from an executor."""
    found = re.search(r"\[(E\d{4})\] (.*?)(?:\. Fix:|$)", str(error), re.DOTALL)
    kind = REGISTRY.get(found[1]) if found else None
    return error if kind is None or found is None else kind(found[2])
