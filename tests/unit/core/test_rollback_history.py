"""`RollbackHistory`: what `create_target` and `pipe_to_iterator` decide forks by."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.core import BlockCursor, RollbackHistory, find_rollback_index
from headwater.errors import ForkCursorMissingError, StoredStateError
from tests.unit.core.test_state import cursors


@dataclass
class Batch:
    """What a stream hands out: a batch's own hot blocks, its last block, what is final."""

    hot: str
    last: str
    final: str | None = None
    ctx: Any = field(init=False)

    def __post_init__(self) -> None:
        state = SimpleNamespace(rollback_chain=cursors(self.hot), current=cursors(self.last)[0])
        head = SimpleNamespace(finalized=cursors(self.final)[0] if self.final else None)
        self.ctx = SimpleNamespace(stream=SimpleNamespace(state=state, head=head))


def history_of(*batches: Batch, cap: int = 1000) -> RollbackHistory:
    history = RollbackHistory(cap=cap)
    for batch in batches:
        history.append(batch)
    return history


FOLLOWED = [Batch("", "5", "5"), *(Batch(str(at), str(at), "5") for at in range(6, 10))]


def test_it_goes_further_down_where_a_conflict_names_a_single_block() -> None:
    """The real-time service names its head, which is no block of ours at a fork of one block."""
    history = history_of(*FOLLOWED)
    assert find_rollback_index(history.blocks, cursors("9b")) == -1, "nothing in common"
    assert history.resolve(cursors("9b")) == cursors("8")[0] == history.cursor
    assert history.resolve(cursors("8b")) == cursors("6")[0], "then two blocks more, four, eight"
    history.append(Batch("7b", "7b", "5"))
    assert history.blocks == cursors("5 6 7b")
    assert history.resolve(cursors("7c")) == cursors("6")[0], "the next fork begins with one"


def test_it_never_goes_below_what_is_final() -> None:
    history = history_of(*FOLLOWED)
    assert history.resolve(cursors("3 4")) == history.finalized == cursors("5")[0]
    assert history.resolve(cursors("3 4")) == cursors("5")[0], "a replica that is behind: it waits"
    with pytest.raises(ForkCursorMissingError, match="contradicts"):
        history.resolve(cursors("5b"))


def test_finality_is_our_own_newest_block_below_it_and_never_falls() -> None:
    history = history_of(Batch("", "5", "40"), Batch("7", "7", "6"), Batch("9", "9", "8"))
    assert (history.finalized, history.blocks) == (cursors("7")[0], cursors("7 9"))
    for finalized in (None, *cursors("3"), *cursors("9b"), BlockCursor(9)):
        history.prune(finalized)
        assert history.finalized == cursors("7")[0]
    history.prune(cursors("9")[0])
    assert history.blocks == cursors("9")


def test_a_stream_that_begins_with_hot_blocks_goes_back_to_the_finalized_one() -> None:
    history = history_of(Batch("7", "7", "4"), Batch("8", "8", "4"))
    assert history.blocks == cursors("4 7 8")
    assert history.resolve(cursors("7b")) == cursors("4")[0]


def test_without_finality_it_keeps_so_many_blocks() -> None:
    history = history_of(*(Batch(str(at), str(at)) for at in range(6, 10)), cap=2)
    assert history.blocks == cursors("8 9")
    with pytest.raises(ForkCursorMissingError, match="E1003"):
        history.resolve(cursors("7b 8b 9b"))
    assert history.cursor == cursors("9")[0]


def test_it_is_stored_and_goes_on() -> None:
    history = history_of(*FOLLOWED)
    again = RollbackHistory.load(history.dump())
    assert (again.cursor, again.finalized, again.blocks) == (
        history.cursor, history.finalized, history.blocks
    )  # fmt: skip
    empty = RollbackHistory.load(RollbackHistory().dump())
    assert (empty.cursor, empty.finalized, empty.blocks) == (None, None, ())
    empty.prune(cursors("3")[0])
    assert empty.blocks == ()
    with pytest.raises(StoredStateError):
        RollbackHistory.load("history")
