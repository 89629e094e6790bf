"""Several servers behind one address, each with a head of its own.

A public portal is a set of replicas. One may be seconds behind, one may still hold a branch that
the others gave up, one may be an archive whose finality is hours old; consecutive requests of one
client land on any of them. Most of what goes wrong near the head of a chain comes from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from headwater.core import BlockCursor
from headwater.errors import InvalidOptionError
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.faults import foreign_hash


class Finality(StrEnum):
    """The finalized head that a replica reports."""

    TRUE = "true"  # the newest block it holds that is final
    LAGGING = "lagging"  # the same, some blocks late
    HIDDEN = "hidden"  # nothing: the headers are absent
    REGRESSED = "regressed"  # the first block of the dataset, like an archive just started
    WRONG_HASH = "wrong-hash"  # the right number with a hash that belongs to no block


class Follow(StrEnum):
    """How a replica follows the chain."""

    LIVE = "live"  # always at the chain's head
    LAGGING = "lagging"  # some blocks behind it
    FROZEN = "frozen"  # at one block, which the chain may since have abandoned


class Balance(StrEnum):
    """How the replica that gets the next request is chosen."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class View:
    """The blocks of one replica at one moment: the branch that ends in `tip`, and nothing else.

    `final` is the newest block of this branch that is final as far as the replica knows;
    `finalized` is what it reports, which need not be the same.
    """

    chain: ChainSim
    replica: int
    tip: SimBlock
    final: SimBlock | None
    finalized: BlockCursor | None
    sample_size: int = 50

    def at_or_below(self, number: int) -> SimBlock | None:
        """Return the highest block of the branch at or below a number."""
        return self.chain.at_or_below(min(number, self.tip.number), self.tip.hash)

    def first_from(self, number: int) -> SimBlock | None:
        """Return the lowest block of the branch at or above a number."""
        for candidate in range(max(number, self.chain.start_block), self.tip.number + 1):
            block = self.at_or_below(candidate)  # skipped slots: the next candidate finds it
            if block is not None and block.number >= number:
                return block
        return None

    def blocks(self, from_number: int, to_number: int) -> list[SimBlock]:
        """Return the blocks of a range, ascending."""
        last = self.at_or_below(to_number)
        return [] if last is None else self.chain.path(last.hash, from_number)

    def sample(self, up_to: int) -> list[BlockCursor]:
        """Return the newest blocks at or below a number, ascending: the `previousBlocks`."""
        wide = 2 * self.sample_size + 16  # skipped slots leave gaps
        blocks = self.blocks(min(up_to, self.tip.number) - wide, up_to)
        return [block.cursor for block in blocks[-self.sample_size :]]

    def cursor_at(self, number: int) -> BlockCursor:
        """Return the block at or below a number, or the first one there is."""
        block = self.at_or_below(max(number, self.chain.start_block))
        return (block or self.tip).cursor

    def first_at(self, timestamp: int) -> SimBlock | None:
        """Return the first block of the branch at or after a time."""
        block = self.chain.first_at(timestamp)
        if block is not None and self.at_or_below(block.number) == block:
            return block
        branch = self.chain.path(self.tip.hash)
        return next((block for block in branch if block.timestamp >= timestamp), None)


class Replica:
    """One server of the portal. Move it with `live`, `lag` and `freeze`."""

    def __init__(self, chain: ChainSim, index: int) -> None:
        self.index = index
        self._chain = chain
        self._follow = Follow.LIVE
        self._behind = 0
        self._tip_hash = chain.head.hash
        self._finality = Finality.TRUE
        self._finality_behind = 0

    def live(self) -> Replica:
        """Follow the head of the chain."""
        self._follow = Follow.LIVE
        return self

    def lag(self, blocks: int) -> Replica:
        """Follow the canonical chain some block numbers behind its head."""
        if blocks < 0:
            raise InvalidOptionError("blocks must be 0 or more", got=blocks)
        self._follow, self._behind = Follow.LAGGING, blocks
        return self

    def freeze(self, tip_hash: str | None = None) -> Replica:
        """Stay at a block, by default where the replica is now, whatever the chain does."""
        tip = self._tip() if tip_hash is None else self._chain.block(tip_hash)
        self._follow, self._tip_hash = Follow.FROZEN, tip.hash
        return self

    def report(self, finality: Finality, behind: int = 0) -> Replica:
        """Choose what is reported as finalized; `behind` is for `Finality.LAGGING`."""
        self._finality, self._finality_behind = Finality(finality), behind
        return self

    def view(self, sample_size: int = 50) -> View:
        """Return what this replica holds now."""
        with self._chain.lock:
            tip = self._tip()
            final = self._final(tip)
            return View(self._chain, self.index, tip, final, self._reported(final), sample_size)

    def _tip(self) -> SimBlock:
        if self._follow is Follow.LIVE:
            return self._chain.head
        if self._follow is Follow.FROZEN:
            return self._chain.block(self._tip_hash)
        number = self._chain.head.number - self._behind
        block = self._chain.at_or_below(max(number, self._chain.start_block))
        return block or self._chain.head

    def _final(self, tip: SimBlock) -> SimBlock | None:
        """Return the newest block of the branch that the chain's final block builds on."""
        chain, final = self._chain, self._chain.finalized
        if final is None:
            return None
        number = final.number
        if self._finality is Finality.LAGGING:
            number = max(number - self._finality_behind, chain.start_block)
        if self._finality is Finality.REGRESSED:
            number = chain.start_block
        block = chain.at_or_below(min(number, tip.number), tip.hash)
        while block is not None and not chain.is_ancestor(block.hash, final.hash):
            block = chain.find(block.parent_hash)
        return block

    def _reported(self, final: SimBlock | None) -> BlockCursor | None:
        if final is None or self._finality is Finality.HIDDEN:
            return None
        if self._finality is Finality.WRONG_HASH:
            return BlockCursor(final.number, foreign_hash(final.hash))
        return final.cursor

    def __str__(self) -> str:
        view = self.view()
        where = f"{self._follow.value} at {view.tip.cursor}"
        return f"r{self.index} {where}, finality {self._finality.value} {view.finalized or '-'}"


class ReplicaSet:
    """The replicas of one portal and the choice between them."""

    def __init__(
        self,
        chain: ChainSim,
        count: int = 1,
        *,
        seed: int = 0,
        balance: Balance = Balance.ROUND_ROBIN,
    ) -> None:
        if count < 1:
            raise InvalidOptionError("a portal needs one replica at least", got=count)
        self.balance = Balance(balance)
        self._chain = chain
        self._replicas = [Replica(chain, index) for index in range(count)]
        self._dice = Random(f"replicas {seed}")
        self._turn = 0
        self._pinned: list[int] = []

    def pin(self, index: int, times: int = 1) -> None:
        """Let one replica answer the next requests, after those that were pinned before."""
        self._pinned += [self[index].index] * times

    def choose(self) -> Replica:
        """Return the replica that answers the next request."""
        with self._chain.lock:
            if self._pinned:
                return self._replicas[self._pinned.pop(0)]
            if self.balance is Balance.RANDOM:
                return self._dice.choice(self._replicas)
            self._turn += 1
            return self._replicas[(self._turn - 1) % len(self._replicas)]

    def __getitem__(self, index: int) -> Replica:
        if not 0 <= index < len(self._replicas):
            raise InvalidOptionError(f"replica must be below {len(self._replicas)}", got=index)
        return self._replicas[index]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)
