"""One world: what streams read, the databases they write, and processes that live and die.

It plays a script, step by step. Whether an end of a process is explained, and the tables are those
of the chain, the `Judge` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from headwater.errors import HeadwaterError
from headwater.testing.oracle import DisagreementError
from headwater.testing.portal.dataset import VirtualClock
from tests.simulation.judge import Judge
from tests.simulation.kinds import KINDS, make_place
from tests.simulation.lines import Line
from tests.simulation.lossy_proxy import Loss, LossyProxy
from tests.simulation.operators import operate
from tests.simulation.places import Engines, Place, Stored
from tests.simulation.process import Call, Interruption, Point, Process
from tests.simulation.script import FOCUS, Do, Script, Step
from tests.simulation.situations import Fault, Feature, Met, Tally, cell, interrupted
from tests.simulation.upstream import LIMIT_S, Upstream

HOUR = 3600.0


class World:
    """Plays one script. `play` raises `DisagreementError` if anything is not as it must be."""

    def __init__(self, script: Script, engines: Engines, tally: Tally) -> None:
        self.script = script
        self.log: list[str] = []
        self.steps = 0
        self._tally = tally
        self._dice = dice = Random(f"world {script.seed}")
        self._engines = engines
        self.upstream = Upstream(script.seed, script.theme, dice, tally, self.note)
        self.chain, self.portal = self.upstream.chain, self.upstream.portal
        self.judge = Judge(self.upstream, tally, self.note)
        self._places: list[Place] = []
        self._points: list[str] = []  # where processes were interrupted
        self._turn = 0
        self.lines: list[Line] = []

    # --- playing ----------------------------------------------------------------------------------

    def play(self) -> None:
        """Play all steps, let everything rest, and compare."""
        try:
            self._set_up()
            for step in self.script.steps:
                self.steps += 1
                self._do(step)
            self._rest()
            self._count()
            self._tally.points.update(self._points)
        except BaseException:
            self._tally.different.update(self._points)
            raise
        finally:
            self._tear_down()

    def _count(self) -> None:
        """Count what the portal and the network did."""
        self._tally.faults.update(self.portal.ledger.faults())
        self._count_cells()
        for place in self._places:
            for loss in place.proxy.struck if place.proxy else []:
                if not loss.hold:
                    self._tally.meet(Met.ANSWER_CUT if loss.of_answer else Met.REQUEST_CUT)
        for loss in self.upstream.wire.struck if self.upstream.wire else []:
            if not loss.hold:
                self._tally.meet(Met.PORTAL_CUT)
        for proxy in {one for one, _ in self._proxies()}:
            for _ in range(proxy.cut_headers):
                self._tally.meet(Met.HEADERS_CUT)

    def _count_cells(self) -> None:
        """Count which faults each stream met, whatever it did."""
        for line in self.lines:
            features, faults = line.features(), line.faults(self.upstream)
            if len([one for one in self.lines if one.place is line.place]) > 1:
                features.add(Feature.TOGETHER)
            if not self.upstream.finality_known:
                features.add(Feature.UNKNOWN_FINALITY)
            if self.upstream.node is not None and line.query is None and line.module is None:
                features.add(Feature.NODE)
            self._tally.met.update(features)
            self._tally.cells.update(
                cell(line.place.kind, feature, fault) for feature in features for fault in faults
            )

    def _set_up(self) -> None:
        dice = self._dice
        self.upstream.open()
        kind, feature = self.script.theme.kind, self.script.theme.feature
        together = feature is Feature.TOGETHER
        for number in range(2 if self.script.seed % 4 == 0 or together else 1):
            if number and dice.random() < 0.3 and not together:
                kind = dice.choice(KINDS)
            same = [one for one in self._places if one.kind == kind]
            if same:
                place = same[0]
            else:
                place = make_place(kind, self._engines, dice, feature=feature)
                self._places.append(place)
            call, _ = self._focus_of_seed()
            outbox = number == 0 and call is Call.BETWEEN
            name = f"s{number}"
            line = Line.draw(name, place, self.chain, dice, self._tally, outbox=outbox)
            if number == 0:
                line.have(feature, self.chain, dice, self._tally)
            self.lines.append(line)
        if len(self._places) < len(self.lines):
            self._tally.meet(Met.SEVERAL_STREAMS)

    def _tear_down(self) -> None:
        for line in self.lines:
            for process in line.alive:
                self.end(line, process)
        for place in self._places:
            place.close()
        self.upstream.close()

    def _do(self, step: Step) -> None:
        dice = Random(step.seed)
        self.note(f"-- {step.do}")
        match step.do:
            case Do.GROW:
                self.chain.extend(dice.choice([1, 1, 1, 2, 3, 6]))
            case Do.FORK:
                self._fork(dice)
            case Do.TAKE_BACK:
                self.upstream.take_back()
            case Do.FINALIZE:
                self.upstream.finalize(self.chain.head.number - dice.choice([0, 1, 2, 4, 8, 15]))
            case Do.FORGET:
                self._forget(dice)
            case Do.REPLICA | Do.LAG | Do.STRAND | Do.FAULT:
                upstream = self.upstream
                {
                    Do.REPLICA: upstream.move_replica,
                    Do.LAG: upstream.lag,
                    Do.STRAND: upstream.strand_replica,
                    Do.FAULT: upstream.add_fault,
                }[step.do](dice)
            case Do.LOSE | Do.RELEASE:
                self._do_network(step.do, dice)
            case Do.LOOK:
                for line in self.lines:
                    self.judge.look(line)
            case Do.MAINTAIN | Do.INTRUDE | Do.EVOLVE | Do.REWIND:
                operate(self, step.do, dice.choice(self.lines), dice)
            case _:
                self._do_process(step.do, dice.choice(self.lines), dice)

    def _forget(self, dice: Random) -> None:
        """Move the portal's window; streams that may leave blocks out know of final ones before."""
        lines = [one for one in self.lines if one.gives_up and self.upstream.finality_known]
        if lines:
            self.upstream.finalize(self.chain.head.number - 1)
        for line in lines:
            self._run_on(line, 4)
        self.upstream.forget(dice)
        for line in lines:
            self._run_on(line, dice.choice([0, 3]))

    def _run_on(self, line: Line, events: int) -> None:
        """Let a stream run for some events, unless its writer is paused."""
        for _ in range(events):
            process = line.alive[-1] if line.alive else self.start(line)
            if process.is_paused or not self.advance(line, process):
                return

    def _fork(self, dice: Random) -> None:
        if not self.upstream.fork(dice):
            return
        for line in self.lines:
            if any(one.is_paused for one in line.alive):
                self._tally.meet(Met.FORK_WHILE_PAUSED)
            elif line.lives and not line.alive:
                self._tally.meet(Met.FORK_WHILE_DOWN)

    # --- the network ------------------------------------------------------------------------------

    def _proxies(self) -> list[tuple[LossyProxy, Line | None]]:
        found: list[tuple[LossyProxy, Line | None]] = []
        for line in self.lines:
            if line.place.proxy is not None:
                found.append((line.place.proxy, line))
        if self.upstream.wire is not None:
            found.append((self.upstream.wire, None))
        return found

    def _do_network(self, do: Do, dice: Random) -> None:
        proxies = self._proxies()
        if not proxies:
            return
        proxy, line = dice.choice(proxies)
        if proxy.is_holding:
            self._release(proxy, dice.random() < 0.5, portal=line is None)
        elif do is Do.LOSE:
            after = dice.choice([0, 1, dice.randrange(60), dice.randrange(400),
                                 dice.randrange(3000)])  # fmt: skip
            loss = Loss(after, of_answer=dice.random() < 0.75, hold=dice.random() < 0.3)
            proxy.arm(loss)
            self.note(f"{loss} to {line.place.kind if line else 'the portal'}")
            for one in self.lines:
                if line is None or one.place is line.place:
                    one.lossy = True

    def _release(self, proxy: LossyProxy, deliver: bool, *, portal: bool) -> None:
        if portal:
            self._tally.meet(Met.PORTAL_HELD)
        else:
            self._tally.meet(Met.ANSWER_LATE if deliver else Met.ANSWER_HELD)
        self.note(f"released, deliver={deliver}")
        proxy.release(deliver=deliver)

    def holding(self, line: Line) -> bool:
        proxies = (line.place.proxy, self.upstream.wire)
        return any(one is not None and one.is_holding for one in proxies)

    # --- processes --------------------------------------------------------------------------------

    def _do_process(self, do: Do, line: Line, dice: Random) -> None:
        alive = line.alive
        newest = alive[-1] if alive else None
        paused = [one for one in alive if one.is_paused]
        match do:
            case Do.RUN:
                for _ in range(dice.randrange(1, 7)):
                    if not self.advance(line, newest or self.start(line)):
                        break
                    newest = line.alive[-1] if line.alive else None
            case Do.KILL if newest is not None:
                self._tally.meet(Met.KILLED)
                line.met.add(Fault.KILLED)
                self.end(line, newest)
            case Do.STOP if newest is not None and not newest.is_paused:
                self._tally.meet(Met.STOPPED)
                self.end(line, newest)
            case Do.INTERRUPT:
                calls = [Call.RECOVER, Call.COMMIT, Call.COMMIT, Call.ROLL_BACK, Call.SETTLE,
                         Call.BETWEEN]  # fmt: skip
                call, pause = dice.choice(calls), dice.random() < 0.6
                self._interrupt(line, newest, dice, call, pause, runs=dice.choice([0, 4, 4]))
            case Do.FOCUS:
                self._focus(dice)
            case Do.TAKE_OVER if paused and line.place.fenced:
                self._take_over(line, paused[-1], drop=dice.random() < 0.6)
            case Do.WAKE if paused:
                self._wake(line, paused[0])
            case Do.CLOCK if newest is not None:
                jump = dice.choice([-HOUR, HOUR])
                line.met.add(Fault.CLOCK)
                newest.clock.jump(jump)
                self._tally.meet(Met.CLOCK_BACK if jump < 0 else Met.CLOCK_FORWARD)

    def _focus(self, dice: Random) -> None:
        """Interrupt the first stream in the call that is the seed's turn; others start again."""
        line = self.lines[0]
        for _ in range(6):
            if not self.advance(line, line.alive[-1] if line.alive else self.start(line)):
                break
        call, pause = self._focus_of_seed()
        self._interrupt(line, line.alive[-1] if line.alive else None, dice, call, pause, runs=5)
        for other in self.lines[1:]:
            for process in other.alive:
                self.end(other, process)
            self.advance(other, self.start(other))
        paused = [one for one in line.alive if one.is_paused]
        if paused and dice.random() < 0.7:
            self._take_over(line, paused[-1], drop=dice.random() < 0.6)

    def _focus_of_seed(self) -> tuple[Call, bool]:
        """Return in which call the first stream is interrupted, and whether it is a pause."""
        return FOCUS[self.script.seed // len(KINDS) % len(FOCUS)]

    def _interrupt(
        self,
        line: Line,
        process: Process | None,
        dice: Random,
        call: Call,
        pause: bool,
        runs: int,
    ) -> None:
        """Have a process paused or killed at a statement of its next call of a kind, and run it."""
        if call is Call.RECOVER and process is not None and not process.is_paused:
            self.end(line, process)
            process = None
        if process is None or process.is_paused:
            process = self.start(line)
        nth = dice.choice([1, 2, 4, 5, 7, 9, 13] if call is Call.RECOVER else [1, 1, 2, 2, 3, 4, 7])
        if line.place.kind == "memory":
            pause, nth = False, 1
        process.arm(Interruption(not pause, call, nth))
        if call is Call.ROLL_BACK:
            self._fork(dice)
        elif call is Call.COMMIT:
            self.chain.extend(1)
        elif call is Call.BETWEEN:
            self.chain.extend(1)
            self.upstream.finalize(self.chain.head.number - 1)
        for _ in range(runs):
            if not self.advance(line, process):
                break

    def start(self, line: Line, rival: Any = None) -> Process:
        """Start a process of a stream; it does nothing before it runs.

        With the target of a rival it is that of a stream which must not write these tables.
        """
        line.lives += 1
        name = f"{line.shape.stream}.{line.lives}"
        dice = Random(f"{self.script.seed} {name}")
        clock = VirtualClock(1_750_000_000.0 + dice.choice([0, 0, -HOUR, HOUR, -60]))
        target = line.place.target(line.shape, name, clock.now) if rival is None else rival
        kind = line.kind

        def on_point(point: Point) -> None:
            how = "killed" if point.kill else "paused"
            line.met.add(Fault.KILLED if point.kill else Fault.PAUSED)
            self.note(f"{name} {how} in {point.call}: {point.statement[:60]!r}")
            self._tally.meet(interrupted(how, point.call, line.place.kind))
            self._points.append(f"{kind}|{point.call}|{how}|{statement_kind(point.statement)}")

        see = self.judge.saw if rival is None else self.judge.saw_rival
        process = Process(
            name,
            line.stream(),
            target,
            self.upstream.transport(clock),
            clock,
            inbox=line.inbox,
            query=None if rival is not None else line.query,
            module=None if rival is not None else line.module,
            watch=line.place.watch,
            on_event=lambda event: see(line, name, event),
            on_point=on_point,
        )
        process.struck = line.struck
        line.processes.append(process)
        self.note(f"{name} starts")
        return process

    def advance(self, line: Line, process: Process) -> bool:
        """Let a process run to its next event; False if it does not get there."""
        struck = line.struck
        self._run(line, process)
        if line.inbox is not None and line.inbox.wrong is not None:
            raise DisagreementError(line.inbox.wrong)
        if process.actor.is_blocked:
            self.note(f"{process.name} waits for the network")
            return False
        if line.struck > struck and not process.actor.is_over:
            self._tally.meet(Met.SURVIVED_LOSS)
        if process.actor.is_over:
            self.judge.ended(line, process)
            return False
        return not process.is_paused

    def _run(self, line: Line, process: Process) -> None:
        """Let a process run until it stops, or until the network holds it.

        Where it waits for the lock of a paused writer, that one is killed.
        """
        self._turn += 1
        process.turns = (process.turns[0] if process.turns else self._turn, self._turn)
        if line.haunted:
            dead = [one.name for one in line.processes if one.actor.is_over]
            line.haunted = line.place.has_sessions(dead)
        process.haunted = line.haunted
        beside = [one for one in self.lines if one is not line and one.place is line.place]
        names = [one.name for each in beside for one in each.processes]
        process.crowded = bool(names) and line.place.has_sessions(names)

        def is_held() -> bool:
            return self.holding(line) or line.place.waits_for_lock(process.name)

        paused = [(each, one) for each in self.lines for one in each.alive if one.is_paused]
        others = [each for each in paused if each[0].place is line.place and each[1] is not process]
        while not process.actor.run(LIMIT_S, is_held) and not self.holding(line):
            if others:
                self._tally.meet(Met.WAITED_FOR_LOCK)
                self.end(*others.pop())
                process.haunted = True  # it may be refused before the server has noticed
                continue
            # a process that was killed keeps its locks until the server has noticed
            came = process.actor.run(LIMIT_S, lambda: self.holding(line))
            if not came and not self.holding(line):
                raise DisagreementError(f"{process.name} hangs in {process.call}")

    def _take_over(self, line: Line, paused: Process, *, drop: bool) -> None:
        """Start a second writer beside a paused one; `drop`: the server has given that one up."""
        if drop:
            line.place.drop_sessions(paused.name)
            paused.dropped = True
        successor = self.start(line)
        for _ in range(4):
            if not self.advance(line, successor):
                break
        if not successor.actor.is_over:
            self._tally.meet(Met.TAKEN_OVER)

    def _wake(self, line: Line, process: Process) -> None:
        point = process.point
        for _ in range(4):
            if not self.advance(line, process):
                break
        if process.actor.is_over and isinstance(process.actor.failure, HeadwaterError):
            self._tally.meet(Met.ZOMBIE_REFUSED)
        elif not process.actor.is_over:
            self._tally.meet(Met.ZOMBIE_WENT_ON)
        self.note(f"{process.name} woke at {point and point.statement[:40]!r}")

    def end(self, line: Line, process: Process) -> None:
        """Kill a process wherever it is."""
        process.actor.kill()
        line.haunted = True
        for proxy, _ in self._proxies():
            if process.actor.is_blocked and proxy.is_holding:
                proxy.release(deliver=False)
        if not process.actor.run(LIMIT_S):
            raise DisagreementError(f"{process.name} does not die in {process.call}")

    def note(self, text: str) -> None:
        self.log.append(text)

    # --- the end ----------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Stop all faults, wake everybody, read to the head: now all must be equal."""
        self.note("-- rest")
        for proxy, line in self._proxies():
            proxy.disarm()
            if proxy.is_holding:
                self._release(proxy, False, portal=line is None)
        self.upstream.calm()
        for place in self._places:
            place.calm = True
        for one in self.lines:
            for other in (one.inbox, one.module):
                if other is not None:
                    other.calm()
        held = []
        for each in self.lines:
            for process in [one for one in each.alive if one.is_paused]:
                self._wake(each, process)
            if each.place.kind == "fan-out":  # the next start has all of its targets
                for process in each.alive:
                    self.end(each, process)
            held.append(self._settle(each))
        self._restart(held)

    def _restart(self, held: Sequence[Sequence[Stored]]) -> None:
        """Start all streams once more: nothing may change, and old undo data must go."""
        final = self.chain.finalized
        for line, before in zip(self.lines, held, strict=True):
            for process in line.alive:
                self.end(line, process)
            self.advance(line, self.start(line))
            after = line.place.stored(line.shape)
            same = [one.tables for one in after] == [one.tables for one in before]
            if not same and not line.place.rereads:
                raise DisagreementError(f"{line.shape.stream}: a start changed the tables")
        self.chain.extend(2)
        for line in self.lines:
            now = self._settle(line)
            kept = [one for each in now for one in each.undo_blocks]
            old = [one for one in kept if final and one < final.number - 1]
            if old and self.upstream.finality_known and not line.undo_buffer:
                raise DisagreementError(f"{line.shape.stream}: undo data of final blocks {old[:5]}")
            for process in line.alive:
                self.end(line, process)
            self.judge.check_final(line, now)
            self.judge.look_again(line, now)

    def _settle(self, line: Line) -> Sequence[Stored]:
        """Run a stream until it has read everything, and compare; return what is stored."""
        for _ in range(400):
            process = line.alive[-1] if line.alive else self.start(line)
            self.advance(line, process)
            if process.is_paused or process.actor.is_over:
                continue
            if self.judge.is_at_head(line) and self.judge.is_delivered(line):
                break
        else:
            raise DisagreementError(
                f"{line.shape.stream} at {line.state.cursor} never reached the head"
            )
        return self.judge.compare(line) or line.place.stored(line.shape)


def statement_kind(sql: str) -> str:
    """Return what kind of statement this is: its first word."""
    words = sql.split()
    return words[0].upper() if words else "?"
