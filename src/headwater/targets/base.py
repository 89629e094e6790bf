"""The contract between the loop and the place where data goes.

A target keeps two things together: the data, and the `PipeState` that says how far it goes. It has
one commit point. Whatever happens, `recover` returns a state that was committed, and the data is
what that state says.

`Delivery` is what a stream's targets are given as `batch.data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headwater.core import Batch, PipeState

Data = TypeVar("Data")
Receipt = TypeVar("Receipt")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of one batch: a frame per output, and the context that callbacks are given.

    A frame is an Arrow table or anything with `toArrow()`, as a Spark DataFrame has.
    """

    data: Mapping[str, Any]
    ctx: Any = None


class Target(Protocol[Data, Receipt]):
    """Where data goes. All calls come from one thread of the driver, except `stage`."""

    def bind(self, stream_id: str) -> None:
        """Take the id under which the stream's state is kept.

        Called once by the stream, before `recover`. A target that was given an id of its own keeps
        it; one that keeps no state by id does nothing.
        """
        ...

    def recover(self) -> PipeState:
        """Return the last committed state, after removing what a crash left above its cursor.

        Called once, before the first read. Calling it again changes nothing.
        """
        ...

    def stage(self, batch: Batch[Data]) -> Receipt:
        """Put a batch where `commit` finds it, visible to nobody.

        Runs where the data is. A repeated attempt must not count twice.
        """
        ...

    def commit(self, receipts: Sequence[Receipt], state: PipeState) -> None:
        """Make what was staged and the state visible together, or neither.

        Without receipts only the state changes: finality moved while nothing arrived.
        """
        ...

    def roll_back(self, state: PipeState) -> None:
        """Undo everything above `state.cursor` and commit that state, in one step.

        Nothing at or below `state.finalized` is touched. Calling it again changes nothing.
        """
        ...

    def close(self) -> None:
        """Release what is held. Called on every exit path, also after an error."""
        ...
