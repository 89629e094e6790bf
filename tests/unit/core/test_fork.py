"""Every rule of fork resolution, one by one."""

import pytest

from headwater.core import (
    BlockCursor,
    ForkResolution,
    ForkRule,
    PipeState,
    contradicting_block,
    descend,
    find_rollback_index,
    resolve_fork,
)
from headwater.errors import EmptyForkSampleError, ForkCursorMissingError, LaggingPortalError
from tests.unit.core.test_state import cursors, state

MATCH, WATERMARK, DESCEND, WAIT = (
    ForkRule.MATCH,
    ForkRule.WATERMARK,
    ForkRule.DESCEND,
    ForkRule.WAIT,
)


@pytest.mark.parametrize(
    ("ours", "finalized", "sample", "safe", "rule"),
    [
        pytest.param("4 5 6 7", "4", "5 6b 7b", "5", MATCH, id="ancestor in the sample"),
        pytest.param("4 5 6 7", "4", "7b 6b 5", "5", MATCH, id="sample newest first"),
        pytest.param("4 5 6 7", "4", "4 5 6 7b", "6", MATCH, id="highest match wins"),
        pytest.param("5 6", "5", "5 6b", "5", MATCH, id="the mark itself"),
        pytest.param("5 7", "5", "5 6b", "5", MATCH, id="the mark, with a gap above it"),
        pytest.param("5 6 7", "5", "3 4", "5", WATERMARK, id="sample below the mark"),
        pytest.param("5 6 7", "5", "4", "5", WATERMARK, id="one entry below the mark"),
        pytest.param("5 6", "5", "6b", "5", DESCEND, id="one hot block, one entry"),
        pytest.param("4 5 6 7", "4", "7b", "6", DESCEND, id="one entry at our height"),
        pytest.param("4 5 6", "4", "10 11", "5", DESCEND, id="sample above our cursor"),
        pytest.param("8 10 14 20", "8", "17c 18c 19c", "14", DESCEND, id="sample in a gap"),
        pytest.param("5 6 7 8", "5", "3 4 6b 7b", "5", DESCEND, id="around the mark: the mark"),
        pytest.param("5 6 7", None, "7b", "6", DESCEND, id="finality never reported"),
        pytest.param("5 6 7", None, "2b 3b", "5", DESCEND, id="sample below all, no finality"),
        pytest.param("5 6 7", None, "5 6b", "5", MATCH, id="finality never reported, match"),
        pytest.param("8 9", "7", "7 8b", "7", MATCH, id="a mark below the chain"),
        pytest.param("4 5 6 7", "4", "5 6", "7", WAIT, id="replica behind, not forked"),
        pytest.param("4 5 6 7", "4", "1 2 5 6", "7", WAIT, id="behind; old entries unknown"),
        pytest.param("4 5 6 7", "4", "6 7", "7", WAIT, id="the portal agrees with our cursor"),
        pytest.param("4 5 6 7", "4", "6 7 8 9", "7", WAIT, id="it agrees, and is ahead"),
        pytest.param("5", "5", "3 4", "5", WAIT, id="behind a cursor that is final"),
    ],
)
def test_where_a_fork_sends_us(
    ours: str, finalized: str | None, sample: str, safe: str, rule: ForkRule
) -> None:
    resolution = resolve_fork(state(ours, finalized), cursors(sample))
    assert resolution == ForkResolution(cursors(safe)[0], rule)


@pytest.mark.parametrize(
    ("ours", "finalized", "sample", "safe", "rule"),
    [
        pytest.param("4 5 6 7", "4", "5 6", "6", MATCH, id="behind: back to its newest block"),
        pytest.param("4 5 6 7", "4", "6 7", "6", MATCH, id="agrees: below the cursor all the same"),
        pytest.param("4 5 6 7", "4", "7", "6", DESCEND, id="agrees with the cursor alone"),
    ],
)
def test_out_of_patience_the_cursor_goes_strictly_lower(
    ours: str, finalized: str, sample: str, safe: str, rule: ForkRule
) -> None:
    resolution = resolve_fork(state(ours, finalized), cursors(sample), patient=False)
    assert resolution == ForkResolution(cursors(safe)[0], rule)


@pytest.mark.guarantee("FORK-4")
@pytest.mark.guarantee("FORK-6")
@pytest.mark.parametrize(
    ("ours", "finalized", "sample"),
    [
        pytest.param("5 6 7", "5", "5b 6b", id="another hash at the mark"),
        pytest.param("5 6 7", "5", "5b 6", id="another hash at the mark beside a match"),
        pytest.param("8 9", "7", "7b", id="at a mark below the chain"),
        pytest.param("4", "4", "4b", id="at a cursor that is final"),
        pytest.param("5", "5", "6b 7b", id="nothing lower than the mark"),
        pytest.param("5 6", None, "4b 5b 6b", id="finality unknown, sample covers all we hold"),
        pytest.param("5", None, "5b", id="finality unknown, one block held"),
        pytest.param("9000", None, "8000b", id="below all that is held, nothing lower"),
    ],
)
def test_unrecoverable_forks_are_refused(ours: str, finalized: str | None, sample: str) -> None:
    """CASE-15."""
    before = state(ours, finalized)
    waits = ForkResolution(cursors(ours)[-1], WAIT)
    assert resolve_fork(before, cursors(sample)) == waits  # another replica may answer next
    with pytest.raises(ForkCursorMissingError, match="E1003"):
        resolve_fork(before, cursors(sample), patient=False)
    assert before == state(ours, finalized)


def test_a_fork_before_the_first_block_is_refused() -> None:
    with pytest.raises(ForkCursorMissingError, match="before any block"):
        resolve_fork(PipeState(), cursors("1"))


def test_an_empty_sample_is_a_coded_error() -> None:
    """CASE-15."""
    with pytest.raises(EmptyForkSampleError, match="E1002"):
        resolve_fork(state("5 6", "5"), ())


def test_a_portal_that_stays_below_a_final_cursor_is_named() -> None:
    with pytest.raises(LaggingPortalError, match="E1004"):
        resolve_fork(state("5", "5"), cursors("3 4"), patient=False)


def test_a_long_sample_is_shown_by_its_ends() -> None:
    with pytest.raises(ForkCursorMissingError, match=r"4#h4b … 9#h9b \(6 blocks\)"):
        resolve_fork(state("5 6"), cursors("4b 5b 6b 7b 8b 9b"), patient=False)


@pytest.mark.parametrize("sample", ["5b 5", "5 5b", "0b 4b 5 5b"])
def test_a_sample_that_holds_our_final_block_contradicts_nothing(sample: str) -> None:
    """A service near block 0 adds an entry that is of no chain."""
    assert resolve_fork(state("5 6 7", "5"), cursors(sample)).safe_cursor == cursors("5")[0]
    assert contradicting_block(state("5 6", "5"), cursors(sample)) is None


def test_a_cursor_without_hash_never_matches_and_never_contradicts() -> None:
    bare = PipeState(BlockCursor(6), BlockCursor(5, "h5"), (BlockCursor(5), BlockCursor(6)))
    assert resolve_fork(bare, cursors("5 6b")).safe_cursor == cursors("5")[0]


@pytest.mark.parametrize(
    ("chain_a", "chain_b", "index"),
    [
        ("5 6 7", "5 6b 7b", 0),
        ("5 6 7", "6 7 8", 2),
        ("5 7 9", "6 7 8 9b", 1),
        ("5 6", "5b 6", -1),
        ("5 6", "1 2", -1),
        ("", "1", -1),
        ("1", "", -1),
    ],
)
def test_find_rollback_index_is_the_scan_of_the_seed(
    chain_a: str, chain_b: str, index: int
) -> None:
    assert find_rollback_index(cursors(chain_a), cursors(chain_b)) == index


@pytest.mark.guarantee("FORK-2")
def test_a_search_without_a_match_goes_down_by_one_two_four_and_eight() -> None:
    before = state(" ".join(map(str, range(1, 66))), "1")
    landings, at, descents = [], before, 0
    while at.number > 5:
        found = descend(at, resolve_fork(at, cursors(f"{at.number}b")), descents)
        assert found.rule is ForkRule.DESCEND
        landings.append(found.safe_cursor.number)
        at, descents = at.rewind(found.safe_cursor), descents + 1
    assert landings == [64, 62, 58, 50, 34, 2]
    match = resolve_fork(before, cursors("60 61b"))
    assert descend(before, match, 5) == match, "a match is where the branches part"
