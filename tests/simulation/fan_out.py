"""Several targets behind one stream that come and go: a start may leave one of them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from random import Random
from typing import Any

from headwater.targets.fanout import FanOutTarget
from tests.simulation.places import Place, Stored
from tests.simulation.tables import Shape


class FanOutPlace(Place):
    """Some places that one stream fills. Each life of a process has all of them, or not quite."""

    kind = "fan-out"

    def __init__(self, parts: Sequence[Place], dice: Random) -> None:
        self.parts = list(parts)
        self._places: dict[int, Place] = {}
        self._dice = dice
        self.proxy = next((one.proxy for one in parts if one.proxy is not None), None)
        self.transactional = all(one.transactional for one in parts)
        self.keyed = all(one.keyed for one in parts)
        self.side_tables = any(one.side_tables for one in parts)
        self.rereads = any(one.final_only for one in parts)
        self.evolves = all(one.evolves and not one.schema for one in parts)
        self.renames = all(one.renames for one in parts)
        self.maintained = any(one.maintained for one in parts)
        self.left_out = 0

    def target(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return one target of all places; or, as long as the world is not at rest, of some."""
        chosen = list(self.parts)
        if not self.calm and self._dice.random() < 0.4:
            keepers = [one for one in chosen if one.side_tables]
            some = [one for one in chosen if len(keepers) > 1 or one not in keepers]
            chosen.remove(self._dice.choice(some))
            self.left_out += 1
        made = [one.target(one.own(shape), process, clock) for one in chosen]
        self._places.update((id(target), one) for target, one in zip(made, chosen, strict=True))
        return made[0] if len(made) == 1 else FanOutTarget(made)

    def rival(self, shape: Shape, process: str, clock: Callable[[], float]) -> Any:
        """Return none: each place has its own world for that."""

    def watch(self, target: Any, hook: Callable[[str], None]) -> None:
        """Have every target tell its statements and steps."""
        for one in self._behind(target):
            self._places[id(one)].watch(one, hook)

    def stored(self, shape: Shape) -> list[Stored]:
        """Read every place: each is compared with the branch of its own cursor."""
        return [found for one in self.parts for found in one.stored(one.own(shape))]

    def read(self, shape: Shape) -> Stored:
        """Read the place that is furthest behind."""
        found = self.stored(shape)
        return min(found, key=lambda one: -1 if one.cursor is None else one.cursor.number)

    def looked_at(self, shape: Shape) -> list[Place]:
        """Return the places: each has tables of its own."""
        return list(self.parts)

    def admin(self, shape: Shape) -> Any:
        """There is none: each place has its own."""
        raise NotImplementedError

    def waits_for_lock(self, process: str) -> bool:
        """Ask every server."""
        return any(one.waits_for_lock(process) for one in self.parts)

    def has_sessions(self, processes: Sequence[str]) -> bool:
        """Ask every server."""
        return any(one.has_sessions(processes) for one in self.parts)

    def drop_sessions(self, process: str) -> None:
        """Ask every server."""
        for one in self.parts:
            one.drop_sessions(process)

    def merge(self) -> None:
        """Ask every server."""
        for one in self.parts:
            one.merge()

    def maintain(self) -> None:
        """Maintain what can be maintained."""
        for one in self.parts:
            one.maintain()

    def environment(self) -> AbstractContextManager[None]:
        """Have what is on S3 found."""
        stack: Any = ExitStack()
        for one in self.parts:
            stack.enter_context(one.environment())
        return stack  # type: ignore[no-any-return]

    def still(self) -> AbstractContextManager[None]:
        """Surround reading every place."""
        stack: Any = ExitStack()
        for one in self.parts:
            stack.enter_context(one.still())
        return stack  # type: ignore[no-any-return]

    def close(self) -> None:
        """Remove everything."""
        for one in self.parts:
            one.close()

    def _behind(self, target: Any) -> Sequence[Any]:
        return target.targets if isinstance(target, FanOutTarget) else [target]
