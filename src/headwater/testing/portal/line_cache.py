"""Finished lines, kept so that serving a block twice costs a copy.

A block never changes under its hash, so its line under one selection never does. Lines of a filled
span of numbers are joined into one buffer, named by the hash of its last block (which fixes all
blocks before it), and sent from there without touching single lines. Oldest entries go first when
the budget is reached.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass

from headwater.testing.chain.tree import SimBlock
from headwater.testing.portal.answer import Buffer
from headwater.testing.portal.replicas import View
from headwater.testing.portal.select import Selection

SPAN = 64
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
    """Renders and keeps lines. Callers hold the chain's lock."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._spent = 0
        self._lines: OrderedDict[tuple[str, str], bytes | None] = OrderedDict()
        self._joined: OrderedDict[tuple[str, str], _Joined] = OrderedDict()

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
                    if line := self._line(selection, view, block):
                        body.add(line, [block.number])
            number = end + 1
        if body.lowest != first.number:
            body.parts.insert(0, self._bare(selection, view, first))
            body.count += 1
        if body.highest != last.number and first != last:
            body.parts.append(self._bare(selection, view, last))
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
                line = self._line(selection, view, block, keep=False)
                if line is not None:
                    size += len(line)
                    lines.append(line)
                    numbers.append(block.number)
                    ends.append(size)
            joined = self._joined[key] = _Joined(b"".join(lines), numbers, ends)
            self._spend(size + _OVERHEAD)
        return joined

    def _line(
        self, selection: Selection, view: View, block: SimBlock, *, keep: bool = True
    ) -> bytes | None:
        """Return the line of a block; one that goes into a span is not kept by itself."""
        key = (selection.key, block.hash)
        if key in self._lines:
            line = self._lines[key]
            if not keep:
                del self._lines[key]
                self._spent -= len(line or b"") + _OVERHEAD
            return line
        line = selection.line(view.chain, block)
        if line is not None:
            line += b"\n"
        if keep:
            self._lines[key] = line
            self._spend(len(line or b"") + _OVERHEAD)
        return line

    def _bare(self, selection: Selection, view: View, block: SimBlock) -> bytes:
        """Return the line that a filtered answer has at its ends, match or not."""
        line = selection.line(view.chain, block, boundary=True)
        return b"" if line is None else line + b"\n"

    def _spend(self, size: int) -> None:
        self._spent += size
        while self._spent > self._budget and self._lines:
            _, line = self._lines.popitem(last=False)
            self._spent -= len(line or b"") + _OVERHEAD
        while self._spent > self._budget and len(self._joined) > 1:
            _, joined = self._joined.popitem(last=False)
            self._spent -= len(joined.text) + _OVERHEAD
