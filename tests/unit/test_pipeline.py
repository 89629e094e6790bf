"""The loop, one answer at a time: a scripted source, a target that remembers every call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import pytest

from headwater.core import (
    Answer,
    AtHead,
    Batch,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Blocks,
    FlushRules,
    Fork,
    ForkResolution,
    ForkRule,
    Head,
    PipeState,
    RangeEnd,
    Span,
    batches,
    hot_groups,
)
from headwater.errors import (
    EmptyForkSampleError,
    ForkCursorMissingError,
    HeadwaterError,
    LaggingPortalError,
    MalformedLineError,
)
from headwater.pipeline import (
    Committed,
    Event,
    Host,
    Pipeline,
    Raw,
    Recovered,
    RolledBack,
    Settled,
    Waited,
)
from headwater.targets import Capabilities, MemoryStore, MemoryTarget

Data = tuple[str, ...]
Policy = Callable[..., tuple[ForkResolution, PipeState]]


# --- notation -------------------------------------------------------------------------------------


def cursors(text: str) -> tuple[BlockCursor, ...]:
    """Read "5 6 7b" as blocks 5, 6 of our chain and 7 of chain b."""
    return tuple(BlockCursor(int(part.rstrip("abc")), f"h{part}") for part in text.split())


def head(finalized: str | None = None) -> Head:
    return Head(None if finalized is None else cursors(finalized)[0])


def blocks(text: str, finalized: str | None = None) -> Blocks:
    headers = tuple(BlockHeader(one.number, str(one.hash)) for one in cursors(text))
    return Blocks(headers, tuple(part.encode() for part in text.split()), head(finalized))


def fork(text: str) -> Fork:
    return Fork(cursors(text))


def state(chain: str, finalized: str | None = None) -> PipeState:
    held = cursors(chain)
    return PipeState(held[-1], head(finalized).finalized, held)


def span(first: int, last: int, finalized: str) -> Span:
    return Span(BlockRange(first, last), BlockHeader(last, f"h{last}"), head(finalized))


END = RangeEnd(Head())


# --- the parts ------------------------------------------------------------------------------------


class ScriptedSource:
    """The n-th reading gives the n-th list of answers; an exception in it is raised there."""

    def __init__(self, calls: list[str], *readings: Sequence[Answer | Span | Exception]) -> None:
        self.readings_open = 0
        self._calls = calls
        self._readings = iter(readings)

    def open(self, state: PipeState) -> None:
        self._calls.append(f"open at {name(state)}")

    def read(self, state: PipeState) -> Generator[Answer | Span, None, None] | None:
        self._calls.append(f"read after {name(state)}")
        reading = next(self._readings, None)
        return None if reading is None else self._answers(reading)

    def _answers(
        self, reading: Sequence[Answer | Span | Exception]
    ) -> Generator[Answer | Span, None, None]:
        self.readings_open += 1
        try:
            for answer in reading:
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:
            self.readings_open -= 1


class RecordingTarget(MemoryTarget[Data]):
    """Remembers every call; fails in the one that it is told to."""

    def __init__(self, calls: list[str], store: MemoryStore[Data], fails_in: str | None) -> None:
        super().__init__(store)
        self._calls = calls
        self._fails_in = fails_in

    def recover(self) -> PipeState:
        self._note("recover")
        return super().recover()

    @property
    def capabilities(self) -> Capabilities[Data]:
        return replace(super().capabilities, prepare_batch=self._prepare)

    def _prepare(self, batch: Batch[Data]) -> Batch[Data]:
        self._note(f"prepare {' '.join(batch.data)}")
        return batch

    def commit(self, batches: Sequence[Batch[Data]], state: PipeState) -> None:
        self._note(f"commit {len(batches)} at {name(state)}")
        super().commit(batches, state)

    def roll_back(self, state: PipeState) -> None:
        self._note(f"roll_back to {name(state)}")
        super().roll_back(state)

    def close(self) -> None:
        self._note("close")
        super().close()

    def _note(self, call: str) -> None:
        self._calls.append(call)
        if self._fails_in is not None and call.startswith(self._fails_in):
            raise OSError(f"the target is gone in {call}")


def name(state: PipeState) -> str:
    return "nothing" if state.cursor is None else str(state.cursor.hash)[1:]


class Run(Host[Data]):
    """A pipeline on a script, and everything that was called."""

    def __init__(
        self,
        *readings: Sequence[Answer | Span | Exception],
        start: PipeState | None = None,
        fails_in: str | None = None,
        bad_block: str | None = None,
        patience: int = 5,
        rollback_cap: int = 1000,
        policy: Policy | None = None,
        fails_on_fork: bool = False,
        flush: FlushRules = FlushRules(),  # noqa: B008 - immutable
        now: Callable[[], float] = lambda: 0.0,
        count_rows: Callable[[Batch[Data]], int] = lambda batch: 0,
    ) -> None:
        self.calls: list[str] = []
        self.uninterrupted_calls: list[list[str]] = []
        self.store: MemoryStore[Data] = MemoryStore()
        if start is not None:
            MemoryTarget(self.store).commit((), start)
        self.source = ScriptedSource(self.calls, *readings)
        self._bad_block = bad_block
        self._fails_on_fork = fails_on_fork
        self._policy = policy
        self._now = now
        self._count_rows = count_rows
        self.pipeline = Pipeline(
            self.source,
            RecordingTarget(self.calls, self.store, fails_in),
            self,
            flush=flush,
            patience=patience,
            rollback_cap=rollback_cap,
        )

    def pause(self) -> None:
        self.calls.append("pause")

    def now(self) -> float:
        return self._now()

    def count_rows(self, batch: Batch[Data]) -> int:
        return self._count_rows(batch)

    def resolve_fork(
        self, state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
    ) -> tuple[ForkResolution, PipeState]:
        if self._policy is not None:
            return self._policy(state, previous_blocks, patient=patient)
        return super().resolve_fork(state, previous_blocks, patient=patient)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        first = len(self.calls)
        yield
        self.uninterrupted_calls.append(self.calls[first:])

    def after_rollback(self, state: PipeState) -> None:
        self.calls.append(f"on_fork {name(state)}")
        if self._fails_on_fork:
            raise ValueError("state of our own is lost")

    def transform(self, batch: Batch[Raw]) -> Batch[Data]:
        if isinstance(batch.data, Span):
            names: Data = (f"span {batch.data.block_range}",)
        else:
            names = tuple(line.decode() for line in batch.data)
        self.calls.append(f"transform {' '.join(names)}")
        if self._bad_block in names:
            raise ValueError(f"cannot read {self._bad_block}")
        return batch.with_data(names)

    @property
    def state(self) -> PipeState:
        return self.store.committed.state

    @property
    def rows(self) -> str:
        return " ".join(row for batch in self.store.committed.batches for row in batch.data)

    def events(self) -> list[Event]:
        return list(self.pipeline.steps())


# --- each answer ----------------------------------------------------------------------------------


def test_without_anything_to_read_the_loop_recovers_and_ends() -> None:
    run = Run()
    assert run.events() == [Recovered(PipeState())]
    assert run.calls == ["recover", "open at nothing", "read after nothing", "close"]


def test_recovery_comes_before_the_first_read_and_decides_where_it_begins() -> None:
    run = Run(start=state("5 6", "5"))
    assert run.events() == [Recovered(state("5 6", "5"))]
    assert run.calls == ["recover", "open at 6", "read after 6", "close"]


def test_blocks_are_transformed_and_prepared_batch_by_batch_and_hot_ones_committed_together() -> (
    None
):
    run = Run([blocks("1 2 3 4", "2"), END])
    assert run.events() == [
        Recovered(PipeState()),
        Committed(state("2", "2"), 2),
        Committed(state("2 3 4", "2"), 2),
    ]
    assert run.calls == [
        "recover",
        "open at nothing",
        "read after nothing",
        "transform 1 2",
        "prepare 1 2",
        "commit 1 at 2",
        "transform 3",
        "prepare 3",
        "transform 4",
        "prepare 4",
        "commit 2 at 4",
        "read after 4",
        "close",
    ]
    assert run.rows == "1 2 3 4"


@pytest.mark.guarantee("FORK-2")
def test_a_fork_goes_back_to_any_of_the_hot_blocks_that_were_committed_together() -> None:
    for ancestor in range(1, 6):
        replaced = " ".join(f"{number}b" for number in range(ancestor + 1, 7))
        sample = fork(f"{ancestor} {replaced}")
        run = Run([blocks("1 2 3 4 5 6", "1"), sample], [blocks(replaced, "1"), END])
        run.events()
        assert run.rows == " ".join([*map(str, range(1, ancestor + 1)), replaced])
        assert run.calls.count(f"roll_back to {ancestor}") == 1
        assert len([call for call in run.calls if call.startswith("commit")]) == 3


def test_hot_blocks_are_gathered_up_to_limits() -> None:
    answer = blocks(" ".join(map(str, range(1, 9))), "2")
    made = list(batches(PipeState(), answer))
    sizes = [len(group) for group in hot_groups(made, blocks=4)]
    assert sizes == [1, 4, 2]  # the final blocks are one batch
    size = len(answer.lines[3])
    assert [len(group) for group in hot_groups(made, size=3 * size)] == [1, 3, 3]
    assert [len(group) for group in hot_groups(made, size=1)] == [1] * 7
    assert [one for group in hot_groups(made, blocks=3) for one in group] == made


def test_hot_blocks_before_one_that_cannot_be_transformed_are_committed() -> None:
    run = Run([blocks("1 2 3 4 5", "2")], fails_in="prepare 5")
    seen: list[Event] = []
    with pytest.raises(OSError, match="gone"):
        seen.extend(iter(run.pipeline.steps()))
    assert seen[-1] == Committed(state("2 3 4", "2"), 2)
    assert run.rows == "1 2 3 4"


def test_an_event_is_seen_before_the_next_effect() -> None:
    run = Run([blocks("1", "0"), blocks("2", "0")])
    steps = run.pipeline.steps()
    next(steps)
    assert run.calls == ["recover", "open at nothing"]
    assert next(steps) == Committed(state("0 1", "0"), 1)
    assert run.calls[-1] == "commit 1 at 1"
    assert run.state == state("0 1", "0")


def test_a_batch_carries_its_own_hot_blocks_and_the_whole_state() -> None:
    run = Run([blocks("1 2 3", "2")])
    run.events()
    final, hot = run.store.committed.batches
    assert final.rollback_chain == ()
    assert hot.rollback_chain == cursors("3")
    assert hot.state == state("2 3", "2")


def test_history_is_capped_as_asked() -> None:
    run = Run([blocks(" ".join(map(str, range(1, 20))))], rollback_cap=4)
    run.events()
    assert run.state.rollback_chain == cursors("16 17 18 19")


def test_nothing_new_is_an_event_and_no_commit() -> None:
    run = Run([AtHead(head()), AtHead(head("5"))], start=state("5 6", "5"))
    assert run.events()[1:] == [Settled(state("5 6", "5"))] * 2
    assert not any(call.startswith("commit") for call in run.calls)


def test_finality_that_moves_while_idle_is_committed_without_data() -> None:
    """CASE-14."""
    run = Run([AtHead(head("6")), AtHead(head("6"))], start=state("5 6 7", "5"))
    assert run.events()[1:] == [Settled(state("6 7", "6"))] * 2
    assert run.calls.count("commit 0 at 7") == 1
    assert run.state == state("6 7", "6")


def test_finality_of_another_branch_is_not_committed_while_idle() -> None:
    before = state("5 6 7", "5")
    run = Run([AtHead(head("6b")), AtHead(head("6b"), confirmed=True)], start=before)
    assert run.events()[1:] == [Settled(before)] * 2
    assert run.state == before


def test_a_confirmed_answer_may_move_finality_between_our_blocks() -> None:
    run = Run([AtHead(head("6")), AtHead(head("6"), confirmed=True)], start=state("5 7", "3"))
    assert run.events()[1:] == [Settled(state("5 7", "3")), Settled(state("5 7", "5"))]


def test_nothing_new_before_the_first_block_changes_nothing() -> None:
    run = Run([AtHead(head("9"), confirmed=True), blocks("1", "9")])
    assert run.events()[1:] == [Settled(PipeState()), Committed(state("1", "1"), 1)]


def test_at_the_end_of_a_range_the_source_says_what_comes_next() -> None:
    run = Run([blocks("1", "9"), END], [blocks("5", "9"), END], start=None)
    assert [type(event) for event in run.events()] == [Recovered, Committed, Committed]
    reads = [call for call in run.calls if call.startswith("read")]
    assert reads == ["read after nothing", "read after 1", "read after 5"]


def test_nothing_after_the_end_of_a_range_is_taken() -> None:
    run = Run([END, blocks("1")])
    assert run.events() == [Recovered(PipeState())]


def test_a_reading_may_simply_stop() -> None:
    run = Run([blocks("1")], [], [blocks("2")])
    list(run.pipeline.steps())
    assert run.rows == "1 2"


def test_a_span_is_one_batch_that_ends_in_its_last_block() -> None:
    run = Run([span(1, 2_000, "9000"), span(2_001, 4_000, "9000"), END], [blocks("4001", "9000")])
    assert run.events()[1:] == [
        Committed(state("2000", "2000"), 2_000),
        Committed(state("4000", "4000"), 2_000),
        Committed(state("4001", "4001"), 1),
    ]
    assert run.rows == "span 1..2000 span 2001..4000 4001"
    assert run.store.committed.batches[0].rollback_chain == ()


def test_each_change_of_the_target_is_unbroken_and_nothing_else_is() -> None:
    readings: list[list[Answer]] = [[blocks("2 3", "1"), AtHead(head("2")), fork("2")], [fork("2")]]
    run = Run(*readings, start=state("1", "1"), patience=1)
    run.events()
    assert run.uninterrupted_calls == [
        ["transform 2", "prepare 2", "transform 3", "prepare 3", "commit 2 at 3"],
        ["commit 0 at 3"],
        ["roll_back to 2", "on_fork 2"],
    ]
    assert "pause" in run.calls


# --- forks ----------------------------------------------------------------------------------------


def test_a_fork_is_rolled_back_and_reading_resumes_at_the_ancestor() -> None:
    run = Run(
        [blocks("1 2 3 4", "1"), fork("1 2 3b"), blocks("9")],
        [blocks("3b 4b 5b", "1"), END],
    )
    events = run.events()
    assert events[3] == RolledBack(
        state("1 2", "1"), cursors("4")[0], ForkResolution(cursors("2")[0], ForkRule.MATCH)
    )
    at = run.calls.index("roll_back to 2")
    assert run.calls[at + 1 : at + 3] == ["on_fork 2", "read after 2"]
    assert run.rows == "1 2 3b 4b 5b"
    assert run.state == state("1 2 3b 4b 5b", "1")


def test_no_answer_after_a_fork_is_taken_from_the_same_reading() -> None:
    run = Run([fork("5 6b"), blocks("8")], start=state("5 6 7", "5"))
    run.events()
    assert not any(call.startswith("prepare") for call in run.calls)


@pytest.mark.guarantee("FORK-2")
def test_several_forks_in_a_row_go_lower_each_time() -> None:
    """CASE-8."""
    start = state("1 2 3 4 5 6", "1")
    run = Run([fork("6b")], [fork("5b")], [fork("3b 4b")], [blocks("3b")], start=start)
    landings = [name(event.state) for event in run.events() if isinstance(event, RolledBack)]
    assert landings == ["5", "3", "1"]
    assert run.state.cursor == cursors("3b")[0]


@pytest.mark.guarantee("FORK-3")
def test_a_fork_to_the_watermark_keeps_it() -> None:
    run = Run([fork("2 3")], [blocks("6b")], start=state("5 6 7", "5"))
    rolled = run.events()[1]
    assert isinstance(rolled, RolledBack)
    assert rolled.resolution.rule is ForkRule.WATERMARK
    assert run.state == state("5 6b", "5")


def test_a_rollback_is_stored_before_anybody_hears_of_it() -> None:
    run = Run([fork("5 6b")], start=state("5 6 7", "5"))
    steps = run.pipeline.steps()
    list(islice(steps, 2))
    assert run.state == state("5", "5")
    assert run.calls[-2:] == ["roll_back to 5", "on_fork 5"]


def test_others_roll_back_after_the_target_and_before_the_stream_resumes() -> None:
    run = Run([fork("5 6b")], [fork("5 6 7")], start=state("5 6 7", "5"), fails_on_fork=True)
    with pytest.raises(ValueError, match="of our own"):
        list(run.pipeline.steps())
    assert run.state == state("5", "5")  # the target's rollback is its own commit
    assert run.calls == [
        "recover",
        "open at 7",
        "read after 7",
        "roll_back to 5",
        "on_fork 5",
        "close",
    ]


def test_somebody_else_may_decide_where_a_fork_leads() -> None:
    asked: list[tuple[PipeState, Sequence[BlockCursor], bool]] = []

    def policy(
        state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
    ) -> tuple[ForkResolution, PipeState]:
        asked.append((state, previous_blocks, patient))
        rule = ForkRule.WAIT if len(asked) == 1 else ForkRule.DESCEND
        return ForkResolution(cursors("3")[0], rule), PipeState(cursors("3")[0])

    start = state("5 6 7", "5")
    run = Run([fork("6b")], [fork("6b")], start=start, policy=policy, patience=1)
    waited, rolled = run.events()[1:]
    assert waited == Waited(start)
    assert rolled == RolledBack(
        PipeState(cursors("3")[0]),
        cursors("7")[0],
        ForkResolution(cursors("3")[0], ForkRule.DESCEND),
    )
    assert asked == [(start, cursors("6b"), True), (start, cursors("6b"), False)]
    assert run.state == PipeState(cursors("3")[0])


# --- replicas that are behind ---------------------------------------------------------------------


@pytest.mark.guarantee("FORK-5")
def test_a_replica_that_is_behind_is_waited_for_and_nothing_is_undone() -> None:
    start = state("5 6 7", "5")
    run = Run([fork("5 6"), blocks("9")], [blocks("8")], start=start)
    assert run.events()[1:] == [Waited(start), Committed(state("5 6 7 8", "5"), 1)]
    assert run.calls[2:5] == ["read after 7", "pause", "read after 7"]


@pytest.mark.guarantee("FORK-5")
@pytest.mark.parametrize("patience", [0, 1, 4])
def test_patience_has_a_bound_after_which_the_portal_is_believed(patience: int) -> None:
    start = state("5 6 7", "5")
    run = Run(*[[fork("5 6")]] * (patience + 1), start=start, patience=patience)
    events = run.events()[1:]
    assert events[:-1] == [Waited(start)] * patience
    assert isinstance(events[-1], RolledBack)
    assert run.state == state("5 6", "5")
    assert run.calls.count("pause") == patience


@pytest.mark.parametrize("progress", [blocks("8"), AtHead(Head())], ids=["blocks", "at-head"])
def test_any_good_answer_restores_patience(progress: Answer) -> None:
    behind = fork("5 6")
    start = state("5 6 7", "5")
    run = Run([behind], [behind], [progress, behind], [behind], start=start, patience=2)
    assert not any(isinstance(event, RolledBack) for event in run.events())
    assert run.calls.count("pause") == 4


def test_a_rollback_restores_patience() -> None:
    readings = [[fork("5 6")], [fork("5 6")], [fork("5")], [fork("5")]]
    run = Run(*readings, start=state("5 6 7", "5"), patience=1)
    kinds = [type(event) for event in run.events()[1:]]
    assert kinds == [Waited, RolledBack, Waited, RolledBack]


def test_a_portal_that_stays_below_a_final_cursor_is_an_error() -> None:
    start = state("7", "7")
    run = Run(*[[fork("5 6")]] * 3, start=start, patience=2)
    with pytest.raises(LaggingPortalError, match="E1004"):
        list(run.pipeline.steps())
    assert run.state == start
    assert run.calls[-1] == "close"


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.guarantee("FORK-4")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (fork(""), EmptyForkSampleError),
        (fork("5b 6b"), ForkCursorMissingError),
        (MalformedLineError("no block"), MalformedLineError),
        (OSError("lost"), OSError),
    ],
    ids=["empty-sample", "finality-contradicted", "bad-line", "source-fails"],
)
def test_an_error_of_the_source_leaves_the_state_untouched(
    answer: Fork | Exception, error: type[Exception]
) -> None:
    start = state("5 6 7", "5")
    run = Run([answer], start=start, patience=0)
    with pytest.raises(error):
        list(run.pipeline.steps())
    assert run.state == start
    assert run.calls == ["recover", "open at 7", "read after 7", "close"]


@pytest.mark.guarantee("FORK-6")
def test_a_contradiction_of_finality_is_given_time_and_costs_nothing() -> None:
    start = state("5 6 7", "5")
    run = Run([fork("5b 6b")], [fork("5b 6b")], [blocks("8", "5")], start=start)
    list(run.pipeline.steps())
    assert run.rows == "8"
    assert run.calls.count("pause") == 2
    assert not [call for call in run.calls if "roll_back" in call]


def test_a_fork_before_any_block_is_an_error() -> None:
    run = Run([fork("5")])
    with pytest.raises(ForkCursorMissingError, match="E1003"):
        list(run.pipeline.steps())
    assert run.state == PipeState()


def test_blocks_before_an_error_are_kept() -> None:
    run = Run([blocks("1 2", "0"), MalformedLineError("no block")])
    with pytest.raises(MalformedLineError):
        list(run.pipeline.steps())
    assert run.rows == "1 2"
    assert run.state.cursor == cursors("2")[0]


@pytest.mark.parametrize("bad_block", ["3", "4"])
def test_a_transform_that_fails_keeps_what_was_committed_before(bad_block: str) -> None:
    run = Run([blocks("1 2 3 4", "2")], bad_block=bad_block)
    with pytest.raises(ValueError, match=f"cannot read {bad_block}"):
        list(run.pipeline.steps())
    assert name(run.state) == str(int(bad_block) - 1)
    assert f"prepare {bad_block}" not in run.calls
    assert run.calls[-1] == "close"


@pytest.mark.parametrize(
    ("fails_in", "kept"),
    [
        ("recover", "nothing"),
        ("prepare 3", "2"),
        ("commit 2 at 4", "2"),
        ("roll_back", "4"),
        ("commit 0", "5"),
    ],
)
def test_a_target_that_fails_is_closed_and_its_state_is_the_last_committed(
    fails_in: str, kept: str
) -> None:
    readings: list[list[Answer | Exception]] = [
        [blocks("1 2 3 4", "2"), fork("2 3 4b")],
        [blocks("4b 5", "2"), AtHead(head("3"))],
    ]
    run = Run(*readings, fails_in=fails_in)
    with pytest.raises(OSError, match="the target is gone"):
        list(run.pipeline.steps())
    assert name(run.state) == kept
    assert run.calls[-1] == "close"
    assert run.calls.count("close") == 1


@pytest.mark.guarantee("STATE-2")
def test_after_an_error_the_loop_can_be_run_again_on_the_same_store() -> None:
    first = Run([blocks("1 2 3", "1")], fails_in="commit 2 at 3")
    with pytest.raises(OSError, match="gone"):
        list(first.pipeline.steps())
    second = Run([blocks("2 3", "1")], start=first.state)
    second.events()
    assert f"{first.rows} {second.rows}" == "1 2 3"
    assert second.calls[:3] == ["recover", "open at 1", "read after 1"]


def test_an_error_of_the_loop_is_the_callers_and_carries_its_code() -> None:
    with pytest.raises(HeadwaterError) as caught:
        list(Run([fork("")], start=state("5")).pipeline.steps())
    assert caught.value.code == "E1002"
    assert caught.value.__context__ is None


# --- closing --------------------------------------------------------------------------------------


def test_the_target_is_closed_once_at_the_end() -> None:
    run = Run([blocks("1"), END])
    list(run.pipeline.steps())
    assert run.calls.count("close") == 1
    assert run.calls[-1] == "close"


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_the_target_is_closed_when_the_caller_stops_early(steps: int) -> None:
    run = Run([blocks("1 2", "1"), fork("1 2b")], [AtHead(Head()), blocks("2b")])
    running = run.pipeline.steps()
    list(islice(running, steps))
    assert "close" not in run.calls
    before = run.state
    running.close()
    assert run.calls.count("close") == 1
    assert run.calls[-1] == "close"
    assert run.state == before


def test_a_loop_that_never_began_has_nothing_to_close() -> None:
    run = Run([blocks("1")])
    run.pipeline.steps().close()
    assert run.calls == []


def test_a_target_that_cannot_be_closed_says_so() -> None:
    run = Run(fails_in="close")
    with pytest.raises(OSError, match="gone in close"):
        list(run.pipeline.steps())
    assert run.calls[-1] == "close"


@pytest.mark.parametrize(
    "last", [END, fork("1 2b"), fork("1 2"), AtHead(Head())], ids=["end", "fork", "behind", "idle"]
)
def test_no_reading_is_left_open_at_the_end(last: Answer) -> None:
    run = Run([blocks("1 2 3", "1"), last, blocks("9")])
    list(run.pipeline.steps())
    assert run.source.readings_open == 0


def test_a_reading_is_closed_when_the_caller_stops_early() -> None:
    run = Run([blocks("1 2 3", "1"), END])
    running = run.pipeline.steps()
    list(islice(running, 2))
    assert run.source.readings_open == 1
    running.close()
    assert run.source.readings_open == 0


# --- found once, kept -----------------------------------------------------------------------------


def test_a_reading_is_closed_by_an_error_at_once_and_not_when_the_error_is_forgotten() -> None:
    run = Run([blocks("1 2 3", "1"), END], fails_in="commit 2 at 3")
    with pytest.raises(OSError, match="gone") as caught:
        list(run.pipeline.steps())
    assert run.source.readings_open == 0, f"{caught.value} still holds a connection"


def test_a_lagging_replica_before_a_state_without_history_is_a_coded_error() -> None:
    run = Run(*[[fork("5 6")]] * 6, start=PipeState(cursors("7")[0]))
    with pytest.raises(HeadwaterError):
        list(run.pipeline.steps())
