"""How the stored state changes: advance, settle, rewind; and how answers are cut into batches."""

import pytest

from headwater.core import (
    BlockCursor,
    BlockHeader,
    Blocks,
    Head,
    PipeState,
    batches,
    cut_batches,
    hot_cursors,
    resolve_fork,
    resolve_undo,
)
from headwater.core.cursor import UNKNOWN_HASH
from headwater.core.state import cap_chain, extend_chain, prune_chain
from headwater.errors import BlockOrderError, HotBatchError, RewindError


def cursors(text: str) -> tuple[BlockCursor, ...]:
    """Read "5 6 7b" as blocks 5, 6 of our chain and 7 of chain b."""
    parts = [(part.rstrip("abcdefgh"), part) for part in text.split()]
    return tuple(BlockCursor(int(number), f"h{part}") for number, part in parts)


def headers(text: str) -> list[BlockHeader]:
    return [BlockHeader(cursor.number, str(cursor.hash)) for cursor in cursors(text)]


def head(finalized: str | None = None, latest: int | None = None) -> Head:
    return Head(
        cursors(finalized)[0] if finalized is not None else None,
        BlockCursor(latest) if latest is not None else None,
    )


def state(chain: str, finalized: str | None = None) -> PipeState:
    blocks = cursors(chain)
    return PipeState(
        blocks[-1] if blocks else None, cursors(finalized)[0] if finalized else None, blocks
    )


class TestUndo:
    """What targets ask before they keep, undo or forget."""

    def test_only_what_lies_above_the_oldest_landing_point_is_hot(self) -> None:
        assert not PipeState().is_hot
        assert not state("3", "3").is_hot
        assert state("3 4", "3").is_hot
        assert not state("5").is_hot, "nothing below it is held"
        assert [one.undo_floor for one in (PipeState(), state("3 4", "3"))] == [-1, 3]
        assert [one.number for one in (PipeState(), state("3 4", "3"))] == [-1, 4]

    def test_a_rollback_below_the_undo_data_is_refused(self) -> None:
        held = state("3 4 5", "3")
        held.check_reach(state("3", "3"))
        PipeState().check_reach(PipeState())
        with pytest.raises(RewindError, match="does not reach"):
            held.check_reach(state("2"))
        with pytest.raises(RewindError, match="does not reach"):
            held.check_reach(PipeState())

    def test_undo_data_is_prunable_below_finality_and_every_landing_point(self) -> None:
        assert PipeState().prunable(5) == -1
        assert state("30 31", "30").prunable(10) == 20
        assert state("3 4", "3").prunable(10) == -1
        assert state("30 31 99").prunable(10) == 29, "finality is unknown: all of the chain is kept"
        assert state("20", "30").prunable(10) == 10, "never above the cursor"


class TestAdvance:
    def test_a_final_batch_moves_the_cursor_and_leaves_one_anchor(self) -> None:
        after = PipeState().advance(headers("1 2 3"), head("10"))
        assert after == PipeState(cursors("3")[0], cursors("3")[0], cursors("3"))

    def test_hot_blocks_pile_up_above_the_anchor(self) -> None:
        after = state("3", "3")
        for block in ("4", "5", "6"):
            after = after.advance(headers(block), head("3"))
        assert after.rollback_chain == cursors("3 4 5 6")

    @pytest.mark.guarantee("FINAL-1")
    def test_a_lagging_replica_does_not_lower_finality(self) -> None:
        after = state("5 6", "5").advance(headers("7"), head("2"))
        assert after.finalized == cursors("5")[0]

    def test_missing_finality_keeps_what_is_known(self) -> None:
        assert state("5 6", "5").advance(headers("7"), head()).finalized == cursors("5")[0]

    @pytest.mark.guarantee("FINAL-2")
    def test_finality_that_contradicts_a_held_block_is_not_believed(self) -> None:
        after = state("5 6", "5").advance(headers("7"), head("6b"))
        assert after.finalized == cursors("5")[0]
        assert after.rollback_chain == cursors("5 6 7")

    @pytest.mark.guarantee("FINAL-2")
    def test_finality_that_contradicts_an_arriving_block_is_not_believed(self) -> None:
        assert state("5 6", "5").advance(headers("7"), head("7b")).finalized == cursors("5")[0]

    def test_finality_of_a_block_we_were_not_given_makes_our_own_block_below_it_final(self) -> None:
        after = state("3 5 8", "3").advance(headers("9"), head("7b"))
        assert after.finalized == cursors("5")[0]
        assert after.rollback_chain == cursors("5 8 9")

    def test_finality_below_all_that_we_hold_changes_nothing(self) -> None:
        """A large batch committed while finality was unknown cannot be undone in part."""
        after = state("9000 9001").advance(headers("9002"), head("5000"))
        assert after.finalized is None
        assert after.rollback_chain == cursors("9000 9001 9002")

    def test_history_is_capped_when_finality_is_never_reported(self) -> None:
        after = PipeState()
        for number in range(30):
            after = after.advance(headers(str(number)), head(), cap=10)
        assert after.rollback_chain == cursors(" ".join(map(str, range(20, 30))))

    def test_the_cap_never_loses_the_anchor_of_finality(self) -> None:
        after = state("5", "5")
        for number in range(6, 30):
            after = after.advance(headers(str(number)), head("5"), cap=4)
        assert after.rollback_chain == cursors("5 27 28 29")

    @pytest.mark.parametrize("text", ["", "5", "4", "7 7", "8 7"])
    def test_blocks_must_ascend_from_the_cursor(self, text: str) -> None:
        with pytest.raises(BlockOrderError, match="E3004"):
            state("5").advance(headers(text), head())

    def test_several_hot_blocks_in_one_batch_are_refused(self) -> None:
        with pytest.raises(HotBatchError, match="E1006"):
            state("5", "5").advance(headers("6 7"), head("5"))

    def test_a_cursor_without_hash_is_no_anchor_of_finality(self) -> None:
        bare = PipeState(BlockCursor(5), None, (BlockCursor(5),))
        assert bare.advance(headers("6"), head("5")).finalized is None
        assert bare.advance(headers("6"), head("6")).finalized == cursors("6")[0]


class TestBeginning:
    """A stream that begins with a hot block can lose that very block."""

    def test_the_parent_of_the_first_block_is_a_place_to_land_on(self) -> None:
        first = PipeState().advance([BlockHeader(7, "h7", "h6")], head())
        assert first.rollback_chain == cursors("6 7")

    def test_so_is_the_finalized_block_below_it(self) -> None:
        first = PipeState().advance([BlockHeader(7, "h7", "h6")], head("4"))
        assert first.finalized == cursors("4")[0]
        assert first.landing_points() == cursors("4 6 7")

    def test_on_solana_the_parent_is_the_slot_it_names(self) -> None:
        first = PipeState().advance([BlockHeader(7, "h7", "h5", 5)], head("5"))
        assert first.rollback_chain == cursors("5 7")

    @pytest.mark.parametrize(
        "header", [BlockHeader(7, "h7"), BlockHeader(0, "h0", "0x00")], ids=["unknown", "genesis"]
    )
    def test_without_a_parent_there_is_none(self, header: BlockHeader) -> None:
        assert PipeState().advance([header], head()).rollback_chain == (header.cursor,)

    @pytest.mark.parametrize("parent", [None, 6], ids=["number unknown", "number known"])
    @pytest.mark.parametrize(("final", "landing"), [("6", "6 7"), ("4", "4 7"), ("6b", "6b 7")])
    def test_the_finalized_block_stands_in_for_a_parent_whose_hash_is_left_out(
        self, parent: int | None, final: str, landing: str
    ) -> None:
        first = PipeState().advance([BlockHeader(7, "h7", None, parent)], head(final))
        assert first.landing_points() == cursors(landing)
        assert first.finalized == cursors(final)[0]
        sample = cursors(f"{final} 7b")
        assert resolve_fork(first, sample).safe_cursor == cursors(final)[0]

    def test_a_parent_that_contradicts_finality_stays_the_place_to_land_on(self) -> None:
        first = PipeState().advance([BlockHeader(7, "h7", "h6")], head("6b"))
        assert first.landing_points() == cursors("6 7")

    def test_what_was_read_by_depth_alone_cannot_be_undone(self) -> None:
        many = [BlockHeader(7, "h7", "h6"), BlockHeader(8, "h8", "h7")]
        assert PipeState().advance(many, head(latest=9000)).rollback_chain == cursors("8")


class TestSettle:
    def test_an_idle_head_moves_finality_to_a_block_we_hold(self) -> None:
        after = state("5 6 7", "5").settle(head("6"))
        assert after.finalized == cursors("6")[0]
        assert after.rollback_chain == cursors("6 7")

    @pytest.mark.guarantee("FINAL-2")
    @pytest.mark.parametrize("reported", ["6b", "9", "4"])
    def test_finality_that_cannot_be_checked_against_our_chain_waits(self, reported: str) -> None:
        before = state("5 7", "5")
        assert before.settle(head(reported)) == before

    def test_an_answer_without_finality_changes_nothing(self) -> None:
        before = state("5 6", "5")
        assert before.settle(head()) == before

    def test_before_the_first_block_there_is_nothing_to_settle(self) -> None:
        assert PipeState().settle(head("9")) == PipeState()


class TestRewind:
    def test_a_rewind_cuts_the_chain_and_keeps_finality(self) -> None:
        assert state("5 6 7 8", "5").rewind(cursors("6")[0]) == state("5 6", "5")

    def test_a_rewind_to_the_mark_leaves_the_mark_alone(self) -> None:
        after = state("8 9", "7").rewind(cursors("7")[0])
        assert after == PipeState(cursors("7")[0], cursors("7")[0], cursors("7"))

    def test_repeating_a_rewind_is_harmless(self) -> None:
        once = state("5 6 7 8", "5").rewind(cursors("6")[0])
        assert once.rewind(cursors("6")[0]) == once

    @pytest.mark.guarantee("FINAL-3")
    @pytest.mark.parametrize("target", ["4", "6b", "9"])
    def test_a_rewind_below_finality_or_to_a_foreign_block_is_refused(self, target: str) -> None:
        with pytest.raises(RewindError, match="E1010"):
            state("4 5 6 7", "5").rewind(cursors(target)[0])

    def test_a_block_that_is_known_by_its_number_alone_is_named_by_the_signal(self) -> None:
        """Such are those between, where another program's log says what each block did."""
        numbers = tuple(BlockCursor(one, UNKNOWN_HASH) for one in (6, 7))
        chain = (*cursors("5"), *numbers, *cursors("8"))
        held = PipeState(chain[-1], chain[0], chain)
        (seven,) = cursors("7")
        found = resolve_undo(held, seven)
        assert found is not None
        after = held.rewind(found.safe_cursor)
        assert after == PipeState(seven, chain[0], (*chain[:2], seven))
        assert resolve_undo(after, seven) is None
        unnamed = resolve_undo(after, BlockCursor(6))
        assert unnamed is not None
        assert after.rewind(unnamed.safe_cursor).cursor == numbers[0]

    def test_an_empty_state_has_nowhere_to_go(self) -> None:
        with pytest.raises(RewindError, match="oldest=None"):
            PipeState().rewind(cursors("1")[0])


class TestLandingPoints:
    def test_a_final_cursor_is_the_only_landing_point(self) -> None:
        assert state("5", "9").landing_points() == cursors("5")

    def test_unknown_finality_leaves_the_whole_chain(self) -> None:
        assert state("4 5 6").landing_points() == cursors("4 5 6")

    def test_the_mark_is_one_even_where_the_chain_starts_above_it(self) -> None:
        assert state("6 7", "5").landing_points() == cursors("5 6 7")


class TestCutting:
    def test_final_blocks_stay_together_and_hot_ones_stand_alone(self) -> None:
        """CASE-5."""
        cut = cut_batches(PipeState(), headers("1 2 3 4 5"), head("3"))
        assert cut == [slice(0, 3), slice(3, 4), slice(4, 5)]

    def test_all_hot(self) -> None:
        assert cut_batches(state("3", "3"), headers("4 5"), head("3")) == [
            slice(0, 1),
            slice(1, 2),
        ]

    def test_without_finality_only_what_is_deeper_than_the_cap_stays_together(self) -> None:
        cut = cut_batches(PipeState(), headers("1 2 3 4"), head(latest=12), cap=10)
        assert cut == [slice(0, 2), slice(2, 3), slice(3, 4)]

    def test_without_any_head_every_block_stands_alone(self) -> None:
        assert cut_batches(PipeState(), headers("1 2"), head()) == [slice(0, 1), slice(1, 2)]

    def test_every_cut_can_be_advanced_over(self) -> None:
        arriving = headers("1 2 3 4 5")
        after = PipeState()
        for part in cut_batches(after, arriving, head("3")):
            after = after.advance(arriving[part], head("3"))
        assert after.rollback_chain == cursors("3 4 5")

    def test_a_batch_tells_which_of_its_blocks_are_hot(self) -> None:
        assert hot_cursors(headers("2 3 4"), 3) == cursors("4")
        assert hot_cursors(headers("2 3"), -1) == cursors("2 3")


class TestBatches:
    def answer(self, text: str, answer_head: Head) -> Blocks:
        arriving = tuple(headers(text))
        return Blocks(arriving, tuple(b"%d" % one.number for one in arriving), answer_head)

    def test_an_answer_becomes_batches_with_the_states_that_follow_them(self) -> None:
        made = list(batches(PipeState(), self.answer("1 2 3 4", head("2"))))
        assert [batch.data for batch in made] == [(b"1", b"2"), (b"3",), (b"4",)]
        assert [batch.rollback_chain for batch in made] == [(), cursors("3"), cursors("4")]
        assert made[-1].state == state("2 3 4", "2")
        assert made[0].with_data("rows").data == "rows"

    @pytest.mark.guarantee("FINAL-2")
    def test_finality_that_the_last_block_refutes_is_not_believed_at_the_first(self) -> None:
        made = list(batches(state("1", "1"), self.answer("2 3", head("3b"))))
        assert made[0].state.finalized == cursors("1")[0]


class TestChain:
    def test_prune_keeps_what_is_at_or_above_finality(self) -> None:
        assert prune_chain(cursors("5 6 7"), cursors("6")[0]) == cursors("6 7")

    def test_prune_without_finality_keeps_all(self) -> None:
        assert prune_chain(cursors("3 5"), None) == cursors("3 5")

    def test_append_replaces_what_it_contradicts(self) -> None:
        assert extend_chain(cursors("3 4 5"), cursors("4b")[0]) == cursors("3 4b")

    def test_cap_below_its_limit_changes_nothing(self) -> None:
        assert cap_chain(cursors("3 4"), 2, None) == cursors("3 4")


def test_the_cap_of_the_stream_counts_also_when_finality_settles() -> None:
    chain = cursors(" ".join(map(str, range(1500))))
    state = PipeState(chain[-1], chain[0], chain)
    settled = state.settle(Head(chain[3]), confirmed=True, cap=1400)
    assert settled.finalized == chain[3]
    assert len(settled.rollback_chain) == 1400
    assert len(state.settle(Head(chain[3]), confirmed=True, cap=2000).rollback_chain) == 1497
    assert len(state.capped(1400).rollback_chain) == 1400
    assert state.capped(2000) == state
