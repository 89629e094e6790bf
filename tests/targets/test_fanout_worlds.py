"""Targets of one stream that come, go, die and stand apart while the chain forks: all equal it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headwater import StopRequested, evm, portal_stream
from headwater.core import Batch, PipeState
from headwater.pipeline import Event
from headwater.stream import PortalStream
from headwater.targets import MemoryStore, MemoryTarget
from headwater.targets.contract import Delivery
from headwater.testing import ChainSim, PortalServer, simulated_portal
from headwater.testing.portal.replicas import Finality
from tests.stream import pool_truth
from tests.stream.truth import transfers

FIRST = 5
DEEPEST = 6  # forks, and the rollback chain where finality is hidden


class Died(Exception):  # noqa: N818 - what happens, not an error
    """The process ended in a call of a target."""


class Mortal(MemoryTarget[Delivery]):
    """A target whose process ends before or after one of its changes, if `lives` says so."""

    lives = -1

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        self._live()
        super().commit(batches, state)
        self._live()

    def roll_back(self, state: PipeState) -> None:
        self._live()
        super().roll_back(state)
        self._live()

    def _live(self) -> None:
        self.lives -= 1
        if self.lives == -1:
            raise Died


class World:
    """A portal, the stores of some targets, and runs of one stream into some of them."""

    def __init__(self, portal: PortalServer, *, hidden: bool) -> None:
        self.portal = portal
        self.chain = portal.chain
        self.stores: list[MemoryStore[Any]] = [MemoryStore() for _ in range(3)]
        if hidden:
            portal.sim.replicas[0].report(Finality.HIDDEN)

    def stream(self) -> PortalStream:
        return portal_stream(
            id="s", portal=self.portal.url, far=10**9, poll_interval_s=0.001, max_bytes=4000,
            rollback_cap=DEEPEST, outputs={"transfers": evm.events("erc20.Transfer", range=FIRST)},
        )  # fmt: skip

    def run(self, *places: int, dies: tuple[int, int] | None = None, forks: int = 0) -> None:
        """Run into some of the targets up to the head; `dies` says which one dies, and when.

        At the head the chain forks so deep, if it does, and the run goes on to the new one.
        """
        waiting = [forks] if forks else []
        targets = [Mortal(self.stores[place]) for place in places]
        if dies is not None:
            targets[dies[0]].lives = dies[1]

        def until_head(event: Event) -> None:
            if event.state.number < self.chain.head.number:
                return
            if not waiting:
                raise StopRequested
            self.chain.fork(depth := waiting.pop(), depth + 3)

        given: Any = targets if len(targets) > 1 else targets[0]
        handle = self.stream().start(given, on_event=until_head)
        try:
            assert handle.await_termination(120)
        except Died:
            return
        for place in places:
            self.check(place)

    def check(self, place: int) -> None:
        """Compare what a target holds with the chain."""
        held = [
            tuple(row[name] for name in NAMES)
            for batch in self.stores[place].committed.batches
            for row in batch.data.data["transfers"].toArrow().to_pylist()
        ]
        reached = self.stores[place].committed.state.number
        wanted = transfers(self.chain, self.chain.canonical(FIRST, reached))
        assert held == [row[:3] for row in wanted], f"target {place} at {reached}"


NAMES = ("block_number", "block_hash", "log_index")


class Pools(World):
    """A stream of what the children of a factory log. A target may have lost the children."""

    def stream(self) -> PortalStream:
        swaps = evm.events(
            pool_truth.SWAP_EVENT, contracts=pool_truth.pools_of(self.chain), range=0
        )
        return portal_stream(
            id="s", portal=self.portal.url, far=10**9, poll_interval_s=0.001, max_bytes=4000,
            rollback_cap=DEEPEST, outputs={"swaps": swaps},
        )  # fmt: skip

    def lose(self, place: int) -> None:
        """Forget the children, as a stream does that ran without the factory for a while."""
        store = self.stores[place]
        side = {name: rows.slice(0, 0) for name, rows in store.committed.side.items()}
        store.committed = replace(store.committed, side=side)

    def check(self, place: int) -> None:
        held = [
            tuple(row[name] for name in (*NAMES, "address"))
            for batch in self.stores[place].committed.batches
            for row in batch.data.data["swaps"].toArrow().to_pylist()
        ]
        reached = self.stores[place].committed.state.number
        model = pool_truth.Model(self.chain)
        wanted = model.swaps(self.chain.canonical(0, reached))
        assert held == [row[:4] for row in wanted], f"target {place} at {reached}"


@pytest.mark.guarantee("FANOUT-1")
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_targets_that_come_go_and_die_hold_what_the_chain_says(seed: int, hidden: bool) -> None:
    dice = Random(f"fan-out {seed} {hidden}")
    with simulated_portal(seed=seed, blocks=20, finality_depth=DEEPEST) as portal:
        world = World(portal, hidden=hidden)
        for _ in range(12):
            move(portal.chain, dice)
            run_some(world, dice)
        world.run(0, 1, 2)


def move(chain: ChainSim, dice: Random) -> None:
    """Let the chain grow, or fork, and some of it become final."""
    if dice.random() < 0.5:
        chain.fork(dice.randint(1, DEEPEST - 1), dice.randint(DEEPEST, 15))
    else:
        chain.extend(dice.randint(1, 12))
    if dice.random() < 0.7:
        chain.finalize(chain.head.number - DEEPEST)


def run_some(world: World, dice: Random) -> None:
    """Run into some of the targets; one of them may die."""
    places = dice.sample(range(3), dice.choice([1, 2, 2, 3]))
    dies = (dice.randrange(len(places)), dice.randint(0, 8))
    world.run(*places, dies=dies if dice.random() < 0.4 else None)


@pytest.mark.guarantee("FANOUT-1")
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_no_target_lacks_children_of_a_factory(seed: int, hidden: bool) -> None:
    """Whatever one of them has lost while they stood apart: each goes on alone in the end."""
    dice = Random(f"pools {seed} {hidden}")
    content = pool_truth.SETTINGS
    with simulated_portal(seed=seed, blocks=20, finality_depth=DEEPEST, content=content) as portal:
        world = Pools(portal, hidden=hidden)
        for _ in range(6):
            move(portal.chain, dice)
            run_some(world, dice)
            if dice.random() < 0.5:
                world.lose(dice.randrange(3))
        move(portal.chain, dice)
        world.run(0, 1, 2)
        for place in range(3):
            move(portal.chain, dice)
            world.run(place)


@pytest.mark.guarantee("FANOUT-1")
def test_a_fork_deeper_than_the_chain_is_undone_by_a_target_that_knows_more_finality() -> None:
    """One knows block 24 as final and the other 22; the portal forgets, and the chain is capped."""
    with simulated_portal(seed=3, blocks=31, finality_depth=DEEPEST) as portal:
        world, replica = World(portal, hidden=False), portal.sim.replicas[0]
        portal.chain.finalize(24)
        replica.report(Finality.LAGGING, behind=2)
        world.run(1)
        replica.report(Finality.TRUE)
        world.run(0)
        replica.report(Finality.REGRESSED)
        portal.chain.extend(14)
        world.run(0)
        finals = [store.committed.state.finalized for store in world.stores[:2]]
        assert [one and one.number for one in finals] == [24, 22]
        world.run(0, 1, forks=12)
