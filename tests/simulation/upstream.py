"""The chain and the portal of a world: forks, finality, replicas, faulty answers, and the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from headwater.core import BlockCursor
from headwater.portal import HttpTransport, Timeouts, Transport, open_transport
from headwater.stream.micro_batches import _BEFORE
from headwater.testing.chain.tree import ChainSim, ContentSettings, SimBlock
from headwater.testing.fault_plan import CATALOGUE
from headwater.testing.portal.answer import SimAnswer
from headwater.testing.portal.dataset import PortalSim, SimTransport, VirtualClock
from headwater.testing.portal.node import FAULTS, NodeSim, Quirks
from headwater.testing.portal.replicas import Balance, Finality, Replica
from headwater.testing.portal.server import PortalServer
from headwater.testing.portal.stream_plan import Behind
from tests.simulation.kinds import SERVERS
from tests.simulation.lossy_proxy import LossyProxy
from tests.simulation.situations import Fault, Feature, Met, Tally
from tests.simulation.themes import Theme

LIMIT_S = 120.0  # for what hangs
_HARMLESS = tuple(
    name for name in CATALOGUE
    if name not in {"missing-block", "swapped-blocks", "foreign-block", "wrong-finality-hash",
                    "refused"}
)  # fmt: skip


_OF_NODES = tuple(one for one in FAULTS if one != "silence")  # nobody waits here, in real time


def own_hash(text: str) -> str:
    """Return a block's hash as the chain spells it: Substreams leaves the prefix out."""
    return text if text.startswith("0x") or not text else f"0x{text}"


class _Node(NodeSim):
    """A node that knows whether a replica that was behind has answered."""

    def __init__(self, portal: PortalSim) -> None:
        super().__init__(portal, Quirks(faults=_OF_NODES))
        self.was_behind = False

    def respond(self, body: bytes) -> SimAnswer:
        """Answer one HTTP request."""
        replicas, chain = self.portal.replicas, self.portal.chain
        with chain.lock:
            replica = replicas.choose()
            self.was_behind |= replica.view().tip != chain.head
            replicas.pin(replica.index)
            return super().respond(body)


class Upstream:
    """What the streams of a world read. `wire` is there where they read over real sockets, `node`
    where they read a node and no portal.

    `faulty` says that an answer was or may be faulty. The portal once lacked blocks `gone_below`.
    """

    def __init__(
        self, seed: int, theme: Theme, dice: Random, tally: Tally, note: Callable[[str], None]
    ) -> None:
        self.faulty = False
        self.gone_below = 0
        self.wire: LossyProxy | None = None
        self.node: _Node | None = None
        self._tally = tally
        self._note = note
        self._server: PortalServer | None = None
        content = ContentSettings(
            transactions_per_block=1.5, transfers_per_transaction=1, pool_share=0.3
        )
        self.chain = ChainSim(seed, content=content)
        self.chain.grow(dice.randrange(1, 8))
        self.finality_known = dice.random() < 0.9
        self.portal = PortalSim(
            self.chain,
            seed=seed,
            replicas=dice.choice([1, 2, 3]),
            balance=dice.choice(list(Balance)),
            blocks_per_answer=dice.choice([(3, 3), (1, 20), (500, 500)]),
            sample_size=dice.choice([1, 3, 10, 50]),
            behind=dice.choice(list(Behind)),
            conflict_before_no_content=dice.random() < 0.6,
        )
        self._over_sockets = dice.random() < 0.08
        self._apply(theme)

    def _apply(self, theme: Theme) -> None:
        """Make what the world is about possible."""
        if theme.feature is not None:
            self.finality_known = theme.feature is not Feature.UNKNOWN_FINALITY
        if theme.faults:
            self._over_sockets = Fault.CUT in theme.faults and theme.kind not in SERVERS
        if Fault.REPLICA in theme.faults:
            self.portal = PortalSim(
                self.chain, seed=self.chain.seed, replicas=2, behind=Behind.CONFLICT
            )
        if theme.feature is Feature.NODE:
            self.node = _Node(self.portal)

    def open(self) -> None:
        """Start serving, where that takes a socket."""
        if not self.finality_known:
            for replica in self.portal.replicas:
                replica.report(Finality.HIDDEN)
        if self._over_sockets or self.node is not None:
            self._server = PortalServer(self.portal).start()
        if self._server is not None and self.node is not None:
            self._server.node = self.node
        if self._server is not None and self._over_sockets:
            self.wire = LossyProxy("127.0.0.1", int(self._server.base_url.rsplit(":", 1)[1]))

    def close(self) -> None:
        """Stop serving."""
        if self.wire is not None:
            self.wire.close()
        if self._server is not None:
            self._server.stop()

    def url(self) -> str:
        """Return where the portal is reached over HTTP, past the wire that can be cut."""
        if self._server is None:
            self._server = PortalServer(self.portal).start()
        return self._server.url

    def transport(self, clock: VirtualClock) -> Transport:
        """Return how one process reaches the portal."""
        if self._server is None or (self.wire is None and self.node is None):
            return SimTransport(self.portal, clock)
        base, limits = self._server.base_url, Timeouts(LIMIT_S, LIMIT_S, LIMIT_S)
        if self.wire is not None:
            base = f"http://127.0.0.1:{self.wire.port}"
        if self.node is not None:
            return open_transport(f"rpc+{base}/rpc/a-secret-key", limits)
        return HttpTransport(f"{base}/datasets/{self.portal.dataset}", limits)

    def is_canonical(self, block_hash: str | None) -> bool:
        """Tell whether a block is on the chain as it is now."""
        return self.chain.is_ancestor(own_hash(block_hash or ""), self.chain.head.hash)

    def blocks_up_to(self, cursor: BlockCursor | None) -> Sequence[SimBlock]:
        """Return the blocks of the branch that ends in a cursor; one without a hash is final.

        A query whose first blocks have all been taken back stands before the first one.
        """
        if cursor is None or cursor.hash == _BEFORE:
            return []
        if not cursor.hash:
            return self.chain.canonical(0, cursor.number)
        return self.chain.path(own_hash(cursor.hash))

    def fork(self, dice: Random) -> bool:
        """Replace some of the newest blocks that are not final; tell whether there are any."""
        final = self.chain.finalized
        first = self.chain.start_block if final is None else final.number
        deepest = len(self.chain.canonical(first + 1))
        if deepest < 1:
            return False
        depth = min(dice.choice([1, 1, 2, 3, dice.randint(1, deepest), deepest]), deepest)
        self.chain.fork(depth, dice.choice([None, None, depth, depth + 2]))
        self._note(f"fork of {depth}, head {self.chain.head.cursor}")
        return True

    def take_back(self) -> None:
        """Return to a branch that was abandoned, if finality allows it."""
        for record in reversed(self.chain.forks):
            if not record.orphaned_hashes:
                continue
            tip, final = record.orphaned_hashes[-1], self.chain.finalized
            if self.chain.is_ancestor(tip, self.chain.head.hash):
                continue
            if final is None or self.chain.is_ancestor(final.hash, tip):
                self.chain.adopt(tip)
                self._tally.meet(Met.FORK_TAKEN_BACK)
                return

    @property
    def is_behind(self) -> bool:
        """Whether a replica does not hold the head now."""
        return any(one.view().tip != self.chain.head for one in self.portal.replicas)

    @property
    def is_ruled_out(self) -> bool:
        """Whether a replica is on a branch now that finality has ruled out."""
        return any(map(self._rules_out, self.portal.replicas))

    def _rules_out(self, replica: Replica) -> bool:
        tip, final, chain = replica.view().tip.hash, self.chain.finalized, self.chain
        return final is not None and not (
            chain.is_ancestor(final.hash, tip) or chain.is_ancestor(tip, final.hash)
        )

    def finalize(self, number: int) -> None:
        """Finalize. A replica may stay on a branch that this rules out, if there are others."""
        before = self.chain.finalized
        was = self.chain.start_block if before is None else before.number
        if number <= was:
            return
        if self.chain.head.number - was >= 20:
            self._tally.meet(Met.FINALITY_STALLED)
        final = self.chain.finalize(number)
        if final.number - was >= 10:
            self._tally.meet(Met.FINALITY_JUMPED)
        self._note(f"final {final.number}")
        for replica in self.portal.replicas:
            if self._rules_out(replica) and (replica.index == 0 or number % 2):
                replica.live()

    def move_replica(self, dice: Random) -> None:
        """Let a replica follow, lag, stay where it is, or report other finality."""
        replica = self.portal.replicas[dice.randrange(len(self.portal.replicas))]
        match dice.choice(["live", "lag", "freeze", "freeze", "finality"]):
            case "live":
                replica.live()
            case "lag":
                replica.lag(dice.choice([1, 3, 10]))
            case "freeze":
                replica.freeze()
            case _:
                if self.finality_known:
                    shown = dice.choice(
                        [Finality.TRUE, Finality.LAGGING, Finality.HIDDEN, Finality.REGRESSED]
                    )
                    replica.report(shown, 5)
                    if shown in (Finality.LAGGING, Finality.REGRESSED):
                        self._tally.meet(Met.FINALITY_REGRESSED)

    def lag(self, dice: Random) -> None:
        """Let one replica keep up, and the others stay where they are while the chain grows."""
        first, *others = self.portal.replicas
        first.live()
        for one in others:
            one.freeze()
        self.chain.extend(dice.choice([2, 3]))

    def strand_replica(self, dice: Random) -> None:
        """Leave a replica on a branch that the others give up, and finality rules out at once."""
        several = len(self.portal.replicas)
        if several < 2 or not self.fork(dice):
            return
        tip = self.chain.forks[-1].orphaned_hashes[-1]
        self.chain.extend(2)
        self.finalize(self.chain.head.number - 1)
        self.portal.replicas[dice.randrange(1, several)].freeze(tip)

    def add_fault(self, dice: Random) -> None:
        """Have one of the next answers spoiled."""
        if self.wire is not None:
            return  # there the proxy does what a portal in memory can only pretend
        self.faulty = True
        self._tally.meet(Met.PORTAL_FAULT)
        if self.node is not None:
            self.node.quirks.fault_share = dice.choice([0.1, 0.3])
            return
        name = dice.choice(_HARMLESS)
        self.portal.faults.add(dice.choice(CATALOGUE[name]), times=dice.choice([1, 1, 3]))
        self._note(f"fault {name}")

    def forget(self, dice: Random) -> None:
        """Let the portal forget its oldest blocks, or have them again: another archive."""
        if self.portal.oldest > self.chain.start_block and dice.random() < 0.5:
            self._remember()
            return
        self.chain.extend(dice.choice([1, 3, 6]))
        self.portal.drop_below(self.chain.head.number - dice.choice([0, 0, 1, 2, 4, 8]))
        self.gone_below = max(self.gone_below, self.portal.oldest)
        self._note(f"the portal begins at {self.portal.oldest}")

    def _remember(self) -> None:
        self.portal._oldest = self.chain.start_block  # a portal's own never moves back

    def calm(self) -> None:
        """End all faults, let the replicas agree, and grow above every block there ever was.

        A stream that has read further than the head, and holds blocks back or waits to flush,
        cannot be told from one that is merely ahead of a replica.
        """
        tips = [one.orphaned_hashes[-1] for one in self.chain.forks if one.orphaned_hashes]
        highest = max([self.chain.block(one).number for one in tips], default=0)
        self.portal.faults.clear()
        if self.node is not None:
            self.node.quirks.fault_share = 0.0
        self._remember()
        for replica in self.portal.replicas:
            replica.live()
            if self.finality_known:
                replica.report(Finality.TRUE)
        self.chain.extend(3 + max(0, highest - self.chain.head.number))
        self.finalize(self.chain.head.number - 2)
