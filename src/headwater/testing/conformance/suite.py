"""The promises of a target as tests: subclass `TargetConformance` and run it with pytest.

    class TestMyTarget(TargetConformance):
        def make_target(self, stream_id): ...   # not opened yet, on the current place
        def read_rows(self, table): ...         # committed rows, as dictionaries
        def fresh(self): ...                    # move to an empty place

A target that cannot do everything says so in class attributes; tests that need more are not there
then, rather than skipped. Targets with callbacks are made with `on_data=apply_changes`; the others
are given the rows to insert as `Delivery.data`. Tables are described in `model`: `log` is
append-only, `balances` has the key (owner, token), `plain` has no key. docs/custom-targets.md is
the guide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from headwater.core import PipeState
from headwater.errors import HeadwaterError
from headwater.stream.owned import check_target
from headwater.targets.contract import Capabilities, Delivery, StoredConfig, Target
from headwater.testing.conformance.crash import (
    Crash,
    PreparesTwice,
    RandomWalk,
    Script,
    crash_everywhere,
    run_crashing,
)
from headwater.testing.conformance.model import (
    BALANCES,
    LARGEST,
    LOG,
    PLAIN,
    Change,
    CountedFrame,
    Rig,
    Row,
    apply_changes,
    balance,
    delete,
    frame_of,
    insert,
    log,
    needs,
    plain,
    upsert,
)
from headwater.testing.conformance.side_tables import SideTablePromises

__all__ = ["Crash", "TargetConformance", "apply_changes"]


class TargetConformance(SideTablePromises):
    """Tests of any target. All of them run in one process, on one place at a time."""

    upserts: ClassVar[bool] = True
    deletes: ClassVar[bool] = True
    keyless: ClassVar[bool] = True  # rows without a key, which may occur twice
    shares: ClassVar[bool] = True  # two streams may write one place, and one table with a key
    exclusive: ClassVar[bool] = True  # a second writer of one stream is refused
    watches_io: ClassVar[bool] = True  # `watch_io` works
    keeps_config: ClassVar[bool] = False  # capabilities.config is there
    walks: ClassVar[int] = 12  # how many random scenarios
    walk_steps: ClassVar[int] = 40  # how long each of them is
    first_seed: ClassVar[int] = 1

    def __init_subclass__(cls) -> None:
        """Leave out the tests of what the target cannot do."""
        super().__init_subclass__()
        for name in dir(cls):
            wanted = getattr(getattr(cls, name), "needs", ())
            if any(not getattr(cls, one) for one in wanted):
                setattr(cls, name, None)

    # --- what a subclass provides -----------------------------------------------------------------

    def make_target(self, stream_id: str) -> Target[Delivery]:
        """Return a target on the current place, bound to this id, not opened yet."""
        raise NotImplementedError("make_target: return a target that is not opened yet")

    def read_rows(self, table: str) -> list[Row]:
        """Return the committed rows; an empty list while the table does not exist."""
        raise NotImplementedError("read_rows: return the committed rows of a table")

    def fresh(self) -> None:
        """Move to an empty place."""
        raise NotImplementedError("fresh: move to an empty place")

    def watch_io(self, target: Any, hook: Callable[[], None]) -> None:
        """Have `hook` called before each step of I/O of this target. It may raise `Crash`."""
        raise NotImplementedError("watch_io: call the hook at each step, or watches_io = False")

    def crash(self, target: Any) -> None:
        """Let go of a target whose process has died, as the operating system would."""
        target.close()

    # --- the rig ----------------------------------------------------------------------------------

    @property
    def tables(self) -> list[str]:
        """The tables that this target can have."""
        return [LOG, *([BALANCES] if self.upserts else []), *([PLAIN] if self.keyless else [])]

    def start(self, stream_id: str = "one", *, fresh: bool = True) -> Rig:
        """Return a target that has recovered from nothing, and its model."""
        if fresh:
            self.fresh()
        target = self.make_target(stream_id)
        state = target.recover()
        assert state == PipeState(), f"an empty place: recover() returned {state}"
        return Rig(target, self.read_rows, self.tables)

    def reopen(self, rig: Rig, stream_id: str = "one") -> PipeState:
        """Let the process die and start again; return what the new one recovers."""
        self.crash(rig.target)
        rig.target = self.make_target(stream_id)
        return rig.target.recover()

    def restart(self, rig: Rig, stream_id: str = "one") -> None:
        """Let the process die and start again; the new one must recover what was committed."""
        state = self.reopen(rig, stream_id)
        assert state == rig.state, (
            f"after a restart recover() returned {state}; the last commit stored {rig.state}"
        )

    # --- what is declared -------------------------------------------------------------------------

    def test_the_target_has_the_contract_and_declares_what_it_can_do(self) -> None:
        """Capabilities never change, and those that the test class names are there."""
        self.fresh()
        target = self.make_target("one")
        check_target(target)
        before = target.capabilities
        assert isinstance(before, Capabilities), f"capabilities is {before!r}"
        target.recover()
        assert target.capabilities == before, "capabilities changed when the target recovered"
        for name, wanted in (("side_tables", self.side_tables), ("config", self.keeps_config)):
            declared = getattr(before, name) is not None
            assert declared or not wanted, f"the test class expects {name}, capabilities has none"
        target.close()

    def test_a_frame_is_read_once_unless_the_target_rereads(self) -> None:
        """A stream keeps the rows of executors for a second reading only if `rereads` says so."""
        rig = self.start()
        change = log(1, "a", "b")
        frame = CountedFrame(frame_of(change))
        rig.block(1, replace(change, frame=frame), final=1)
        assert frame.reads <= 1 or rig.target.capabilities.rereads, (
            f"a commit read its frame {frame.reads} times; declare Capabilities(rereads=True)"
        )
        rig.check()
        rig.target.close()

    @needs("keeps_config")
    def test_the_definition_of_a_stream_is_kept_and_replaced(self) -> None:
        """It survives a restart, commits and forks."""
        rig = self.start()
        assert self.stored_config(rig).read() is None, "an empty place holds a definition"
        for text in ("first", "second ü ' {}"):
            self.stored_config(rig).write(text)
            for number in (1, 2):
                rig.block(number, log(number, number))
            self.restart(rig)
            rig.roll_back(0)
            assert self.stored_config(rig).read() == text
        rig.target.close()

    def stored_config(self, rig: Rig) -> StoredConfig:
        """Return where the definition of the rig's stream is kept."""
        config = rig.target.capabilities.config
        assert config is not None, "keeps_config is set, but capabilities.config is None"
        return config.stored_config()

    # --- commit, recover, settle ------------------------------------------------------------------

    def test_nothing_is_recovered_from_an_empty_place(self) -> None:
        """Nor does recovering leave anything there."""
        rig = self.start()
        assert rig.target.recover() == PipeState()
        rig.check()
        rig.target.close()

    def test_data_and_state_become_visible_together_and_survive_a_restart(self) -> None:
        """After each commit, and after the process died."""
        rig = self.start()
        for number in range(1, 5):
            rig.block(number, log(number, number * 10, LARGEST), final=2)
            rig.check()
            assert rig.target.recover() == rig.state
        self.restart(rig)
        rig.check()
        rig.target.close()

    def test_what_is_prepared_is_not_visible_and_may_be_prepared_again(self) -> None:
        """A batch that waits for its commit can be lost, and comes again."""
        rig = self.start()
        rig.block(1, log(1, "kept"), final=1)
        real, rig.target = rig.target, PreparesTwice(rig.target, rig.check)
        rig.block(2, log(2, "once"))
        rig.target = real
        rig.check()
        rig.target.close()

    def test_a_settled_state_is_stored_without_data(self) -> None:
        """Finality that moved while nothing arrived is not forgotten."""
        rig = self.start()
        for number in range(1, 5):
            rig.block(number, log(number, number), final=1)
        rig.settle(3)
        assert rig.state.finalized is not None
        assert rig.state.finalized.number == 3
        self.restart(rig)
        rig.roll_back(3)
        rig.check()
        self.restart(rig)
        rig.target.close()

    # --- rollback ---------------------------------------------------------------------------------

    def test_a_rollback_undoes_several_batches_and_can_be_repeated(self) -> None:
        """On the same object, and after a restart."""
        rig = self.start()
        for number in range(1, 8):
            rig.block(number, *self.everything(number), final=2)
        rig.roll_back(4)
        rig.check()
        rig.target.roll_back(rig.state)
        rig.check()
        self.restart(rig)
        rig.target.roll_back(rig.state)
        rig.check()
        for number in range(5, 9):
            rig.block(number, *self.everything(number), branch="b", final=2)
            rig.check()
        rig.target.close()

    def test_rollbacks_in_a_row_converge_and_finality_never_falls(self) -> None:
        """CASE-6 and CASE-8."""
        rig = self.start()
        for number in range(1, 10):
            rig.block(number, *self.everything(number), final=number - 6)
        rig.settle(5)
        for number in (8, 6, 5):
            rig.roll_back(number)
            rig.check()
            self.restart(rig)
        assert rig.state.finalized is not None
        assert rig.state.finalized.number == 5
        rig.target.close()

    def test_finality_at_block_zero_unknown_and_reported_late(self) -> None:
        """CASE-6."""
        rig = self.start()
        for number in range(4):
            rig.block(number, *self.everything(number))  # finality unknown: everything is hot
        rig.roll_back(1)
        rig.check()
        rig.block(2, log(2, "b"), branch="b", final=0)
        assert rig.state.finalized is not None
        assert rig.state.finalized.number == 0
        rig.block(3, log(3, "b"), branch="b")  # a lagging replica reports nothing
        self.restart(rig)
        rig.roll_back(0)
        rig.check()
        self.restart(rig)
        rig.target.close()

    def test_a_stream_can_lose_its_first_block(self) -> None:
        """The rollback lands on a block that was never committed, and empties the tables."""
        rig = self.start()
        rig.block(10, *self.everything(10), final=7)
        rig.block(11, *self.everything(11), final=7)
        rig.roll_back(9)
        rig.check()
        self.restart(rig)
        rig.block(10, log(10, "b"), branch="b", final=7)
        rig.check()
        rig.target.close()

    def test_the_batches_of_one_commit_are_undone_one_by_one(self) -> None:
        """Five hot blocks are committed in one step; a fork goes back to each of them in turn."""
        rig = self.start()
        rig.block(1, *self.everything(1), final=1)
        rig.flush([(number, self.everything(number)) for number in range(2, 7)])
        rig.check()
        self.restart(rig)
        for number in (5, 3, 2):
            rig.roll_back(number)
            rig.check()
            self.restart(rig)
        rig.flush([(number, self.everything(number)) for number in (3, 4)], branch="b")
        rig.check()
        rig.roll_back(1)
        rig.check()
        rig.target.close()

    def test_a_stream_can_lose_all_batches_of_its_first_commit(self) -> None:
        """The first commit holds several hot blocks, and a fork replaces all of them."""
        rig = self.start()
        rig.flush([(number, self.everything(number)) for number in (10, 11, 12)], final=7)
        self.restart(rig)
        rig.roll_back(11)
        rig.check()
        rig.roll_back(9)
        rig.check()
        self.restart(rig)
        rig.target.close()

    def test_finality_that_moves_while_batches_wait_is_stored_with_them(self) -> None:
        """It reaches into the blocks that one commit holds."""
        rig = self.start()
        rig.block(1, log(1, LARGEST), final=1)
        for settled, blocks in ((3, range(2, 6)), (8, range(6, 9)), (10, range(9, 12))):
            rig.flush([(one, self.everything(one)) for one in blocks], settled=settled)
            assert rig.state.finalized is not None
            assert rig.state.finalized.number == settled
            self.restart(rig)
            rig.check()
        rig.roll_back(10)
        rig.check()
        rig.target.close()

    # --- rows with a key --------------------------------------------------------------------------

    @needs("upserts")
    def test_two_writes_of_one_key_in_one_commit_are_undone_one_by_one(self) -> None:
        """CASE-1: two hot blocks, one flush, the fork between them."""
        rig = self.start()
        rig.block(1, upsert(balance("a", "t", 1)), final=1)
        rig.flush([(2, [upsert(balance("a", "t", 2))]), (3, [upsert(balance("a", "t", 3))])])
        rig.check()
        self.restart(rig)
        rig.roll_back(2)
        rig.check()
        rig.roll_back(1)
        rig.check()
        rig.target.close()

    @needs("upserts", "deletes")
    def test_insert_and_delete_of_one_key_in_one_batch(self) -> None:
        """CASE-3, both ways."""
        rig = self.start()
        rig.block(1, insert(balance("old", "t", 1)), final=1)
        rig.block(2, insert(balance("new", "t", 2)), delete(("new", "t")))
        rig.block(3, delete(("old", "t")), insert(balance("old", "t", 3, "again")))
        rig.block(4, delete(("old", "t")))
        for number in (3, 2, 1):
            rig.check()
            rig.roll_back(number)
        rig.check()
        rig.target.close()

    @needs("upserts")
    def test_a_final_row_that_a_hot_block_changed_comes_back(self) -> None:
        """CASE-4 and CASE-5."""
        rig = self.start()
        rig.block(1, upsert(balance("a", "t", LARGEST, "final"), balance("b", "t", 1)), final=1)
        rig.block(2, upsert(balance("a", "t", -LARGEST), balance("c", "t", None)))
        rig.settle(2)
        rig.block(3, upsert(balance("a", "t", 0), balance("b", "t", None, "null")))
        rig.roll_back(2)
        rig.check()
        self.restart(rig)
        rig.target.close()

    @needs("upserts", "deletes")
    def test_set_delete_set_goes_back_to_the_delete(self) -> None:
        """CASE-7."""
        rig = self.start()
        rig.block(1, log(1, 1), final=1)
        rig.block(2, upsert(balance("a", "t", 2)))
        rig.block(3, delete(("a", "t"), ("never", "there")))
        rig.block(4, upsert(balance("a", "t", 4)))
        for number in (3, 2, 1):
            rig.roll_back(number)
            rig.check()
        rig.target.close()

    @needs("upserts", "deletes")
    def test_keys_with_separators_and_values_at_the_limits(self) -> None:
        """CASE-22 and CASE-23."""
        names = ["a|b", "a", "b|a", '"', "'", "", "a,b", "ü\n", "\\", "%s", "null", "?"]
        keys = [(one, two) for one in names for two in names[:4]]
        values = [LARGEST, -LARGEST, 0, None, -1, 10**77]
        rig = self.start()
        rows = [balance(*key, values[i % 6], key[0] or None) for i, key in enumerate(keys)]
        rig.block(1, insert(*rows), final=1)
        rig.block(2, delete(*keys[::2]), upsert(*(balance(*key, 5) for key in keys[1::4])))
        rig.check()
        rig.block(3, upsert(*(balance(*key, LARGEST - 1) for key in keys)))
        rig.check()
        rig.roll_back(2)
        rig.check()
        rig.roll_back(1)
        rig.check()
        rig.target.close()

    @needs("keyless")
    def test_rows_without_a_key_go_as_often_as_they_came(self) -> None:
        """The same row may have come from a final block and from an orphaned one."""
        rig = self.start()
        rig.block(1, plain("same", "same", "other"), final=1)
        rig.block(2, plain("same", "new"))
        rig.block(3, plain("same", "same", "new"))
        rig.roll_back(2)
        rig.check()
        rig.roll_back(1)
        rig.check()
        rig.target.close()

    # --- several streams --------------------------------------------------------------------------

    @needs("shares")
    def test_a_fork_of_one_stream_leaves_the_rows_of_another_alone(self) -> None:
        """CASE-11 and CASE-24."""
        one, two = self.start("one"), self.start("two", fresh=False)
        for number in range(1, 6):
            one.block(number, upsert(balance(f"one {number % 2}", "t", number)), final=1)
            two.block(number, upsert(balance(f"two {number % 2}", "t", number)), final=1)
        one.roll_back(2)
        self.restart(two, "two")
        self.restart(one, "one")
        expected = [*one.model.contents.rows(BALANCES), *two.model.contents.rows(BALANCES)]
        assert sorted(map(repr, self.read_rows(BALANCES))) == sorted(map(repr, expected))
        one.target.close()
        two.target.close()

    @needs("exclusive")
    def test_a_second_writer_of_one_stream_is_refused(self) -> None:
        """CASE-11."""
        rig = self.start()
        rig.block(1, log(1, 1), final=1)
        second = self.make_target("one")
        refused = None
        try:
            second.recover()
        except HeadwaterError as error:
            refused = error
        assert refused is not None, "a second writer of one stream recovered; it must be refused"
        rig.block(2, log(2, 2))
        rig.check()
        rig.target.close()

    # --- crashes ----------------------------------------------------------------------------------

    @needs("watches_io")
    def test_a_crash_at_any_step_of_io_leaves_a_committed_state(self) -> None:
        """CASE-8 and CASE-9: in a commit, a settlement, a rollback, a recovery."""
        script = self.script()
        total = crash_everywhere(lambda clock: run_crashing(self, script, clock), self.sample)
        assert total > len(script), "watch_io never called its hook"

    def test_a_crash_between_any_two_calls_loses_nothing(self) -> None:
        """The process dies after each call in turn."""
        script = self.script()
        for last in self.sample.of(range(len(script))):
            rig = self.start()
            for index, step in enumerate(script):
                step(rig)
                if index == last:
                    self.restart(rig)
                rig.check()
            rig.target.close()

    def test_random_scenarios_agree_with_the_model_after_every_step(self) -> None:
        """A seed that fails is named in the error."""
        for seed in self.sample.seeds(range(self.first_seed, self.first_seed + self.walks)):
            try:
                RandomWalk(self, seed, steps=self.walk_steps).run()
            except Exception as error:
                error.add_note(f"conformance seed {seed}")
                raise

    def everything(self, number: int) -> list[Change]:
        """Return changes of every kind that the target can do."""
        changes = [log(number, f"row {number}", LARGEST)]
        if self.upserts:
            row = balance("all", "t", LARGEST - number, None if number % 2 else "even")
            changes += [upsert(row, balance(f"own {number}", "t", -number))]
        if self.deletes:
            changes.append(delete((f"own {number - 1}", "t")))
        if self.keyless:
            changes.append(plain("same", f"own {number}"))
        return changes

    def script(self) -> Script:
        """Return a run that does everything once."""

        def block(number: int, branch: str = "a") -> Callable[[Rig], None]:
            return lambda rig: rig.block(number, *self.everything(number), branch=branch, final=1)

        def flush(rig: Rig) -> None:
            rig.flush([(number, self.everything(number)) for number in (3, 4)], final=1)

        settle_and_fork = [lambda rig: rig.settle(2), lambda rig: rig.roll_back(2)]
        return [*map(block, (1, 2)), flush, *settle_and_fork, block(3, "b")]
