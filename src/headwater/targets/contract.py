"""The contract between the loop and the place where data goes: recover, commit, roll_back, close.

A target keeps two things together: the data, and the `PipeState` that says how far it goes. It has
one commit point. Whatever happens, `recover` returns a state that was committed, and the data is
what that state says. What a target can do beyond that it declares in its `Capabilities`.

`Delivery` is what a stream's targets are given as `batch.data`. Beside the user's rows it can carry
rows of `SideTable`s, which the stream keeps for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headwater.core import Batch, BlockRange, PipeState
from headwater.core.callbacks import Callback
from headwater.runtime import ALONE, Runtime

if TYPE_CHECKING:
    import pyarrow as pa

Data = TypeVar("Data")
NEW_COLUMN = (
    "one that a transform makes is added and filled by on_config_change='evolve' with versions= "
    "of its output"
)
"""What targets say of columns that a table lacks."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of one batch: a frame per output, and the context that callbacks are given.

    A frame is an Arrow table or anything with `toArrow()`, as a Spark DataFrame has. `side` holds
    rows for side tables, by name. `ahead` is what the target's `prepare_rows` made of the frames.
    """

    data: Mapping[str, Any]
    ctx: Any = None
    side: Mapping[str, Any] = field(default_factory=dict)
    ahead: Any = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The blocks of a batch: those above `after` up to `block`; `hot` if a fork may undo them."""

    block: int
    after: int
    hot: bool

    @classmethod
    def between(cls, before: PipeState, after: PipeState) -> Scope:
        """Return the scope of the batch that leads from one state to the next."""
        return cls(after.number, before.number, after.is_hot)


@dataclass(frozen=True, slots=True)
class SideTable:
    """Rows that the stream keeps beside the user's: children of factories, messages to deliver.

    Stored next to the state as `headwater_<name>`, for all streams together: `stream_id`, then the
    columns. These begin with `block_number` and `ordinal` (both int64), which with the stream's id
    are the key: the same rows of the same block have the same key at every replay. `settles`: rows
    may be removed once they have done their work, so that one which is gone was not forgotten. Rows
    of a `complete` table say what is known of all blocks, and are never settled: of several
    targets, one that lacks some is given them.
    """

    name: str
    columns: pa.Schema
    settles: bool = True
    complete: bool = False


class KeepsSideTables(Protocol):
    """A target that commits rows of side tables with their batch, and undoes them with it."""

    def open_side_tables(self, tables: Sequence[SideTable]) -> None:
        """Create what is missing. Called once, after `bind` and before `recover`."""
        ...

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows of this stream in the order of their keys.

        Only those after a key (block number, ordinal) and up to a block, if given.
        """
        ...

    def settle_side_rows(
        self, name: str, up_to: tuple[int, int], moved: Mapping[str, pa.Table]
    ) -> None:
        """Remove this stream's rows up to a key, then add rows to side tables, in one step.

        `moved` may hold rows of the same table, which are rewritten so, and rows whose key is there
        already, which stay as they are. Called between batches. Calling it again changes nothing.
        """
        ...


class StoredConfig(Protocol):
    """What a stream asked for when its rows were made: a text, kept beside its state."""

    def read(self) -> str | None:
        """Return what is stored; None if nothing is."""
        ...

    def write(self, text: str) -> None:
        """Replace it."""
        ...


class KeepsConfig(Protocol):
    """A target that can tell when a stream's definition has changed."""

    def stored_config(self) -> StoredConfig:
        """Return where the text of this stream is kept. Called between `recover` and a batch."""
        ...


class FillsHistory(Protocol):
    """A target that can be given rows of blocks which it has passed: `on_config_change="evolve"`.

    Called between `recover` and the first batch, with a state whose cursor is final. Calling it
    again with the same configuration changes nothing.
    """

    @property
    def is_atomic(self) -> bool:
        """Whether rows and the stream's configuration change together, or neither does.

        Otherwise the configuration changes last, and a crash may leave rows of the batch that was
        under way, or none. Every batch then replaces what the tables have of its blocks, and an
        earlier definition cannot go on until what was begun is done.
        """
        ...

    def begin_fill(self, outputs: Collection[str], tables: Sequence[str] | None) -> Sequence[str]:
        """Prepare to fill outputs that were added; return the tables that may be written, if they
        are not those of the outputs' names. The stream keeps them with its configuration.

        Called before each run that fills. `tables` is None the first time: then tables that are
        written must hold no rows. Later it is what was returned then.

        Raises:
            EvolveError: a table of an output holds rows, which the filling would double.
        """
        ...

    def first_block(self, output: str) -> int | None:
        """Return the first block of which an output's table has rows; None if there is no table.

        Of an empty table it is the one behind the cursor. Nothing is changed.

        Raises:
            EvolveError: rows of this table cannot be replaced, block by block.
        """
        ...

    def fill(
        self,
        batches: Sequence[tuple[BlockRange, Batch[Delivery]]],
        config: str,
        *,
        replace: bool,
    ) -> None:
        """Write rows of final blocks: batches, each with the blocks it covers. The cursor stays.

        With `replace`, rows that the tables have of these blocks go, and columns that they lack are
        added. Blocks behind the batch's own: nothing goes, only columns are added.
        """
        ...

    def rename_outputs(self, renamed: Mapping[str, str], begun: str, config: str) -> None:
        """Rename tables that are called like an output: new names to old ones; store `config`.

        A target that is not atomic stores `begun` before it renames the first table: a start that
        reads it finishes the renaming, or refuses to go on.

        Raises:
            EvolveError: a table cannot be renamed. Then nothing is renamed or stored.
        """
        ...


@dataclass(frozen=True, slots=True)
class Capabilities(Generic[Data]):
    """What a target can do beyond the contract. A field that is None or False: it cannot.

    `rereads` says that a commit reads frames more than once, so that the stream keeps what
    executors have fetched. `uses_frames` says that the target, or user code that it calls, may use
    frames as DataFrames: a Spark that is started for the stream is sized for that. `file` is one
    that no other process can open while a stream writes it. `branches` returns the targets behind
    this one, each with the state that it has committed. `undo_rows` returns how many rows are kept
    for undoing hot blocks, as counted last.
    `prepare_batch` is called with each batch once it is transformed, before it waits for its
    commit: it checks the batch, or does work that need not wait, and returns the batch to commit.
    It makes nothing visible; it may be repeated for the same batch.
    `prepare_rows` does such work earlier: a source that reads ahead calls it, in a thread of its
    own while the target commits, with the tables of final blocks that no transform changes. What it
    returns comes with their batch as `Delivery.ahead`, or never. So it depends on nothing that a
    commit changes, and an error of it means nothing: the batch is prepared again, in its turn.
    `altered` returns how many values the target could not hold as they were, since it was made, and
    how many rows it left out for them.
    `finish` is called once all blocks of the range are read and committed, before `close`: a target
    that holds rows back publishes them.

    That rows of a backfill stay on executors needs no field: frames offer `executor_rows()`
    (`targets/frames.py`), and a target that asks for a table gets bounded pieces.
    """

    rereads: bool = False
    uses_frames: bool = False
    file: Path | None = None
    side_tables: KeepsSideTables | None = None
    config: KeepsConfig | None = None
    history: FillsHistory | None = None
    branches: Callable[[], Sequence[tuple[Target[Data], PipeState]]] | None = None
    undo_rows: Callable[[], int] | None = None
    prepare_batch: Callable[[Batch[Data]], Batch[Data]] | None = None
    prepare_rows: Callable[[Mapping[str, pa.Table]], Any] | None = None
    finish: Callable[[], None] | None = None
    altered: Callable[[], tuple[int, int]] | None = None


class Target(Protocol[Data]):
    """Where data goes. All calls come from one thread of the driver, but for `prepare_rows`."""

    @property
    def capabilities(self) -> Capabilities[Data]:
        """What this target can do beyond the contract. The same at every call."""
        ...

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Take the id under which the stream's state is kept, and what the run hands its target.

        Called once by the stream, before `recover`. A target that was given an id of its own keeps
        it; one that keeps no state by id does nothing.
        """
        ...

    def recover(self) -> PipeState:
        """Return the last committed state, after removing what a crash left above its cursor.

        Called once, before the first read. Calling it again changes nothing.
        """
        ...

    def commit(self, batches: Sequence[Batch[Data]], state: PipeState) -> None:
        """Make the batches and the state visible together, or neither.

        Without batches only the state changes: finality moved while nothing arrived.
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


def branches(target: Target[Data], state: PipeState) -> Sequence[tuple[Target[Data], PipeState]]:
    """Return the targets that keep state of their own: those behind a target, or itself."""
    several = target.capabilities.branches
    return [(target, state)] if several is None else several()


def binding(target: Target[Data]) -> Callback:
    """Return the target's `bind`, which may also take the id alone.

    Raises:
        InvalidOptionError: it takes something else.
    """
    name = f"{type(target).__name__}.bind"
    return Callback(name, target.bind, "stream_id", "stream_id, runtime")


def prepared(target: Target[Data], batch: Batch[Data]) -> Batch[Data]:
    """Return a batch as the target's `commit` takes it: prepared, where the target prepares."""
    prepare = target.capabilities.prepare_batch
    return batch if prepare is None else prepare(batch)
