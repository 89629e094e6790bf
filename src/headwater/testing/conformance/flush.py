"""Several batches in one commit: made visible together, undone one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.testing.conformance.model import LARGEST, log

if TYPE_CHECKING:
    from headwater.testing.conformance.suite import TargetConformance


def check_flushes(suite: TargetConformance) -> None:
    """Commit several batches in one step: anywhere, at the beginning, and while finality moves."""
    _undo_one_by_one(suite)
    _lose_the_first_blocks(suite)
    _move_finality(suite)


def _undo_one_by_one(suite: TargetConformance) -> None:
    """Commit five hot blocks in one step, and go back to each of them in turn."""
    rig = suite.start()
    rig.block(1, *suite.everything(1), final=1)
    rig.flush([(number, suite.everything(number)) for number in range(2, 7)])
    rig.check()
    assert suite.reopen(rig) == rig.state
    for number in (5, 3, 2):
        rig.roll_back(number)
        rig.check()
        assert suite.reopen(rig) == rig.state
    rig.flush([(number, suite.everything(number)) for number in (3, 4)], branch="b")
    rig.check()
    rig.roll_back(1)
    rig.check()
    rig.target.close()


def _move_finality(suite: TargetConformance) -> None:
    """Finality that reached into the flush before it was committed is stored with it."""
    rig = suite.start()
    rig.block(1, log(1, LARGEST), final=1)
    for settled, blocks in ((3, range(2, 6)), (8, range(6, 9)), (10, range(9, 12))):
        rig.flush([(one, suite.everything(one)) for one in blocks], settled=settled)
        assert rig.state.finalized is not None
        assert rig.state.finalized.number == settled
        assert suite.reopen(rig) == rig.state
        rig.check()
    rig.roll_back(10)
    rig.check()
    rig.target.close()


def _lose_the_first_blocks(suite: TargetConformance) -> None:
    """A stream whose first commit holds several hot blocks can lose all of them."""
    rig = suite.start()
    rig.flush([(number, suite.everything(number)) for number in (10, 11, 12)], final=7)
    assert suite.reopen(rig) == rig.state
    rig.roll_back(11)
    rig.check()
    rig.roll_back(9)
    rig.check()
    assert suite.reopen(rig) == rig.state
    rig.target.close()
