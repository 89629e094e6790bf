"""Rows of a span that are checked as a whole before anybody gets them.

Two neighbouring parts of a span are read by different tasks, perhaps from different replicas. That
they are of one chain is known only when both are done, which is when the rows have been collected:
after that, and before they are handed on, the receipts of all parts are compared.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.spark.history import Span


class CheckedFrame:
    """The DataFrame of a span's only output. Everything but `toArrow` is the DataFrame's own."""

    __slots__ = ("_span", "dataframe")

    def __init__(self, dataframe: DataFrame, span: Span) -> None:
        self.dataframe = dataframe
        self._span = span

    def toArrow(self) -> pa.Table:  # noqa: N802 - a method of DataFrame
        """Collect the rows; `BlockLinkError` if the parts are not of one chain."""
        rows = self.dataframe.toArrow()
        self._span.report()
        return rows

    def __getattr__(self, name: str) -> Any:
        """Do as the DataFrame does."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataframe, name)

    def __getitem__(self, item: Any) -> Any:
        return self.dataframe[item]
