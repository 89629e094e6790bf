"""What an endpoint says: as plain values, and as the messages of sf.substreams.rpc v2 to v4.

The client makes the values on the driver, whatever version of the protocol carried them; decoders
read `ModuleOutput`s, on the driver and on executors. All are immutable and pickle. `OutputDecoder`
is the contract of what turns outputs into tables. `CLASSES` is the protocol, as far as it is used:
names, numbers and types; other fields of a message are passed over. A package and its modules are
`bytes` in it: on the wire that is the same as a message, and they are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import DecodeError as WireError

from headwater.core import BlockCursor
from headwater.errors import SubstreamsMessageError
from headwater.substreams.columns import FARTHEST_S
from headwater.substreams.descriptors import build_classes

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


# --- on the wire ----------------------------------------------------------------------------------

V2, V3, V4 = 2, 3, 4
VERSIONS = (V4, V3, V2)  # in the order in which they are tried

_REQUEST = (
    "start_block_num 1 i64, start_cursor 2 str, stop_block_num 3 u64, final_blocks_only 4 bool, "
    "production_mode 5 bool, output_module 6 str"
)
_RESPONSE = (
    "|session 1 SessionInit, |progress 2 ModulesProgress, |block_undo_signal 4 BlockUndoSignal, "
    "|fatal_error 5 Error"
)
CLASSES = build_classes(
    {
        "Any": "type_url 1 str, value 2 bytes",
        "Timestamp": "seconds 1 i64, nanos 2 i32",
        "Clock": "id 1 str, number 2 u64, timestamp 3 Timestamp",
        "BlockRef": "id 1 str, number 2 u64",
        "v2.Request": f"{_REQUEST}, modules 7 bytes",
        "Param": "key 1 str, value 2 str",
        "v3.Request": f"{_REQUEST}, package 7 bytes, *params 8 Param, network 9 str",
        "v2.Response": f"{_RESPONSE}, |block_scoped_data 3 BlockScopedData",
        "v4.Response": f"{_RESPONSE}, |block_scoped_datas 3 BlockScopedDatas",
        "BlockScopedDatas": "*items 1 BlockScopedData",
        "BlockScopedData": "output 1 MapModuleOutput, clock 2 Clock, cursor 3 str, "
        "final_block_height 4 u64, attestation 12 str, is_partial 13 bool",
        "MapModuleOutput": "name 1 str, map_output 2 Any",
        "BlockUndoSignal": "last_valid_block 1 BlockRef, last_valid_cursor 2 str",
        "SessionInit": "trace_id 1 str, resolved_start_block 2 u64, linear_handoff_block 3 u64, "
        "max_parallel_workers 4 u64, chain_head 6 u64",
        "ModulesProgress": "*running_jobs 2 Job, *stages 4 Stage, "
        "processed_bytes 5 ProcessedBytes, processed_blocks 6 u64",
        "Job": "stage 1 u32, start_block 2 u64, stop_block 3 u64",
        "Stage": "*modules 1 str, *completed_ranges 2 BlockRange",
        "BlockRange": "start_block 2 u64, end_block 3 u64",
        "ProcessedBytes": "total_bytes_read 1 u64, total_bytes_written 2 u64",
        "Error": "module 1 str, reason 2 str, *logs 3 str, logs_truncated 4 bool",
    }
)


_RESPONSES = {V2: "v2.Response", V3: "v2.Response", V4: "v4.Response"}


def read_response(version: int, data: bytes) -> Message:
    """Return what an endpoint said.

    Raises:
        SubstreamsMessageError: the bytes are no message of the protocol, or lack what each has.
    """
    try:
        response = CLASSES[_RESPONSES[version]].FromString(data)
    except WireError as error:
        raise SubstreamsMessageError(
            "a message of the endpoint cannot be read", bytes=len(data), reason=error
        ) from None
    match response.WhichOneof("message"):
        case "block_scoped_datas":
            items = tuple(_output(item) for item in response.block_scoped_datas.items)
            return Outputs(items, len(data)) if items else OtherMessage()
        case "block_scoped_data":
            return Outputs((_output(response.block_scoped_data),), len(data))
        case "block_undo_signal":
            undo = response.block_undo_signal
            block = undo.last_valid_block
            if not undo.last_valid_cursor:
                raise SubstreamsMessageError("an undo signal has no cursor", block=block.number)
            return UndoSignal(BlockCursor(block.number, block.id or None), undo.last_valid_cursor)
        case "session":
            return _session(response.session)
        case "progress":
            return _progress(response.progress)
        case "fatal_error":
            said = response.fatal_error
            return FatalError(said.module, said.reason, tuple(said.logs), said.logs_truncated)
        case _:
            return OtherMessage()


def _output(data: Any) -> ModuleOutput:
    clock, output = data.clock, data.output.map_output
    if not data.cursor or not clock.id:
        raise SubstreamsMessageError("a block has no cursor or no hash", block=clock.number)
    if data.is_partial:
        raise SubstreamsMessageError("a part of a block came unasked", block=clock.number)
    seconds = clock.timestamp.seconds if clock.HasField("timestamp") else None
    if abs(seconds or 0) > FARTHEST_S:
        raise SubstreamsMessageError("a block's time is none", block=clock.number, seconds=seconds)
    at = Clock(clock.number, clock.id, seconds, clock.timestamp.nanos)
    return ModuleOutput(at, data.cursor, data.final_block_height, output.type_url, output.value)


def _session(said: Any) -> SessionInit:
    return SessionInit(
        said.trace_id,
        said.resolved_start_block,
        said.linear_handoff_block,
        said.max_parallel_workers,
        said.chain_head,
    )


def _progress(said: Any) -> Progress:
    jobs = [job.stage for job in said.running_jobs]
    return Progress(
        tuple(
            StageProgress(tuple(stage.modules), *_ends(stage, jobs.count(at)))
            for at, stage in enumerate(said.stages)
        ),
        len(jobs),
        said.processed_blocks,
        said.processed_bytes.total_bytes_read,
        said.processed_bytes.total_bytes_written,
    )


def _ends(stage: Any, jobs: int) -> tuple[int | None, int, int | None]:
    """Return where the first completed range of a stage ends, its jobs, and where the last does."""
    ranges = sorted(
        (completed.start_block, completed.end_block) for completed in stage.completed_ranges
    )
    return (ranges[0][1], jobs, ranges[-1][1]) if ranges else (None, jobs, None)
