"""What `POST stream` and `POST finalized-stream` answer, honestly, from what one replica holds.

The answer follows from the request alone: the anchor it names is compared with the branch that the
replica holds, and the range is cut to what the replica has. There is no session and no memory.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from headwater.core import BlockCursor
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.portal.answer import Buffer, Draft
from headwater.testing.portal.replicas import View
from headwater.testing.portal.select import POSITION, BadRequest, Selection

MAX_BODY_BYTES = 256 * 1024
SPAN = 64
KEPT_LINES = 512
CHUNK_BLOCKS = 20  # of the real-time service, which writes small ones and joins them later
_OVERHEAD = 200  # bytes an entry costs beside its text, roughly


@dataclass(slots=True)
class Body:
    """The lines of a range: buffers that end at line ends, and the numbers at both ends."""

    parts: list[Buffer]
    count: int = 0
    lowest: int | None = None
    highest: int | None = None

    def add(self, part: Buffer, numbers: list[int] | array[int]) -> None:
        """Append lines of these blocks."""
        if not numbers:
            return
        self.parts.append(part)
        self.count += len(numbers)
        self.highest = numbers[-1]
        if self.lowest is None:
            self.lowest = numbers[0]


@dataclass(frozen=True, slots=True)
class _Joined:
    """The lines of one span; `ends[i]` is where the line of block `numbers[i]` ends."""

    text: bytes
    numbers: array[int]
    ends: array[int]

    def between(self, from_number: int, to_number: int) -> tuple[Buffer, array[int]]:
        first = bisect_left(self.numbers, from_number)
        stop = bisect_right(self.numbers, to_number)
        if first == stop:
            return b"", array("q")
        if stop - first == len(self.numbers):
            return self.text, self.numbers
        start = self.ends[first - 1] if first else 0
        return memoryview(self.text)[start : self.ends[stop - 1]], self.numbers[first:stop]


class LineCache:
    """Renders lines, and keeps them so that serving a block twice costs a copy.

    A block never changes under its hash, so its line under one selection never does. Lines of a
    filled span of numbers are joined into one buffer, named by the hash of its last block (which
    fixes all blocks before it). The oldest go first when the budget is reached. Lines of the last
    span, which is not filled yet, are kept one by one. Callers hold the chain's lock.
    """

    def __init__(self, chain: ChainSim, budget: int) -> None:
        self._chain = chain
        self._budget = budget
        self._spent = 0
        self._joined: OrderedDict[tuple[str, str], _Joined] = OrderedDict()
        self._kept = lru_cache(maxsize=KEPT_LINES)(self._line)

    def body(self, selection: Selection, view: View, first: SimBlock, last: SimBlock) -> Body:
        """Return the lines from block to block, with a header-only line at an end that is bare."""
        body = Body([])
        number = first.number
        while number <= last.number:
            end = number - number % SPAN + SPAN - 1
            stop = min(end, last.number)
            if end <= view.tip.number:
                body.add(*self._span(selection, view, end).between(number, stop))
            else:
                for block in view.blocks(number, stop):
                    if line := self._kept(selection, block):
                        body.add(line, [block.number])
            number = end + 1
        if body.lowest != first.number:
            body.parts.insert(0, self._line(selection, first, boundary=True))
            body.count += 1
        if body.highest != last.number and first != last:
            body.parts.append(self._line(selection, last, boundary=True))
            body.count += 1
        return body

    def _span(self, selection: Selection, view: View, end: int) -> _Joined:
        """Return the joined lines of the span that ends with this number."""
        last = view.at_or_below(end)
        key = (selection.key, "" if last is None else last.hash)
        joined = self._joined.get(key)
        if joined is None:
            lines, numbers, ends = [], array("q"), array("q")
            size = 0
            for block in view.blocks(end - SPAN + 1, end):
                if line := self._line(selection, block):
                    size += len(line)
                    lines.append(line)
                    numbers.append(block.number)
                    ends.append(size)
            joined = self._joined[key] = _Joined(b"".join(lines), numbers, ends)
            self._spent += size + _OVERHEAD
            while self._spent > self._budget and len(self._joined) > 1:
                _, oldest = self._joined.popitem(last=False)
                self._spent -= len(oldest.text) + _OVERHEAD
        return joined

    def _line(self, selection: Selection, block: SimBlock, *, boundary: bool = False) -> bytes:
        """Return the line of a block; empty if it is left out."""
        line = selection.line(self._chain, block, boundary=boundary)
        return b"" if line is None else line + b"\n"


class Behind(StrEnum):
    """The answer of a replica to an anchor above its own tip."""

    WAIT = "wait"  # 204: it cannot know yet
    CONFLICT = "conflict"  # 409 with its own newest blocks, though nothing forked


class Surface(StrEnum):
    """The service behind a portal's address that is played."""

    PORTAL = "portal"  # a portal in front of an archive, with several hints in a 409
    HOTBLOCKS = "hotblocks"  # the real-time service alone; see `PortalSim`


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A request for blocks, as far as the position is concerned, and what it selects."""

    from_block: int
    to_block: int | None
    parent_hash: str | None
    selection: Selection


class StreamPlanner:
    """Reads requests for blocks and plans their answers. Callers hold the chain's lock.

    The choices in which portals differ are those of `PortalSim`.
    """

    def __init__(
        self,
        chain: ChainSim,
        *,
        behind: Behind,
        conflict_before_no_content: bool,
        finalized_stream_conflicts: bool,
        no_content_delay: float,
        surface: Surface,
        cache_bytes: int,
    ) -> None:
        self._chain = chain
        self._behind = behind
        self._conflict_before_no_content = conflict_before_no_content
        self._finalized_stream_conflicts = finalized_stream_conflicts
        self._no_content_delay = no_content_delay
        self._surface = surface
        self._cache = LineCache(chain, cache_bytes)
        self._selections: OrderedDict[str, Selection] = OrderedDict()

    def parse(self, body: bytes | None) -> StreamRequest:
        """Read a request body; `BadRequest` says why it is refused."""
        if body is None:
            raise BadRequest("a request body is needed")
        if len(body) > MAX_BODY_BYTES:
            raise BadRequest(f"request body is larger than {MAX_BODY_BYTES} bytes")
        try:
            query = json.loads(body)
        except ValueError as error:
            raise BadRequest(f"request body is not JSON: {error}") from error
        if not isinstance(query, dict):
            raise BadRequest("request body must be an object")
        from_block = _block_number(query, "fromBlock")
        to_block = _block_number(query, "toBlock")
        parent_hash = query.get("parentBlockHash")
        if from_block is None:
            raise BadRequest("fromBlock is missing")
        if parent_hash is not None and not isinstance(parent_hash, str):
            raise BadRequest("parentBlockHash must be a string")
        if to_block is not None and to_block < from_block:
            raise BadRequest(f"toBlock {to_block} is below fromBlock {from_block}")
        if from_block < self._chain.start_block:
            raise BadRequest(f"dataset starts from block {self._chain.start_block}")
        return StreamRequest(from_block, to_block, parent_hash, self._selection(query))

    def plan(
        self, route: str, query: StreamRequest, view: View, limit: int, oldest: int = 0
    ) -> Draft:
        """Plan the answer of a replica, scanning at most `limit` block numbers.

        `oldest` is the first block that it has left.
        """
        final_only = route == "finalized-stream"
        newest = view.final if final_only else view.tip
        checked = not final_only or self._finalized_stream_conflicts
        draft = Draft(
            route,
            200,
            view,
            content_type="application/jsonl",
            reports_head=True,
            finalized=view.finalized,
            latest=view.tip.number,
        )
        draft.headers["x-sqd-data-source"] = "network" if final_only else "real_time"
        if query.from_block < oldest <= view.tip.number:
            draft.become(400, missing_blocks(query.from_block, oldest - 1))
            return draft
        first = view.first_from(query.from_block)
        if newest is None or first is None or first.number > newest.number:
            if checked and newest is not None and self._conflicts_at_tip(query, newest):
                self._conflict(draft, view, query.from_block, first, oldest)
            else:
                self._no_content(draft)
            return draft
        if checked and query.parent_hash not in (None, first.parent_hash):
            self._conflict(draft, view, query.from_block, first, oldest)
            return draft
        end = min(newest.number, first.number + limit - 1)
        if query.to_block is not None:
            end = min(end, query.to_block)
        last = view.at_or_below(end)
        if last is not None and last.number >= first.number:  # else: only skipped slots, no lines
            body = self._cache.body(query.selection, view, first, last)
            draft.parts, draft.count = body.parts, body.count
            draft.first, draft.last = first.number, last.number
        return draft

    def _conflicts_at_tip(self, query: StreamRequest, newest: SimBlock) -> bool:
        """Judge an anchor when there is no block after it."""
        if query.parent_hash in (None, newest.hash):
            return False
        if query.from_block - 1 > newest.number:
            return self._behind is Behind.CONFLICT
        return self._conflict_before_no_content

    def _conflict(
        self, draft: Draft, view: View, asked: int, first: SimBlock | None, oldest: int
    ) -> None:
        """Answer 409 with the blocks that precede the requested one on the replica's branch.

        The real-time service looks no further than the stored chunk of that block: at its tip, and
        where a chunk begins, it names one block.
        """
        sample = view.sample(asked - 1)
        if self._surface is Surface.HOTBLOCKS and first is not None:
            begins = max(oldest, asked - asked % CHUNK_BLOCKS)
            sample = [block for block in sample if block.number >= begins - 1]
        if self._surface is Surface.HOTBLOCKS:
            sample = sample[-1:] if first is None else sample
        if not sample and first is not None:
            sample = [BlockCursor(first.parent_number, first.parent_hash)]
        if draft.route == "finalized-stream":  # the archive names just the one it compared
            sample = sample[-1:]
        draft.conflict(sample)

    def _no_content(self, draft: Draft) -> None:
        draft.become(204, "")
        draft.reports_head = self._surface is Surface.PORTAL
        draft.delay = self._no_content_delay

    def _selection(self, query: dict[str, Any]) -> Selection:
        """Return what a query selects, parsed once for all positions."""
        rest = {key: value for key, value in query.items() if key not in POSITION}
        text = json.dumps(rest)
        selection = self._selections.get(text)
        if selection is None:
            selection = self._selections[text] = Selection(self._chain.network, query)
            if len(self._selections) > 64:
                self._selections.popitem(last=False)
        return selection


def missing_blocks(first: int, last: int) -> str:
    """Return what the real-time service says of blocks that it does not have any more."""
    return f"blocks from {first} to {last} are not available in the dataset"


def _block_number(query: dict[str, Any], key: str) -> int | None:
    value = query.get(key)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise BadRequest(f"{key} must be a block number")
