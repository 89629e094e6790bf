"""The ways in which an answer can be bad, each a small value that bends one draft.

Here: the base, the connection, the status and the head headers. `lines` has those in the body,
`conflicts` those in a 409. Named by what the client meets; none of them is invented, each is a
thing that portals, proxies or networks do.
"""

from __future__ import annotations

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
