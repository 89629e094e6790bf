"""Which micro-batches of a query a target holds: nothing twice, nothing left out, nobody else's.

Spark numbers the micro-batches of a query without a gap. The id of one that wrote rows is a row of
a side table, committed together with the rows and undone with them. What has no rows to be
committed with stands in the text of the stream's definition: whose micro-batches they are (the id
that Spark keeps in the checkpoint), and that some had no rows, or have begun to take rows back. So
a target that was rewound, or restored from a backup, is known by the id that it lacks.

Runs on the driver, in the thread of the query.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from headwater.core import BlockCursor, PipeState
from headwater.errors import (
    MicroBatchGapError,
    MicroBatchOrderError,
    MicroBatchTargetError,
    StoredStateError,
)
from headwater.targets.contract import Delivery, SideTable, Target

TABLE = SideTable(
    "micro_batches", pa.schema([("block_number", pa.int64()), ("ordinal", pa.int64())])
)
"""A row for each micro-batch that wrote something: its last block, and its id as `ordinal`."""
_BELOW_ALL = (-1, -1)  # a key that no row has
PRUNE_AT = 200  # rows of final blocks, before they are removed
logger = logging.getLogger("headwater.stream")


@dataclass(frozen=True, slots=True)
class _Mark:
    """Whose micro-batches they are, and that `following` comes next while `newest` is the newest.

    Else the one that follows the newest comes next: ids of -1 stand for none. Where `following` has
    begun to take blocks back, `undoes` is the newest until that is done.
    """

    query: str
    newest: int
    following: int
    undoes: int

    @classmethod
    def load(cls, text: str) -> _Mark | None:
        """Read a stored one; None if it is the definition of a stream that is no query."""
        match json.loads(text):
            case {
                "query": str(query),
                "newest": int(newest),
                "following": int(following),
                "undoes": int(undoes),
            }:
                return cls(query, newest, following, undoes)
            case {"outputs": dict()}:
                return None
            case _:
                pass
        raise StoredStateError("the stored configuration cannot be read", got=text[:80])

    def dump(self) -> str:
        """Return the text to store: to other streams, a definition without outputs."""
        return json.dumps({"version": 1, "outputs": {}, **asdict(self)})

    def after(self, newest: int) -> int:
        """Return the id that comes next."""
        return self.following if newest in (self.newest, self.undoes) else newest + 1


class MicroBatchLog:
    """The micro-batches that a target holds.

    Raises:
        MicroBatchTargetError: the target keeps no side tables, or no definition.
    """

    def __init__(self, target: Target[Delivery], stream_id: str) -> None:
        side, config = target.capabilities.side_tables, target.capabilities.config
        if side is None or config is None:
            raise MicroBatchTargetError(
                "the target does not keep what tells which micro-batches it holds",
                target=type(target).__name__,
            )
        self._side, self._config = side, config
        self._id = stream_id
        self._keys: list[tuple[int, int]] = []  # block number and id, ascending
        self._mark: _Mark | None = None
        self._text: str | None = None

    def open(self) -> None:
        """Create the table, if there is none. Called before the target recovers."""
        self._side.open_side_tables([TABLE])

    def read(self) -> None:
        """Read what is stored. Called after the target has recovered."""
        rows = self._side.read_side_table(TABLE.name)
        numbers, ids = (rows[name].to_pylist() for name in TABLE.columns.names)
        self._keys = list(zip(numbers, ids, strict=True))
        self._text = self._config.stored_config().read()
        self._mark = None if self._text is None else _Mark.load(self._text)

    def next_id(self) -> int:
        """Return the id that comes next. Called after `read`."""
        return self._newest + 1 if self._mark is None else self._mark.after(self._newest)

    def is_due(self, batch_id: int, query: str, last: BlockCursor | None, state: PipeState) -> bool:
        """Tell whether a micro-batch, which inserts blocks up to `last`, is to be written.

        Raises:
            MicroBatchOrderError: the target is of another query, or holds a later micro-batch.
            MicroBatchGapError: it lacks micro-batches that come before this one.
        """
        begins = self._mark is None
        mark = self._mark = self._mark or self._first(batch_id, query, state)
        newest = self._newest
        if query != mark.query:
            raise MicroBatchOrderError(
                "the target was written by another query", query=query, wrote=mark.query
            )
        if batch_id < newest:
            raise MicroBatchOrderError(
                "the target holds a later micro-batch than the query is at",
                holds=newest,
                given=batch_id,
            )
        if batch_id == newest and last != state.cursor:
            raise MicroBatchOrderError(
                "the target holds another micro-batch of this id",
                given=batch_id,
                holds=state.cursor,
                ends=last,
            )
        following = mark.after(newest)
        if batch_id > following:
            raise MicroBatchGapError(
                "the target lacks micro-batches that the query has done with",
                lacks=f"{following}..{batch_id - 1}",
                given=batch_id,
                cursor=state.cursor,
            )
        if begins:
            self._store(newest, following)
        return batch_id == following

    def rows(self, batch_id: int, state: PipeState) -> dict[str, pa.Table]:
        """Return what is to be committed with a micro-batch."""
        row = {"block_number": state.number, "ordinal": batch_id}
        return {TABLE.name: pa.Table.from_pylist([row], schema=TABLE.columns)}

    def committed(self, batch_id: int, state: PipeState) -> None:
        """Note a micro-batch, and remove rows of blocks that are final for long."""
        self._keys.append((state.number, batch_id))
        old = [key for key in self._keys[:-1] if key[0] <= state.undo_floor]
        if len(old) >= PRUNE_AT:
            self._side.settle_side_rows(TABLE.name, old[-1], {})
            self._keys = self._keys[len(old) :]

    def passed(self, batch_id: int, state: PipeState) -> None:
        """Store that a micro-batch had nothing to commit.

        Before the first commit Delta has no place for a definition; a settlement makes one.
        """
        self._store(self._newest, batch_id + 1)
        if state.cursor is None:
            self._side.settle_side_rows(TABLE.name, _BELOW_ALL, {})

    def takes_back(self, batch_id: int, safe: PipeState) -> None:
        """Store that a micro-batch goes back to a state first. Called before the rollback.

        The ids above it go with their blocks, and if the process ends then, they are not missed.
        """
        kept = [key for key in self._keys if key[0] <= safe.number]
        self._store(kept[-1][1] if kept else -1, batch_id, self._newest)

    def went_back(self, state: PipeState) -> None:
        """Forget the micro-batches above the state's cursor, as the target did."""
        self._keys = [key for key in self._keys if key[0] <= state.number]

    @property
    def _newest(self) -> int:
        return self._keys[-1][1] if self._keys else -1

    def _first(self, batch_id: int, query: str, state: PipeState) -> _Mark:
        """Return the mark of an empty target, or of one that an earlier release has written.

        That one stored the ids of micro-batches with rows, and no more.
        """
        newest = self._newest
        if self._text is not None or (state.cursor is not None and newest < 0):
            raise MicroBatchOrderError(
                "the target was written by a stream that is no query", cursor=state.cursor
            )
        if newest < 0:
            return _Mark(query, -1, 0, -1)
        logger.warning("query.adopted id=%s query=%s at=%d", self._id, query, batch_id)
        return _Mark(query, newest, max(batch_id, newest + 1), newest)

    def _store(self, newest: int, following: int, undoes: int | None = None) -> None:
        assert self._mark is not None, "a micro-batch is due before it is noted"
        undoes = newest if undoes is None else undoes
        self._mark = replace(self._mark, newest=newest, following=following, undoes=undoes)
        self._config.stored_config().write(self._mark.dump())
