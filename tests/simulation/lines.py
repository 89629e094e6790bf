"""A stream of the simulation: what it is defined as, what becomes of that, and who runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from headwater.core import BlockCursor, Flush, PipeState
from headwater.spark.session import local_session
from headwater.stream.context import BatchContext, StartInfo
from headwater.stream.portal import PortalStream, portal_stream
from headwater.testing.chain.tree import ChainSim
from headwater.testing.oracle import DisagreementError
from tests.simulation.inbox import Inbox
from tests.simulation.kinds import offers
from tests.simulation.modules import Module
from tests.simulation.places import Place
from tests.simulation.plans import plan
from tests.simulation.process import Process
from tests.simulation.queries import Query
from tests.simulation.situations import Fault, Feature, Tally
from tests.simulation.tables import TRANSFERS, Shape
from tests.simulation.upstream import Upstream

ADDRESS = "http://127.0.0.1:9/datasets/simulated"  # of the portal in memory; nothing connects


@dataclass(slots=True)
class Line:
    """One stream of the world: what it is, and the processes that run or ran it.

    `later` is the definition that it is given some day. `evolving` says that a process with it has
    begun and none has come through yet: then tables may be between the two.
    """

    shape: Shape
    place: Place
    flush: Flush | None
    undo_buffer: int
    tokens: tuple[str, ...]
    factory: str
    inbox: Inbox | None = None
    query: Query | None = None  # a streaming query writes, not a stream
    module: Module | None = None  # the stream is one of a Substreams module
    watched: bool = False  # by a transformer that keeps state
    gives_up: bool = False  # blocks that the portal no longer has, instead of ending
    later: Shape | None = None
    earlier: Shape | None = None
    evolving: bool = False
    processes: list[Process] = field(default_factory=list)
    lives: int = 0
    state: PipeState = PipeState()  # noqa: RUF009 - immutable; what the last event said
    lossy: bool = False  # a connection to its database was lost, or may be
    haunted: bool = False  # the server may hold a session of a dead process
    met: set[str] = field(default_factory=set)  # features and faults

    @property
    def alive(self) -> list[Process]:
        """The processes that have not ended, oldest first."""
        return [one for one in self.processes if not one.actor.is_over]

    @property
    def struck(self) -> int:
        """How many connections to its database were lost so far."""
        return len(self.place.proxy.struck) if self.place.proxy else 0

    @property
    def kind(self) -> str:
        """What the points of interruption call the target."""
        return f"{self.place.kind} change log" if self.shape.changes else self.place.kind

    def stream(self) -> PortalStream:
        """Return the stream as it is defined now, for one process."""
        shape, earlier = self.shape, self.earlier
        old = {} if earlier is None else {one: earlier.output(one) for one in earlier.tables}
        new = {one: shape.output(one) for one in old}
        stream = portal_stream(
            id=shape.stream,
            portal=ADDRESS,
            outputs=shape.outputs(self.tokens, self.factory),
            flush=self.flush,
            undo_buffer=self.undo_buffer,
            on_config_change="error" if earlier is None else "evolve",
            renamed={new[one]: old[one] for one in old if new[one] != old[one]},
            missing_blocks="skip" if self.gives_up else "error",
            far=1_000_000,
        )
        if shape.plan:
            made = plan(local_session(), shape.output(TRANSFERS), self.tokens)
            stream = replace(stream, spark=local_session()).pipe(made)
        if shape.ends:
            stream = stream.pipe_batches(shape.add_ends)
        if self.watched:
            stream = stream.pipe_batches(Watcher())
        return stream.pipe_batches(shape.to_changes) if shape.changes else stream

    def define(self, shape: Shape, earlier: Shape | None) -> None:
        """Give the stream another definition from the next start on."""
        self.shape, self.earlier, self.later, self.evolving = shape, earlier, None, True

    def features(self) -> set[str]:
        """Name what the product does here."""
        shape = self.shape
        named = {
            Feature.ON_DATA: not shape.plain,
            Feature.OUTPUTS: shape.plain,
            Feature.KEYED: shape.latest and not shape.changes,
            Feature.AGGREGATE: shape.sums and not shape.changes,
            Feature.CHANGES: shape.changes,
            Feature.SUBSTREAMS: self.module is not None,
            Feature.FOREACH_BATCH: self.query is not None,
            Feature.FACTORY: shape.swaps,
            Feature.OUTBOX: self.inbox is not None,
            Feature.FLUSH: self.flush is not None,
            Feature.UNDO_BUFFER: self.undo_buffer > 0,
            Feature.PLAN: shape.plan,
            Feature.TRANSFORM: shape.ends or shape.changes,
            Feature.TRANSFORMER: self.watched,
            Feature.MAINTAINED: False,
            Feature.COLLISION: False,
            Feature.GONE: False,
            Feature.REWOUND: False,
            Feature.GIVEN_UP: False,
            Feature.ADDED: self.earlier is not None and bool(shape.more),
            Feature.RENAMED: self.earlier is not None and shape.moved,
        }
        return {one for one, there in named.items() if there or one in self.met}

    def faults(self, upstream: Upstream) -> set[Fault]:
        """Name what went wrong around it."""
        reads_portal = self.query is None and self.module is None
        cut = bool(upstream.wire and upstream.wire.struck)
        named = {
            Fault.CUT: self.struck > 0 or (reads_portal and cut),
            Fault.ANSWER: reads_portal and upstream.faulty,
            Fault.REPLICA: reads_portal and upstream.node is not None and upstream.node.was_behind,
            Fault.FORK: self.query is not None and self.query.took_back,
        }
        of_module = set() if self.module is None else self.module.faults
        return {one for one in Fault if one in self.met or named.get(one) or one in of_module}

    @classmethod
    def draw(
        cls, name: str, place: Place, chain: ChainSim, dice: Random, tally: Tally, *, outbox: bool
    ) -> Line:
        """Draw what a stream reads, which tables it writes, and when it commits.

        With `outbox` it has one, whatever is drawn.
        """
        shape = Shape(
            name,
            place.schema,
            latest=place.keyed and dice.random() < 0.5,
            sums=place.sums and place.changes and dice.random() < 0.3,  # a lake: if asked for
            swaps=place.side_tables and dice.random() < 0.25,
            changes=place.changes and not outbox and dice.random() < 0.25,
        )
        tokens = tuple(chain.population.tokens[: dice.choice([1, 2, 3])])
        flush = Flush(blocks=dice.choice([2, 5]), seconds=1) if dice.random() < 0.25 else None
        undo_buffer = dice.choice([0, 0, 0, 0, 2])
        line = cls(shape, place, flush, undo_buffer, tokens, chain.population.factory)
        if not shape.changes and place.side_tables and (outbox or dice.random() < 0.25):
            failing = dice.choice([0.0, 0.0, 0.3])
            line.inbox = Inbox(chain, tokens, dice.random(), failing, tally)
        line._draw_more(Random(dice.random()), chain)
        return line

    def _draw_more(self, dice: Random, chain: ChainSim) -> None:
        """Draw what is not common: transforms, and another definition for later."""
        may_query = offers(self.place.kind, Feature.FOREACH_BATCH)
        if dice.random() < 0.12 and self.inbox is None and not self.shape.changes and may_query:
            self._be_query(chain, dice)
            return
        if dice.random() < 0.35 and self.shape.changes:
            self._be_module(chain, dice)
            return
        self.watched = dice.random() < 0.2
        evolves = dice.random() < 0.5 and self.place.evolves
        if not self.shape.changes:
            self.shape = replace(self.shape, ends=dice.random() < 0.2)
        if not evolves or self.inbox is not None or self.shape.changes:
            return
        adds, moves = dice.choice([(True, False), (False, True), (True, True)])
        self._evolve_later(chain, adds=adds, moves=moves)

    def _be_query(self, chain: ChainSim, dice: Random) -> None:
        self.flush, self.undo_buffer = None, 0
        self.shape = replace(self.shape, latest=False, sums=False, swaps=False, ends=False)
        self.query = Query(chain, self.tokens, dice)

    def _be_module(self, chain: ChainSim, dice: Random) -> None:
        self.undo_buffer = 0
        self.shape = replace(self.shape, latest=False, sums=False, swaps=False)
        self.module = Module.of(chain, self.tokens, self.shape, self.flush, dice)

    def _evolve_later(self, chain: ChainSim, *, adds: bool, moves: bool) -> None:
        self.watched = False  # what it has seen says nothing of earlier blocks
        self.shape = replace(self.shape, plain=True, latest=False, sums=False, ends=False)
        moves = moves and self.place.renames
        more = tuple(chain.population.tokens[-2:]) if adds or not moves else ()
        self.later = replace(self.shape, more=more, moved=moves)

    def have(self, feature: Feature | None, chain: ChainSim, dice: Random, tally: Tally) -> None:
        """Have a feature, whatever else was drawn; what does not go with it is given up."""
        if feature is None or feature in _OF_WORLDS:
            return
        if feature is Feature.FLUSH:
            self.flush = Flush(blocks=2, seconds=1)
        if feature is Feature.UNDO_BUFFER:
            self.undo_buffer = 2
        self.inbox, self.query, self.module, self.later = None, None, None, None
        self.watched = feature is Feature.TRANSFORMER
        self.gives_up = feature is Feature.GIVEN_UP
        self.shape = self._with(feature)
        match feature:
            case Feature.ADDED | Feature.RENAMED:
                adds = feature is Feature.ADDED
                self._evolve_later(chain, adds=adds, moves=not adds or dice.random() < 0.5)
            case Feature.OUTBOX:
                self.inbox = Inbox(chain, self.tokens, dice.random(), 0.3, tally)
            case Feature.SUBSTREAMS:
                self._be_module(chain, dice)
            case Feature.FOREACH_BATCH:
                self._be_query(chain, dice)
            case Feature.GIVEN_UP:
                for one in self.place.looked_at(self.shape):
                    one.gives_up = True
            case _:
                pass

    def _with(self, feature: Feature) -> Shape:
        """Return a shape that has a feature, and of what was drawn all that goes with it."""
        drawn, place = self.shape, self.place
        plain, plan = feature is Feature.OUTPUTS, feature is Feature.PLAN
        changes = feature in (Feature.CHANGES, Feature.SUBSTREAMS)
        given_up = feature is Feature.GIVEN_UP  # children that lost blocks announce stay unknown
        return Shape(
            drawn.stream,
            drawn.schema,
            plain=plain,
            plan=plan,
            changes=changes,
            latest=(place.keyed or changes) and not plain
            and (drawn.latest or feature is Feature.KEYED),
            sums=place.sums and not plain and (drawn.sums or feature is Feature.AGGREGATE),
            swaps=(drawn.swaps and not given_up) or feature is Feature.FACTORY,
            ends=not plain and not plan and not changes
            and (drawn.ends or feature is Feature.TRANSFORM),
        )  # fmt: skip


_OF_WORLDS = {  # features that are not of one stream
    Feature.TOGETHER, Feature.UNKNOWN_FINALITY, Feature.MAINTAINED, Feature.COLLISION, Feature.GONE,
    Feature.NODE,
}  # fmt: skip


class Watcher:
    """A transformer with a state of its own: the last block that it has seen.

    It must be told of everything that is taken back before it is given the blocks again.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._is_on = False

    def start(self, info: StartInfo) -> None:
        """Begin behind the stored cursor."""
        self._check(not self._is_on, "was started twice")
        self._is_on, self._last = True, -1 if info.current is None else info.current.number

    def transform(self, data: Mapping[str, Any], ctx: BatchContext) -> Mapping[str, Any]:
        """See a batch, which must lie above all that was seen."""
        assert self._last is not None
        number = ctx.stream.state.current.number
        self._check(self._is_on and number > self._last, f"is given {number} after {self._last}")
        for frame in data.values():
            blocks = frame.toArrow()["block_number"].to_pylist()
            inside = all(self._last < one <= number for one in blocks)
            self._check(inside, f"is given blocks {blocks} between {self._last} and {number}")
        self._last = number
        return data

    def fork(self, safe_cursor: BlockCursor) -> None:
        """Go back."""
        assert self._last is not None
        self._check(safe_cursor.number <= self._last, f"goes back to {safe_cursor}: it is below")
        self._last = safe_cursor.number

    def stop(self) -> None:
        """End."""
        self._is_on = False

    def _check(self, is_right: bool, what: str) -> None:
        if not is_right:
            raise DisagreementError(f"a transformer {what}")
