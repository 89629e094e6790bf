"""Which points of a long walk are visited: all of them, or the first, the last and some between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Point = TypeVar("Point")


@dataclass(frozen=True, slots=True)
class Sample:
    """Takes the first point, the last, and every `every`-th between them, beginning at `offset`.

    The samples of `every` offsets in a row hold all points together.
    """

    every: int = 1
    offset: int = 0

    @property
    def is_whole(self) -> bool:
        """Tell whether it takes every point."""
        return self.every == 1

    def of(self, points: Sequence[Point]) -> list[Point]:
        """Return the points to visit, in their order."""
        ends = (0, len(points) - 1)
        return [point for index, point in enumerate(points)
                if index in ends or (index - self.offset) % self.every == 0]  # fmt: skip

    def seeds(self, points: Sequence[Point]) -> list[Point]:
        """Return every `every`-th point, at least one: for points that have no ends, as seeds."""
        step = max(1, min(self.every, len(points)))
        return list(points[self.offset % step :: step])


WHOLE = Sample()
