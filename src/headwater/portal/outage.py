"""Failures in a row: count them, wait between them, and say so when they last.

One `Outage` accompanies one reading or one question. It is reset by whatever arrives, so the
back-off grows only while nothing does. Runs where the client runs; nothing of it is stored, so a
restart begins with a short pause again.

What a client tells its operator is a `Notice`: retries, stalls, and what it decided on its own. It
never changes what is read. It holds numbers, routes and reasons, never data and never a credential,
so it can be logged, counted and shown as it is. Time is an argument (`Clock`), so that retry
schedules and stalls can be tested without waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headwater.core.retry import SERVER_ERROR, RetryPolicy, is_retryable, parse_retry_after
from headwater.errors import (
    AnswerTooLargeError,
    PortalHttpError,
    PortalUnreachableError,
    TransportError,
)
from headwater.portal.transport import Response
from headwater.portal.wire import explain


class Clock(Protocol):
    """What the client needs of time."""

    def monotonic(self) -> float:
        """Seconds that only grow; for durations."""
        ...

    def now(self) -> float:
        """Seconds since 1970 UTC; only to read HTTP dates."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The real one."""

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def now(self) -> float:
        """Return `time.time()`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait for real."""
        time.sleep(seconds)


logger = logging.getLogger("headwater.portal")


class NoticeKind(StrEnum):
    """What happened."""

    RETRYING = "retrying"  # a request failed and will be sent again
    STALLED = "stalled"  # nothing has arrived for a long time
    RECOVERED = "recovered"  # something arrived again after a stall
    LEFT_OUT = "left_out"  # blocks that the portal does not have, and that the user gave up
    EMPTY_TAIL = "empty_tail"  # the last numbers of a range hold no block
    METADATA_UNAVAILABLE = "metadata_unavailable"  # read on without it
    NOT_REAL_TIME = "not_real_time"  # the dataset does not follow the head of its chain
    NO_FINALITY = "no_finality"  # the portal reports no finalized head
    NEXT_BLOCK = "next_block"  # a range begins or ends at a time that no block has reached
    RECONNECTED = "reconnected"  # a Substreams endpoint ended a session on purpose
    SOURCE_CHANGED = "source_changed"  # another source of a list is read from now on
    SOURCE_JUDGED = "source_judged"  # a source of a list works again, or does not
    END_UNCHECKED = "end_unchecked"  # a range is read, and its last block could still be orphaned


@dataclass(frozen=True, slots=True)
class Notice:
    """One event, as a sentence and as values."""

    kind: NoticeKind
    message: str
    facts: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in self.facts.items())
        return f"{self.message}{f' ({shown})' if shown else ''}"


Observer = Callable[[Notice], None]

_LEVELS = {
    NoticeKind.STALLED: logging.WARNING,
    NoticeKind.END_UNCHECKED: logging.WARNING,
    NoticeKind.LEFT_OUT: logging.WARNING,
    NoticeKind.SOURCE_CHANGED: logging.WARNING,
    NoticeKind.RETRYING: logging.DEBUG,
}


def log_notice(notice: Notice) -> None:
    """Write a notice to the log `headwater.portal`; the observer unless another is given.

    The first failure of an outage is a warning, those that follow are not: a stall is the next one.
    """
    level = _LEVELS.get(notice.kind, logging.INFO)
    if notice.kind is NoticeKind.RETRYING and notice.facts.get("failures") == 1:
        level = logging.WARNING
    logger.log(level, "%s: %s", notice.kind.value, notice)


_REFUSAL_BYTES = 65_536
_FORK_BYTES = 16 * 1024 * 1024
_WHILE_S = 1.0  # an outage that lasted longer is worth a word when it ends
_INSTANT_S = 0.001  # a wait shorter than this is none; floating point would never get to zero


class Outage:
    """The failures since something last arrived."""

    def __init__(
        self,
        route: str,
        policy: RetryPolicy,
        clock: Clock,
        random: Callable[[], float],
        notify: Observer,
        attempts: int | None = None,
    ) -> None:
        self._route = route.partition("?")[0]
        self._policy = policy
        self._clock = clock
        self._random = random
        self._notify = notify
        self._attempts = attempts
        self._stalled = False
        self.touch()

    def touch(self) -> None:
        """Start over: something arrived, or the caller, who may take hours, came back."""
        self._failures = 0
        self._server_errors = 0
        self._since = self._clock.monotonic()
        self._stall_after_s = self._policy.stall_after_s

    def arrived(self) -> None:
        """Note that the portal answered as it should; say so, if it had not for a while."""
        waited = round(self._clock.monotonic() - self._since, 3)
        if self._stalled or (self._failures and waited >= _WHILE_S):
            self._stalled = False
            self._tell(NoticeKind.RECOVERED, "the portal answers again", waited_s=waited)
        self.touch()

    def broke(self, error: TransportError) -> None:
        """Wait after a connection that failed or broke; raise once the attempts are used up."""
        self._server_errors = 0
        self._wait(str(error.message), error.facts, None, error)

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Wait after a status that a later attempt may mend; raise `PortalHttpError` otherwise."""
        retry_after_s = parse_retry_after(headers.get("retry-after"), self._clock.now())
        self._server_errors = self._server_errors + 1 if status == SERVER_ERROR else 0
        error = PortalHttpError(
            f"the portal answered {status} to {self._route}",
            status=status,
            route=self._route,
            portal_says=repr(explain(body)),
        )
        if not is_retryable(status, retry_after_s, self._server_errors):
            raise error
        self._wait(f"status {status}", {"status": status}, retry_after_s, error)

    def _wait(
        self,
        reason: str,
        facts: Mapping[str, object],
        retry_after_s: float | None,
        error: PortalHttpError | TransportError,
    ) -> None:
        self._failures += 1
        if self._attempts is not None and self._failures >= self._attempts:
            often = f" {self._failures} times in a row" if self._failures > 1 else ""
            raise PortalUnreachableError(
                f"{self._route} failed{often}: {reason}",
                **{"route": self._route, "attempts": self._failures, **facts},
            ) from error
        pause = self._policy.pause_s(self._failures, self._random, retry_after_s)
        self._tell(
            NoticeKind.RETRYING,
            f"asking again {f'in {pause:.1f} s' if pause >= 0.1 else 'at once'} after {reason}",
            **{"failures": self._failures, "pause_s": round(pause, 3), **facts},
        )
        self._sleep(pause, reason, facts)

    def _sleep(self, pause: float, reason: str, facts: Mapping[str, object]) -> None:
        """Sleep; if the time to report a stall falls into the pause, report it then."""
        while True:
            due = self._since + self._stall_after_s - self._clock.monotonic()
            if due <= _INSTANT_S:
                self._report_stall(reason, facts)
            elif due < pause:
                self._clock.sleep(due)
                pause -= due
            else:
                self._clock.sleep(pause)
                return

    def _report_stall(self, reason: str, facts: Mapping[str, object]) -> None:
        waited = self._clock.monotonic() - self._since
        while self._stall_after_s <= waited + _INSTANT_S:
            self._stall_after_s *= 2
        self._stalled = True
        self._tell(
            NoticeKind.STALLED,
            f"nothing has arrived for {waited:.0f} s",
            **{
                "waited_s": round(waited, 3),
                "failures": self._failures,
                "reason": reason,
                **facts,
            },
        )

    def _tell(self, kind: NoticeKind, message: str, **facts: object) -> None:
        self._notify(Notice(kind, message, {"route": self._route, **facts}))


def read_body(response: Response) -> bytes:
    """Return a body that is small by nature.

    A refusal is cut short rather than asked for again: its status says enough, and its body is only
    an explanation. Everything else must arrive whole, or `TransportError`; and it has a limit, or
    `AnswerTooLargeError`.
    """
    whole = response.status < 300 or response.status == 409
    limit = _FORK_BYTES if whole else _REFUSAL_BYTES
    parts: list[bytes] = []
    size = 0
    try:
        for chunk in response.chunks():
            parts.append(chunk)
            size += len(chunk)
            if size >= limit:
                if whole:
                    raise AnswerTooLargeError("an answer is too long", limit=limit)
                break
    except TransportError:
        if whole:
            raise
    return b"".join(parts)
