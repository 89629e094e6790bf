"""Rows that lie on executors: what targets are given instead of tables, and the jobs they run.

Rows of a backfill never pass through the driver's Python. A target gives `run` a function, which is
called on executors with the record batches of each part, and whose small results come back. There
are two kinds of rows. `SpanRows` are those of a span's only output: the task that fetches and
decodes a part calls the function itself, so rows do not enter the JVM, and what the tasks say of
their reading comes back with the results. `DataFrameRows` are those of any DataFrame.

All methods are called on the driver. A task may be tried again or run twice: a function must not
count its first attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa
from pyspark import RDD, SparkContext, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from headwater.core import BlockRange
from headwater.spark.arrow_plan import ArrowPlan
from headwater.spark.driver_rows import to_arrow
from headwater.spark.entrance import driver_address
from headwater.spark.failures import coded_failures
from headwater.spark.frames import spark_schema
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


class ExecutorRows(Protocol):
    """Rows that lie on executors."""

    @property
    def schema(self) -> pa.Schema:
        """The columns; no row is computed."""
        ...

    @property
    def reaches_driver(self) -> bool:
        """Whether executors know this process as their driver; those of Spark Connect do not."""
        ...

    def select(self, names: Sequence[str]) -> ExecutorRows:
        """Return the same rows with fewer columns."""
        ...

    def run(self, function: PartFunction, schema: pa.Schema) -> pa.Table:
        """Call a function with each part's batches on executors; return all that it yields.

        Raises:
            HeadwaterError: what the function or the reading raised on an executor; the parts of a
                span are not of one chain.
        """
        ...

    def relay(self, port: int = 0) -> Relay:
        """Return a relay that these executors can send to; it listens once it is entered."""
        ...

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """Bring the rows to the driver in small batches, in order of the parts.

        Executors send them first, to files of the driver: memory holds one batch at a time. When
        the first batch comes, all rows are there.
        """
        ...


class _Rows:
    """What both kinds of rows do in the same way."""

    @property
    def context(self) -> SparkContext:
        """Where jobs run."""
        raise NotImplementedError

    def relay(self, port: int = 0) -> Relay:
        """Return a relay at the address by which executors know the driver."""
        conf = dict(self.context.getConf().getAll())
        return Relay(*driver_address(conf), port or int(conf.get(RELAY_PORT) or 0))

    def pieces(self: Any) -> Iterator[pa.RecordBatch]:
        """Bring the rows to the driver in small batches; over Spark Connect, all at once."""
        if not self.reaches_driver:
            yield from self.run(_pass_on, self.schema).to_batches()
            return
        with self.relay() as relay:
            sender = IpcSender(relay.entrance)
            attempts = self.run(sender, IpcSender.RESULT)["attempt"].to_pylist()
            spools = relay.take([one for one in attempts if one is not None])
        try:
            for spool in spools:
                yield from read_batches(spool)
        finally:
            for spool in spools:
                spool.close()


def _pass_on(batches: Batches, part: int) -> Batches:
    return batches


class DataFrameRows(_Rows):
    """The rows of a DataFrame."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.session = frame.sparkSession

    @property
    def context(self) -> SparkContext:
        """The context of the DataFrame's session."""
        return self.session.sparkContext

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, as Spark hands them to Python."""
        return to_arrow(self._frame.limit(0)).schema

    @property
    def reaches_driver(self) -> bool:
        """Whether the DataFrame is not one of Spark Connect."""
        return not is_connect(self._frame)

    def select(self, names: Sequence[str]) -> DataFrameRows:
        """Return the same rows with fewer columns."""
        return DataFrameRows(self._frame.select(*names))

    def run(self, function: PartFunction, schema: pa.Schema) -> pa.Table:
        """Call a function with the batches of each partition."""
        described = described_job(self.session, "write rows")
        with coded_failures(), _batches_by_count(self.session), described:
            made = map_in_arrow(self._frame, _WithPart(function), schema)
            return made.toArrow().cast(schema)

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


class SpanRows(_Rows):
    """The rows of a span's only output, read by the very tasks that work on them.

    `check` is given what each task says of its reading once all have ended.
    """

    def __init__(
        self,
        context: SparkContext,
        reader: SpanReader[Any],
        parts: Sequence[Any],
        check: Callable[[Sequence[str]], None],
        change: RowChange,
    ) -> None:
        self._context = context
        self._reader = reader
        self._parts = parts
        self._check = check
        self._change = change

    @property
    def context(self) -> SparkContext:
        """Where jobs run."""
        return self._context

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._change.schema

    @property
    def reaches_driver(self) -> bool:
        """A session that reads spans has its driver here."""
        return True

    def select(self, names: Sequence[str]) -> SpanRows:
        """Return the same rows with fewer columns."""
        change = self._change.select(names)
        return SpanRows(self.context, self._reader, self._parts, self._check, change)

    def run(self, function: PartFunction, schema: pa.Schema) -> pa.Table:
        """Read each part and call a function with its batches, in one task; compare the parts."""
        parts = [Part(index, blocks) for index, blocks in enumerate(self._parts)]
        task = _PartTask(self._reader, function, schema, self._change)
        described = described_job(self.context, f"read and write {shown_parts(self._parts)}")
        with coded_failures(), described:
            found = self.context.parallelize(parts, len(parts)).mapPartitions(task).collect()
        self._check([receipt for receipt, _ in found])
        tables = [pa.ipc.open_stream(made).read_all() for _, made in found]
        return pa.concat_tables([schema.empty_table(), *tables])


@dataclass(frozen=True, slots=True)
class _PartTask:
    """One task of a span: reads a part and hands its rows on. It pickles, and runs on executors."""

    reader: SpanReader[Any]
    function: PartFunction
    schema: pa.Schema
    change: RowChange

    def __call__(self, parts: Iterable[Part[Any]]) -> Iterator[tuple[str, bytes]]:
        """Yield a part's receipt and what the function made of its rows."""
        for part in parts:
            receipt = Receipt(part.index)
            batches = self.change(self.reader.rows(part, receipt))
            made = list(self.function(batches, part.index))
            for _ in batches:
                pass  # a receipt speaks of the whole part, also if the function wanted less
            yield receipt.to_text(), _written(made, self.schema)


class PackedRows(_Rows):
    """Rows of an output that Spark keeps packed: the task that works on them unpacks them."""

    def __init__(self, kept: RDD[Packed], unpacking: Unpacking) -> None:
        self._kept = kept
        self._unpacking = unpacking

    @property
    def context(self) -> SparkContext:
        """Where jobs run."""
        return self._kept.context

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._unpacking.change.schema

    @property
    def reaches_driver(self) -> bool:
        """A session that reads spans has its driver here."""
        return True

    def select(self, names: Sequence[str]) -> PackedRows:
        """Return the same rows with fewer columns."""
        unpacking = self._unpacking
        return PackedRows(self._kept, replace(unpacking, change=unpacking.change.select(names)))

    def run(self, function: PartFunction, schema: pa.Schema) -> pa.Table:
        """Call a function with the batches of each part."""
        task = _KeptTask(self._unpacking, function, schema)
        described = described_job(self.context, "write rows that are kept")
        with coded_failures(), described:
            found = self._kept.mapPartitionsWithIndex(task).collect()
        tables = [pa.ipc.open_stream(made).read_all() for made in found]
        return pa.concat_tables([schema.empty_table(), *tables])


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Makes rows of an output of what Spark keeps. It pickles."""

    output: int
    change: RowChange

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yield the rows, where Spark has made columns of what it keeps."""
        for batch in batches:
            outputs, rows = batch.columns
            yield from self.of(
                (output, packed.as_buffer())
                for output, packed in zip(outputs.to_pylist(), rows, strict=True)
            )

    def of(self, kept: Iterable[tuple[int, Any]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        own = (rows for output, rows in kept if output == self.output)
        return self.change(batch for rows in own for batch in unpacked(rows))


@dataclass(frozen=True, slots=True)
class _KeptTask:
    """Gives a function rows that are kept. It pickles, and runs on executors."""

    unpacking: Unpacking
    function: PartFunction
    schema: pa.Schema

    def __call__(self, part: int, kept: Iterable[Packed]) -> Iterator[bytes]:
        """Yield what the function made of the rows of a part."""
        yield _written(self.function(self.unpacking.of(kept), part), self.schema)


def _written(batches: Batches, schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema))
    made: bytes = sink.getvalue().to_pybytes()
    return made


@dataclass(frozen=True, slots=True)
class _WithPart:
    """Gives a function the number of the partition, which Spark knows. It pickles."""

    function: PartFunction

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Do the function's work on an executor."""
        context = TaskContext.get()
        yield from self.function(batches, 0 if context is None else context.partitionId())


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
    made = UserDefinedFunction(function, columns, evalType=kind)
    names = [f"`{name.replace('`', '``')}`" for name in frame.columns]
    plan = any_frame._jdf.mapInArrow(made(*(frame[name] for name in names))._jc, False, None)
    found: DataFrame = type(any_frame)(plan, frame.sparkSession)
    return found


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
