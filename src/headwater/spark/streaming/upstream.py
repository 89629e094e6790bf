"""Where the blocks of a changelog come from: what its loop needs of it, and portals.

Runs in the Python process of the query, on the driver's machine. `stream/module_changelog.py` has
the other one: a Substreams endpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headwater.core import BlockCursor, BlockRange, Density, PipeState, SpanLimits, block_count
from headwater.portal import SAMPLES, Clock, PortalClient, PortalSource, StreamQuery
from headwater.spark.partitions import plan_parts
from headwater.spark.parts import RowMaker
from headwater.spark.streaming.journal import Journal

if TYPE_CHECKING:
    from headwater.pipeline import Source

_log = logging.getLogger(__name__)
FEW = 100  # blocks that are not measured before they are read


@dataclass(frozen=True, slots=True)
class Limits:
    """What one micro-batch may hold: of final blocks that executors read, and of hot ones.

    `may_lose`: blocks that the portal no longer has are left out.
    """

    span: SpanLimits
    hot_blocks: int
    hot_bytes: int
    first_span: int
    far: int
    partitions: int | None = None
    may_lose: bool = False


def leave_out(blocks: Sequence[BlockRange]) -> None:
    """Say which blocks a changelog goes on without. Called again wherever they are missed again."""
    _log.warning(
        "changelog.left_out blocks=%s count=%d: the portal does not have them any more",
        ", ".join(map(str, blocks)),
        sum(map(block_count, blocks)),
    )


def remaining(blocks: BlockRange, oldest: int) -> BlockRange | None:
    """Return the blocks from the oldest one on that a portal has, and say which are left out."""
    if oldest <= blocks.from_block:
        return blocks
    last = oldest - 1 if blocks.to_block is None else min(oldest - 1, blocks.to_block)
    leave_out([BlockRange(blocks.from_block, last)])
    return None if last == blocks.to_block else BlockRange(oldest, blocks.to_block)


class Upstream(Protocol):
    """Where blocks come from: a portal, or a Substreams endpoint.

    The marks of the latter are what reading resumes with where a block's cursor is not enough; a
    class that derives from this one and has none leaves them out.
    """

    def newest(self, *, final: bool) -> BlockCursor | None:
        """Ask for the newest block of now, or the newest final one."""
        ...

    def open(self, first: int, last: int | None, *, final: bool) -> Source:
        """Return what reads a range. An earlier one is no longer used."""
        ...

    def cut(self, blocks: BlockRange, measured: Sequence[Density]) -> Sequence[BlockRange]:
        """Cut final blocks into parts for executors."""
        raise AssertionError("all blocks are in the journal")

    def mark(self, last: BlockCursor) -> str | None:
        """Return what reading resumes with after a block, if its cursor is not enough."""
        return None

    def resume(self, marks: Iterable[tuple[BlockCursor, str]]) -> None:
        """Take the marks of a journal, oldest first. Called before anything is read."""
        return

    def written(self, state: PipeState) -> None:
        """Forget what is in the journal now."""
        return

    def rest(self) -> None:
        """Let connections go until the next request."""
        ...

    def close(self) -> None:
        """Release everything."""
        self.rest()


class Changelog(NamedTuple):
    """What is followed for one source of a query. Without a journal there are only final blocks.

    `to_block` is the last block of the changelog, if any.
    """

    upstream: Upstream
    row_maker: RowMaker
    journal: Journal | None
    limits: Limits
    to_block: int | None = None


class PortalUpstream(Upstream):
    """A portal. `watch` is the query without filters."""

    def __init__(
        self,
        client: PortalClient,
        query: StreamQuery,
        watch: StreamQuery,
        limits: Limits,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._query = query
        self._watch = watch
        self._limits = limits
        self._clock = clock

    def newest(self, *, final: bool) -> BlockCursor | None:
        """Ask for the newest block of now, or the newest final one."""
        return self._client.finalized_head() if final else self._client.head()

    def open(self, first: int, last: int | None, *, final: bool) -> Source:
        """Return what reads a range."""
        limits = self._limits
        is_empty = last is not None and last < first
        return PortalSource(
            self._client,
            [] if is_empty else [(BlockRange(first, last), self._query)],
            watch=self._watch,
            far=1 if final else limits.far,
            first_span=limits.first_span,
            limits=limits.span,
            finalized=final,
            clock=self._clock,
            leave_out=leave_out if limits.may_lose else None,
        )

    def cut(self, blocks: BlockRange, measured: Sequence[Density]) -> Sequence[BlockRange]:
        """Cut final blocks into parts for executors, without those that may be lost and are.

        A query whose tasks no longer found them goes on so when it is started again.
        """
        oldest = self._client.oldest_block() if self._limits.may_lose else 0
        kept = remaining(blocks, oldest)
        if kept is None:
            return ()
        blocks, measured = kept, measured if kept == blocks else ()
        return plan_parts(
            self._client,
            self._query,
            blocks,
            partitions=self._limits.partitions,
            cores=os.cpu_count() or 1,
            samples=SAMPLES if block_count(blocks) > FEW else 0,
            densities=measured,
        )

    def rest(self) -> None:
        """Let connections go until the next request."""
        self._client.rest()
