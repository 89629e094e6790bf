"""Decisions about the chain, and nothing else.

Standard library only; no clock, no chance, no logging, no I/O. Every function is total: each input
gives a value or a coded error. Runs on the driver and on executors alike.
"""

from headwater.core.cursor import BlockCursor, BlockHeader, Head
from headwater.core.flush import Flush, FlushRules, Pending
from headwater.core.fork import (
    ForkResolution,
    ForkRule,
    contradicting_block,
    find_rollback_index,
    is_stale,
    resolve_fork,
    resolve_undo,
)
from headwater.core.messages import (
    Answer,
    AtHead,
    Batch,
    Blocks,
    Dropped,
    Fork,
    RangeEnd,
    Raw,
    Span,
    Undo,
    batches,
    hot_groups,
)
from headwater.core.ranges import (
    BlockRange,
    RangeSpec,
    anchor_for,
    clip_ranges,
    merge_ranges,
    parse_ranges,
    segment_ranges,
)
from headwater.core.rollback_history import RollbackHistory
from headwater.core.spans import (
    BLOCK_COST,
    BYTES_PER_ROW,
    BYTES_PER_SECOND,
    Density,
    SpanLimits,
    SpanSize,
    block_count,
    even_partitions,
    up_to,
)
from headwater.core.state import (
    DEFAULT_CAP,
    Chain,
    FinalizedWatermark,
    PipeState,
    believed_head,
    cut_batches,
    final_number,
    hot_cursors,
)
from headwater.core.undo_buffer import HeldBlock, Holding

__all__ = [
    "BLOCK_COST",
    "BYTES_PER_ROW",
    "BYTES_PER_SECOND",
    "DEFAULT_CAP",
    "Answer",
    "AtHead",
    "Batch",
    "BlockCursor",
    "BlockHeader",
    "BlockRange",
    "Blocks",
    "Chain",
    "Density",
    "Dropped",
    "FinalizedWatermark",
    "Flush",
    "FlushRules",
    "Fork",
    "ForkResolution",
    "ForkRule",
    "Head",
    "HeldBlock",
    "Holding",
    "Pending",
    "PipeState",
    "RangeEnd",
    "RangeSpec",
    "Raw",
    "RollbackHistory",
    "Span",
    "SpanLimits",
    "SpanSize",
    "Undo",
    "anchor_for",
    "batches",
    "believed_head",
    "block_count",
    "clip_ranges",
    "contradicting_block",
    "cut_batches",
    "even_partitions",
    "final_number",
    "find_rollback_index",
    "hot_cursors",
    "hot_groups",
    "is_stale",
    "merge_ranges",
    "parse_ranges",
    "resolve_fork",
    "resolve_undo",
    "segment_ranges",
    "up_to",
]
