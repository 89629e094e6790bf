"""What `verify` has found: the tables that were compared, what differs, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from headwater.errors import VerifyError
from headwater.targets.compare import (
    COUNT,
    BlockFinding,
    KeyFinding,
    compare_blocks,
    shared_columns,
)


@dataclass
class TableReport:
    """What was compared of one table, and what differs. Columns of one side are named."""

    table: str
    output: str
    blocks: int = 0
    expected: int = 0
    stored: int = 0
    not_compared: list[str] = field(default_factory=list)
    findings: list[BlockFinding | KeyFinding] = field(default_factory=list)

    def add(self, expected: pa.Table, stored: pa.Table, block_column: str) -> None:
        """Compare the rows of some blocks."""
        shared = shared_columns(expected.column_names, stored.column_names)
        if block_column.casefold() not in map(str.casefold, shared):
            raise VerifyError(
                "the output lacks the column with the number of the block",
                table=self.table, output=self.output, column=block_column,
            )  # fmt: skip
        names = {*expected.column_names, *stored.column_names} - {COUNT}
        alone = names - set(shared) - set(shared.values())
        self.not_compared = sorted({*self.not_compared, *alone})
        self.expected += expected.num_rows
        self.stored += sum(stored[COUNT].to_pylist()) if stored.num_rows else 0
        self.findings += compare_blocks(expected, stored, block_column)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that the stream wrote and that was not compared, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found. Only `is_equal` and `is_complete` together mean that all is well."""

    tables: tuple[TableReport, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all that was compared is equal."""
        return not any(one.findings for one in self.tables)

    @property
    def is_complete(self) -> bool:
        """Whether all that the stream wrote here, or that was asked for, was compared."""
        return not self.left_out
