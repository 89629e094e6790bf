"""The messages of the protocol on the wire: sf.substreams.rpc v2, v3 and v4, as protobuf classes.

`CLASSES` is the whole of it: names, numbers and types. A package and its modules are `bytes` here:
on the wire that is the same as a message, and they are sent as they are. Runs on the driver.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError as WireError

from headwater.core import BlockCursor
from headwater.errors import SubstreamsMessageError
from headwater.substreams.columns import FARTHEST_S
from headwater.substreams.descriptors import build_classes
from headwater.substreams.messages import (
    Clock,
    FatalError,
    Message,
    ModuleOutput,
    OtherMessage,
    Outputs,
    Progress,
    SessionInit,
    StageProgress,
    UndoSignal,
)

V2, V3, V4 = 2, 3, 4
VERSIONS = (V4, V3, V2)  # in the order in which they are tried
TYPE_URL = "type.googleapis.com/"

CLASSES = build_classes(
    {
        "Any": "type_url 1 str, value 2 bytes",
        "Timestamp": "seconds 1 i64, nanos 2 i32",
        "Clock": "id 1 str, number 2 u64, timestamp 3 Timestamp",
        "BlockRef": "id 1 str, number 2 u64",
        "v2.Request": """
        start_block_num 1 i64, start_cursor 2 str, stop_block_num 3 u64, final_blocks_only 4 bool,
        production_mode 5 bool, output_module 6 str, modules 7 bytes,
        *debug_initial_store_snapshot_for_modules 10 str, noop_mode 11 bool,
        limit_processed_blocks 12 u64, *dev_output_modules 13 str,
        progress_messages_interval_ms 14 u64, partial_blocks 16 bool""",
        "Param": "key 1 str, value 2 str",
        "v3.Request": """
        start_block_num 1 i64, start_cursor 2 str, stop_block_num 3 u64, final_blocks_only 4 bool,
        production_mode 5 bool, output_module 6 str, package 7 bytes,
        *params 8 Param, network 9 str,
        *debug_initial_store_snapshot_for_modules 10 str, noop_mode 11 bool,
        limit_processed_blocks 12 u64, *dev_output_modules 13 str,
        progress_messages_interval_ms 14 u64, partial_blocks 16 bool""",
        "v2.Response": """
        |session 1 SessionInit,
        |progress 2 ModulesProgress,
        |block_scoped_data 3 BlockScopedData,
        |block_undo_signal 4 BlockUndoSignal,
        |fatal_error 5 Error""",
        "v4.Response": """
        |session 1 SessionInit,
        |progress 2 ModulesProgress,
        |block_scoped_datas 3 BlockScopedDatas,
        |block_undo_signal 4 BlockUndoSignal,
        |fatal_error 5 Error""",
        "BlockScopedDatas": "*items 1 BlockScopedData",
        "BlockScopedData": """
        output 1 MapModuleOutput, clock 2 Clock,
        cursor 3 str, final_block_height 4 u64, attestation 12 str, is_partial 13 bool,
        ?partial_index 14 u32, ?is_last_partial 15 bool""",
        "MapModuleOutput": "name 1 str, map_output 2 Any",
        "BlockUndoSignal": """
        last_valid_block 1 BlockRef, last_valid_cursor 2 str""",
        "SessionInit": """
        trace_id 1 str, resolved_start_block 2 u64, linear_handoff_block 3 u64,
        max_parallel_workers 4 u64, attestation_public_key 5 str, chain_head 6 u64,
        blocks_to_process_before_start_block 7 u64,
        effective_blocks_to_process_before_start_block 8 u64,
        blocks_to_process_after_start_block 9 u64,
        effective_blocks_to_process_after_start_block 10 u64""",
        "ModulesProgress": """
        *running_jobs 2 Job, *stages 4 Stage,
        processed_bytes 5 ProcessedBytes, processed_blocks 6 u64""",
        "Job": """
        stage 1 u32, start_block 2 u64, stop_block 3 u64, progress_blocks 4 u64,
        duration_ms 5 u64""",
        "Stage": """
        *modules 1 str, *completed_ranges 2 BlockRange""",
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
    clock, made = data.clock, data.output.map_output
    if not data.cursor or not clock.id:
        raise SubstreamsMessageError("a block has no cursor or no hash", block=clock.number)
    if data.is_partial:
        raise SubstreamsMessageError("a part of a block came unasked", block=clock.number)
    seconds = clock.timestamp.seconds if clock.HasField("timestamp") else None
    if abs(seconds or 0) > FARTHEST_S:
        raise SubstreamsMessageError("a block's time is none", block=clock.number, seconds=seconds)
    at = Clock(clock.number, clock.id, seconds, clock.timestamp.nanos)
    return ModuleOutput(at, data.cursor, data.final_block_height, made.type_url, made.value)


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
    ranges = sorted((one.start_block, one.end_block) for one in stage.completed_ranges)
    return (ranges[0][1], jobs, ranges[-1][1]) if ranges else (None, jobs, None)
