"""Transforms as plans: captured once, on frames without rows, and applied to every batch.

A transform says what becomes of rows, and is called before there are any. So nothing that it could
compute by looking at rows is in its plan, and the plan tells from the start whether each row of a
result is made of one row. If so, hot blocks that wait are transformed by one job: a hidden column
says which block a row is of, whatever becomes of the columns that the user sees. Anything that
looks at several rows (groups, joins of the batch with itself, windows, limits, Python functions
over batches) is applied to each block alone, because a fork may leave only some of the rows that
such a result was made of. Runs on the driver; Spark starts with the first use of a DataFrame.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

import headwater
from headwater.errors import ColumnTypeError, TransformActionError, TransformPlanError
from headwater.spark import catalyst
from headwater.spark.arrow_plan import ArrowPlan, before_spark, in_arrow
from headwater.spark.frames import (
    Frame,
    LikeDataFrame,
    SpanFrame,
    SparkProvider,
    spark_schema,
    to_arrow,
)
from headwater.spark.versions import is_connect

Schema: TypeAlias = "pa.Schema | StructType"
Made = TypeVar("Made")
_REFUSED = re.compile(
    r"(?i)streaming (sources?|datasets?|dataframes?|query|queries|tables?)\b|structured streaming"
)


def schema_of(frame: Any) -> Schema:
    """Return the columns of a frame, as it knows them without a job."""
    if isinstance(frame, pa.Table):
        return frame.schema
    schema: Schema | None = getattr(frame, "arrow_schema", None)
    return frame.schema if schema is None else schema


class RowlessFrame(LikeDataFrame):
    """One output, as a transform is given it: columns, and rows that are not there yet.

    What Spark would have to run is refused, by Spark, also on what is made of it.
    """

    __slots__ = ("_leaf", "_provider", "_schema")

    def __init__(self, schema: Schema, provider: SparkProvider) -> None:
        self._schema = schema
        self._provider = provider
        self._leaf: tuple[DataFrame, int] | None = None

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._schema.names)

    @property
    def schema(self) -> StructType:
        """The columns as Spark types.

        Raises:
            ColumnTypeError: Spark has no such type.
        """
        return spark_schema(self._schema) if isinstance(self._schema, pa.Schema) else self._schema

    @property
    def dataframe(self) -> DataFrame:
        """A DataFrame with these columns that refuses actions."""
        if self._leaf is None:
            schema, session = self.schema, self._provider()
            catalyst.activate(session)
            self._leaf = catalyst.rowless(session, schema)
        return self._leaf[0]

    @property
    def number(self) -> int | None:
        """By which Spark's plans name it; None if it was not used."""
        return None if self._leaf is None else self._leaf[1]

    def toArrow(self) -> NoReturn:  # noqa: N802 - a method of DataFrame
        """Refuse: there are no rows yet."""
        refuse("toArrow")

    def count(self) -> NoReturn:
        """Refuse: there are no rows yet."""
        refuse("count")

    def isEmpty(self) -> NoReturn:  # noqa: N802 - a method of DataFrame
        """Refuse: there are no rows yet."""
        refuse("isEmpty")

    def __repr__(self) -> str:
        return f"RowlessFrame[{', '.join(self.columns)}]"


def refuse(what: str) -> NoReturn:
    """Say that a transform has asked for rows."""
    raise TransformActionError(
        "a transform given to pipe asks for rows: it says what becomes of rows, and is called "
        "once, before there are any",
        asked=what,
    )


def with_columns(call: Callable[[], Made], provider: SparkProvider) -> Made:
    """Call user code. Code that makes a column before Spark runs is called again once it does."""
    try:
        return call()
    except (PySparkRuntimeError, AssertionError) as error:
        raised = traceback.extract_tb(error.__traceback__)[-1].filename
        is_of_spark = raised.startswith(str(Path(pyspark.__file__).parent))
        if not is_of_spark or SparkContext._active_spark_context is not None:
            raise
    session = provider()
    if not is_connect(session):
        catalyst.activate(session)
    return call()


def _call_of(error: Exception) -> str:
    """Return which method of Spark has raised, and where user code has called it."""
    ours, spark = (str(Path(module.__file__ or "").parent) for module in (headwater, pyspark))
    frames = list(
        dropwhile(
            lambda frame: frame.filename.startswith(ours), traceback.extract_tb(error.__traceback__)
        )
    )
    user = takewhile(lambda frame: not frame.filename.startswith((ours, spark)), frames)
    at = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in user][-1:]
    asked = [frame.name for frame in frames if frame.filename.startswith(spark)][:1]
    return " at ".join([*asked, *at])


class TransformPlan:
    """What a transform makes of frames with certain columns.

    `mixes` is the operator that keeps hot blocks from sharing a job, with its output; None if there
    is none. `is_fixed` is False of plans with random values, which are drawn when it is captured.
    """

    def __init__(
        self,
        transform: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        schemas: Mapping[str, Schema],
        provider: SparkProvider,
    ) -> None:
        inputs = {name: RowlessFrame(schema, provider) for name, schema in schemas.items()}
        try:
            outputs = with_columns(partial(transform, inputs), provider)
        except (PySparkException, AssertionError) as error:
            if _REFUSED.search(str(error).partition("\n")[0]) is None:
                raise
            refuse(_call_of(error))
        self._provider = provider
        self._names = list(outputs)
        self._same: dict[str, str] = {}
        self._nodes: dict[str, catalyst.Node] = {}
        self._arrow: dict[str, ArrowPlan] = {}
        self._before: dict[str, ArrowPlan | None] = {}
        self._shared: dict[str, catalyst.Node] = {}
        self._shared_arrow: dict[str, ArrowPlan] = {}
        self._hidden = ""
        self.is_fixed = True
        self.mixes: tuple[str, str] | None = None
        leaves = {frame.number: name for name, frame in inputs.items() if frame.number is not None}
        for name, output in outputs.items():
            source = next((key for key, frame in inputs.items() if output is frame), None)
            if source is not None:
                self._same[name] = source
                continue
            self._nodes[name] = node = self._captured(name, output, leaves)
            if (arrow := in_arrow(node)) is not None:
                self._arrow[name] = arrow
        self._share(inputs, outputs)

    def _captured(self, name: str, output: Any, leaves: Mapping[int, str]) -> catalyst.Node:
        plan = catalyst.analyzed(output)
        if plan is None:
            raise TransformPlanError(
                "a transform given to pipe returns DataFrames that are made of its frames",
                output=name,
                got=type(output).__name__,
            )
        node = catalyst.taken_apart(self._provider(), plan, leaves)
        if not catalyst.is_bindable(node):
            raise TransformPlanError(
                "the plan of a transform holds a stream that is none of its frames, or asks for "
                "the batch in a subquery",
                output=name,
            )
        self.is_fixed = self.is_fixed and not catalyst.is_random(plan)
        if self.mixes is None and (operator := catalyst.mixes_rows(node)) is not None:
            self.mixes = name, operator
        return node

    def _share(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Make the plans by which hot blocks share a job, if all outputs can."""
        if self.mixes is not None or not self._nodes:
            return
        frames = [*inputs.values(), *(outputs[name] for name in self._nodes)]
        taken = {column for frame in frames for column in frame.columns}
        self._hidden = "_block"
        while self._hidden in taken:
            self._hidden = f"_{self._hidden}"
        session = self._provider()
        column = catalyst.hidden_column(session, self._hidden)
        self._shared = {
            name: catalyst.with_hidden(session, node, column)
            for name, node in self._nodes.items()
            if name not in self._arrow
        }
        self._shared_arrow = {
            name: arrow.with_column(len(inputs[arrow.source].columns), self._hidden_field)
            for name, arrow in self._arrow.items()
        }

    def apply(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return what becomes of a batch."""
        return {name: self._applied(name, data) for name in self._names}

    def _applied(self, name: str, data: Mapping[str, Any]) -> Any:
        if name in self._same:
            return data[self._same[name]]
        node, arrow = self._nodes[name], self._arrow.get(name)
        if arrow is not None:
            frame = data[arrow.source]
            if isinstance(frame, SpanFrame):
                return frame.changed(arrow)
            if isinstance(frame, Frame | pa.Table):
                table = frame if isinstance(frame, pa.Table) else frame.toArrow()
                return Frame(arrow.rows(table), self._provider)
        before = self._before_spark(name, data)
        frames = {source: data[source] for source in node.sources}
        if before is not None:
            frames[before.source] = frames[before.source].changed(before)
        rows = {source: dataframe_of(frame, self._provider) for source, frame in frames.items()}
        places = {} if before is None else {before.source: before.places}
        return catalyst.bound(self._provider(), node, rows, places)

    def _before_spark(self, name: str, data: Mapping[str, Any]) -> ArrowPlan | None:
        """Return what tasks that read a span do to its rows before Spark has them."""
        if not any(isinstance(data[source], SpanFrame) for source in self._nodes[name].sources):
            return None
        if name not in self._before:
            self._before[name] = before_spark(self._provider(), self._nodes[name])
        return self._before[name]

    def apply_together(
        self, several: Sequence[Mapping[str, pa.Table]]
    ) -> list[dict[str, Frame]] | None:
        """Return what becomes of hot blocks, each by itself, by one job; None if it cannot be.

        What each gets is what `apply` would give it alone.
        """
        if self.mixes is not None:
            return None
        joined = {
            name: self._joined([block[name] for block in several]) for name in _sources(self._nodes)
        }
        rows = {
            name: Frame(joined[name], self._provider).dataframe for name in _sources(self._shared)
        }
        cut: list[dict[str, Frame]] = [{} for _ in several]
        for name in self._names:
            if name in self._same:
                for place, block in enumerate(several):
                    cut[place][name] = Frame(block[self._same[name]], self._provider)
                continue
            if (arrow := self._shared_arrow.get(name)) is not None:
                result = arrow.rows(joined[arrow.source])
            else:
                result = to_arrow(catalyst.bound(self._provider(), self._shared[name], rows))
                try:
                    spark_schema(result.schema)
                except ColumnTypeError as error:  # only a DataFrame holds it
                    self.mixes = name, f"a column of type {error.facts['type']}"
                    return None
            for place, piece in enumerate(_pieces(result, self._hidden, len(several))):
                cut[place][name] = Frame(piece, self._provider)
        return cut

    def _joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of several blocks, with the place of each one's block."""
        places = np.repeat(
            np.arange(len(tables), dtype=np.int32), [table.num_rows for table in tables]
        )
        return pa.concat_tables(tables).append_column(self._hidden_field, pa.array(places))

    @property
    def _hidden_field(self) -> pa.Field:
        return pa.field(self._hidden, pa.int32(), nullable=False)


def _sources(nodes: Mapping[str, catalyst.Node]) -> frozenset[str]:
    return frozenset[str]().union(*(node.sources for node in nodes.values()))


def dataframe_of(frame: Any, provider: SparkProvider) -> DataFrame:
    """Return a frame of a batch as one of Spark's."""
    if isinstance(frame, pa.Table):
        return Frame(frame, provider).dataframe
    return frame.dataframe if isinstance(frame, LikeDataFrame) else frame


def _pieces(rows: pa.Table, column: str, count: int) -> list[pa.Table]:
    """Cut rows by the place of their block."""
    index = rows.schema.get_field_index(column)
    places = rows.column(index).to_numpy()
    rows = rows.remove_column(index)
    if (places[1:] < places[:-1]).any():
        order = np.argsort(places, kind="stable")
        rows, places = rows.take(pa.array(order)), places[order]
    starts = np.searchsorted(places, np.arange(count + 1))
    return [
        rows.slice(start, end - start)
        for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]
