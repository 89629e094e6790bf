"""Streams of the simulation, and their processes: paused or killed at any statement.

A process is the real loop, client and target, and an actor: it runs to its next event, or to the
statement at which it is to be interrupted. A kill leaves what a dead process leaves: connections
are closed, nothing more is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from headwater.core import Batch, Flush, PipeState
from headwater.pipeline import Event, Pipeline
from headwater.portal import PortalClient, Transport
from headwater.stream.portal import PortalStream, portal_stream
from headwater.stream.portal_run import PortalRun
from headwater.stream.run import Opening
from headwater.targets.contract import Capabilities, Delivery
from headwater.testing.chain.tree import ChainSim
from headwater.testing.crash import Crash
from headwater.testing.portal.transport import VirtualClock
from tests.simulation.actor import Actor
from tests.simulation.inbox import Inbox
from tests.simulation.places import Place
from tests.simulation.situations import Tally
from tests.simulation.tables import Shape, outputs

ADDRESS = "http://127.0.0.1:9/datasets/simulated"  # of the portal in memory; nothing connects


class Call(StrEnum):
    """What the loop was doing with the target."""

    RECOVER = "recover"
    COMMIT = "commit"
    SETTLE = "settle"
    ROLL_BACK = "roll back"
    BETWEEN = "between batches"  # outbox, children of factories, the stored definition


@dataclass(frozen=True, slots=True)
class Interruption:
    """Where a process is paused or killed: before the `nth` statement of a kind of call."""

    kill: bool
    call: Call
    nth: int


@dataclass(frozen=True, slots=True)
class Point:
    """Where a process was interrupted, and how."""

    kill: bool
    call: Call
    statement: str


class Process:
    """One life of a stream's process.

    `point` is where it was interrupted last; `on_point` is told each time. `turns` are the first
    and the last time it ran. `dropped` says that the server ended its sessions, `haunted` that one
    of a dead process was still there when it ran last.
    """

    def __init__(
        self,
        name: str,
        stream: PortalStream,
        target: Any,
        transport: Transport,
        clock: VirtualClock,
        *,
        inbox: Inbox | None,
        on_event: Callable[[Event], None],
        on_point: Callable[[Point], None],
    ) -> None:
        self.name = name
        self.clock = clock
        self.point: Point | None = None
        self.turns: tuple[int, int] | None = None
        self.struck = 0  # connections that the proxy had cut when it began
        self.dropped = self.haunted = False
        self._inbox = inbox
        self._stream = stream
        self._target = target
        self._transport = transport
        self._on_event = on_event
        self._on_point = on_point
        self._call = Call.BETWEEN
        self._armed: Interruption | None = None
        self._left = 0
        self.actor = Actor(self._live)

    @property
    def is_paused(self) -> bool:
        """Whether it stands at a statement, and not between two events."""
        return self.point is not None and not self.actor.is_over

    @property
    def call(self) -> Call:
        """What it is doing with its target."""
        return self._call

    def arm(self, interruption: Interruption) -> None:
        """Have it interrupted once."""
        self._armed, self._left = interruption, interruption.nth

    def _live(self) -> None:
        target = _Watched(self._target, self._enter)
        self._target.on_statement = self._statement
        stream, inbox = self._stream, self._inbox
        if inbox is not None:
            stream = replace(stream, extensions=(lambda name: inbox.outbox(name, self.clock),))
        with ExitStack() as stack:
            client = stack.enter_context(
                PortalClient(
                    self._transport,
                    clock=self.clock,
                    rng=Random(self.name),
                    on_notice=lambda notice: None,
                    max_bytes=20_000,
                )
            )
            record = stream._record(self.name, CollectorRegistry())
            run = PortalRun(stream, client, self.clock, Opening(target, record))
            stack.callback(run.stop)
            target.bind(stream.id)
            loop = Pipeline(run, target, run, flush=stream.flush, patience=3)
            for event in loop.steps():
                run.on_event(event)
                self._on_event(event)
                self.actor.pause()

    def _enter(self, call: Call) -> None:
        """Note what begins, and that it is over; a process may be interrupted in between."""
        self._call = call

    def _statement(self, sql: str) -> None:
        """Interrupt the process here, if it was told to. Called before each statement."""
        self.actor.live()
        armed = self._armed
        if armed is None or armed.call is not self._call:
            return
        self._left -= 1
        if self._left > 0:
            return
        self._armed = None
        point = Point(armed.kill, self._call, sql)
        self._on_point(point)
        if armed.kill:
            self.actor.kill()
            raise Crash
        self.point = point
        self.actor.pause()
        self.point = None


@dataclass(slots=True)
class Line:
    """One stream of the world: what it is, and the processes that run or ran it."""

    shape: Shape
    place: Place
    stream: PortalStream
    tokens: tuple[str, ...]
    inbox: Inbox | None = None
    processes: list[Process] = field(default_factory=list)
    lives: int = 0
    state: PipeState = PipeState()  # noqa: RUF009 - immutable; what the last event said
    lossy: bool = False  # a connection to its database was lost, or may be
    haunted: bool = False  # the server may hold a session of a dead process

    @property
    def alive(self) -> list[Process]:
        """The processes that have not ended, oldest first."""
        return [one for one in self.processes if not one.actor.is_over]

    @property
    def struck(self) -> int:
        """How many connections to its database were lost so far."""
        return len(self.place.proxy.struck) if self.place.proxy else 0

    @classmethod
    def draw(
        cls, name: str, place: Place, chain: ChainSim, dice: Random, tally: Tally, *, outbox: bool
    ) -> Line:
        """Draw what a stream reads, which tables it writes, and when it commits.

        With `outbox` it has one, whatever is drawn.
        """
        keyed = place.kind in ("DuckDB", "PostgreSQL")
        shape = Shape(
            name,
            place.schema,
            latest=keyed and dice.random() < 0.5,
            sums=keyed and dice.random() < 0.3,
            swaps=dice.random() < 0.25,
            changes=keyed and not outbox and dice.random() < 0.25,
        )
        tokens = tuple(chain.population.tokens[: dice.choice([1, 2, 3])])
        flush = Flush(blocks=dice.choice([2, 5]), seconds=1) if dice.random() < 0.25 else None
        stream = portal_stream(
            id=name,
            portal=ADDRESS,
            outputs=outputs(tokens, chain.population.factory if shape.swaps else None),
            flush=flush,
            undo_buffer=dice.choice([0, 0, 0, 0, 2]),
            far=1_000_000,
        )
        if shape.changes:
            stream = stream.pipe_batches(shape.to_changes)
        elif outbox or dice.random() < 0.25:
            failing = dice.choice([0.0, 0.0, 0.3])
            inbox = Inbox(chain, tokens, dice.random(), failing, tally)
            return cls(shape, place, stream, tokens, inbox)
        return cls(shape, place, stream, tokens)


class _Watched:
    """Passes the loop's calls on to a target, and says which one is under way."""

    def __init__(self, target: Any, enter: Callable[[Call], None]) -> None:
        self._target = target
        self._enter = enter

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        found: Capabilities[Delivery] = self._target.capabilities
        return found

    def bind(self, stream_id: str) -> None:
        self._target.bind(stream_id)

    def recover(self) -> PipeState:
        self._enter(Call.RECOVER)
        state: PipeState = self._target.recover()
        self._enter(Call.BETWEEN)
        return state

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        self._enter(Call.COMMIT if batches else Call.SETTLE)
        self._target.commit(batches, state)
        self._enter(Call.BETWEEN)

    def roll_back(self, state: PipeState) -> None:
        self._enter(Call.ROLL_BACK)
        self._target.roll_back(state)
        self._enter(Call.BETWEEN)

    def close(self) -> None:
        self._target.close()
