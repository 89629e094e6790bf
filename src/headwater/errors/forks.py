"""E1: Forks: the chain and the stored state cannot be reconciled."""

from headwater.errors.base import ForkError


class ForkHandlerMissingError(
    ForkError,
    code="E1001",
    fix="give create_target a fork callback, or pipe_to_iterator an on_fork, that returns the last "
    "good cursor; or hold back more blocks (undo_buffer)",
):
    """The chain forked, and the target has nothing to decide with."""


class EmptyForkSampleError(
    ForkError,
    code="E1002",
    fix="report it to the portal's operator; this answer changed nothing, so a restart is safe",
):
    """The portal reported a fork (409) without naming a single block of its chain."""


class ForkCursorMissingError(
    ForkError,
    code="E1003",
    fix="final blocks are untouched, and what is stored is still one branch of the chain, up to "
    "the cursor; check that the portal serves the same chain, then rewind to a block you trust or "
    "start a new stream",
):
    """No block held locally can still be canonical without giving up finalized data."""


class LaggingPortalError(
    ForkError,
    code="E1004",
    fix="final blocks are untouched; wait for the portal's replicas to catch up, or use another "
    "portal",
    retryable=True,
):
    """The portal keeps answering from below a cursor that is already final."""


class FinalizedForkError(
    ForkError,
    code="E1005",
    fix="run it again; if it stays, report to the portal's operator that its replicas disagree "
    "about finalized blocks",
    retryable=True,
):
    """The portal reported a fork among finalized blocks."""


class HotBatchError(
    ForkError,
    code="E1006",
    fix="cut answers with headwater.core.cut_batches: a batch holds final blocks, or one hot block",
):
    """A batch holds several blocks above the finalized head, so it could not be undone exactly."""


class ForkCursorError(
    ForkError,
    code="E1007",
    fix="return a BlockCursor that the stream has delivered, below the one it stands at, or None "
    "to give up; nothing after the last batch was handed out",
):
    """A fork callback named a cursor that the stream cannot go on from without losing blocks."""


class FanOutBranchError(
    ForkError,
    code="E1008",
    fix="start the stream again: targets that differ are brought onto one branch first; if that "
    "fails too, give the target that the message names a place of its own and let it begin anew",
    retryable=True,
):
    """Targets of one stream hold different blocks under the same number."""


class FanOutFrameError(
    ForkError,
    code="E1009",
    fix="keep block_number in the frames that transforms return; or give the target that is behind "
    "a stream of its own until it has caught up",
):
    """A target is ahead of the others of its stream, and rows do not say their block."""


class RewindError(
    ForkError,
    code="E1010",
    fix="rewind only to a cursor of the rollback chain, or to the finalized cursor",
):
    """A rewind names a block that the state holds no anchor for."""
