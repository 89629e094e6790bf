"""Spark's way to find the data source "headwater" by itself.

Spark imports every module called `pyspark_…` and registers its `DefaultSource`, in each application
that reads from any Python source. So nothing is imported here that such an application does not
have loaded already; the source itself is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headwater.spark.datasource import LoadedSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """`spark.read.format("headwater")`; `headwater.spark.datasource` describes the options.

    Made on the driver by `load()`, which asks for the schema. What was decided then is kept and
    pickled along, so all later scans of the DataFrame read the same blocks.
    """

    _loaded: LoadedSource | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headwater"

    def schema(self) -> StructType:
        """Return the columns. Called once, on the driver, when the source is loaded."""
        return self._load().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. Called on the driver whenever a scan is planned."""
        return self._load().reader(schema)

    def _load(self) -> LoadedSource:
        if self._loaded is None:
            from headwater.spark.datasource import load_source

            self._loaded = load_source(self.options)
        return self._loaded
