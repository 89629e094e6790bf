"""What the user holds: streams, transforms, targets of one's own, iteration."""

from headwater.runtime import StopRequested
from headwater.stream.context import (
    BatchContext,
    BatchInfo,
    Progress,
    QueryInfo,
    StartInfo,
    StreamBatch,
    StreamInfo,
    StreamState,
)
from headwater.stream.handle import StreamHandle
from headwater.stream.micro_batches import ForeachBatch, foreach_batch
from headwater.stream.owned import OwnedTarget, create_target
from headwater.stream.portal import PortalStream, portal_stream
from headwater.stream.stream import Stream, pipe_to_iterator
from headwater.stream.user_code import Transformer

__all__ = [
    "BatchContext",
    "BatchInfo",
    "ForeachBatch",
    "OwnedTarget",
    "PortalStream",
    "Progress",
    "QueryInfo",
    "StartInfo",
    "StopRequested",
    "Stream",
    "StreamBatch",
    "StreamHandle",
    "StreamInfo",
    "StreamState",
    "Transformer",
    "create_target",
    "foreach_batch",
    "pipe_to_iterator",
    "portal_stream",
]
