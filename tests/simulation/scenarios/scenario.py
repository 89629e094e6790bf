"""One random scenario: a chain, a portal, a pipeline, and everything that can happen to them.

Everything is drawn from one seed, so a scenario that fails can be replayed. After every step the
oracle compares what is stored with the block tree; at the end the chain rests, the faults stop, and
the stored data must be that of the canonical chain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

from headwater.core import (
    Batch,
    BlockHeader,
    BlockRange,
    Blocks,
    Fork,
    PipeState,
    SpanLimits,
    clip_ranges,
)
from headwater.errors import FinalizedForkError, HeadwaterError
from headwater.pipeline import Event, Host, Pipeline, Raw, Settled, Source
from headwater.portal import PortalClient, PortalSource, Transport
from headwater.query import plan_requests
from headwater.targets import MemoryStore
from headwater.testing.chain.population import ContentSettings
from headwater.testing.chain.tree import ChainSim, Network
from headwater.testing.conformance import Crash
from headwater.testing.oracle import DisagreementError, Row, Rows
from headwater.testing.portal.dataset import PortalSim, SimTransport, VirtualClock
from headwater.testing.portal.replicas import Balance, Finality
from headwater.testing.portal.stream_plan import Behind, Surface
from tests.simulation.scenarios.crash import CrashingTarget
from tests.simulation.scenarios.recogniser import Recogniser
from tests.simulation.scenarios.settings import Flow, Setting
from tests.simulation.situations import Situation, Tally

PATIENCE = 3
BAD_DATA = {"E1002", "E3001", "E3003", "E3004", "E3005", "E3006"}  # always the portal's fault


class Scenario(Host[Rows]):
    """One run. `run` raises `DisagreementError` if anything is not as it must be."""

    def __init__(self, seed: int, tally: Tally, *, actions: int = 60) -> None:
        self.seed = seed
        self.steps = 0
        self._tally = tally
        self._recogniser = Recogniser(tally)
        self._dice = dice = Random(f"history {seed}")  # the word is part of every kept seed
        self._actions = actions
        start_block = dice.choice([0, 0, 1000])
        self._on = on = Setting.draw(dice, start_block)
        self._flow = Flow.draw(Random(f"flow {seed}"))
        self._depth = dice.choice([2, 6, 12, 20])
        self.chain = ChainSim(
            seed,
            network=on.network,
            start_block=start_block,
            skipped_share=0.2,
            content=ContentSettings(transactions_per_block=1.5, transfers_per_transaction=1),
        )
        self.chain.grow(dice.randrange(5, 60))
        self._clock = VirtualClock()
        self.portal = PortalSim(
            self.chain,
            seed=seed,
            replicas=dice.choice([1, 2, 3]),
            balance=dice.choice(list(Balance)),
            faults=on.faults(seed, dice),
            blocks_per_answer=dice.choice([(3, 3), (1, 20), (500, 500)]),
            sample_size=dice.choice([1, 3, 10, 50]),
            behind=dice.choice(list(Behind)),
            conflict_before_no_content=dice.random() < 0.6,
            chunk_bytes=dice.choice([(1, 50), (1, 5000), None]),
            surface=Surface.HOTBLOCKS if seed % 12 == 2 else Surface.PORTAL,
        )
        if not on.finality_known:
            for replica in self.portal.replicas:
                replica.report(Finality.HIDDEN)
        tokens = [] if on.network is Network.SOLANA else list(self.chain.population.tokens)[:3]
        self._query = on.query(tokens)
        self._oracle = on.oracle(self.chain, tokens)
        self._store: MemoryStore[Rows] = MemoryStore()
        self._running: Iterator[Event] | None = None
        self._crash_at: Situation | None = None
        self._stuck = False
        self._was_near = False
        self._retention = Random(f"retention {seed}")
        has_window = seed % 6 == 2
        self._keeps = self._retention.choice([10, 30]) if has_window else None  # blocks, at least
        self._note_setting(start_block)

    @property
    def state(self) -> PipeState:
        """The committed state."""
        return self._store.committed.state

    def run(self) -> None:
        """Let everything happen, then let the chain rest and compare."""
        for _ in range(self._actions):
            if self._stuck:
                break
            self._act()
        if not self._stuck and self._dice.random() < 0.08 and self._keeps is None:
            self._violate_finality()
        if not self._stuck:
            self._rest()
        self._tally.faults.update(self.portal.ledger.faults())

    # --- what happens -----------------------------------------------------------------------------

    def _act(self) -> None:
        dice = self._dice
        if self._keeps is not None and self._retention.random() < 0.1:
            self.portal.drop_below(self.chain.head.number - self._retention.randint(0, self._keeps))
        match dice.choices(
            ["grow", "finalize", "fork", "adopt", "replica", "crash", "step"],
            [20, 12, 8, 2, 6, 3, 50],
        )[0]:
            case "grow":
                self.chain.extend(dice.choice([1, 1, 1, 2, 5]))
            case "finalize":
                self._finalize(self.chain.head.number - dice.randrange(self._depth + 1))
            case "fork":
                self._fork()
            case "adopt":
                self._adopt()
            case "replica":
                self._move_replica()
            case "crash":
                self._arm()
            case _:
                for _ in range(dice.randrange(1, 12)):
                    self._step()

    def _finalize(self, number: int) -> None:
        """Finalize, but let no replica stay on a branch that finality rules out."""
        if number < self.chain.start_block:
            return
        final = self.chain.finalize(number)
        for replica in self.portal.replicas:
            if not self._compatible(replica.view().tip.hash, final.hash):
                replica.live()

    def _compatible(self, tip: str, final: str) -> bool:
        return self.chain.is_ancestor(final, tip) or self.chain.is_ancestor(tip, final)

    def _fork(self) -> None:
        deepest = self._hot_blocks()
        if deepest < 1:
            return
        dice = self._dice
        depth = dice.choice([1, 1, 2, dice.randint(1, deepest), deepest])
        depth = min(depth, deepest)
        self.chain.fork(depth, dice.choice([None, None, depth, max(depth - 1, 0)]))
        if self._running is None and self.state.cursor is not None:
            self._tally.meet(Situation.FORK_WHILE_DOWN)

    def _adopt(self) -> None:
        """Take an earlier fork back, if finality allows it."""
        for record in reversed(self.chain.forks):
            if not record.orphaned_hashes:
                continue
            tip = record.orphaned_hashes[-1]
            final = self.chain.finalized
            orphaned = not self.chain.is_ancestor(tip, self.chain.head.hash)
            if orphaned and (final is None or self.chain.is_ancestor(final.hash, tip)):
                self.chain.adopt(tip)
                self._tally.meet(Situation.FORK_TAKEN_BACK)
                return

    def _hot_blocks(self) -> int:
        final = self.chain.finalized
        first = self.chain.start_block if final is None else final.number
        return len(self.chain.canonical(first + 1))

    def _move_replica(self) -> None:
        dice = self._dice
        replica = self.portal.replicas[dice.randrange(len(self.portal.replicas))]
        match dice.choice(["live", "lag", "freeze", "finality"]):
            case "live":
                replica.live()
            case "lag":
                replica.lag(dice.choice([1, 3, 10, 30]))
            case "freeze":
                replica.freeze()
            case _:
                if self._on.finality_known:
                    shown = [Finality.TRUE, Finality.LAGGING, Finality.HIDDEN]
                    replica.report(dice.choice(shown), 5)

    def _arm(self) -> None:
        """Have the process die at one of its next effects, or at once."""
        points = [one for one in Situation if one.value.startswith("crash")]
        self._crash_at = self._dice.choice(points)
        if self._crash_at is Situation.CRASH_IN_RECOVERY or self._dice.random() < 0.5:
            self._running = None

    # --- one step ---------------------------------------------------------------------------------

    def _step(self) -> Event | None:
        """Run the pipeline to its next event; compare; restart it after an error or a crash."""
        before, event = self.state, None
        with suppress(Crash):
            event = self._advance(before)
        if event is None:
            self._running = None
        else:
            self._recogniser.event(event, before, PATIENCE)
            self._recogniser.buffered(event, self._flow)
            self._note_idle(event)
        self.steps += 1
        self._oracle.check(self._held(), self.state, before)
        return event

    def _advance(self, before: PipeState) -> Event | None:
        try:
            if self._running is None:
                self._running = self._start()
            return next(self._running, None)
        except Crash as crash:
            self._tally.meet(Situation(str(crash)))
            raise
        except HeadwaterError as error:
            self._judge(error, before)
            return None

    def _start(self) -> Iterator[Event]:
        on, cursor = self._on, self.state.cursor
        if cursor is not None and not self.chain.is_ancestor(
            cursor.hash or "", self.chain.head.hash
        ):
            self._tally.meet(Situation.RESTART_ON_ORPHAN)
        client = PortalClient(
            self._transport(),
            clock=self._clock,
            rng=Random(f"client {self.seed}"),
            on_notice=lambda notice: None,
            max_bytes=20_000,
        )
        self._client = client
        target = CrashingTarget(self._store, self._crash_at)
        self._crash_at = None
        return Pipeline(
            self._source(client),
            target,
            self,
            flush=self._flow.flush,
            patience=PATIENCE,
            rollback_cap=on.rollback_cap,
        ).steps()

    def _transport(self) -> Transport:
        return SimTransport(self.portal, self._clock)

    def _source(self, client: PortalClient) -> Source:
        source = self._portal_source(client)
        return self._flow.buffer(source, self.pause, PATIENCE, self._on.rollback_cap) or source

    # --- the host of the loop ---------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of the simulated clock."""
        return self._clock.monotonic()

    def pause(self) -> None:
        """Let the simulated clock run on."""
        self._clock.sleep(1.0)

    def count_rows(self, batch: Batch[Rows]) -> int:
        """Count the rows of all blocks."""
        return sum(map(len, batch.data.values()))

    def _portal_source(self, client: PortalClient) -> PortalSource:
        plan = plan_requests([(one, self._query) for one in self._on.ranges])
        return PortalSource(
            client,
            plan,
            watch=self._on.watch(),
            clock=self._clock,
            far=self._on.far,
            first_span=5,
            limits=SpanLimits(blocks=20),
            leave_out=self._leave_out,
        )

    def _leave_out(self, blocks: Sequence[BlockRange]) -> None:
        """Believe the source only where the portal has really lost the blocks."""
        if any(one.to_block is None or one.to_block >= self.portal.oldest for one in blocks):
            raise DisagreementError(f"{blocks} left out; the portal begins at {self.portal.oldest}")
        if blocks[0].from_block >= self.chain.start_block:
            self._tally.meet(Situation.BLOCKS_GONE)
        self._oracle.leave_out(blocks)

    def _lines(self, batch: Batch[Raw]) -> Iterator[tuple[BlockHeader, bytes]]:
        """Return the blocks of a batch; those of a span are fetched here, as an executor would."""
        if isinstance(batch.data, tuple):
            self._was_near = True
            yield from zip(batch.headers, batch.data, strict=True)
            return
        self._tally.meet(Situation.SPAN)
        if self._was_near:
            self._tally.meet(Situation.FELL_BEHIND)
        self._was_near = False
        for answer in self._client.read(self._query, batch.data.block_range, finalized=True):
            if isinstance(answer, Blocks):
                yield from zip(answer.headers, answer.lines, strict=True)
            if isinstance(answer, Fork):
                raise FinalizedForkError("a fork among final blocks", sample=answer.previous_blocks)

    def transform(self, batch: Batch[Raw]) -> Batch[Rows]:
        """Keep the rows of each block, by the block's hash."""
        family = "logs" if self._on.network is Network.EVM else "instructions"
        rows: Rows = {}
        for header, line in self._lines(batch):
            found: list[Row] = json.loads(line).get(family, [])
            if found:
                rows[header.hash] = found
        return batch.with_data(rows)

    def _held(self) -> Rows:
        held: Rows = {}
        for batch in self._store.committed.batches:
            for block_hash, rows in batch.data.items():
                if block_hash in held:
                    raise DisagreementError(f"block {block_hash} is held twice")
                held[block_hash] = rows
        return held

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, error: HeadwaterError, before: PipeState) -> None:
        """Accept an error that the scenario explains; the state must not have changed."""
        self._tally.errors[error.code] += 1
        if self.state != before:
            raise DisagreementError(f"{error.code} changed the state") from error
        if error.code in {*BAD_DATA, FinalizedForkError.code} or error.code == "E1004":
            return
        if error.code == "E3010" and self._keeps is not None:
            self._stuck = before.finalized is None  # else an executor came too late
            self._tally.meet(Situation.REFUSED_AS_GONE)
            return
        beyond = before.finalized is None
        if error.code == "E1003" and (beyond or self._on.finality_lies or self._stuck):
            if beyond:
                self._tally.meet(Situation.FORK_BEYOND_HISTORY)
            self._stuck = True
            return
        raise DisagreementError(f"nothing explains this error: {error}") from error

    def _note_idle(self, event: Event) -> None:
        """Recognise an idle answer from a chain that our cursor is not on."""
        cursor, final = self.state.cursor, self.chain.finalized
        if not isinstance(event, Settled) or cursor is None:
            return
        if self.chain.is_ancestor(cursor.hash or "", self.chain.head.hash):
            return
        self._tally.meet(Situation.FORK_HIDDEN_BY_204)
        if final is not None and not self.chain.is_ancestor(final.hash, cursor.hash or ""):
            self._tally.meet(Situation.FINALITY_UNCHECKED)

    def _note_setting(self, start_block: int) -> None:
        if self._on.network is Network.SOLANA:
            self._tally.meet(Situation.SKIPPED_SLOTS)
        if len(self._on.ranges) > 1:
            self._tally.meet(Situation.GAP_BETWEEN_RANGES)
        if self._on.ranges[0].from_block < start_block:
            self._tally.meet(Situation.BEFORE_DATASET)

    # --- the end ----------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Stop all faults, let the replicas agree, and read to the head: now all must be equal."""
        self._calm()
        for _ in range(1000):
            event = self._step()
            if self._stuck:
                return
            if isinstance(event, Settled) and self._is_at_rest():
                break
        else:
            raise DisagreementError(f"{self.state.cursor} never reached {self.chain.head.cursor}")
        self._oracle.check(self._held(), self.state, self.state)

    def _is_at_rest(self) -> bool:
        """Tell whether all is stored but what the undo buffer may hold back."""
        final, head = self.chain.finalized, self.chain.head
        if not self._flow.undo_buffer:
            return self.state.cursor == head.cursor
        last = max(head.number - self._flow.undo_buffer, -1 if final is None else final.number)
        first = 0 if self.state.cursor is None else self.state.cursor.number + 1
        return first > last or not any(map(self._oracle.rows_of, self.chain.canonical(first, last)))

    def _calm(self) -> None:
        self.portal.faults.clear()
        for replica in self.portal.replicas:
            replica.live()
            if self._on.finality_known:
                replica.report(Finality.TRUE)
        self.chain.extend(60 if clip_ranges(self._on.ranges, self.chain.head.cursor) else 3)
        if self._on.finality_known:
            self._finalize(self.chain.head.number - 2)

    def _violate_finality(self) -> None:
        """Replace blocks that the pipeline knows to be final: it must refuse, and touch nothing."""
        self._calm()
        final = self.state.finalized
        cursor = self.state.cursor
        if final is None or cursor is None or len(self._on.ranges) > 1:
            return  # between two ranges nothing links the blocks, so it cannot be noticed
        depth = len(self.chain.canonical(final.number))
        if final.number <= self.chain.start_block:
            return
        self.chain.fork(depth, depth + 80, force=True)
        self._stuck = True
        before = self._refusals()
        for _ in range(100):
            self._step_violated()
            if self._refusals() > before:
                self._tally.meet(Situation.FINALITY_VIOLATED)
                return
        raise DisagreementError(f"finality was violated at {final} and nothing was said")

    def _refusals(self) -> int:
        """Count the errors that a violation of finality may show itself as."""
        return sum(self._tally.errors[code] for code in ("E1003", "E1004", "E3005"))

    def _step_violated(self) -> None:
        before = self.state
        with suppress(Crash):
            if self._advance(before) is None:
                self._running = None
        was, now = before.finalized, self.state.finalized
        if was is not None and (now is None or now.number < was.number):
            raise DisagreementError("a violation of finality made it fall")
