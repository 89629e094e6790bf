"""What an endpoint says, as plain values, whatever version of the protocol carried it.

The client makes them on the driver; decoders read `ModuleOutput`s, on the driver and on executors.
All are immutable and pickle. `OutputDecoder` is the contract of what turns outputs into tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headwater.core import BlockCursor

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Clock:
    """The block that a message belongs to; `timestamp` is in seconds, `nanos` is the rest."""

    number: int
    hash: str
    timestamp: int | None = None
    nanos: int = 0

    @property
    def cursor(self) -> BlockCursor:
        """The position of this block."""
        return BlockCursor(self.number, self.hash, self.timestamp)


@dataclass(frozen=True, slots=True)
class ModuleOutput:
    """What the output module made of one block. Without output, `type_url` and `value` are empty.

    `cursor` is the endpoint's own, opaque: reading resumes after this block with it.
    `final_height` is the highest final block that the endpoint knew then; it may go backwards.
    `value` is one serialized message of the module's output type.
    """

    clock: Clock
    cursor: str
    final_height: int
    type_url: str = ""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class UndoSignal:
    """Everything above `last_valid` is off the chain; reading goes on after `cursor`."""

    last_valid: BlockCursor
    cursor: str


@dataclass(frozen=True, slots=True)
class SessionInit:
    """The first message of a session. Blocks below `linear_handoff` come from parallel workers."""

    trace_id: str
    resolved_start: int
    linear_handoff: int
    max_parallel_workers: int = 0
    chain_head: int = 0


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far the modules of one stage were processed.

    `contiguous_to` counts blocks without a hole from the start, `reached` is the highest of all.
    """

    modules: tuple[str, ...]
    contiguous_to: int | None
    running_jobs: int = 0
    reached: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What an endpoint has done so far in a session, before and between blocks."""

    stages: tuple[StageProgress, ...] = ()
    running_jobs: int = 0
    processed_blocks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class FatalError:
    """A module failed; the session ends with a status right after."""

    module: str
    reason: str
    logs: tuple[str, ...] = ()
    logs_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Outputs:
    """Consecutive outputs that arrived in one message, in ascending order."""

    items: tuple[ModuleOutput, ...]
    size: int = 0


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """A message that Headwater has not asked for, such as one of a later version."""


Message = SessionInit | Progress | Outputs | UndoSignal | FatalError | OtherMessage


class OutputDecoder(Protocol):
    """Turns the outputs of one module into tables. A value: pickled to executors, never changed.

    The same outputs give the same tables, in the same order of rows, wherever they are decoded.
    """

    @property
    def type_url(self) -> str:
        """The message type it reads, as `ModuleOutput.type_url` spells it."""
        ...

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns of every table, by output name; known before anything is read."""
        ...

    def decode(self, outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
        """Return the rows of these blocks, by output name; every name is there, also without rows.

        Each row has `block_number` (int64), `block_hash` (string) and `timestamp` (microseconds,
        UTC) of its block first, as the other outputs of Headwater. A block without output adds no
        row.

        Raises:
            DecodeError: a value is not a message of the type.
        """
        ...
