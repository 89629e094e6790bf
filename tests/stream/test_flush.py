"""Flush rules on a whole stream: fewer commits, the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater import Flush, StopRequested, create_target
from headwater.errors import InvalidOptionError
from headwater.pipeline import Buffered, Committed, Discarded, Event, RolledBack, Settled
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from tests.sampling import every
from tests.stream.test_stream import Counter, held, stream_of
from tests.stream.truth import COLUMNS, transfers


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=11, blocks=60, finality_depth=15) as server:
        yield server


def test_hot_blocks_are_committed_together_and_the_last_ones_at_the_end_of_the_range(
    portal: PortalServer, tmp_path: Path
) -> None:
    """CASE-26."""
    path, events = tmp_path / "a.duckdb", list[Event]()
    stream_of(portal, (40, 57), flush=Flush(blocks=5)).pipe_to(
        duckdb_target(path), on_event=events.append
    )
    assert held(path) == transfers(portal.chain, portal.chain.canonical(40, 57))
    final = portal.chain.finalized
    assert final is not None
    numbers = duckdb_target(path).query("SELECT current_number AS n FROM sync ORDER BY n")["n"]
    hot = [one for one in numbers.to_pylist() if one > final.number]
    assert len(hot) == len(numbers) - 1 > 10, "each hot block stays a batch of its own"
    commits = [event.blocks for event in events if isinstance(event, Committed)]
    assert commits[1:] == [5] * (len(hot) // 5) + [len(hot) % 5] * (len(hot) % 5 > 0)


def test_rows_are_a_limit_too(portal: PortalServer, tmp_path: Path) -> None:
    path, events = tmp_path / "a.duckdb", list[Event]()
    stream_of(portal, (45, 57), flush=Flush(rows=10)).pipe_to(
        duckdb_target(path), on_event=events.append
    )
    rows = [len(transfers(portal.chain, [one])) for one in portal.chain.canonical(46, 57)]
    expected, waiting = 1, 0  # the first block of a stream is committed at once
    for count in rows:
        waiting += count
        if waiting >= 10:
            expected, waiting = expected + 1, 0
    commits = sum(isinstance(event, Committed) for event in events)
    assert 3 < commits < len(rows)
    assert commits in (expected, expected + 1)
    assert held(path) == transfers(portal.chain, portal.chain.canonical(45, 57))


@pytest.mark.guarantee("FLUSH-1")
@pytest.mark.parametrize("seed", every(2).seeds(range(4)))
def test_forks_stops_and_flushes_leave_what_the_canonical_chain_says(
    seed: int, tmp_path: Path
) -> None:
    dice, path, seen = Random(seed), tmp_path / "a.duckdb", set[type[Event]]()
    with simulated_portal(seed=seed, blocks=30, finality_depth=8) as portal:
        chain, target, counter = portal.chain, duckdb_target(path), Counter()
        flush = Flush(blocks=dice.choice([2, 3, 5]))

        def on_event(event: Event) -> None:
            seen.add(type(event))
            cursor = event.state.cursor
            if cursor is not None:
                rows = target.query(f"SELECT {COLUMNS} FROM transfers ORDER BY ALL").to_pylist()
                branch = chain.path(str(cursor.hash))
                assert [tuple(row.values()) for row in rows] == sorted(transfers(chain, branch))
                if not isinstance(event, Buffered | Settled):  # user code may be ahead, not beside
                    kept = {n: c for n, c in counter.per_block.items() if n <= cursor.number}
                    assert kept == counter.per_block
            if isinstance(event, Buffered) and dice.random() < 0.02:
                raise StopRequested
            if isinstance(event, Settled):
                if dice.random() < 0.4:
                    portal.fork(dice.randint(1, 6))
                else:
                    portal.extend(dice.randint(1, 4))
                if chain.head.number > 40:
                    chain.finalize(chain.head.number - 8)
                if chain.head.number > 80:
                    raise StopRequested

        while chain.head.number <= 80:
            counter.per_block.clear()
            stream_of(portal, flush=flush).pipe_batches(counter).pipe_to(target, on_event=on_event)
        counter.per_block.clear()
        stream_of(portal, (0, chain.head.number), flush=flush).pipe_to(target, on_event=on_event)
        assert held(path) == transfers(chain, chain.canonical())
        assert {Discarded, RolledBack, Buffered, Committed} <= seen


def test_an_owned_target_gets_the_batches_of_a_flush_one_after_the_other(
    portal: PortalServer,
) -> None:
    """And nothing that a fork took before the flush: its callback is not asked about that."""
    names, rows = COLUMNS.replace('"', "").split(", "), list[Any]()

    def forks(data: Any, ctx: Any) -> Any:
        if ctx.stream.state.current.number == 59 and not portal.chain.forks:
            portal.fork(depth=2, length=6)
        return data

    def write(read: Any) -> None:
        for batch in read(None):
            rows.extend(batch.data["transfers"].toArrow().select(names).to_pylist())

    target = create_target(write=write, fork=lambda previous_blocks: pytest.fail("asked"))
    stream_of(portal, (40, 63), flush=Flush(blocks=500)).pipe_batches(forks).pipe_to(target)
    found = [tuple(row.values()) for row in rows]
    assert found == transfers(portal.chain, portal.chain.canonical(40, 63))
    assert portal.chain.forks


@pytest.mark.parametrize("wrong", [5, "5", {"blocks": 5}])
def test_a_rule_that_is_none_is_refused(portal: PortalServer, wrong: Any) -> None:
    with pytest.raises(InvalidOptionError, match="flush rules are Flush"):
        stream_of(portal, flush=wrong)
    with pytest.raises(InvalidOptionError, match="flush rules are Flush"):
        stream_of(portal, flush_backfill=wrong)
