"""The contract of a target, on the smallest one there is."""

import pytest

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.targets import MemoryStore, MemoryTarget, Target

Rows = tuple[str, ...]


def cursor(number: int) -> BlockCursor:
    return BlockCursor(number, f"h{number}")


def batch(*numbers: int, finalized: int = 1) -> Batch[Rows]:
    """Return these blocks with a row each, and the state of a chain that ends in the last."""
    chain = tuple(cursor(number) for number in range(finalized, numbers[-1] + 1))
    headers = tuple(BlockHeader(number, f"h{number}") for number in numbers)
    state = PipeState(chain[-1], cursor(finalized), chain)
    rows = tuple(f"row of {number}" for number in numbers)
    return Batch(headers, Head(), state, tuple(one.cursor for one in headers), rows)


def filled(*parts: Batch[Rows]) -> MemoryTarget[Rows]:
    target: MemoryTarget[Rows] = MemoryTarget()
    for part in parts or (batch(1, 2, 3), batch(4), batch(5)):
        target.commit([part], part.state)
    return target


def rows(target: MemoryTarget[Rows]) -> list[str]:
    return [row for one in target.store.committed.batches for row in one.data]


def test_it_is_a_target() -> None:
    target: Target[Rows] = MemoryTarget()
    assert target.recover() == PipeState()


def test_a_new_target_has_committed_nothing() -> None:
    target: MemoryTarget[Rows] = MemoryTarget()
    assert target.recover() == PipeState()
    assert target.store.committed.batches == ()


def test_targets_do_not_share_a_store_unless_they_are_given_one() -> None:
    first, second = filled(), MemoryTarget[Rows]()
    assert second.recover() == PipeState()
    assert MemoryTarget(first.store).recover() == first.recover()


def test_a_commit_shows_data_and_state_together() -> None:
    target = filled()
    assert rows(target) == [f"row of {number}" for number in range(1, 6)]
    assert target.recover() == batch(5).state


def test_several_batches_become_visible_in_one_commit() -> None:
    target: MemoryTarget[Rows] = MemoryTarget()
    parts = [batch(1), batch(2), batch(3)]
    target.commit(parts, parts[-1].state)
    assert rows(target) == ["row of 1", "row of 2", "row of 3"]
    assert target.recover() == parts[-1].state


def test_a_commit_without_batches_changes_the_state_alone() -> None:
    target = filled()
    settled = batch(5, finalized=4).state
    for _ in range(2):
        target.commit((), settled)
        assert target.recover() == settled
        assert len(rows(target)) == 5


def test_a_commit_is_one_swap_so_a_reader_sees_all_of_it_or_nothing() -> None:
    target = filled()
    seen = target.store.committed
    target.commit([batch(6)], batch(6).state)
    assert seen.state == batch(5).state
    assert len(seen.batches) == 3
    assert target.store.committed is not seen


def test_a_commit_that_fails_leaves_all_as_it_was() -> None:
    target = filled()
    before = target.store.committed

    class Broken(list[Batch[Rows]]):
        def __iter__(self) -> None:  # type: ignore[override]
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk"):
        target.commit(Broken(), batch(6).state)
    assert target.store.committed is before


@pytest.mark.parametrize(("to", "kept"), [(5, 5), (4, 4), (3, 3), (1, 0)])
def test_a_rollback_drops_what_lies_above_the_cursor(to: int, kept: int) -> None:
    target = filled()
    state = batch(to).state
    target.roll_back(state)
    assert len(rows(target)) == kept  # a batch is undone whole
    assert target.recover() == state


def test_a_rollback_leaves_final_data_alone() -> None:
    target = filled()
    target.roll_back(batch(3, finalized=3).state)
    assert rows(target) == ["row of 1", "row of 2", "row of 3"]


def test_a_rollback_to_the_beginning_leaves_nothing() -> None:
    target = filled()
    target.roll_back(PipeState())
    assert rows(target) == []
    assert target.recover() == PipeState()


def test_a_repeated_rollback_changes_nothing() -> None:
    target = filled()
    target.roll_back(batch(4).state)
    before = target.store.committed
    target.roll_back(batch(4).state)
    assert target.store.committed == before


def test_after_a_rollback_other_blocks_follow() -> None:
    target = filled()
    target.roll_back(batch(3).state)
    renamed: Rows = ("row of 4b",)
    sibling = batch(4).with_data(renamed)
    target.commit([sibling], sibling.state)
    assert rows(target) == ["row of 1", "row of 2", "row of 3", "row of 4b"]


def test_recovering_again_changes_nothing() -> None:
    target = filled()
    before = target.store.committed
    assert target.recover() == target.recover() == before.state
    assert target.store.committed is before


@pytest.mark.guarantee("STATE-2")
def test_a_store_outlives_its_target() -> None:
    store: MemoryStore[Rows] = MemoryStore()
    first = MemoryTarget(store)
    first.commit([batch(1)], batch(1).state)  # then dies
    second = MemoryTarget(store)
    assert second.recover() == batch(1).state
    second.commit([batch(2)], batch(2).state)
    assert rows(second) == ["row of 1", "row of 2"]


def test_closing_twice_is_harmless_and_keeps_the_store() -> None:
    target = filled()
    target.close()
    target.close()
    assert len(rows(target)) == 5
