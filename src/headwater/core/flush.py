"""When to commit: at once, or after so many blocks, rows or seconds.

A flush commits several batches in one step of the target. Each stays a batch of its own, with its
own place in the rollback chain, so a fork undoes them one by one. Pure: the time is an argument,
and nothing is decided by a block's number.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Flush:
    """Commit when any of the limits is reached; without a limit, each batch at once."""

    blocks: int | None = None
    rows: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, limit in (("blocks", self.blocks), ("rows", self.rows)):
            if limit is not None and (type(limit) is not int or limit < 1):
                raise InvalidOptionError(f"flush: {name} is a whole number from 1", got=repr(limit))
        seconds = self.seconds
        if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
            raise InvalidOptionError("flush: seconds is a number above 0", got=repr(seconds))

    @property
    def at_once(self) -> bool:
        """Tell whether nothing is ever held."""
        return self.blocks is None and self.rows is None and self.seconds is None

    def is_due(self, pending: Pending, now: float) -> bool:
        """Tell whether what is pending has reached a limit."""
        return self.at_once or (
            _reached(pending.blocks, self.blocks)
            or _reached(pending.rows, self.rows)
            or _reached(now - pending.since, self.seconds)
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """The batches that are staged and not committed: all of them final, or all of them hot."""

    blocks: int = 0
    rows: int = 0
    since: float = 0.0
    final: bool = False

    def add(self, blocks: int, rows: int, *, now: float, final: bool) -> Pending:
        """Return what is pending with one more batch; `since` is when the first one came."""
        since = self.since if self.blocks else now
        return Pending(self.blocks + blocks, self.rows + rows, since, final)


@dataclass(frozen=True, slots=True)
class FlushRules:
    """The rule for hot blocks at the head, and the one for final blocks far behind it."""

    live: Flush = Flush()
    backfill: Flush = Flush()

    def comes_first(self, pending: Pending, *, final: bool) -> bool:
        """Tell whether what is pending must be committed before a batch of the other kind.

        So a fork, which discards what is pending, never discards final blocks with the hot ones.
        """
        return pending.blocks > 0 and pending.final != final

    def is_due(self, pending: Pending, now: float, *, at_head: bool = False) -> bool:
        """Tell whether to commit now. At the head a backfill has nothing more to wait for."""
        if not pending.blocks:
            return False
        rule = self.backfill if pending.final and not at_head else self.live
        return rule.is_due(pending, now)


def _reached(value: float, limit: float | None) -> bool:
    return limit is not None and value >= limit
