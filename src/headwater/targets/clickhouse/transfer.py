"""How the rows of a frame get into a table: columns fitted, marks added, nothing lost on the way.

A plan is made on the driver and may be carried out on executors; it pickles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import ClickHouseRowsError, ClickHouseTableError
from headwater.targets.clickhouse.layout import Family, Layout
from headwater.targets.clickhouse.sql import into
from headwater.targets.clickhouse.types import fit
from headwater.targets.contract import Scope
from headwater.targets.frames import block_range


@dataclass(frozen=True, slots=True)
class Transfer:
    """The plan of one frame and one table."""

    table: str
    types: Mapping[str, str]
    constants: Mapping[str, tuple[object, pa.DataType, str]]
    unique: tuple[str, ...]
    block_column: str
    blocks: tuple[int, int] | None
    deduplicates: bool

    def target(self, condition: str) -> str:
        """Return what follows INSERT INTO, if the server shall refuse without a condition."""
        added = {name: kind for name, (_, _, kind) in self.constants.items()}
        return into(self.table, {**self.types, **added}, condition)

    def apply(self, frame: pa.Table) -> pa.Table:
        """Return rows as they are sent; raise a coded error if they could not be undone."""
        if self.blocks is not None and self.block_column in self.types:
            self._check_blocks(frame)
        made = {name: fit(frame.column(name), kind, name) for name, kind in self.types.items()}
        for name, (value, kind, _) in self.constants.items():
            made[name] = pa.repeat(pa.scalar(value, kind), frame.num_rows)
        return pa.table(made)

    def _check_blocks(self, frame: pa.Table) -> None:
        assert self.blocks is not None, "asked for with a scope only"
        ends, nulls = block_range(frame.column(self.block_column))
        first, last = self.blocks
        if frame.num_rows and (nulls or ends[0] < first or ends[1] > last):
            raise ClickHouseRowsError(
                "rows whose block number is not one of the batch's",
                table=self.table,
                column=self.block_column,
                rows=f"{ends[0]}..{ends[1]}" if ends else "null",
                batch=f"{first}..{last}",
            )


def plan_transfer(
    schema: pa.Schema,
    layout: Layout,
    stream_id: str,
    scope: Scope | None,
    version: int,
) -> Transfer:
    """Plan how a frame is written.

    Raises:
        ClickHouseTableError: the table lacks a column of the frame.
    """
    lacking = [name for name in schema.names if name not in layout.columns]
    if lacking:
        raise ClickHouseTableError(
            "the table lacks columns of the frame", table=layout.name, columns=lacking
        )
    if layout.version in schema.names:
        raise ClickHouseTableError(
            "the version is set by the target", table=layout.name, column=layout.version
        )
    filled: dict[str, tuple[object, pa.DataType]] = {}
    if layout.sign and layout.sign not in schema.names:
        filled[layout.sign] = (1, pa.int8())
    if layout.version:
        filled[layout.version] = (version, pa.int64())
        filled[layout.deleted] = (0, pa.uint8())
    if layout.stream_column:
        filled[layout.stream_column] = (stream_id, pa.string())
    if scope is not None and layout.block_column not in schema.names:
        filled[layout.block_column] = (scope.block, pa.int64())
    constants = {name: (*made, layout.columns[name]) for name, made in filled.items()}
    types = {name: layout.columns[name] for name in schema.names if name not in constants}
    known = all(name in types or name in constants for name in layout.sorting_key)
    merges = layout.family is not Family.OTHER and layout.sign not in schema.names
    return Transfer(
        str(layout.name),
        types,
        constants,
        tuple(one for one in layout.sorting_key if one in types) if known and merges else (),
        layout.block_column,
        None if scope is None else (scope.after + 1, scope.block),
        layout.deduplicates,
    )
