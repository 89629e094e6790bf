"""What can go wrong with a session of a simulated endpoint: small values, one per session.

A fault strikes after `after` messages with blocks or undo signals were sent; 0 is before any, -1
before anything at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from threading import Lock


@dataclass(frozen=True, slots=True)
class SessionFault:
    """A fault that strikes once in its session."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class EndsWith(SessionFault):
    """The session ends with a status and words; OK is a clean end."""

    status: str = "UNAVAILABLE"
    words: str = ""


@dataclass(frozen=True, slots=True)
class FallsSilent(SessionFault):
    """Nothing more is sent, and nothing is closed."""


@dataclass(frozen=True, slots=True)
class ModuleFails(SessionFault):
    """A module fails; the session ends with INVALID_ARGUMENT right after."""

    module: str = "db_out"
    reason: str = "panic in the wasm"
    logs: tuple[str, ...] = ("the last words",)


@dataclass(frozen=True, slots=True)
class SendsGarbage(SessionFault):
    """Bytes that are no message, or those of one that was not asked for."""

    data: bytes = b"\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class GrowsHuge(SessionFault):
    """One message is larger than gRPC allows unless it is told otherwise."""

    size: int = 5 << 20


@dataclass(frozen=True, slots=True)
class RepeatsUndo(SessionFault):
    """Undo signals are sent twice from then on."""


@dataclass(frozen=True, slots=True)
class LowersFinality(SessionFault):
    """The final height falls back by ten from then on."""


@dataclass(frozen=True, slots=True)
class UndoesTo(SessionFault):
    """An undo signal to a block of this number and hash, whatever the chain says."""

    number: int = 0
    hash: str = ""


@dataclass(frozen=True, slots=True)
class RepeatsBlocks(SessionFault):
    """The last message with blocks is sent twice."""


class SessionFaults:
    """The faults that sessions get: first those that were given, then some by chance."""

    def __init__(self, given: Iterable[SessionFault | None] = ()) -> None:
        self._given = deque(given)
        self._random: Random | None = None
        self._rate = 0.0
        self._guard = Lock()

    def add(self, *faults: SessionFault | None) -> None:
        """Give the next sessions these faults; None is a session without one."""
        with self._guard:
            self._given.extend(faults)

    def by_chance(self, seed: int, rate: float) -> None:
        """Give a share of the sessions a fault that a client must survive."""
        self._random, self._rate = Random(seed), rate

    def next(self) -> SessionFault | None:
        """Return the fault of the next session."""
        with self._guard:
            if self._given:
                return self._given.popleft()
            random = self._random
            if random is None or random.random() >= self._rate:
                return None
            after = random.randrange(4)
            kinds: list[SessionFault] = [
                EndsWith(after, "UNAVAILABLE", "the stream is cut on purpose"),
                EndsWith(after, "INTERNAL", "an accident"),
                EndsWith(after, "RESOURCE_EXHAUSTED", "no free concurrent stream"),
                EndsWith(after, "DEADLINE_EXCEEDED"),
                EndsWith(after, "ABORTED"),
                EndsWith(after, "UNKNOWN"),
                FallsSilent(after),
                RepeatsUndo(),
                LowersFinality(after),
            ]
            return random.choice(kinds)
