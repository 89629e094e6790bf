"""A target that keeps everything in memory: for tests, and to read what a pipeline would write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch, PipeState
from headwater.runtime import ALONE, Runtime
from headwater.targets.contract import Capabilities, Delivery, SideTable, StoredConfig
from headwater.targets.side_rows import (
    KEY,
    after_key,
    check_side_table,
    in_key_order,
    side_rows,
    without_keys,
)

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class Committed(Generic[Data]):
    """What is stored: the state, the batches up to its cursor, oldest first, and side tables."""

    state: PipeState = PipeState()  # noqa: RUF009 - immutable
    batches: tuple[Batch[Data], ...] = ()
    side: Mapping[str, pa.Table] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryStore(Generic[Data]):
    """What survives a crash of the target in front of it, as a database would."""

    committed: Committed[Data] = field(default_factory=Committed)
    config: str | None = None

    def read(self) -> str | None:
        """Return the definition of the stream; None if none is stored."""
        return self.config

    def write(self, text: str) -> None:
        """Replace it."""
        self.config = text


class MemoryTarget(Generic[Data]):
    """Commits by swapping one reference: all of a batch and its state, or nothing."""

    def __init__(self, store: MemoryStore[Data] | None = None) -> None:
        self.store: MemoryStore[Data] = MemoryStore() if store is None else store
        self._side: dict[str, SideTable] = {}

    @property
    def capabilities(self) -> Capabilities[Data]:
        """It keeps side tables and the configuration."""
        return Capabilities(side_tables=self, config=self)

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Do nothing: a store holds one stream."""

    def recover(self) -> PipeState:
        """Return the committed state; a swap leaves nothing to repair."""
        return self.store.committed.state

    def commit(self, batches: Sequence[Batch[Data]], state: PipeState) -> None:
        """Add the batches and replace the state."""
        committed = self.store.committed
        side = committed.side
        for batch in batches:
            if isinstance(batch.data, Delivery) and batch.data.side:
                side = self._added(side, batch.data.side)
        self.store.committed = Committed(state, (*committed.batches, *batches), side)

    def roll_back(self, state: PipeState) -> None:
        """Drop the batches and the side rows above the cursor, and replace the state."""
        number = state.number
        committed = self.store.committed
        kept = tuple(batch for batch in committed.batches if batch.headers[-1].number <= number)
        side = {
            name: rows.filter(pc.field(KEY[0]) <= number) for name, rows in committed.side.items()
        }
        self.store.committed = Committed(state, kept, side)

    def close(self) -> None:
        """Do nothing: the store is the caller's."""

    def stored_config(self) -> StoredConfig:
        """Return where the text of the stream's configuration is kept."""
        return self.store

    # --- side tables ------------------------------------------------------------------------------

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Add empty tables where there are none."""
        self._side = {table.name: check_side_table(table) for table in tables}
        committed = self.store.committed
        empty = {table.name: table.columns.empty_table() for table in tables}
        self.store.committed = replace(committed, side={**empty, **committed.side})

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows in the order of their keys."""
        rows = self.store.committed.side[name]
        if after is not None:
            rows = rows.filter(after_key(rows, after))
        if up_to_block is not None:
            rows = rows.filter(pc.field(KEY[0]) <= up_to_block)
        return in_key_order(rows).slice(0, limit)

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Swap in tables without the rows up to a key, and with those that moved."""
        committed = self.store.committed
        rows = committed.side[name]
        side = {**committed.side, name: rows.filter(after_key(rows, up_to))}
        self.store.committed = replace(committed, side=self._added(side, moved))

    def _added(
        self, side: Mapping[str, pa.Table], more: Mapping[str, pa.Table]
    ) -> dict[str, pa.Table]:
        """Add rows to tables, leaving out those whose key is there."""
        tables = dict(side)
        for name, rows in more.items():
            new = without_keys(side_rows(self._side[name], rows), tables[name])
            tables[name] = pa.concat_tables([tables[name], new])
        return tables
