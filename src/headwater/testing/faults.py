"""The ways in which an answer can be bad, each a small value that bends one draft.

They are named by what the client meets: on the connection, in the status, in the head headers, in
the body, and in a 409. None of them is invented, each is a thing that portals, proxies or networks
do.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from email.utils import formatdate
from enum import StrEnum
from random import Random

from headwater.core import BlockCursor
from headwater.testing.portal.answer import Break, Draft

RETRYABLE_STATUSES = (429, 502, 503, 504, 521, 522, 523, 524, 529)
FAULTS: dict[str, type[Fault]] = {}


class RetryAfter(StrEnum):
    """How the Retry-After header is written."""

    SECONDS = "seconds"
    DATE = "date"
    GARBAGE = "garbage"


@dataclass(frozen=True, slots=True)
class Fault:
    """Base of all faults. One that does not apply to an answer waits for the next."""

    def __init_subclass__(cls) -> None:
        """Register the class under its name, unless it is only a base."""
        if not cls.__name__.endswith("Fault"):
            FAULTS[_spelled(cls)] = cls

    def applies(self, draft: Draft) -> bool:
        """Tell whether this answer can be hit."""
        return True

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Bend the draft."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The fault's name: "torn-line" for `TornLine`."""
        return _spelled(type(self))

    def __str__(self) -> str:
        unusual = [
            f"{item.name}={getattr(self, item.name)}"
            for item in fields(self)
            if item.repr and getattr(self, item.name) != item.default
        ]
        shown = ", ".join(unusual)
        return f"{self.name}({shown})" if shown else self.name


def _spelled(cls: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


# --- the connection -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DropBeforeHeaders(Fault):
    """The connection is closed, or reset, before the first header."""

    reset: bool = False

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Break it."""
        draft.broken = Break(stall=False, reset=self.reset)


@dataclass(frozen=True, slots=True)
class DropAfter(Fault):
    """The connection is closed, or reset, after some bytes of the body; by default anywhere."""

    size: int | None = None
    reset: bool = False

    def applies(self, draft: Draft) -> bool:
        """Need a body."""
        return bool(draft.body())

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Break it."""
        share = dice.random() if self.size is None else None
        draft.broken = Break(stall=False, after=self.size, share=share, reset=self.reset)


@dataclass(frozen=True, slots=True)
class StallBeforeHeaders(Fault):
    """Nothing comes back at all."""

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Break it."""
        draft.broken = Break(stall=True)


@dataclass(frozen=True, slots=True)
class StallAfter(Fault):
    """The body stops arriving, while the connection stays open."""

    size: int | None = None

    def applies(self, draft: Draft) -> bool:
        """Need a body."""
        return bool(draft.body())

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Break it."""
        share = dice.random() if self.size is None else None
        draft.broken = Break(stall=True, after=self.size, share=share)


@dataclass(frozen=True, slots=True)
class Delay(Fault):
    """The answer is right, but slow."""

    seconds: float = 1.0

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Slow it."""
        draft.delay += self.seconds


# --- statuses -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """Another status instead of the answer, with or without Retry-After."""

    code: int = field(default=503, repr=False)  # its name shows it
    retry_after: RetryAfter | None = None
    seconds: int = 1
    text: str = "simulated failure"

    @property
    def name(self) -> str:
        """The fault's name with its code, since they are so different."""
        return f"status-{self.code}"

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Replace the answer."""
        draft.become(self.code, self.text)
        draft.headers.clear()
        if self.retry_after is None:
            return
        value = {
            RetryAfter.SECONDS: str(self.seconds),
            RetryAfter.DATE: formatdate(now + self.seconds, usegmt=True),
            RetryAfter.GARBAGE: "in a little while",
        }
        draft.headers["retry-after"] = value[self.retry_after]


# --- the body -------------------------------------------------------------------------------------


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


# --- a 409 ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConflictFault(Fault):
    """Base of faults in a 409. With `forced`, requests without a conflict get one too."""

    forced: bool = False

    def applies(self, draft: Draft) -> bool:
        """Need a 409, or leave to make one."""
        if draft.status == 409:
            return True
        return self.forced and draft.on_stream and draft.status in (200, 204)

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Rewrite the sample."""
        sample = draft.sample
        if sample is None:
            sample = draft.view.sample(draft.view.tip.number) if draft.view else []
        draft.conflict(self.bend(sample, draft, dice))

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Return the sample to send instead."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EmptySample(ConflictFault):
    """A 409 that names no block."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Name nothing."""
        return []


@dataclass(frozen=True, slots=True)
class SampleOfOne(ConflictFault):
    """A 409 that names only the newest block, as archives do."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Keep the newest."""
        return sample[-1:]


@dataclass(frozen=True, slots=True)
class SampleBelowFinality(ConflictFault):
    """A 409 whose blocks all lie below the finalized one, from a replica that is far behind."""

    def applies(self, draft: Draft) -> bool:
        """Need final blocks to show."""
        if not ConflictFault.applies(self, draft) or draft.view is None:
            return False
        return bool(_below_finality(draft))

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Show older blocks."""
        return _below_finality(draft)


@dataclass(frozen=True, slots=True)
class NoPreviousBlocks(ConflictFault):
    """A 409 whose JSON lacks previousBlocks."""

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Say something else."""
        draft.become(409, '{"error":"conflict"}')
        draft.content_type = "application/json"


@dataclass(frozen=True, slots=True)
class ShuffledSample(ConflictFault):
    """A 409 whose blocks come in no order."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Shuffle."""
        return dice.sample(sample, len(sample))


@dataclass(frozen=True, slots=True)
class NewestFirst(ConflictFault):
    """A 409 whose blocks come newest first."""

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        """Reverse."""
        return sample[::-1]


def _below_finality(draft: Draft) -> list[BlockCursor]:
    view = draft.view
    if view is None or view.final is None:
        return []
    return view.sample(view.final.number - 1)


# --- the head -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadFault(Fault):
    """Base of faults in the head headers."""

    def applies(self, draft: Draft) -> bool:
        """Need a finalized head to bend."""
        return draft.reports_head and draft.finalized is not None


@dataclass(frozen=True, slots=True)
class WrongFinalityHash(HeadFault):
    """The finalized head has the right number and a hash that belongs to no block."""

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Turn the hash."""
        if draft.finalized is not None and draft.finalized.hash is not None:
            wrong = foreign_hash(draft.finalized.hash)
            draft.finalized = BlockCursor(draft.finalized.number, wrong)


@dataclass(frozen=True, slots=True)
class FinalityRegressed(HeadFault):
    """The finalized head goes back, as when an archive answers."""

    by: int = 10

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Report an older block."""
        if draft.finalized is not None and draft.view is not None:
            draft.finalized = draft.view.cursor_at(draft.finalized.number - self.by)


@dataclass(frozen=True, slots=True)
class NoHeadHeaders(Fault):
    """All head headers are missing."""

    def applies(self, draft: Draft) -> bool:
        """Need headers to take away."""
        return draft.reports_head

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        """Take them away."""
        draft.reports_head = False


def foreign_hash(block_hash: str) -> str:
    """Return a well-formed hash that is not this one."""
    prefix, body = (block_hash[:2], block_hash[2:]) if block_hash[:2] == "0x" else ("", block_hash)
    turned = body[1:] + body[:1]
    return prefix + (turned if turned != body else ("1" if body[0] != "1" else "2") * len(body))
