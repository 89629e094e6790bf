"""Streams of a Substreams module in the simulation: an endpoint on the world's chain, no socket.

The module says the transfers of some tokens as changes of one table, which a change log undoes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random
from threading import Event as Flag
from typing import Any

import grpc
from google.protobuf import message_factory
from prometheus_client import CollectorRegistry

from headwater.core import Flush
from headwater.pipeline import Event, Pipeline
from headwater.portal import Clock
from headwater.runtime import Runtime
from headwater.stream.run import Opening
from headwater.stream.substreams import SubstreamsRun, SubstreamsStream, substreams_stream
from headwater.substreams.client import Reading, SubstreamsClient
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.messages import Message, Outputs, Progress
from headwater.substreams.outputs import Gathered
from headwater.substreams.source import Feed, Taken
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.substreams import SimModule
from headwater.testing.substreams.endpoint import SessionEnd, SimEndpoint
from headwater.testing.substreams.faults import (
    EndsWith,
    FallsSilent,
    SessionFault,
    SessionFaults,
)
from headwater.testing.substreams.modules import changes_file
from tests.simulation.situations import Fault
from tests.simulation.tables import COLUMNS, TRANSFERS, Shape, transfers_of

CHANGES = "sf.substreams.sink.database.v1.DatabaseChanges"
_FILES = (changes_file(),)
_CLASS = message_factory.GetMessageClass(TypeSet(_FILES).descriptor(CHANGES))
_CREATE, _SET = 1, 1
ADDRESS = "http://127.0.0.1:9"  # of the endpoint in memory; nothing connects


@dataclass(frozen=True, slots=True)
class Module:
    """A stream of a module, and the endpoint that serves it to one process after another."""

    endpoint: SimEndpoint
    stream: SubstreamsStream
    faults: set[Fault]  # that sessions met

    @classmethod
    def of(
        cls, chain: ChainSim, tokens: Sequence[str], shape: Shape, flush: Flush | None, dice: Random
    ) -> Module:
        """Return a stream of the transfers of some tokens."""
        table = shape.name(TRANSFERS)

        def make(block: SimBlock) -> bytes:
            made = _CLASS()
            for at, row in enumerate(transfers_of(chain, block, tokens)):
                named = dict(zip(COLUMNS[TRANSFERS], map(str, row), strict=True))
                change = made.table_changes.add(table=table, operation=_CREATE, ordinal=at)
                for name, value in named.items():
                    if name in ("block_number", "log_index"):
                        change.composite_pk.keys[name] = value
                    else:
                        change.fields.add(name=name, value=value, update_op=_SET)
            return bytes(made.SerializeToString())

        module = SimModule("db_out", CHANGES, make, _FILES)
        endpoint = SimEndpoint(chain, [module], bundle=dice.choice([1, 2, 4]), progress_s=0.0)
        endpoint.faults = faults = _Faults()
        faults.by_chance(dice.randrange(1 << 30), 0.2)
        stream = substreams_stream(
            id=shape.stream,
            endpoint=ADDRESS,
            package=module.package(),
            tables=shape.schemas(),
            flush=flush,
        )
        return cls(endpoint, stream, faults.met)

    def calm(self) -> None:
        """Give sessions no more faults."""
        self.endpoint.faults.by_chance(0, 0.0)

    def run(
        self,
        target: Any,
        clock: Clock,
        on_event: Callable[[Event], None],
        pause: Callable[[], None],
    ) -> None:
        """Run for ever; `pause` is called behind each event, and where nothing is to come."""

        def hear(message: Message) -> None:
            if isinstance(message, Progress):
                clock.sleep(0.25)
                pause()

        stream = replace(self.stream, on_message=hear)
        with ExitStack() as stack:
            client = _Client(self.endpoint, stream, clock)
            record = stream._record("module", CollectorRegistry())
            run = SubstreamsRun(
                stream, client, Opening(target, record, Runtime.of(record, clock=clock))
            )
            run._messages.receive = _Stepped
            stack.callback(client.close)
            stack.callback(run.stop)
            target.bind(stream.id)
            loop = Pipeline(run, target, run, flush=stream.flush, rollback_cap=stream.rollback_cap)
            for event in loop.steps():
                run.on_event(event)
                on_event(event)
                pause()


class _Faults(SessionFaults):
    """Notes what sessions meet: a cut, or messages that are not as they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[Fault] = set()

    def next(self) -> SessionFault | None:
        """Return the fault of the next session."""
        fault = super().next()
        if isinstance(fault, FallsSilent):  # nobody waits here, in real time, until it is given up
            fault = EndsWith(fault.after, "UNAVAILABLE", "it fell silent")
        if fault is not None:
            is_cut = isinstance(fault, EndsWith)
            self.met.add(Fault.CUT if is_cut else Fault.ANSWER)
        return fault


class _Stepped(Feed):
    """Receives in the thread of the loop, so that a seed always plays the same way."""

    def __init__(self, reading: Reading, stop: int, **ahead: Any) -> None:
        self.stop = stop
        self._reading = reading
        self._messages = iter(reading)
        self._is_over = False

    @property
    def ended(self) -> bool:
        """Whether all was taken."""
        return self._is_over

    def take(self, timeout: float) -> Taken | None:
        """Return what comes next; None at the end."""
        message = None if self._is_over else next(self._messages, None)
        self._is_over = message is None
        return Gathered((message,)) if isinstance(message, Outputs) else message

    def take_outputs(self) -> Gathered | None:
        """Return nothing: one message is received at a time."""

    def close(self) -> None:
        """Break off the reading."""
        self._is_over = True
        self._reading.abort()


class _Client(SubstreamsClient):
    """A client whose calls are sessions of an endpoint in this process."""

    def __init__(self, endpoint: SimEndpoint, stream: SubstreamsStream, clock: Clock) -> None:
        super().__init__(
            stream.endpoint,
            stream.order,
            dialling=stream.dialling,
            clock=clock,
            random=lambda: 0.5,
            on_notice=lambda notice: None,
        )
        self._served = endpoint

    def dial(self, request: bytes) -> Any:
        """Begin a session."""
        return _Call(self._served, self.versions[0], request)


class _Call:
    """One session: its messages, until it ends or is cancelled."""

    def __init__(self, endpoint: SimEndpoint, version: int, request: bytes) -> None:
        self._left = Flag()
        self._session = endpoint.session(version, request, {}, self._left)

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._session
        except SessionEnd as end:
            if end.status != "OK":
                raise _StatusError(end) from None
        if self._left.is_set():
            raise _StatusError(SessionEnd("CANCELLED"))

    def cancel(self) -> None:
        """End it."""
        self._left.set()


class _StatusError(grpc.RpcError):  # type: ignore[misc]
    """How a session ended, as grpc says it."""

    def __init__(self, end: SessionEnd) -> None:
        super().__init__(end.status)
        self._end = end

    def code(self) -> Any:
        """Return the status."""
        return getattr(grpc.StatusCode, self._end.status)

    def details(self) -> str:
        """Return its words."""
        return self._end.words
