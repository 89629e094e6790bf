"""What a history target is made of: a target that runs transactions, and a store inside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from headwater.core import Batch, BlockCursor, PipeState
from headwater.targets.contract import Delivery, KeepsConfig, KeepsSideTables
from headwater.targets.sql.change_log.names import Names, table_name
from headwater.targets.sql.flow import RelationalTarget
from headwater.targets.sql.merge.shape import Shape
from headwater.targets.sql.text import QualifiedName, compose

Made = TypeVar("Made", bound=RelationalTarget[Any])


@dataclass(frozen=True, slots=True)
class Work:
    """What a commit does: folded changes; blocks above `floor` may be undone by a fork."""

    folded: pa.Table
    floor: int


class Inner(KeepsSideTables, KeepsConfig, Protocol):
    """The database's own target, which keeps the state and runs the transactions."""

    on_statement: Callable[[str], None] | None

    def bind(self, stream_id: str) -> None:
        """Take the id of the stream."""
        ...

    def recover(self) -> PipeState:
        """Return the committed state."""
        ...

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Apply batches and store the state in one transaction."""
        ...

    def roll_back(self, state: PipeState) -> None:
        """Undo and store the state in one transaction."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Read what is committed."""
        ...


class Store(Protocol):
    """The tables and their history in one database. Except `bind`, calls are in a transaction."""

    shapes: dict[str, Shape]

    def bind(self, stream_id: str) -> None:
        """Take the id of the stream, unless the settings name another."""
        ...

    def open(self, tx: Any) -> None:
        """Create what is missing, and look at the tables."""
        ...

    def apply(self, tx: Any, folded: pa.Table, floor: int) -> None:
        """Apply folded changes; keep what was there for blocks above `floor`."""
        ...

    def save(self, session: Any, cursor: BlockCursor) -> None:
        """Write the cursor's row."""
        ...

    def prune(self, session: Any, floor: int) -> None:
        """Forget the history of blocks that no fork can undo."""
        ...

    def revert(self, session: Any, number: int) -> None:
        """Put every table back to what it was at a block."""
        ...


class Hooks:
    """What the database's own target calls, inside its transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def target(
        self,
        make: Callable[..., Made],
        declare: Callable[..., object],
        place: str | Path,
        names: Names,
        own: Sequence[QualifiedName],
        settings: object,
    ) -> Made:
        """Return the database's own target, with no table tracked, and these as its callbacks."""
        tables = [*(compose("{name}", name=one) for one in own), *map(table_name, names.tables)]
        target = make(
            place,
            tables=[declare(one, untracked=True) for one in tables],
            on_data=self.on_data,
            on_start=self.on_start,
            on_before_rollback=self.on_before_rollback,
            settings=settings,
        )
        target.on_state = self.on_state
        return target

    def on_start(self, tx: Any) -> None:
        """Prepare the tables before anything is read."""
        self._store.open(tx)

    def on_data(self, tx: Any, data: object, work: Work | None) -> None:
        """Apply the changes of a commit; again if its transaction has to be tried again."""
        if work is not None:
            self._store.apply(tx, work.folded, work.floor)

    def on_state(self, session: Any, state: PipeState) -> None:
        """Show the cursor, and forget what became final."""
        if state.cursor is not None:
            self._store.save(session, state.cursor)
            self._store.prune(session, state.undo_floor)

    def on_before_rollback(self, tx: Any, cursor: BlockCursor | None) -> None:
        """Put the tables back."""
        self._store.revert(tx.session, -1 if cursor is None else cursor.number)
        if cursor is not None:
            self._store.save(tx.session, cursor)
