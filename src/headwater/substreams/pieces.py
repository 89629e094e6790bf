"""Outputs on their way through the loop, with the tables that were made of them as they arrived.

The source decodes neighbours together while the loop waits for the database; whoever decodes the
outputs of a batch takes those tables, if the batch holds all of them. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from headwater.substreams.messages import ModuleOutput, OutputDecoder

Tables = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What was made of outputs as they arrived: their tables, and what the target has prepared."""

    outputs: int
    tables: Tables
    ahead: Any = None


@dataclass(frozen=True, slots=True)
class Piece:
    """An output on its way through the loop: the line of its block.

    `made` is what was made of it as it arrived, together with its neighbours.
    """

    output: ModuleOutput
    made: Made | None = None

    def __len__(self) -> int:
        return len(self.output.value)


def ahead_of(pieces: Sequence[Piece]) -> Any:
    """Return what the target has prepared of these outputs, all of them and no others."""
    made = pieces[0].made if pieces else None
    whole = made is not None and made.outputs == len(pieces)
    return made.ahead if made is not None and whole and made is pieces[-1].made else None


def decode_pieces(pieces: Sequence[Piece], decoder: OutputDecoder) -> Tables:
    """Return the tables of outputs; what was decoded as it arrived is not decoded again."""
    tables: list[Tables] = []
    for made, several in groupby(pieces, lambda piece: piece.made):
        outputs = [piece.output for piece in several]
        if made is not None and made.outputs == len(outputs):
            tables.append(made.tables)
        else:  # only a part of them was handed out
            tables.append(decoder.decode(outputs))
    if len(tables) == 1:
        return tables[0]
    if not tables:
        return decoder.decode([])
    return {name: pa.concat_tables([one[name] for one in tables]) for name in decoder.schemas}
