"""Events of the loop: one after each step that changed the target or waited for the portal.

A `Listener` is told of each of them, in order, on the driver. `state` is always the committed one:
a listener never hears of data that a crash could take back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwater.core.cursor import BlockCursor
from headwater.core.fork import ForkResolution
from headwater.core.state import PipeState


@dataclass(frozen=True, slots=True)
class Recovered:
    """The loop starts from a committed state."""

    state: PipeState


@dataclass(frozen=True, slots=True)
class Buffered:
    """A batch, up to `cursor`, waits to be committed together with others."""

    state: PipeState
    cursor: BlockCursor
    blocks: int


@dataclass(frozen=True, slots=True)
class Committed:
    """One batch or several became visible, in one step."""

    state: PipeState
    blocks: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing new arrived; finality may have moved."""

    state: PipeState


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A fork was undone, from `orphaned` down to the state's cursor."""

    state: PipeState
    orphaned: BlockCursor
    resolution: ForkResolution


@dataclass(frozen=True, slots=True)
class Waited:
    """A replica is behind; it was given time instead of data being undone."""

    state: PipeState


@dataclass(frozen=True, slots=True)
class Discarded:
    """A fork took blocks that nobody had seen yet, from `orphaned` down: nothing to undo."""

    state: PipeState
    orphaned: BlockCursor
    blocks: int


Event = Recovered | Buffered | Committed | Settled | RolledBack | Waited | Discarded
Listener = Callable[[Event], None]
