"""What a client tells whoever operates it: retries, stalls, and what it decided on its own.

A notice never changes what is read. It holds numbers, routes and reasons, never data and never a
credential, so it can be logged, counted and shown as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

logger = logging.getLogger("headwater.portal")


class NoticeKind(StrEnum):
    """What happened."""

    RETRYING = "retrying"  # a request failed and will be sent again
    STALLED = "stalled"  # nothing has arrived for a long time
    RECOVERED = "recovered"  # something arrived again after a stall
    CLAMPED = "clamped"  # the range begins below the dataset's first block
    EMPTY_TAIL = "empty_tail"  # the last numbers of a range hold no block
    METADATA_UNAVAILABLE = "metadata_unavailable"  # read on without it
    NOT_REAL_TIME = "not_real_time"  # the dataset does not follow the head of its chain


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

_LEVELS = {NoticeKind.STALLED: logging.WARNING, NoticeKind.RETRYING: logging.DEBUG}


def log_notice(notice: Notice) -> None:
    """Write a notice to the log `headwater.portal`; the observer unless another is given."""
    logger.log(_LEVELS.get(notice.kind, logging.INFO), "%s: %s", notice.kind.value, notice)
