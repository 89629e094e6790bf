"""The writers of `format("headwater")`, of DataFrames and of queries, as Spark calls them.

Tasks stage their rows as Arrow: within the message that Spark hands to the driver, or as a file of
a folder that both reach (`staging`). Only the driver's `commit` looks at a target, by the function
that `DefaultSource` hands in, so executors import nothing of it. A task that is tried again, or
twice at once, stages its rows again under a name of its own, and only what Spark's messages name is
written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from headwater.errors import SourceOptionError, coded_line_first
from headwater.spark.options import Options
from headwater.spark.streaming.folder import open_files
from headwater.spark.versions import arrow_columns

if TYPE_CHECKING:
    from pyarrow import fs

_log = logging.getLogger(__name__)
INLINE_BYTES = 64 << 20  # of one task, in its message
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
_QUERY = "sql.streaming.queryId"  # local properties of Spark's, which a task of a query has
"""Which query a task is of."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the options of a writer say. Pickled with the writer, to executors too."""

    target: str
    target_env: str | None
    format: str | None
    table: str
    id: str
    keys: tuple[str, ...]
    staging: str | None
    columns: pa.Schema

    @property
    def address(self) -> str:
        """The target's address; from the environment, if it is named there."""
        if self.target_env is None:
            return self.target
        address = os.environ.get(self.target_env)
        if not address:
            raise SourceOptionError(
                "the environment that Spark was started with lacks the variable",
                targetEnv=self.target_env,
            )
        return address


Give = Callable[[WritePlan, pa.Table, str, int | None], None]
"""Writes rows of a query's micro-batch; without a number, those of a single write."""


def plan_write(options: Options, schema: StructType, *, replaces: bool) -> WritePlan:
    """Understand what a user wrote. Runs in a Python process on the driver's machine.

    Raises:
        SourceOptionError: an option is missing, or rows that are there were to be replaced.
    """
    if replaces:
        raise SourceOptionError(
            'rows are added and changed, never replaced as a whole: mode("append"), and '
            'outputMode("append"), or outputMode("complete") with keys'
        )
    chosen = options.choose("target", "targetEnv", "targetUrl")
    if chosen == "target" and urlsplit(options[chosen]).password:
        _log.warning(
            "the target's address has a password, and Spark may show options in plans, event logs "
            "and SQL texts: put the address into an environment variable and name it by targetEnv"
        )
    table = options.get("dbtable", "")
    if not table:
        raise SourceOptionError("the option dbtable is missing: the table that is written")
    keys = tuple(options.words("keys") or ())
    unknown = [key for key in keys if key not in schema.fieldNames()]
    if unknown:
        raise SourceOptionError("keys names columns that the rows lack", keys=", ".join(unknown))
    return WritePlan(
        "" if chosen == "targetEnv" else options[chosen],
        options["targetEnv"] if chosen == "targetEnv" else None,
        options.get("targetFormat"),
        table,
        options.get("id", table),
        keys,
        options.get("staging"),
        arrow_columns(schema),
    )


class Staged(spark.WriterCommitMessage):
    """The rows of one task: here, or in a file of the folder."""

    def __init__(self, query: str, rows: bytes, file: str | None) -> None:
        self.query = query
        self.rows = rows
        self.file = file


class _Staging:
    """What both writers are: tasks stage, the driver gathers and gives all rows, or none.

    `commit` runs in a Python process on the driver's machine. `batchId` is the number of a query's
    micro-batch, which is not written again if the target holds it.
    """

    def __init__(self, plan: WritePlan, give: Give | None = None) -> None:
        self._plan = plan
        self._give = give

    @coded_line_first()
    def commit(self, messages: list[Any], batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        """Write the rows of all tasks."""
        assert self._give is not None, "executors only stage"
        rows, query = self._gather(messages)
        self._give(self._plan, rows, "" if batchId is None else query, batchId)
        self._forget(messages)

    def abort(self, messages: list[Any], batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        """Remove what was staged; Spark gives a micro-batch again."""
        self._forget(messages)

    @coded_line_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task. Runs on an executor."""
        context = TaskContext.get()
        query = (context.getLocalProperty(_QUERY) if context is not None else None) or ""
        sink, size = pa.BufferOutputStream(), 0
        with pa.ipc.new_file(sink, self._plan.columns, options=_ZSTD) as file:
            for batch in iterator:
                file.write_batch(batch.cast(self._plan.columns))
            size = sink.tell()
        rows = sink.getvalue()
        if self._plan.staging is None:
            if size > INLINE_BYTES:
                raise SourceOptionError(
                    "the rows of a task are too many for its message: name by the option staging "
                    "a folder that driver and executors reach, or let more tasks write",
                    bytes=size,
                )
            return Staged(query, rows.to_pybytes(), None)
        files, folder = open_files(self._plan.staging)
        files.create_dir(folder)
        name = f"{folder}/{uuid4().hex}.arrow"
        with files.open_output_stream(name) as out:
            out.write(rows)
        return Staged(query, b"", name)

    def _gather(self, messages: Sequence[Staged | None]) -> tuple[pa.Table, str]:
        """Return the rows of all tasks, and the query that they are of."""
        staged = [message for message in messages if message is not None]
        parts = [self._read(message) for message in staged]
        rows = pa.concat_tables([self._plan.columns.empty_table(), *parts])
        return rows, next((message.query for message in staged), "")

    def _read(self, message: Staged) -> pa.Table:
        if message.file is None:
            return pa.ipc.open_file(pa.py_buffer(message.rows)).read_all()
        try:
            with self._files().open_input_file(message.file) as file:
                return pa.ipc.open_file(file).read_all()
        except FileNotFoundError as error:
            raise SourceOptionError(
                "staging is a folder that driver and executors reach; this file is not found here",
                file=message.file,
            ) from error

    def _forget(self, messages: Sequence[Staged | None]) -> None:
        """Remove what tasks have staged."""
        for message in messages:
            if message is not None and message.file is not None:
                with suppress(OSError):
                    self._files().delete_file(message.file)

    def _files(self) -> fs.FileSystem:
        assert self._plan.staging is not None, "files are staged in a folder"
        return open_files(self._plan.staging)[0]


class TableWriter(_Staging, spark.DataSourceArrowWriter):
    """Writes a DataFrame once."""


_ARROW = getattr(spark, "DataSourceStreamArrowWriter", None)  # since Spark 4.1


class MicroBatchWriter(_Staging, _ARROW or spark.DataSourceStreamWriter):  # type: ignore[misc]
    """Writes the micro-batches of a query, each exactly once."""

    def __init__(self, plan: WritePlan, give: Give | None = None) -> None:
        if _ARROW is None:
            raise SourceOptionError("writeStream needs Spark 4.1 or newer: use foreach_batch")
        super().__init__(plan, give)
