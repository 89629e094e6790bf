"""Faults in the body of an answer: lines that are torn, foreign, doubled, missing or no blocks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from headwater.testing.faults.kinds import Fault, foreign_hash
from headwater.testing.portal.answer import Draft


@dataclass(frozen=True, slots=True)
class LineFault(Fault):
    """Base of faults in the body. `at` is the line to hit, from 0; by default any."""

    at: int | None = None

    def applies(self, draft: Draft) -> bool:
        """Need a line to hit."""
        return draft.has_lines and draft.count > (self.at or 0)

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Rewrite the body."""
        lines = draft.lines()
        at = dice.randrange(len(lines)) if self.at is None else self.at
        draft.put_lines(self.bend(lines, at, dice))

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Return the lines to send instead."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TornLine(LineFault):
    """The body ends cleanly, but inside a line."""

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Cut the line."""
        line = lines[at].rstrip(b"\n")
        return [*lines[:at], line[: dice.randrange(1, len(line))]]


@dataclass(frozen=True, slots=True)
class GarbageLine(LineFault):
    """A line is no JSON."""

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Put rubbish in place of the line."""
        return [*lines[:at], b'<html>"upstream"</html>\n', *lines[at + 1 :]]


@dataclass(frozen=True, slots=True)
class InvalidUtf8(LineFault):
    """A line holds bytes that are no UTF-8, far from the header that every reader looks at."""

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Put the bytes into the last string of the line."""
        before, quote, after = lines[at].rpartition(b'"')
        return [*lines[:at], before + b"\xff\xfe" + quote + after, *lines[at + 1 :]]


@dataclass(frozen=True, slots=True)
class NonBlockLine(LineFault):
    """A line is JSON, but no block: an error that was written into a running stream."""

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Put an error object in place of the line."""
        return [*lines[:at], b'{"error":"worker failed"}\n', *lines[at + 1 :]]


@dataclass(frozen=True, slots=True)
class DuplicateBlock(LineFault):
    """A block is sent twice in a row."""

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Repeat the line."""
        return [*lines[: at + 1], *lines[at:]]


@dataclass(frozen=True, slots=True)
class MissingBlock(LineFault):
    """A block inside the answer is left out; first and last stay, so only its link tells."""

    def applies(self, draft: Draft) -> bool:
        """Need a line between two others."""
        return draft.has_lines and draft.count > max(2, (self.at or 0) + 1)

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Leave the line out."""
        at = min(max(at, 1), len(lines) - 2)
        return [*lines[:at], *lines[at + 1 :]]


@dataclass(frozen=True, slots=True)
class SwappedBlocks(LineFault):
    """Two neighbouring blocks come in the wrong order."""

    def applies(self, draft: Draft) -> bool:
        """Need two lines."""
        return draft.has_lines and draft.count > (self.at or 0) + 1

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Swap the line with the next one."""
        at = min(at, len(lines) - 2)
        return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


@dataclass(frozen=True, slots=True)
class ForeignBlock(LineFault):
    """A block of another chain: its hash, and its parent's where shown, belong to no block."""

    def bend(self, lines: list[bytes], at: int, dice: Random) -> list[bytes]:
        """Give the header foreign hashes of the same length and alphabet."""
        block = json.loads(lines[at])
        for key in ("hash", "parentHash"):
            if isinstance(block["header"].get(key), str):
                block["header"][key] = foreign_hash(block["header"][key])
        line = json.dumps(block, separators=(",", ":")).encode() + b"\n"
        return [*lines[:at], line, *lines[at + 1 :]]


@dataclass(frozen=True, slots=True)
class EmptyAnswer(Fault):
    """A 200 without a single line."""

    def applies(self, draft: Draft) -> bool:
        """Need lines to take away."""
        return draft.has_lines

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Take them away."""
        draft.put_lines([])
        draft.first = draft.last = None
