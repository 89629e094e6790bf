"""Tables of the catalogs of a user's session, as targets write them. Runs on the driver.

What is done is SQL and Spark's own writer, so it is the same for every catalog that the session has
been configured with. Formats differ in what they are asked for, which `targets/spark_table` knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types as spark
from pyspark.sql.types import StructType

from headwater.errors import LakeSchemaError, LakeStorageError, SparkTableError
from headwater.spark.executors import coded_failures
from headwater.spark.frames import LikeDataFrame, from_arrow, spark_schema
from headwater.spark.session import active_session

_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
_MISSING = "TABLE_OR_VIEW_NOT_FOUND"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


class CatalogTables:
    """The tables that a session reaches by name. A name comes with its quotes, where it has any.

    `announce` is told each step that changes something or looks, before it is made.
    """

    def __init__(
        self, session: SparkSession | None, announce: Callable[[str], None] = lambda step: None
    ) -> None:
        session = session or active_session()
        if session is None:
            raise SparkTableError("there is no Spark session: give yours as spark=")
        self._session = session
        self._announce = announce

    def sql(self, text: str) -> list[dict[str, Any]]:
        """Run a statement; return its rows.

        Raises:
            SparkTableError: the session does not understand it.
            LakeStorageError: it fails.
        """
        self._announce(text)
        with _coded():
            return [row.asDict(recursive=True) for row in self._session.sql(text).collect()]

    def columns(self, name: str) -> StructType | None:
        """Return the columns of a table; None if there is no such table.

        Raises:
            SparkTableError: the catalog cannot be asked.
        """
        try:
            return self._session.table(name).schema
        except (PySparkException, Py4JError) as error:
            if _MISSING in str(error):
                return None
            raise SparkTableError("the catalog cannot be asked", said=_said(error)) from error

    def frame(self, rows: Any) -> DataFrame:
        """Return rows, an Arrow table or a DataFrame of the session, as a DataFrame.

        Raises:
            SparkTableError: it is of another session, which does not know the catalog.
            ColumnTypeError: Spark has no such type.
        """
        if isinstance(rows, LikeDataFrame):
            rows = rows.dataframe
        if not type(rows).__module__.startswith("pyspark.sql."):
            return from_arrow(self._session, rows, spark_schema(rows.schema))
        if rows.sparkSession is not self._session:
            raise SparkTableError(
                "the stream and its table have two sessions: give the same one to both as spark="
            )
        frame: DataFrame = rows
        return frame

    def fitted(
        self,
        table: str,
        frame: DataFrame,
        columns: StructType,
        block: tuple[str, int, int],
        never_empty: Sequence[str] = (),
    ) -> DataFrame:
        """Return a frame with exactly the columns of a table, and rows that may be written.

        `block` names the column of the block, and the blocks that rows may be of: above the first,
        up to the second. Rows that say another, or an empty text in `never_empty`, end the job with
        a coded error.

        Raises:
            LakeSchemaError: a column is missing in the table, or of another type there.
        """
        by_name = {column.name: column for column in columns}
        for field in frame.schema:
            own = by_name.get(field.name)
            if own is None or not _fits(field.dataType, own.dataType):
                raise LakeSchemaError(
                    "the table has no place for a column", table=table, column=field.name,
                    frame=field.dataType.simpleString(),
                    held="missing" if own is None else own.dataType.simpleString(),
                )  # fmt: skip
        name, after, last = block
        if name not in frame.columns:
            raise LakeSchemaError(
                "rows must say their block, or a fork could not undo them", table=table, column=name
            )
        own_block = LakeSchemaError(
            "a row is of a block outside of its batch", table=table, after=after, last=last
        )
        empty = LakeSchemaError("a partition of Delta cannot hold an empty text", table=table)
        expressions = []
        for column in columns:
            value = F.col(_quoted(column.name)) if column.name in frame.columns else F.lit(None)
            if column.name == name:
                value = _checked(value, (value > after) & (value <= last), own_block)
            elif column.name in never_empty:
                value = _checked(value, value.isNull() | (value != ""), empty)
            expressions.append(value.cast(column.dataType).alias(column.name))
        return frame.select(*expressions)

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of several frames with the same columns."""
        first, *others = frames
        for other in others:
            first = first.unionAll(other)
        return first

    def empty(self, columns: StructType) -> DataFrame:
        """Return a frame without rows."""
        return self._session.createDataFrame([], columns)

    def create(self, name: str, frame: DataFrame, provider: str, said: Mapping[str, str]) -> None:
        """Create an empty table with the columns of a frame; leave one that is there already."""
        fields = [spark.StructField(field.name, field.dataType) for field in frame.schema]
        writer = self.empty(StructType(fields)).writeTo(name).using(provider)
        for key, value in said.items():
            writer = writer.tableProperty(key, value)
        self._announce(f"create {name}")
        try:
            writer.create()
        except (PySparkException, Py4JError) as error:
            if self.columns(name) is None:
                raise SparkTableError(
                    "the table cannot be created", table=name, said=_said(error)
                ) from error

    def append(self, name: str, frame: DataFrame, options: Mapping[str, str]) -> None:
        """Add rows in one commit."""
        self._announce(f"append to {name}")
        with _coded(), coded_failures():
            frame.writeTo(name).options(**options).append()

    def replace_above(
        self, name: str, column: str, number: int, frame: DataFrame, options: Mapping[str, str]
    ) -> None:
        """Replace the rows above a block by others, in one commit."""
        self._announce(f"replace rows of {name}")
        with _coded(), coded_failures():
            condition = F.col(_quoted(column)) > F.lit(number).cast("bigint")
            frame.writeTo(name).options(**options).overwrite(condition)


def _checked(value: Column, is_good: Column, error: LakeSchemaError) -> Column:
    return F.when(is_good, value).otherwise(F.raise_error(F.lit(str(error))))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _fits(kind: spark.DataType, other: spark.DataType) -> bool:
    """Tell whether every value of a type has a place in another, exactly."""
    ours, theirs = kind.simpleString(), other.simpleString()
    if ours in (theirs, "void") or theirs in _WIDER.get(ours, ()):
        return True
    small, large = _DECIMAL.fullmatch(ours), _DECIMAL.fullmatch(theirs)
    return bool(small and large and small[2] == large[2] and int(small[1]) <= int(large[1]))


def _said(error: BaseException) -> str:
    """Return the line of an error of Spark's that says what happened."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "Exception: " in line), lines[0] if lines else "")
    return told.strip()[:200]


@contextmanager
def _coded() -> Iterator[None]:
    """Raise what Spark says as coded errors."""
    try:
        yield
    except AnalysisException as error:  # one of them is a parser's
        raise SparkTableError("the session refuses a statement", said=_said(error)) from error
    except (PySparkException, Py4JError) as error:
        raise LakeStorageError("Spark could not do it", said=_said(error)) from error
