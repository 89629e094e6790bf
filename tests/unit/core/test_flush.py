"""When to commit: limits of blocks, rows and time, for hot and for final blocks."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.core import Flush, FlushRules, Pending
from headwater.errors import InvalidOptionError


def held(blocks: int, rows: int = 0, *, since: float = 0.0, final: bool = False) -> Pending:
    return Pending().add(blocks, rows, now=since, final=final)


def test_without_a_limit_everything_is_due_at_once() -> None:
    assert Flush().at_once
    assert Flush().is_due(held(1), 0.0)


@pytest.mark.parametrize(
    ("rule", "pending", "now", "due"),
    [
        (Flush(blocks=3), held(2, 10**6), 10.0**6, False),
        (Flush(blocks=3), held(3), 0.0, True),
        (Flush(blocks=3), held(7), 0.0, True),  # a large batch may pass the limit
        (Flush(rows=10), held(10**6, 9), 10.0**6, False),
        (Flush(rows=10), held(1, 10), 0.0, True),
        (Flush(seconds=5), held(10**6, 10**6, since=100.0), 104.9, False),
        (Flush(seconds=5), held(1, since=100.0), 105.0, True),
        (Flush(blocks=3, rows=10, seconds=5), held(2, 9, since=1.0), 5.9, False),
        (Flush(blocks=3, rows=10, seconds=5), held(1, 0, since=1.0), 6.0, True),
    ],
)
def test_any_limit_that_is_reached_makes_it_due(
    rule: Flush, pending: Pending, now: float, due: bool
) -> None:
    assert not rule.at_once
    assert rule.is_due(pending, now) is due


def test_the_time_counts_from_the_first_batch_that_waits() -> None:
    pending = held(1, since=7.0).add(1, 5, now=9.0, final=False)
    assert pending == Pending(2, 5, 7.0)


def test_hot_and_final_blocks_go_by_rules_of_their_own() -> None:
    rules = FlushRules(Flush(blocks=2), Flush(blocks=1000))
    assert rules.is_due(held(2), 0.0)
    assert not rules.is_due(held(2, final=True), 0.0)
    assert rules.is_due(held(1000, final=True), 0.0)


def test_at_the_head_a_backfill_waits_for_nothing_more() -> None:
    rules = FlushRules(Flush(), Flush(blocks=1000))
    assert rules.is_due(held(2, final=True), 0.0, at_head=True)
    assert not rules.is_due(Pending(), 0.0, at_head=True)


def test_what_is_pending_goes_before_a_batch_of_the_other_kind() -> None:
    rules = FlushRules(Flush(blocks=9), Flush(blocks=9))
    assert rules.comes_first(held(1, final=True), final=False)
    assert rules.comes_first(held(1), final=True)
    assert not rules.comes_first(held(1), final=False)
    assert not rules.comes_first(Pending(), final=True)


@pytest.mark.parametrize(
    "limits",
    [{"blocks": 0}, {"blocks": -1}, {"blocks": 1.5}, {"blocks": True}, {"rows": 0}, {"rows": "9"},
     {"seconds": 0}, {"seconds": -1.0}, {"seconds": float("nan")}, {"seconds": "1"}],
)  # fmt: skip
def test_a_limit_that_cannot_work_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=r"E0007.*flush"):
        Flush(**limits)
