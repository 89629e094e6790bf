"""Extensions of a stream keep rows beside the user's, in side tables of the target.

What an extension stores is committed with the batch it comes from and undone with it, so after a
crash, a fork or a replay it is what the canonical chain says, like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from headwater.core import Batch, PipeState
from headwater.effects.outbox import Depth, Outbox
from headwater.errors import SideTablesError
from headwater.targets.contract import Delivery, KeepsSideTables, SideTable, Target

if TYPE_CHECKING:
    import pyarrow as pa


class Extension(Protocol):
    """One extension, made anew for each run. All calls come from one thread of the driver.

    The order is: `start`; then for each batch `rows` and, once it is committed, `advanced`; after a
    fork `rolled_back`; when the range is read `finish`; in the end, on every exit path, `stop`. The
    target may be read and settled in all of them but `rows` and `stop`.
    """

    @property
    def tables(self) -> Sequence[SideTable]:
        """The side tables that it needs."""
        ...

    def start(self, target: KeepsSideTables, state: PipeState) -> None:
        """Read what is stored. Called after `recover`, before anything is asked of the portal."""
        ...

    def rows(self, batch: Batch[Delivery]) -> Mapping[str, pa.Table]:
        """Return the rows that a batch adds, by table. The same batch always gives the same."""
        ...

    def advanced(self, state: PipeState) -> None:
        """Take note that a state was committed: a batch arrived, or finality may have moved."""
        ...

    def rolled_back(self, state: PipeState) -> None:
        """Take note that everything above the state's cursor is gone, also from the tables."""
        ...

    def finish(self, state: PipeState) -> None:
        """Do what is left to do: the range is read. The target is still open."""
        ...

    def stop(self) -> None:
        """Release what is held. The target may be closed already."""
        ...


ExtensionMaker = Callable[[str], Extension]  # is given the stream's id


class Extensions:
    """All extensions of one run. Without any, every target will do."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self._extensions = tuple(extensions)
        self._target: KeepsSideTables | None = None

    def __bool__(self) -> bool:
        return bool(self._extensions)

    def open(self, target: Target[Delivery], optional: Sequence[Extension] = ()) -> None:
        """Have the target create the tables. Called before `recover`.

        Those that are `optional` join if the target can keep their tables.

        Raises:
            SideTablesError: the target cannot keep any.
        """
        keeps = target.capabilities.side_tables
        if keeps is not None:
            self._extensions = (*self._extensions, *optional)
        tables = {table.name: table for one in self._extensions for table in one.tables}
        if not tables:
            return
        if keeps is None:
            raise SideTablesError(
                "the target cannot keep what extensions of the stream need to store",
                target=type(target).__name__,
                tables=", ".join(sorted(tables)),
            )
        self._target = keeps
        keeps.open_side_tables(list(tables.values()))

    def start(self, state: PipeState) -> None:
        """Start all of them."""
        if self._target is not None:
            for one in self._extensions:
                one.start(self._target, state)

    def add_rows(self, batch: Batch[Delivery]) -> Batch[Delivery]:
        """Return a batch with the rows that the extensions add to it."""
        side: dict[str, pa.Table] = {}
        for one in self._extensions:
            side.update(one.rows(batch))
        return batch.with_data(replace(batch.data, side=side)) if side else batch

    def advanced(self, state: PipeState) -> None:
        """Tell all of them that a state was committed."""
        for one in self._extensions:
            one.advanced(state)

    def outboxes(self, state: PipeState) -> list[Depth]:
        """Return how much the outboxes hold."""
        return [one.depth(state) for one in self._extensions if isinstance(one, Outbox)]

    def rolled_back(self, state: PipeState) -> None:
        """Tell all of them that a fork was undone."""
        for one in self._extensions:
            one.rolled_back(state)

    def finish(self, state: PipeState) -> None:
        """Let all of them end their work."""
        for one in self._extensions:
            one.finish(state)

    def stop(self) -> None:
        """Stop all of them."""
        extensions, self._extensions = self._extensions, ()
        stop_all(list(extensions))


def stop_all(things: list[Any]) -> None:
    """Stop everything, the last first, also if one fails; the first failure is raised."""
    while things:
        thing = things.pop()
        try:
            thing.stop()
        finally:
            stop_all(things)
