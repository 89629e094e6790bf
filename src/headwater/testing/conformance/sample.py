"""Which points of a long walk are visited: all of them, or the first, the last and some between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Point = TypeVar("Point")


@dataclass(frozen=True, slots=True)
class Sample:
    """Takes the first point, the last, and every `every`-th between them."""

    every: int = 1

    @property
    def is_whole(self) -> bool:
        """Tell whether it takes every point."""
        return self.every == 1

    def of(self, points: Sequence[Point]) -> list[Point]:
        """Return the points to visit, in their order."""
        last = len(points) - 1
        return [
            point for index, point in enumerate(points) if index == last or index % self.every == 0
        ]

    def seeds(self, points: Sequence[Point]) -> list[Point]:
        """Return the first point and every `every`-th after it: for points without an end."""
        return list(points[:: self.every])


WHOLE = Sample()
