"""The loop with flush rules: batches that are committed together, and dropped together."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from headwater.core import (
    Answer,
    AtHead,
    Flush,
    FlushRules,
    Fork,
    ForkResolution,
    ForkRule,
    Span,
)
from headwater.errors import EmptyForkSampleError
from headwater.pipeline import Buffered, Committed, Discarded, RolledBack, Settled, Waited
from tests.unit.test_pipeline import END, Run, blocks, cursors, fork, head, span, state

START = state("5", "5")


def run_on(*readings: list[Answer | Span | Exception], live: Flush, **options: Any) -> Run:
    options.setdefault("start", START)
    return Run(*readings, flush=FlushRules(live, options.pop("backfill", Flush())), **options)


def commits(run: Run) -> list[str]:
    run.events()
    return [call for call in run.calls if call.startswith("commit")]


def test_a_flush_commits_several_hot_blocks_as_batches_of_their_own() -> None:
    run = run_on([blocks("6 7 8 9", "5"), END], live=Flush(blocks=2))
    assert run.events()[1:] == [
        Buffered(START, cursors("6")[0], 1),
        Committed(state("5 6 7", "5"), 2),
        Buffered(state("5 6 7", "5"), cursors("8")[0], 1),
        Committed(state("5 6 7 8 9", "5"), 2),
    ]
    assert [batch.data for batch in run.store.committed.batches] == [("6",), ("7",), ("8",), ("9",)]
    assert run.state == state("5 6 7 8 9", "5")


def test_a_limit_counts_what_is_pending_and_not_block_numbers() -> None:
    run = run_on([blocks("7 13 20 21 33", "5"), END], live=Flush(blocks=2))
    assert commits(run) == ["commit 2 at 13", "commit 2 at 21", "commit 1 at 33"]


def test_rows_are_counted_after_the_transform() -> None:
    counted = {"6": 3, "7": 0, "8": 7, "9": 10}
    run = run_on(
        [blocks("6 7 8 9", "5"), END],
        live=Flush(rows=10),
        count_rows=lambda batch: sum(counted[one] for one in batch.data),
    )
    assert commits(run) == ["commit 3 at 8", "commit 1 at 9"]


def test_the_time_is_looked_at_whenever_the_source_says_anything() -> None:
    times = iter([100.0, 101.0, 104.0, 105.0])
    idle = AtHead(head())
    run = run_on(
        [blocks("6 7", "5"), idle, idle, END], live=Flush(seconds=5), now=lambda: next(times)
    )
    events = run.events()[1:]
    assert [type(one) for one in events] == [Buffered, Buffered, Settled, Settled, Committed]
    assert commits(run) == ["commit 2 at 7"]


def test_the_end_of_a_range_and_of_everything_flushes() -> None:
    run = run_on([blocks("6", "5"), END], [blocks("9", "5")], live=Flush(blocks=100))
    assert commits(run) == ["commit 1 at 6", "commit 1 at 9"]
    assert run.calls[-3:] == ["read after 9", "commit 1 at 9", "close"]


def test_the_first_batch_of_all_is_committed_at_once() -> None:
    """So that there is a block to fall back to, for user code too."""
    run = run_on([blocks("6 7", "5"), fork("6 7b")], live=Flush(blocks=100), start=None)
    events = run.events()
    assert events[1] == Committed(run.state, 1)
    assert "on_fork 6" in run.calls
    assert run.rows == "6"


def test_reading_goes_on_from_what_waits() -> None:
    run = run_on([blocks("6", "5")], [blocks("7", "5")], [], live=Flush(blocks=3))
    run.events()
    assert [call for call in run.calls if call.startswith("read")] == [
        "read after 5", "read after 6", "read after 7", "read after 7",
    ]  # fmt: skip


@pytest.mark.guarantee("FLUSH-1")
def test_a_fork_discards_what_waits_and_asks_again_before_it_undoes() -> None:
    """CASE-2."""
    run = run_on(
        [blocks("6 7 8", "5"), fork("7b 8b")],
        [fork("6 7b")],
        [blocks("7b 8b", "5"), END],
        live=Flush(blocks=2),
    )
    two = state("5 6 7", "5")
    assert run.events()[1:] == [
        Buffered(START, cursors("6")[0], 1),
        Committed(two, 2),
        Buffered(two, cursors("8")[0], 1),
        Discarded(two, cursors("8")[0], 1),
        RolledBack(
            state("5 6", "5"), cursors("7")[0], ForkResolution(cursors("6")[0], ForkRule.MATCH)
        ),
        Buffered(state("5 6", "5"), cursors("7b")[0], 1),
        Committed(state("5 6 7b 8b", "5"), 2),
    ]
    assert run.calls.count("on_fork 7") == 1, "user code goes back with what is discarded"
    assert run.calls.index("on_fork 7") < run.calls.index("roll_back to 6")
    assert run.rows == "6 7b 8b"


def test_a_fork_of_waiting_blocks_alone_undoes_nothing() -> None:
    run = run_on(
        [blocks("6 7", "5"), fork("6b")], [blocks("6b 7b", "5"), END], live=Flush(blocks=9)
    )
    run.events()
    assert not [call for call in run.calls if call.startswith("roll_back")]
    assert run.rows == "6b 7b"


def test_a_replica_that_is_behind_does_not_cost_what_waits() -> None:
    behind = fork("5 6")
    run = run_on(
        [blocks("6 7", "5"), behind], [behind], [blocks("8", "5"), END], live=Flush(blocks=9)
    )
    assert [type(one) for one in run.events()[1:]] == [
        Buffered, Buffered, Waited, Waited, Buffered, Committed,
    ]  # fmt: skip
    assert run.rows == "6 7 8"


def test_out_of_patience_what_waits_is_discarded_first() -> None:
    behind = fork("5 6")
    run = run_on([blocks("6 7", "5"), behind], [behind], live=Flush(blocks=9), patience=1)
    assert [type(one) for one in run.events()[1:]] == [Buffered, Buffered, Waited, Discarded]
    assert run.state == START


def test_an_empty_sample_discards_before_it_is_an_error() -> None:
    run = run_on([blocks("6", "5"), Fork(())], [Fork(())], live=Flush(blocks=9))
    with pytest.raises(EmptyForkSampleError):
        run.events()
    assert run.state == START


@pytest.mark.guarantee("FLUSH-2")
def test_final_blocks_are_committed_before_hot_ones_wait() -> None:
    run = run_on(
        [blocks("6 7 8", "7"), blocks("9", "9"), END],
        live=Flush(blocks=9),
        backfill=Flush(blocks=9),
    )
    assert commits(run) == ["commit 1 at 7", "commit 1 at 8", "commit 1 at 9"]


def test_spans_are_grouped_by_the_rule_of_backfills() -> None:
    spans = [span(6, 105, "500"), span(106, 205, "500"), span(206, 305, "500")]
    run = run_on([*spans, END], live=Flush(), backfill=Flush(blocks=200))
    assert commits(run) == ["commit 2 at 205", "commit 1 at 305"]
    assert (
        Committed(state("205", "205"), 200)
        in Run(spans, start=START, flush=FlushRules(Flush(), Flush(blocks=200))).events()
    )


def test_finality_that_moves_meanwhile_is_stored_with_the_flush() -> None:
    run = run_on([blocks("6 7", "5"), AtHead(head("6"), confirmed=True), END], live=Flush(blocks=9))
    assert run.events()[3] == Settled(START), "nothing is told before it is stored"
    assert run.state == state("6 7", "6")
    assert "commit 0 at 7" not in run.calls


def test_what_waits_when_a_run_is_left_is_dropped() -> None:
    run = run_on([blocks("6 7", "5")], live=Flush(blocks=9))
    steps = run.pipeline.steps()
    assert [type(one) for one in islice(steps, 3)][1:] == [Buffered, Buffered]
    steps.close()
    assert run.state == START
    assert run.calls[-1] == "close"
    assert run.events()[1:] == [], "nothing of it is left for another run"


def test_a_failed_flush_leaves_the_committed_state() -> None:
    run = run_on([blocks("6 7", "5")], live=Flush(blocks=2), fails_in="commit 2")
    with pytest.raises(OSError, match="commit 2 at 7"):
        run.events()
    assert run.state == START


def test_staging_and_flushing_are_uninterrupted_calls() -> None:
    run = run_on([blocks("6 7", "5"), END], live=Flush(blocks=9))
    run.events()
    assert run.uninterrupted_calls == [
        ["transform 6", "prepare 6"],
        ["transform 7", "prepare 7"],
        ["commit 2 at 7"],
    ]
