"""Forks of every depth against an undo buffer, and crashes while it holds blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from headwater.core import Batch, BlockRange
from headwater.pipeline import Discarded, Event, Host, Pipeline, Raw, RolledBack, Settled
from headwater.portal import PortalClient, PortalSource
from headwater.stream.undo_buffer import UndoBuffer
from headwater.targets import MemoryStore, MemoryTarget
from headwater.testing import ChainSim, Network, PortalSim
from headwater.testing.oracle import Rows
from headwater.testing.portal.dataset import SimTransport, VirtualClock
from tests.simulation.scenarios.settings import Setting

DEPTH = 5


class Following(Host[Rows]):
    """A pipeline with an undo buffer on a chain that a test moves, checked after every step."""

    def __init__(self, seed: int, last: int | None = None) -> None:
        self.chain = ChainSim(seed)
        self.chain.grow(30)
        self.chain.finalize(10)
        self.store: MemoryStore[Rows] = MemoryStore()
        self.events: list[Event] = []
        self._seed = seed
        self._range = BlockRange(0, last)
        self._clock = VirtualClock()
        self._portal = PortalSim(self.chain, seed=seed, sample_size=3)
        tokens = list(self.chain.population.tokens)[:3]
        self._on = Setting(
            Network.EVM,
            (self._range,),
            every_block=True,
            finality_known=True,
            finality_lies=False,
            rollback_cap=1000,
            far=None,
        )
        self._query = self._on.query(tokens)
        self.oracle = self._on.oracle(self.chain, tokens)
        self.start()

    def start(self) -> None:
        """Begin, or begin again after a crash: only what is stored is known."""
        client = PortalClient(
            SimTransport(self._portal, self._clock),
            clock=self._clock,
            rng=Random(self._seed),
            on_notice=lambda notice: None,
        )
        source = PortalSource(client, [(self._range, self._query)], watch=self._on.watch())
        self._steps: Iterator[Event] = Pipeline(
            UndoBuffer(source, DEPTH, pause=lambda: self._clock.sleep(1.0)),
            MemoryTarget(self.store),
            self,
        ).steps()

    def transform(self, batch: Batch[Raw]) -> Batch[Rows]:
        return _rows_of(batch)

    def pause(self) -> None:
        self._clock.sleep(1.0)

    def settle(self) -> list[Event]:
        """Step until nothing new comes; return what happened."""
        before, quiet = len(self.events), 0
        while quiet < 3 and self.step():
            quiet = quiet + 1 if isinstance(self.events[-1], Settled) else 0
        return self.events[before:]

    def step(self) -> bool:
        """Take a step and compare; tell whether there was one."""
        was = self.store.committed.state
        event = next(self._steps, None)
        state = self.store.committed.state
        held = {
            name: rows for one in self.store.committed.batches for name, rows in one.data.items()
        }
        self.oracle.check(held, state, was)
        if state.cursor is not None:
            number, final = state.cursor.number, state.finalized
            deep = self.chain.head.number - number >= DEPTH
            assert deep or self.chain.forks or (final is not None and number <= final.number)
        if event is not None:
            self.events.append(event)
        return event is not None

    def stored(self) -> int:
        """Return the number of the last stored block."""
        cursor = self.store.committed.state.cursor
        return -1 if cursor is None else cursor.number


def _rows_of(batch: Batch[Raw]) -> Batch[Rows]:
    assert isinstance(batch.data, tuple)
    found = {
        header.hash: rows
        for header, line in zip(batch.headers, batch.data, strict=True)
        if (rows := json.loads(line).get("logs", []))
    }
    return batch.with_data(found)


@pytest.mark.guarantee("BUFFER-1")
@pytest.mark.guarantee("BUFFER-2")
@pytest.mark.parametrize("depth", range(1, 13))
def test_a_fork_reaches_the_target_only_if_it_is_deeper_than_the_buffer(depth: int) -> None:
    following = Following(depth)
    following.settle()
    assert following.stored() == following.chain.head.number - DEPTH
    for _ in range(3):
        following.chain.fork(depth, depth + 1)
        events = following.settle()
        assert any(isinstance(one, Discarded) for one in events)
        undone = [one for one in events if isinstance(one, RolledBack)]
        assert bool(undone) is (depth > DEPTH)
    following.chain.finalize(following.chain.head.number)
    following.settle()
    assert following.stored() == following.chain.head.number


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_loses_nothing_that_was_held_back(seed: int) -> None:
    dice, following = Random(seed), Following(seed)
    for _ in range(40):
        match dice.choice(["crash", "fork", "grow", "final", "step", "step"]):
            case "crash":
                following.start()
            case "fork":
                final = following.chain.finalized
                assert final is not None
                hot = following.chain.head.number - final.number
                following.chain.fork(dice.randint(1, min(hot, 9)))
            case "grow":
                following.chain.extend(dice.randint(1, 4))
            case "final":
                following.chain.finalize(following.chain.head.number - dice.randint(3, 12))
            case _:
                for _ in range(dice.randint(1, 9)):
                    following.step()
    following.settle()
    assert following.stored() >= following.chain.head.number - DEPTH - 1


@pytest.mark.guarantee("BUFFER-3")
@pytest.mark.parametrize("final", [True, False])
def test_a_bounded_range_ends_when_its_last_blocks_are_deep_or_final(final: bool) -> None:
    following = Following(3, last=28)
    following.settle()
    assert following.stored() < 28
    following.chain.fork(2, 3)
    following.settle()
    assert following.stored() < 28
    if final:
        following.chain.finalize(28)
    else:
        following.chain.extend(10)
    while following.step():
        pass
    assert following.stored() == 28
    assert not any(isinstance(one, RolledBack) for one in following.events)
