"""A random scenario whose pipeline reads an ordered list of sources, and is made to switch often.

The sources are portals of one chain, each with replicas, faults and limits of its own. Between two
steps one is passed over, goes down, or comes back. The oracle compares after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headwater.address import HttpAddress
from headwater.errors import TransportError
from headwater.pipeline import Event
from headwater.portal import (
    Notice,
    NoticeKind,
    Request,
    Response,
    Sources,
    SourcesTransport,
    SourceTransport,
    Timeouts,
    Transport,
)
from headwater.testing.portal.dataset import PortalSim, SimTransport
from headwater.testing.portal.replicas import Balance, Finality
from headwater.testing.portal.stream_plan import Behind
from tests.shared import at_once
from tests.simulation.scenarios.scenario import Scenario
from tests.simulation.situations import Tally

SOURCES = 3
PATIENCE_S = 600.0


class MayBeDown:
    """The transport of one source, which does not answer while it is down."""

    def __init__(self, transport: SimTransport, is_down: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_down = is_down
        self.close = transport.close

    def send(self, request: Request) -> Response:
        """Send one request, unless the source is down."""
        if self._is_down():
            raise TransportError("the connection was refused")
        return self._transport.send(request)

    def abort(self) -> None:
        """Do nothing: no request waits."""


class ManySources(Scenario):
    """One run. `switches` counts how often another source was read from than before."""

    def __init__(self, seed: int, tally: Tally, *, actions: int = 60) -> None:
        super().__init__(seed, tally, actions=actions)
        dice = self._turns = Random(f"sources {seed}")
        self.portals = [self.portal, *(self._another(dice, at) for at in range(1, SOURCES))]
        self.switches = 0
        self._down: set[int] = set()
        self._list: SourcesTransport | None = None
        self._slept_s = 0.0
        self._clock.on_sleep = self._slept

    def _slept(self, seconds: float) -> None:
        """Bring sources back that a pipeline has waited for long: none of them is gone for good."""
        self._slept_s += seconds
        if self._slept_s > PATIENCE_S:
            self._down = set()
            for portal in self.portals:
                for replica in portal.replicas:
                    replica.live()

    def _another(self, dice: Random, place: int) -> PortalSim:
        portal = PortalSim(
            self.chain,
            seed=self.seed * SOURCES + place,
            replicas=dice.choice([1, 2]),
            balance=dice.choice(list(Balance)),
            faults=self._on.faults(self.seed + place, dice),
            blocks_per_answer=dice.choice([(3, 3), (1, 20), (500, 500)]),
            sample_size=dice.choice([1, 3, 10, 50]),
            behind=dice.choice(list(Behind)),
            chunk_bytes=dice.choice([(1, 50), (1, 5000), None]),
        )
        if not self._on.finality_known:
            for replica in portal.replicas:
                replica.report(Finality.HIDDEN)
        return portal

    def _transport(self) -> Transport:
        sources = Sources([f"http://{place}" for place in range(1, SOURCES + 1)],
                          lag_s=30, prove_s=5, probe_s=2)  # fmt: skip
        self._list = SourcesTransport(
            sources,
            self._open,
            clock=self._clock.monotonic,
            spawn=at_once,
            notify=self._noticed,
        )
        self._list.trust(self.state.finalized)
        return self._list

    def _open(
        self, address: HttpAddress, timeouts: Timeouts | None, hold_s: float | None
    ) -> SourceTransport:
        place = int(address.host) - 1
        transport = SimTransport(self.portals[place], self._clock)
        return MayBeDown(transport, lambda: place in self._down)

    def _noticed(self, notice: Notice) -> None:
        self.switches += notice.kind is NoticeKind.SOURCE_CHANGED

    def _step(self) -> Event | None:
        """Change the sources, then run to the next event."""
        self._disturb()
        self._slept_s = 0.0
        event = super()._step()
        if self._list is not None:
            self._list.trust(self.state.finalized)
        return event

    def _disturb(self) -> None:
        dice = self._turns
        if self._list is None or self._calmed:
            return
        if dice.random() < 0.7:
            self._list.pass_over("told so")
        if dice.random() < 0.1:
            self._down = {dice.randrange(SOURCES)} if dice.random() < 0.6 else set()

    def pause(self) -> None:
        """Ask another source, as a run does, and let the simulated clock run on."""
        assert self._list is not None, "a pipeline that runs has sources"
        self._list.pass_over("it is stale")
        super().pause()

    def _move_replica(self) -> None:
        first, self.portal = self.portal, self._turns.choice(self.portals)
        super()._move_replica()
        self.portal = first

    def _finalize(self, number: int) -> None:
        first = self.portal
        for portal in self.portals:
            self.portal = portal
            super()._finalize(number)
        self.portal = first

    _calmed = False

    def _calm(self) -> None:
        self._calmed, self._down = True, set()
        for portal in self.portals[1:]:
            portal.faults.clear()
            for replica in portal.replicas:
                replica.live()
                if self._on.finality_known:
                    replica.report(Finality.TRUE)
        super()._calm()
