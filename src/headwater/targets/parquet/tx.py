"""The `tx` that `on_data` of a Parquet target writes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headwater.errors import ParquetWriteError
from headwater.targets.parquet.held import HeldBatch

if TYPE_CHECKING:
    from headwater.targets.parquet.target import ParquetTarget


class Tx:
    """What `on_data` writes with: inserts only."""

    def __init__(
        self, target: ParquetTarget, held: HeldBatch, window: tuple[int, int], *, far: bool
    ) -> None:
        self._target, self._held, self._window, self._far = target, held, window, far

    def insert(self, table: str, frame: Any) -> None:
        """Add the rows of a frame to a table. They are published once their block is final."""
        self._target.insert(self._held, table, frame, self._window, far=self._far)

    def upsert(self, table: str, frame: Any, *, key: Sequence[str]) -> None:
        """Refuse: plain files cannot be changed."""
        raise ParquetWriteError("Parquet files take no upsert", table=table)

    def delete(self, table: str, frame: Any, *, key: Sequence[str]) -> None:
        """Refuse: plain files cannot be changed."""
        raise ParquetWriteError("Parquet files take no delete", table=table)
