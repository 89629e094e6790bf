"""Spark's way to find the data source "headwater" by itself.

Spark imports every module called `pyspark_…` and registers its `DefaultSource`, in each application
that reads from any Python source. So nothing is imported here that such an application does not
have loaded already; the source itself is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from headwater.spark.datasource import LoadedSource
    from headwater.spark.streaming.source import LoadedStream
    from headwater.spark.streaming.writer import WritePlan
    from headwater.stream.changelog import Follower
    from headwater.stream.module_changelog import LoadedModule

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """`spark.read.format("headwater")`; `headwater.spark.options` lists the options.

    With `readStream` it is a changelog (`headwater.spark.streaming.source`). Made on the driver by
    `load()`, which asks for the schema. What was decided then is kept and pickled along, so all
    later scans of the DataFrame read the same blocks.
    """

    _loaded: LoadedSource | LoadedStream | LoadedModule | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headwater"

    def schema(self) -> StructType:
        """Return the columns. Called once, on the driver, when the source is loaded."""
        from headwater.errors import coded_line_first

        with coded_line_first():
            return self._load().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. Called on the driver whenever a scan is planned."""
        from headwater.errors import SourceOptionError, coded_line_first
        from headwater.spark.datasource import LoadedSource

        with coded_line_first():
            loaded = self._load()
            if not isinstance(loaded, LoadedSource):
                raise SourceOptionError(
                    "the options journal, finalOnly, package go with readStream"
                )
            return loaded.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a changelog. Called once per query, and whenever it is planned."""
        from headwater.errors import SourceOptionError, coded_line_first
        from headwater.spark.datasource import LoadedSource
        from headwater.spark.streaming.source import changelog_reader

        with coded_line_first():
            loaded = self._load()
            if isinstance(loaded, LoadedSource):
                raise SourceOptionError("readStream needs the option journal, or finalOnly=true")
            return changelog_reader(loaded, schema, _follow)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame. Called on the driver."""
        from headwater.errors import coded_line_first
        from headwater.spark.options import Options, Use
        from headwater.spark.streaming.writer import TableWriter, plan_write

        with coded_line_first():
            plan = plan_write(Options(self.options, Use.WRITE), schema, replaces=overwrite)
            return TableWriter(plan, _give)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        """Return the writer of a query. Called on the driver, for its plan and for each commit."""
        from headwater.errors import coded_line_first
        from headwater.spark.options import Options, Use
        from headwater.spark.streaming.writer import MicroBatchWriter, plan_write

        with coded_line_first():
            options = Options(self.options, Use.WRITE)
            replaces = overwrite and "keys" not in options  # a complete result is upserted by key
            return MicroBatchWriter(plan_write(options, schema, replaces=replaces), _give)

    def _load(self) -> LoadedSource | LoadedStream | LoadedModule:
        if self._loaded is None:
            from headwater.spark.datasource import load_source
            from headwater.spark.streaming.source import is_stream, load_stream

            if "package" in {key.lower() for key in self.options}:
                from headwater.stream.module_changelog import load_module

                self._loaded = load_module(self.options)
            elif is_stream(self.options):
                self._loaded = load_stream(self.options)
            else:
                self._loaded = load_source(self.options)
        return self._loaded


def _follow(loaded: LoadedStream | LoadedModule) -> Follower:
    """Follow the chain. Called in the one process of a query that does: it loads the loop."""
    from headwater.stream.changelog import Follower

    return Follower(loaded.changelog())


def _give(plan: WritePlan, rows: pa.Table, query: str, batch_id: int | None) -> None:
    """Write rows into a target. Called where Spark commits: it loads the target."""
    from headwater.stream.writers import write_rows

    write_rows(plan, rows, query, batch_id)
