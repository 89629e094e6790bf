"""What a node's refusals mean, and the sizes that are learned from them.

Pure. Providers say the same in many words: that a range is too wide, that a batch is too large,
that it is asked too often. What a text means is decided here alone; a text that nobody knows is a
failure that may pass, never an empty answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

METHOD_MISSING = -32601
INVALID_PARAMS = -32602
TOO_MANY = 429
BAD_REQUEST = 400
UNAVAILABLE = 503

_RATE_CODES = frozenset({429, -32029, -32090})
_RATE = re.compile(
    r"too many requests|rate.?limit|(requests?|calls?|credits|units) per (second|minute|day)|"
    r"compute units|throughput|quota|capacity exceeded|slow down|back.?off|throttl",
    re.IGNORECASE,
)
_UNKNOWN_METHOD = re.compile(
    r"method .{0,60}(not found|not exist|not available|not supported|unsupported|disabled)|"
    r"(unsupported|unknown|unrecognized) method|not whitelisted",
    re.IGNORECASE,
)
_GONE = re.compile(r"pruned|history (is )?(not|un)available|missing trie node", re.IGNORECASE)
_SUGGESTED = re.compile(r"\[\s*(0x[0-9a-f]{1,16})\s*,\s*(0x[0-9a-f]{1,16})\s*\]", re.IGNORECASE)
_WIDEN_AFTER = 20


@dataclass(frozen=True, slots=True)
class RpcError:
    """What a node answered instead of a result."""

    code: int
    message: str

    @property
    def is_rate(self) -> bool:
        """Whether the node was asked too much at once."""
        return self.code in _RATE_CODES or _RATE.search(self.message) is not None

    @property
    def is_missing_method(self) -> bool:
        """Whether the node does not know the method."""
        return self.code == METHOD_MISSING or _UNKNOWN_METHOD.search(self.message) is not None

    @property
    def status(self) -> int:
        """The HTTP status that says the same: what may pass is tried again, what stays is not."""
        if self.is_rate:
            return TOO_MANY
        lasts = self.is_missing_method or self.code == INVALID_PARAMS or _GONE.search(self.message)
        return BAD_REQUEST if lasts else UNAVAILABLE

    @property
    def suggested(self) -> int | None:
        """How many blocks the node would answer for, if it says so."""
        found = _SUGGESTED.search(self.message)
        if found is None:
            return None
        size = int(found[2], 16) - int(found[1], 16) + 1
        return size if size > 0 else None


class NodeRefusal(Exception):  # noqa: N818 - becomes the status of an answer
    """The node answers with something else than what it was asked for."""

    def __init__(self, status: int, text: str, retry_after: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after = retry_after


class TooWide(Exception):  # noqa: N818 - a smaller range is asked for
    """The node does not answer for so many blocks at once."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


class Unsettled(Exception):  # noqa: N818 - it is read again
    """Two answers of the node do not belong to the same chain."""


class LearnedSize:
    """How much to ask for at once: grows while all goes well, shrinks with each refusal.

    It grows quickly up to the first refusal. From then on it doubles only when so many requests in
    a row have been answered that it is worth trying again.
    """

    def __init__(self, first: int, most: int) -> None:
        self.size = first
        self._most = most
        self._was_refused = False
        self._answered = 0

    def answered(self, asked: int, share: float = 0.0) -> None:
        """Take note of an answer; `share` of the memory for one was used."""
        self._answered += 1
        if share > 1:
            self.size = max(1, int(asked / share))
        elif asked >= self.size and (not self._was_refused or self._answered >= _WIDEN_AFTER):
            quick = 2.0 if self._was_refused else 4.0
            growth = quick if share * quick <= 1 else 1 / share
            self.size = min(int(self.size * growth), self._most)
            self._answered = 0

    def refused(self, asked: int, suggested: int | None = None) -> None:
        """Take note of a refusal of so much."""
        self._answered = 0
        self._was_refused = True
        smaller = asked // 2 if suggested is None else min(suggested, asked - 1)
        self.size = max(1, min(self.size, smaller))
