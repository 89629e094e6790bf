"""Rows that lie on executors: what targets are given instead of tables, and the jobs they run.

Rows of a backfill never pass through the driver's Python. A target gives `run` a function, which is
called on executors with the record batches of each part, and whose small results come back. There
are two kinds of rows. `SpanRows` are those of a span: the task that fetches and decodes a part, or
unpacks what Spark keeps of it, calls the function itself, so rows do not enter the JVM.
`DataFrameRows` are those of any DataFrame.

All methods are called on the driver. A task may be tried again or run twice: a function must not
count its first attempt.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import RDD, SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from headwater.core import BlockRange
from headwater.errors import (
    REGISTRY,
    ExecutorPythonError,
    HeadwaterError,
    WorkerLostError,
    WorkerSilentError,
)
from headwater.spark.arrow_plan import ArrowPlan
from headwater.spark.entrance import driver_address
from headwater.spark.frames import spark_schema, to_arrow
from headwater.spark.parts import Packed, Part, Receipt, SpanReader, unpacked
from headwater.spark.relay import IpcSender, Relay, read_batches
from headwater.spark.versions import described, is_connect

Batches = Iterable[pa.RecordBatch]
PartFunction = Callable[[Batches, int], Batches]
"""Is called on an executor with the batches of one part and its number; it must pickle."""

RELAY_PORT = "spark.headwater.relay.port"

_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNLIMITED = str(2**31 - 1)
_ROWS = 4000  # of half a megabyte each would fill a batch
_DESCRIPTION = "spark.job.description"
_lock = Lock()
_counting: dict[Any, tuple[int, dict[str, str | None]]] = {}


class ExecutorRows(ABC):
    """Rows that lie on executors. `schema` says their columns; no row is computed for it.

    `reaches_driver`: executors know this process as their driver. Those of Spark Connect do not,
    and have no `context`.
    """

    context: SparkContext
    schema: pa.Schema
    reaches_driver = True

    @abstractmethod
    def select(self, names: Sequence[str]) -> ExecutorRows:
        """Return the same rows with fewer columns."""

    @abstractmethod
    def run(self, function: PartFunction, schema: pa.Schema) -> pa.Table:
        """Call a function with each part's batches on executors; return all that it yields.

        Raises:
            HeadwaterError: what the function or the reading raised on an executor; the parts of a
                span are not of one chain.
        """

    def relay(self, port: int = 0) -> Relay:
        """Return a relay that these executors can send to; it listens once it is entered."""
        conf = dict(self.context.getConf().getAll())
        return Relay(*driver_address(conf), port or int(conf.get(RELAY_PORT) or 0))

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """Bring the rows to the driver in small batches, in order of the parts.

        Executors send them first, to files of the driver: memory holds one batch at a time. When
        the first batch comes, all rows are there. Over Spark Connect they come all at once.
        """
        if not self.reaches_driver:
            yield from self.run(_pass_on, self.schema).to_batches()
            return
        with self.relay() as relay:
            sender = IpcSender(relay.entrance)
            attempts = self.run(sender, IpcSender.RESULT)["attempt"].to_pylist()
            files = relay.take([attempt for attempt in attempts if attempt is not None])
        try:
            for file in files:
                yield from read_batches(file)
        finally:
            for file in files:
                file.close()


def _pass_on(batches: Batches, part: int) -> Batches:
    return batches


class DataFrameRows(ExecutorRows):
    """The rows of a DataFrame."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.session = frame.sparkSession
        self.reaches_driver = not is_connect(frame)
        if self.reaches_driver:
            self.context = self.session.sparkContext

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, as Spark hands them to Python."""
        return to_arrow(self._frame.limit(0)).schema

    def select(self, names: Sequence[str]) -> DataFrameRows:
        """Return the same rows with fewer columns."""
        return DataFrameRows(self._frame.select(*names))

    def run(self, function: PartFunction, schema: pa.Schema) -> pa.Table:
        """Call a function with the batches of each partition."""
        described = described_job(self.session, "write rows")
        with coded_failures(), _batches_by_count(self.session), described:
            mapped = map_in_arrow(self._frame, partial(_with_part, function), schema)
            return mapped.toArrow().cast(schema)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """Bring the rows to the driver in small batches; their columns say what they hold."""
        for batch in super().pieces():
            known = described(batch.schema, self._frame)
            yield pa.RecordBatch.from_arrays(batch.columns, schema=known)


@dataclass(frozen=True, slots=True)
class RowChange:
    """What becomes of the rows of a span before a target has them. It pickles.

    `schema` says the columns that are left, `plans` what happens to the rows before.
    """

    schema: pa.Schema
    plans: tuple[ArrowPlan, ...] = ()

    def then(self, plan: ArrowPlan) -> RowChange:
        """Return the same with a further plan."""
        return RowChange(plan.schema, (*self.plans, plan))

    def select(self, names: Sequence[str]) -> RowChange:
        """Return the same with fewer columns."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in names]))

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yield what becomes of batches."""
        names = self.schema.names
        for batch in batches:
            for plan in self.plans:
                batch = plan.rows(batch)
            if batch.num_rows:
                yield batch if batch.schema.names == names else batch.select(names)


Opened = tuple[int, Receipt | None, Iterator[pa.RecordBatch]]
"""The number of a part, the receipt of its reading if it is read now, and its rows."""
Opening = Callable[[int, Iterable[Any]], Iterator[Opened]]


@dataclass(eq=False)
class SpanRows(ExecutorRows):
    """The rows of one output of a span, read or unpacked by the very tasks that work on them.

    `items` are what these tasks are given: the parts of the span, or what Spark keeps of it, and
    `opened` makes rows of them. `check` is given the receipts once all have ended.
    """

    context: SparkContext
    items: Sequence[Part[Any]] | RDD[Packed]
    opened: Opening
    change: RowChange
    shown: str
    check: Callable[[Sequence[str]], None] = lambda receipts: None

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.change.schema

    def select(self, names: Sequence[str]) -> SpanRows:
        """Return the same rows with fewer columns."""
        return replace(self, change=self.change.select(names))

    def run(self, function: PartFunction, schema: pa.Schema) -> pa.Table:
        """Call a function with the batches of each part, in the task that has them."""
        task: Any = partial(_work, self.opened, self.change, function, schema)
        with coded_failures(), described_job(self.context, self.shown):
            items: Any = self.items
            if not isinstance(items, RDD):
                items = self.context.parallelize(items, len(items))
            results = items.mapPartitionsWithIndex(task).collect()
        self.check([receipt for receipt, _ in results if receipt is not None])
        tables = [pa.ipc.open_stream(data).read_all() for _, data in results]
        return pa.concat_tables([schema.empty_table(), *tables])


def read_parts(reader: SpanReader[Any], index: int, parts: Iterable[Part[Any]]) -> Iterator[Opened]:
    """Read the parts of a partition. Runs on executors."""
    for part in parts:
        receipt = Receipt(part.index)
        yield part.index, receipt, reader.rows(part, receipt)


def unpack_part(output: int, index: int, kept: Iterable[Packed]) -> Iterator[Opened]:
    """Make rows of one output of what Spark keeps of a part. Runs on executors."""
    yield index, None, _unpacked(output, kept)


def unpack_columns(output: int, change: RowChange, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Make rows of one output where Spark has made columns of what it keeps. Runs on executors."""
    for batch in batches:
        outputs, rows = batch.column(0).to_pylist(), batch.column(1)
        kept = zip(outputs, (value.as_buffer() for value in rows), strict=True)
        yield from change(_unpacked(output, kept))


def _unpacked(output: int, kept: Iterable[tuple[int, Any]]) -> Iterator[pa.RecordBatch]:
    return (batch for place, rows in kept if place == output for batch in unpacked(rows))


def _work(
    opened: Opening,
    change: RowChange,
    function: PartFunction,
    schema: pa.Schema,
    index: int,
    items: Iterable[Any],
) -> Iterator[tuple[str | None, bytes]]:
    """Yield the receipt of each part, and what a function made of its rows. Runs on executors."""
    for part, receipt, read in opened(index, items):
        batches = change(read)
        result = _written(function(batches, part), schema)
        if receipt is not None:
            for _ in batches:
                pass  # a receipt speaks of the whole part, also if the function wanted less
        yield None if receipt is None else receipt.to_text(), result


def _written(batches: Batches, schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _with_part(function: PartFunction, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Give a function the number of the partition, which Spark knows. Runs on executors."""
    context = TaskContext.get()
    yield from function(batches, 0 if context is None else context.partitionId())


def map_in_arrow(frame: DataFrame, function: Any, schema: pa.Schema) -> DataFrame:
    """Return a DataFrame of what a function makes of each partition's record batches.

    Spark's `mapInArrow` asks for pandas on the driver, in a version that it likes, although neither
    it nor the workers use it for Arrow: the same plan is made from the parts that it is made of.
    """
    columns = spark_schema(schema)
    if is_connect(frame):
        return frame.mapInArrow(function, columns)
    any_frame: Any = frame
    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf = UserDefinedFunction(function, columns, evalType=kind)
    names = [f"`{name.replace('`', '``')}`" for name in frame.columns]
    plan = any_frame._jdf.mapInArrow(udf(*(frame[name] for name in names))._jc, False, None)
    mapped: DataFrame = type(any_frame)(plan, frame.sparkSession)
    return mapped


def shown_parts(parts: Sequence[Any]) -> str:
    """Return what the parts of a span are, for a person."""
    if isinstance(parts[0], BlockRange):
        return f"blocks {BlockRange(parts[0].from_block, parts[-1].to_block)}"
    return f"{len(parts)} parts"


@contextmanager
def described_job(where: Any, text: str) -> Iterator[None]:
    """Have Spark's pages show what the jobs of this thread do, unless the user's code says it.

    `where` is a session or its context; one of Spark Connect has no pages of its own.
    """
    context: SparkContext | None = getattr(where, "sparkContext", where)
    if is_connect(where) or context is None or context.getLocalProperty(_DESCRIPTION):
        yield
        return
    context.setLocalProperty(_DESCRIPTION, f"headwater: {text}")
    try:
        yield
    finally:
        with suppress(Exception):  # what ended may be the context
            context.setLocalProperty(_DESCRIPTION, "")


# --- settings while a job of ours runs ------------------------------------------------------------


@contextmanager
def _batches_by_count(session: Any) -> Iterator[None]:
    """Let Spark end a batch for Python by its rows alone, while jobs of ours run.

    To limit a batch's bytes Spark adds up its buffers after every row, which takes as long as all
    else that it does for the row. A limit that the user has set stays. Jobs of several threads may
    overlap: the last one that ends puts back what was there before the first.
    """
    with _lock:
        holders, before = _counting.get(session) or (0, _count_rows(session.conf))
        _counting[session] = (holders + 1, before)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # what ended may be the session: what happened first is said
            _stop_counting(session)
        raise
    _stop_counting(session)


def _count_rows(conf: Any) -> dict[str, str | None]:
    """Change the settings; return what was there, if the user had set it."""
    known = conf.getAll
    if _BATCH_BYTES in known:
        return {}
    before = {name: known.get(name) for name in (_BATCH_BYTES, _BATCH_ROWS)}
    rows = int(conf.get(_BATCH_ROWS))
    conf.set(_BATCH_BYTES, _UNLIMITED)
    conf.set(_BATCH_ROWS, rows if 0 < rows < _ROWS else _ROWS)
    return before


def _stop_counting(session: Any) -> None:
    """Put back the settings, unless another job of ours still runs."""
    with _lock:
        holders, before = _counting.pop(session)
        if holders > 1:
            _counting[session] = (holders - 1, before)
            return
        for name, value in before.items():
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)


# --- failures of tasks, as the coded errors that they were ----------------------------------------


_CODED = re.compile(r"\[(E\d{4})\] (.+?)\. Fix: ", re.DOTALL)
_FACTS = re.compile(r"(.*?) \(([a-z]\w*=.*)\)", re.DOTALL)
_NEXT_FACT = re.compile(r", (?=[a-z]\w*=)")
_OTHER_PYTHON = re.compile(
    r"No module named '?(?:google|headwater|pyspark|pyarrow|numpy|msgspec|Crypto|urllib3|psycopg)\b"
    r"[\w.']*|PYTHON_VERSION_MISMATCH.*"
)
_WORKER_SILENT = "Python worker failed to connect back"
_WORKER_LOST = "Python worker exited unexpectedly"
_TASK_FAILED = "Job aborted due to stage failure"


def coded_error(text: str) -> HeadwaterError | None:
    """Return the last of our errors that a traceback tells of, if it tells of any.

    A task's exception reaches the driver as the text of a traceback inside an exception of Spark's.
    The text of our errors starts with their code, so they can be found in it.
    """
    for code, message in reversed(_CODED.findall(text)):
        if code in REGISTRY:
            return _with_facts(REGISTRY[code], message)
    return None


def _with_facts(kind: type[HeadwaterError], text: str) -> HeadwaterError:
    """Return an error with the facts that its text ends with; numbers and None are such again."""
    shown = _FACTS.fullmatch(text)
    if shown is None:
        return kind(text)
    error = kind(shown[1])
    for fact in _NEXT_FACT.split(shown[2]):
        name, value = fact.split("=", 1)
        is_number = value.isdecimal() and str(int(value)) == value
        error.facts[name] = int(value) if is_number else None if value == "None" else value
    return error


def known_failure(text: str) -> HeadwaterError | None:
    """Return what a failure that Spark tells of is, if it is one of ours, or one of its workers."""
    failure = coded_error(text)
    if failure is None and (wrong := _OTHER_PYTHON.search(text)):
        failure = ExecutorPythonError("executors run another Python", said=wrong[0])
    if failure is None and _WORKER_SILENT in text:
        failure = WorkerSilentError("Spark has waited for a Python process that was starting")
    if failure is None and _WORKER_LOST in text and _TASK_FAILED not in text:
        failure = WorkerLostError("a Python worker was lost while Spark planned a scan")
    return failure


@contextmanager
def coded_failures() -> Iterator[None]:
    """Raise failures of tasks as the coded errors they were; so a lost planner, a wrong Python.

    Others stay Spark's.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        failure = known_failure(str(error))
        if failure is None:
            raise
        raise failure from error
