"""The promises of what `create_target` makes, as tests: subclass `OwnedTargetConformance`.

    class TestMine(OwnedTargetConformance):
        def fresh(self): ...         # move to an empty place
        def make_target(self): ...   # create_target(write=…, fork=…) on the current place
        def read_rows(self): ...     # the committed rows of the output `transfers`

Each test runs a real stream, in this process and without Spark, on a simulated chain that forks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from headwater.core import BlockCursor
from headwater.decode import evm
from headwater.pipeline import Event, Settled
from headwater.stream import OwnedTarget, StopRequested, portal_stream
from headwater.testing.chain.content import content_of
from headwater.testing.chain.content.evm_scenes import TRANSFER
from headwater.testing.conformance.model import difference, in_order
from headwater.testing.portal.server import PortalServer, simulated_portal

Row = Mapping[str, Any]
Move = Callable[[PortalServer], object]
COLUMNS = ("block_number", "block_hash", "log_index")
DEPTH = 12  # of finality behind the head


class OwnedTargetConformance:
    """Tests of `write` and `fork`. The stream has one output: `transfers`, events of ERC-20 tokens.

    `write` stores its rows, with `COLUMNS` at least, and where to go on; `fork` removes what the
    chain has orphaned and returns the cursor to go on from.
    """

    walks: ClassVar[int] = 6  # how many random scenarios
    first_seed: ClassVar[int] = 1

    def fresh(self) -> None:
        """Move to an empty place."""
        raise NotImplementedError("fresh: move to an empty place")

    def make_target(self) -> OwnedTarget:
        """Return a target on the current place, as a new process would."""
        raise NotImplementedError("make_target: return create_target(write=…, fork=…)")

    def read_rows(self) -> Sequence[Row]:
        """Return the committed rows of `transfers`, with `COLUMNS` at least."""
        raise NotImplementedError("read_rows: return the rows that write has stored")

    def test_rows_are_those_of_the_chain_after_forks_of_any_depth(self) -> None:
        """From one block to all that are not final."""
        with self.portal() as portal:
            self.follow(portal, [_forks(depth) for depth in (1, 3, DEPTH - 1, 2, 1)])

    def test_forks_that_follow_each_other_at_once_are_undone(self) -> None:
        """The chain forks twice before the target hears of it, then while it undoes."""
        with self.portal() as portal:
            twice = [lambda portal: (portal.fork(2), portal.fork(5, 7)),
                     lambda portal: (portal.fork(4), portal.extend(3), portal.fork(6))]  # fmt: skip
            self.follow(portal, twice)

    def test_a_restart_goes_on_and_undoes_what_was_orphaned_meanwhile(self) -> None:
        """Rows are neither lost nor stored twice."""
        with self.portal() as portal:
            for depth in (0, 3, 0, DEPTH - 2):
                self.follow(portal, [lambda portal: portal.extend(2)])
                if depth:
                    portal.fork(depth)

    def test_fork_returns_a_block_of_the_chain_and_leaves_no_row_above_it(self) -> None:
        """Not one below finality."""
        with self.portal() as portal:
            asked: list[BlockCursor] = []
            moves = [_forks(depth) for depth in (2, DEPTH - 1)]
            self.follow(portal, moves, lambda target: self._judged(portal, target, asked))
            assert len(asked) >= len(moves), "fork was not called"

    def test_fork_finds_no_cursor_in_a_chain_that_it_does_not_know(self) -> None:
        """It returns None, or raises; a guess would leave rows of another chain."""
        with self.portal() as portal:
            self.follow(portal, [])
            fork = self._fork_of(self.make_target())
            head = portal.chain.head.number
            foreign = [BlockCursor(number, f"0x{number:064x}") for number in range(head + 1)]
            found = fork(foreign)
            assert found is None, f"no block of this sample was delivered, yet fork named {found}"

    def test_random_scenarios_agree_with_the_chain(self) -> None:
        """A seed that fails is named in the error."""
        for seed in range(self.first_seed, self.first_seed + self.walks):
            dice = Random(f"owned {seed}")
            try:
                with self.portal(seed) as portal:
                    for _ in range(2):
                        self.follow(portal, [_random_move(dice) for _ in range(4)])
                        _random_move(dice)(portal)
            except Exception as error:
                error.add_note(f"conformance seed {seed}")
                raise

    # --- running ----------------------------------------------------------------------------------

    @contextmanager
    def portal(self, seed: int = 7) -> Iterator[PortalServer]:
        """Serve a chain of 30 blocks to an empty place."""
        self.fresh()
        with simulated_portal(seed=seed, blocks=30, finality_depth=DEPTH) as portal:
            yield portal

    def follow(
        self,
        portal: PortalServer,
        moves: Sequence[Move],
        wrap: Callable[[OwnedTarget], OwnedTarget] = lambda target: target,
    ) -> None:
        """Run a stream; whenever it has caught up, compare the rows and move the chain."""
        left = list(moves)

        def on_event(event: Event) -> None:
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                self.check(portal)
                if not left:
                    raise StopRequested
                left.pop(0)(portal)

        stream = portal_stream(
            id="conformance",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer")},
            poll_interval_s=0.001,
        )
        stream.pipe_to(wrap(self.make_target()), on_event=on_event)
        self.check(portal)
        assert not left, "the stream ended before it had read the whole chain"

    def check(self, portal: PortalServer) -> None:
        """Compare the rows with the canonical chain."""
        held = in_order({name: row[name] for name in COLUMNS} for row in self.read_rows())
        expected = in_order(
            {"block_number": block.number, "block_hash": block.hash, "log_index": log["logIndex"]}
            for block in portal.chain.canonical(0)
            for log in content_of(portal.chain, block).rows("logs")
            if log["topics"][:1] == [TRANSFER] and len(log["topics"]) == 3
        )
        if held != expected:
            at = portal.chain.head.number
            raise AssertionError(f"rows at block {at}: {difference(held, expected)}")

    def _judged(
        self, portal: PortalServer, target: OwnedTarget, asked: list[BlockCursor]
    ) -> OwnedTarget:
        """Return the target with a `fork` whose answers are checked."""
        fork = self._fork_of(target)

        def judged(previous_blocks: list[BlockCursor]) -> BlockCursor | None:
            found = fork(previous_blocks)
            numbers = [one.number for one in previous_blocks]
            assert isinstance(found, BlockCursor), f"fork returned {found!r} for blocks {numbers}"
            block = portal.chain.find(str(found.hash))
            assert block is not None, f"fork named {found}, which the chain never held"
            final = portal.chain.finalized
            assert final is None or found.number >= final.number, (
                f"fork went to block {found.number}, below the finalized block {final.number}"
            )
            above = [row for row in self.read_rows() if row["block_number"] > found.number]
            assert not above, f"fork returned block {found.number} but left {len(above)} rows above"
            asked.append(found)
            return found

        return replace(target, fork=judged)

    @staticmethod
    def _fork_of(target: OwnedTarget) -> Callable[[list[BlockCursor]], BlockCursor | None]:
        assert target.fork is not None, "create_target has no fork: no fork can be undone"
        return target.fork


def _forks(depth: int) -> Move:
    return lambda portal: portal.fork(depth, depth + 1)


def _random_move(dice: Random) -> Move:
    depth, more = dice.randint(1, DEPTH - 2), dice.randint(0, 3)
    return dice.choice(
        [_forks(depth), lambda portal: portal.fork(depth, depth + more),
         lambda portal: portal.extend(1 + more)]
    )  # fmt: skip
