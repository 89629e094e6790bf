"""What operators do to the streams of a world: maintain, define anew, start what is in the way."""

from __future__ import annotations

from random import Random
from typing import Any, Protocol

from headwater.errors import HeadwaterError
from headwater.testing.oracle import DisagreementError
from tests.simulation.judge import Judge
from tests.simulation.lines import Line
from tests.simulation.process import Call, Interruption, Process
from tests.simulation.script import Do
from tests.simulation.situations import Feature
from tests.simulation.tables import Shape, difference
from tests.simulation.upstream import LIMIT_S, Upstream


class Stage(Protocol):
    """What the world offers: its streams, and ways to run them."""

    upstream: Upstream
    judge: Judge
    lines: list[Line]

    def start(self, line: Line, rival: Any = None) -> Process:
        """Start a process of a stream, or of its rival."""
        ...

    def advance(self, line: Line, process: Process) -> bool:
        """Let a process run to its next event."""
        ...

    def end(self, line: Line, process: Process) -> None:
        """Kill a process."""
        ...

    def holding(self, line: Line) -> bool:
        """Tell whether the network holds something of a stream."""
        ...

    def note(self, text: str) -> None:
        """Write something down."""
        ...


def operate(world: Stage, do: Do, line: Line, dice: Random) -> None:
    """Do one of these things, where it is possible now."""
    is_new = line.state.cursor is None and line.query is None
    if line.evolving or (is_new and do is not Do.EVOLVE):
        return
    match do:
        case Do.MAINTAIN if line.place.maintained:
            line.place.maintain()
            line.met.add(Feature.MAINTAINED)
        case Do.INTRUDE if line.place.kind != "memory":
            _intrude(world, line)
        case Do.REWIND if line.place.kind != "memory" and line.query is None:
            _rewind(world, line, dice)
        case Do.EVOLVE if line.later is not None and world.upstream.finality_known:
            for _ in range(8):
                if line.state.finalized is not None:
                    _evolve(world, line, line.later, dice)
                    break
                world.upstream.finalize(world.upstream.chain.head.number - 1)
                world.advance(line, line.alive[-1] if line.alive else world.start(line))
        case _:
            return


def _intrude(world: Stage, line: Line) -> None:
    """Start a stream of another id on the tables of this one: it must be refused, unharmed."""
    held = line.place.stored(line.shape)
    if not any(rows for one in held for rows in one.tables.values()):
        return
    beside = [one for each in world.lines for one in each.alive]
    if any(one.is_paused or one.actor.is_blocked for one in beside):
        return  # it would wait for a lock, or one that the network held writes at the same moment
    rival = line.place.rival(line.shape, "rival", lambda: 0.0)
    if rival is None:
        return
    other = world.start(line, rival)
    line.processes.remove(other)
    for _ in range(6):
        if not other.actor.run(LIMIT_S, lambda: world.holding(line)) or other.actor.is_over:
            break
    failure = other.actor.failure
    world.note(f"{other.name} ended: {failure}")
    if other.actor.is_over and not isinstance(failure, HeadwaterError):
        raise DisagreementError(f"{other.name} ended with {failure!r}")
    if not other.actor.is_over:
        world.end(line, other)
    line.met.add(Feature.COLLISION)
    after = line.place.stored(line.shape)  # a process that the network held may have gone on
    for one, was in zip(after, held, strict=True):
        if one.cursor == was.cursor and (said := difference(one.tables, was.tables)):
            raise DisagreementError(
                f"{other.name} has changed the tables of {line.shape.stream}: {said}"
            )
    world.judge.look(line)


def _rewind(world: Stage, line: Line, dice: Random) -> None:
    """Move a cursor back, as `headwater rewind` does: all of it is done, or nothing."""
    for each in [one for one in world.lines if one.place is line.place]:
        for process in each.alive:
            world.end(each, process)
    for place in line.place.looked_at(line.shape):
        shape = place.own(line.shape)
        before = place.read(shape)
        if before.cursor is None:
            continue
        number = max(0, before.cursor.number - dice.choice([0, 1, 2, 3, 6]))
        with place.environment():
            try:
                move = place.admin(shape).move(shape.stream, number, force=dice.random() < 0.5)
            except HeadwaterError as error:
                world.note(f"rewind to {number} refused: {error}")
                if place.transactional and place.read(shape).tables != before.tables:
                    raise DisagreementError("a refused rewind has changed tables") from None
                continue
        world.note(f"rewind of {shape.stream} to {number}: {move.kind}")
        line.met.add(Feature.REWOUND)
        now = place.read(shape).cursor
        if now is None or now.number != move.number:
            raise DisagreementError(f"a rewind to {number} has left {shape.stream} at {now}")
        world.judge.compare(line)


def _evolve(world: Stage, line: Line, later: Shape, dice: Random) -> None:
    """Give a stream its later definition; a start with it may die, and the earlier one go on."""
    for process in line.alive:
        world.end(line, process)
    earlier = line.shape
    line.define(later, earlier)
    process = world.start(line)
    if dice.random() < 0.7:
        calls = [Call.BETWEEN, Call.BETWEEN, Call.RECOVER, Call.ROLL_BACK]
        nth = dice.choice([1, 2, 3, 4, 6, 8, 11, 15, 20])
        process.arm(Interruption(True, dice.choice(calls), nth))
    world.advance(line, process)
    if not process.actor.is_over or not line.evolving or dice.random() < 0.5:
        return
    line.define(earlier, None)
    for _ in range(3):
        if not world.advance(line, line.alive[-1] if line.alive else world.start(line)):
            break
    world.judge.look(line)  # if it went on: otherwise tables may be between the two
    for process in line.alive:
        world.end(line, process)
    line.define(later, earlier)
