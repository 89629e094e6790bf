"""Processes of the simulation: paused or killed at any statement.

A process is the real loop, client and target, and an actor: it runs to its next event, or to the
statement at which it is to be interrupted. A kill leaves what a dead process leaves: connections
are closed, nothing more is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from headwater.core import Batch, PipeState
from headwater.pipeline import Event, Pipeline
from headwater.portal import PortalClient, Transport
from headwater.runtime import ALONE, Runtime
from headwater.stream.portal import PortalStream
from headwater.stream.portal_run import PortalRun
from headwater.stream.run import Opening
from headwater.targets.contract import Capabilities, Delivery
from headwater.testing.conformance import Crash
from headwater.testing.portal.dataset import VirtualClock
from tests.simulation.actor import Actor
from tests.simulation.inbox import Inbox
from tests.simulation.modules import Module
from tests.simulation.queries import Query, run_query

PATIENCE = 200  # times that a process sleeps without an event


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
    of a dead process was still there when it ran last, `crowded` that one of another stream was.
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
        query: Query | None,
        module: Module | None,
        watch: Callable[[Any, Callable[[str], None]], None],
        on_event: Callable[[Event], None],
        on_point: Callable[[Point], None],
    ) -> None:
        self.name = name
        self.clock = clock
        self.point: Point | None = None
        self.turns: tuple[int, int] | None = None
        self.struck = 0  # connections that the proxy had cut when it began
        self.dropped = self.haunted = self.crowded = False
        self._inbox = inbox
        self._query = query
        self._module = module
        self._stream = stream
        self._target = target
        self._transport = transport
        self._watch = watch
        self._on_event = on_event
        self._on_point = on_point
        self._call = Call.BETWEEN
        self._armed: Interruption | None = None
        self._left = 0
        self._slept = 0  # times, since the last event
        clock.on_sleep = self._has_slept
        self.actor = Actor(name, self._live)

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
        self._watch(self._target, self._statement)
        if self._query is not None:
            run_query(self._query, self._stream.id, target, self.actor.pause)
            return
        if self._module is not None:
            self._module.run(target, self.clock, self._on_event, self.actor.pause)
            return
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
            opening = Opening(target, record, Runtime.of(record, clock=self.clock))
            run = PortalRun(stream, client, opening)
            stack.callback(run.stop)
            target.bind(stream.id)
            loop = Pipeline(run, target, run, flush=stream.flush, patience=3)
            for event in loop.steps():
                run.on_event(event)
                self._on_event(event)
                self._slept = 0
                self.actor.pause()

    def _has_slept(self, seconds: float) -> None:
        """Let the world go on while the stream waits: for a portal that is behind, to its end.

        Sleeping takes no time here, so nothing else would end that.
        """
        self._slept += 1
        if self._slept >= PATIENCE and self.actor.has_turn:
            self._slept = 0
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


class _Watched:
    """Passes the loop's calls on to a target, and says which one is under way."""

    def __init__(self, target: Any, enter: Callable[[Call], None]) -> None:
        self._target = target
        self._enter = enter

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        found: Capabilities[Delivery] = self._target.capabilities
        return found

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        self._target.bind(stream_id, runtime)

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
