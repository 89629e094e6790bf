"""What a stream needs of an output, and the decoding of one batch for all outputs at once.

Lines are parsed once however many outputs there are. Each output re-checks its own filters and its
own ranges, because the lines answer the union of what all outputs asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headwater.core import BlockRange, RangeSpec
from headwater.decode.logs import parse_logs
from headwater.query import Query


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one output, and how many logs it left out because they could not be decoded."""

    table: pa.Table
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """All outputs of one batch, by name: their tables, and how many logs each left out."""

    tables: dict[str, pa.Table]
    skipped: dict[str, int]


class Output(Protocol):
    """A table that a stream fills: what to ask for, where, and how to read the answer.

    Outputs are values: made on the driver, pickled to executors, never changed.
    """

    @property
    def query(self) -> Query:
        """What to ask the portal for."""
        ...

    @property
    def ranges(self) -> tuple[RangeSpec, ...]:
        """Which blocks the user wants, not yet resolved."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        ...

    def decode(self, logs: pa.Table, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return this output's rows among the logs of a batch; `ranges` are the resolved ones."""
        ...


def decode_outputs(
    outputs: Mapping[str, Output],
    lines: Sequence[bytes],
    ranges_by_output: Mapping[str, Sequence[BlockRange]],
) -> Decoded:
    """Return the table of every output for these block lines.

    Called once per batch, on the driver near the head and on executors far behind it. The same
    lines give the same tables again, so a retried task writes the same rows.

    Raises:
        BlockContentError: a line is no block, or a log in it is malformed.
        UndecodableLogError: a log is not what an output's event allows, and it does not skip them.
    """
    logs = parse_logs(lines)
    rows = {name: one.decode(logs, ranges_by_output[name]) for name, one in outputs.items()}
    return Decoded(
        tables={name: one.table for name, one in rows.items()},
        skipped={name: one.skipped for name, one in rows.items()},
    )
