"""A seeded block tree: the truth that a simulated portal serves and that tests compare with.

The canonical branch lives in flat arrays (about 40 bytes a block), so a chain may have millions of
blocks; orphaned blocks are kept as objects, since they are few. Any branch is named by the hash of
its tip alone, which is all that a lagging replica has to remember. Contents are not kept: they
follow from the seed and the block's hash (`headwater.testing.chain.content`).

A hash is 32 bytes: a digest of the parent's hash, the number and the salt, followed by the number
masked with the digest. It looks like any other hash, but it says which number it has, so that a
block is found by its hash without a dictionary of all of them.

The same seed and the same calls give the same hashes and contents, on every machine. All methods
may be called from several threads; hold `chain.lock` where several calls must see one state.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from threading import Condition, RLock

from headwater.core import BlockCursor
from headwater.errors import InvalidOptionError
from headwater.query import base58
from headwater.testing.chain.population import ContentSettings, Network, Population, populate

__all__ = ["ChainSim", "ContentSettings", "ForkRecord", "Network", "SimBlock"]

HASH_SIZE = 32
"""Bytes in a block hash."""

_DIGEST = 24
_LIMIT = 1 << 63
_BARE = (Network.BITCOIN, Network.TRON)
_BLOCK_TIMES = {
    Network.EVM: 12,
    Network.SOLANA: 0.4,
    Network.BITCOIN: 600,
    Network.TRON: 3,
    Network.HYPERLIQUID: 0.1,
    Network.SUBSTRATE: 6,
}


@dataclass(frozen=True, slots=True)
class SimBlock:
    """One block of the tree; on Solana `number` is the slot. `salt` tells siblings apart."""

    number: int
    hash: str
    parent_hash: str
    parent_number: int
    height: int
    timestamp: int
    salt: int

    @property
    def cursor(self) -> BlockCursor:
        """The position of this block."""
        return BlockCursor(self.number, self.hash, self.timestamp)


@dataclass(frozen=True, slots=True)
class ForkRecord:
    """One replacement of canonical blocks: what both branches share, what went and what came."""

    ancestor: SimBlock
    depth: int
    orphaned_hashes: tuple[str, ...]
    new_hashes: tuple[str, ...]


class ChainSim:
    """A chain that grows, forks and finalizes on command, and remembers every branch.

    It is born with its first block, `start_block`, whose time is `genesis_time`. On Solana
    `skipped_share` of the slots have no block.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        network: Network = Network.EVM,
        start_block: int = 0,
        block_time_s: float | None = None,
        genesis_time: int = 1_700_000_000,
        skipped_share: float = 0.05,
        content: ContentSettings | None = None,
    ) -> None:
        if start_block < 0:
            raise InvalidOptionError("start_block must be 0 or more", got=start_block)
        if not 0 <= skipped_share <= 0.7:
            raise InvalidOptionError("skipped_share must be between 0 and 0.7", got=skipped_share)
        if block_time_s is not None and block_time_s < 0:
            raise InvalidOptionError("block_time_s must be 0 or more", got=block_time_s)
        self.seed = seed
        self.network = Network(network)
        has_gaps = self.network is Network.SOLANA
        self.start_block = start_block
        self.genesis_time = genesis_time
        self.content = content or ContentSettings()
        self.population: Population = populate(seed, self.network, self.content)
        self.forks: list[ForkRecord] = []
        self.lock = RLock()
        self.moves = 0
        self._moved = Condition(self.lock)
        usual_time_s = _BLOCK_TIMES[self.network]
        self._time_ms = round(1000 * (usual_time_s if block_time_s is None else block_time_s))
        self._first_height = start_block - start_block // 20 if has_gaps else start_block
        # A gap holds 1 to 4 slots, 2.5 on average; this is the chance of one, in 65536ths.
        chance = round(65536 * skipped_share / (1 - skipped_share) / 2.5)
        self._gap_chance = chance if has_gaps else 0
        self._root = root_hash(seed, self.network, start_block)
        self._hashes = bytearray()
        self._numbers = array("q")
        self._salts: list[tuple[int, int]] = []
        self._salt = 0
        self._orphans: dict[str, SimBlock] = {}
        self._final_number: int | None = None
        self._clock: Callable[[], float] | None = None
        self._times: dict[bytes, int] = {}  # of blocks that were added by a clock
        self._append(first_hash(self._root, seed, start_block), start_block, 0)
        self._head = self._at(0)

    def follow_clock(self, clock: Callable[[], float]) -> None:
        """Let the newest block be of now, and later ones of the moment at which they are added.

        For chains that people watch: a stream shows how far it is behind the clock. Hashes and
        content stay those of the seed; times of blocks then differ from run to run.
        """
        with self.lock:
            self.genesis_time += int(clock()) - self._head.timestamp
            self._clock = clock
            self._head = self._at(len(self._numbers) - 1)

    # --- growing ----------------------------------------------------------------------------------

    @property
    def head(self) -> SimBlock:
        """The newest canonical block."""
        return self._head

    @property
    def finalized(self) -> SimBlock | None:
        """The newest final block: the chain's own truth, whatever a portal reports."""
        with self.lock:
            return None if self._final_number is None else self.at_or_below(self._final_number)

    def extend(self, count: int = 1) -> list[SimBlock]:
        """Add `count` canonical blocks and return them; `grow` is cheaper for very many."""
        with self.lock:
            first = len(self._numbers)
            self.grow(count)
            return [self._at(index) for index in range(first, first + count)]

    def grow(self, count: int) -> SimBlock:
        """Add `count` canonical blocks and return the new head alone."""
        if count < 0:
            raise InvalidOptionError("count must be 0 or more", got=count)
        with self.lock:
            number, salt = self._numbers[-1], self._salt
            parent = self._raw(len(self._numbers) - 1)
            for _ in range(count):
                number += 1 + self._skipped_after(parent, salt)
                parent = derive_hash(parent, number, salt)
                self._append(parent, number, salt)
            self._head = self._at(len(self._numbers) - 1)
            self._move()
            return self._head

    def finalize(self, number: int) -> SimBlock:
        """Make the highest canonical block at or below `number` final; never lowers finality."""
        with self.lock:
            block = self.at_or_below(number)
            if block is None:
                raise InvalidOptionError(
                    f"number must be {self.start_block} or more, the first block", got=number
                )
            if self._final_number is None or block.number > self._final_number:
                self._final_number = block.number
            return self.at_or_below(self._final_number) or block

    def finalize_behind(self, depth: int) -> None:
        """Make all blocks final but those of the newest `depth` numbers, if there are others."""
        with self.lock:
            if self._head.number - depth >= self.start_block:
                self.finalize(self._head.number - depth)

    # --- forking ----------------------------------------------------------------------------------

    def fork(self, depth: int, length: int | None = None, *, force: bool = False) -> SimBlock:
        """Replace the newest `depth` blocks by `length` siblings and return the common ancestor.

        The new branch is one block longer than the old unless `length` says otherwise; 0 lets the
        head fall back. Final blocks are refused unless `force` asks for a violation of finality;
        then the block of the new branch at that number counts as final.
        """
        length = depth + 1 if length is None else length
        with self.lock:
            replaceable = len(self._numbers) - 1
            if not 1 <= depth <= replaceable or length < 0:
                raise InvalidOptionError(
                    f"depth must be between 1 and {replaceable}, and length 0 or more",
                    depth=depth,
                    length=length,
                )
            ancestor, orphaned = self._cut(replaceable - depth, force=force)
            self.grow(length)
            added = tuple(block.hash for block in self._slice(replaceable - depth + 1))
            self.forks.append(ForkRecord(ancestor, depth, orphaned, added))
            return ancestor

    def adopt(self, block_hash: str, *, force: bool = False) -> SimBlock:
        """Make the branch that ends in an orphaned block canonical; return the common ancestor.

        This is the fork that takes an earlier fork back: known blocks become canonical again.
        """
        with self.lock:
            branch, junction = self._branch(block_hash)
            if not branch:
                raise InvalidOptionError("block_hash must name an orphaned block", got=block_hash)
            depth = len(self._numbers) - 1 - junction
            ancestor, orphaned = self._cut(junction, force=force)
            for block in reversed(branch):
                del self._orphans[block.hash]
                raw = hash_from_text(block.hash, self.network) or b""
                if self._clock is not None:
                    self._times[raw] = block.timestamp
                self._append(raw, block.number, block.salt)
            self._head = branch[0]
            added = tuple(block.hash for block in reversed(branch))
            self.forks.append(ForkRecord(ancestor, depth, orphaned, added))
            self._move()
            return ancestor

    # --- waiting ----------------------------------------------------------------------------------

    def wait_for_move(self, moves: int, timeout: float) -> bool:
        """Wait until the chain has grown or forked since `moves` was read; tell whether it has."""
        with self._moved:
            return self._moved.wait_for(lambda: self.moves != moves, timeout)

    def _move(self) -> None:
        self.moves += 1
        self._moved.notify_all()

    # --- reading ----------------------------------------------------------------------------------

    def canonical(
        self, from_block: int | None = None, to_block: int | None = None
    ) -> list[SimBlock]:
        """Return the canonical blocks of a range, both ends included, ascending."""
        with self.lock:
            first = 0 if from_block is None else bisect_left(self._numbers, from_block)
            last = None if to_block is None else bisect_right(self._numbers, to_block)
            return self._slice(first, last)

    def find(self, block_hash: str) -> SimBlock | None:
        """Return the block of any branch that has this hash, if there is one."""
        with self.lock:
            if block_hash in self._orphans:
                return self._orphans[block_hash]
            index = self._index(block_hash)
            return None if index is None else self._at(index)

    def block(self, block_hash: str) -> SimBlock:
        """Return the block of any branch that has this hash; refuse a hash that never existed."""
        block = self.find(block_hash)
        if block is None:
            raise InvalidOptionError("block_hash must name a block of this chain", got=block_hash)
        return block

    def path(self, block_hash: str, from_number: int = 0) -> list[SimBlock]:
        """Return the branch that ends in this block, ascending, from `from_number` on."""
        with self.lock:
            branch, junction = self._branch(block_hash)
            trunk = self._slice(bisect_left(self._numbers, from_number), junction + 1)
            return trunk + [block for block in reversed(branch) if block.number >= from_number]

    def is_ancestor(self, ancestor_hash: str, descendant_hash: str) -> bool:
        """Tell whether a branch runs through a block; each block is its own ancestor.

        A hash that never existed is no block's ancestor and has none.
        """
        with self.lock:
            ancestor = self.find(ancestor_hash)
            descendant = self.find(descendant_hash)
            if ancestor is None or descendant is None:
                return False
            return self.at_or_below(ancestor.number, descendant.hash) == ancestor

    def at_or_below(self, number: int, tip_hash: str | None = None) -> SimBlock | None:
        """Return the highest block of a branch at or below `number`; canonical without a tip."""
        with self.lock:
            limit = len(self._numbers)
            if tip_hash is not None:
                block = self._orphans.get(tip_hash)
                parent_hash = tip_hash
                while block is not None:
                    if block.number <= number:
                        return block
                    parent_hash = block.parent_hash
                    block = self._orphans.get(parent_hash)
                limit = self._known_index(parent_hash) + 1
            index = bisect_right(self._numbers, number, 0, limit) - 1
            return None if index < 0 else self._at(index)

    def first_at(self, timestamp: int) -> SimBlock | None:
        """Return the first canonical block at or after a time, if it exists yet."""
        with self.lock:
            index = bisect_left(range(len(self._numbers)), timestamp, key=self._time_of)
            return None if index == len(self._numbers) else self._at(index)

    # --- the arrays -------------------------------------------------------------------------------

    def _append(self, raw: bytes, number: int, salt: int) -> None:
        if not self._salts or self._salts[-1][1] != salt:
            self._salts.append((len(self._numbers), salt))
        self._hashes += raw
        self._numbers.append(number)
        if self._clock is not None and raw not in self._times:
            before = self._time_of(len(self._numbers) - 2)
            self._times[raw] = max(before, int(self._clock()))

    def _cut(self, last: int, *, force: bool) -> tuple[SimBlock, tuple[str, ...]]:
        """Orphan all that follows index `last`; what grows next gets a salt of its own."""
        ancestor, final = self._at(last), self.finalized
        if final is not None and ancestor.number < final.number and not force:
            raise InvalidOptionError(
                f"a fork must leave block {final.number} in place, which is final; "
                "force=True violates finality on purpose",
                ancestor=ancestor.number,
            )
        orphaned = self._slice(last + 1)
        self._orphans.update((block.hash, block) for block in orphaned)
        del self._numbers[last + 1 :]
        del self._hashes[(last + 1) * HASH_SIZE :]
        while self._salts[-1][0] > last:
            self._salts.pop()
        self._salt += 1
        self._head = ancestor
        return ancestor, tuple(block.hash for block in orphaned)

    def _branch(self, tip_hash: str) -> tuple[list[SimBlock], int]:
        """Return a branch's orphaned blocks, newest first, and the canonical index below them."""
        branch: list[SimBlock] = []
        parent_hash = tip_hash
        while (block := self._orphans.get(parent_hash)) is not None:
            branch.append(block)
            parent_hash = block.parent_hash
        return branch, self._known_index(parent_hash)

    def _index(self, block_hash: str) -> int | None:
        raw = hash_from_text(block_hash, self.network)
        number = None if raw is None else number_in_hash(raw)
        if raw is None or number is None:
            return None
        index = bisect_left(self._numbers, number)
        return index if index < len(self._numbers) and self._raw(index) == raw else None

    def _known_index(self, block_hash: str) -> int:
        index = self._index(block_hash)
        if index is None:
            raise InvalidOptionError("block_hash must name a block of this chain", got=block_hash)
        return index

    def _slice(self, first: int, stop: int | None = None) -> list[SimBlock]:
        return [self._at(index) for index in range(len(self._numbers))[first:stop]]

    def _raw(self, index: int) -> bytes:
        start = index * HASH_SIZE
        return bytes(self._hashes[start : start + HASH_SIZE])

    def _at(self, index: int) -> SimBlock:
        number = self._numbers[index]
        parent = self._raw(index - 1) if index else self._root
        last = len(self._salts) - 1
        if self._salts[last][0] > index:
            last = bisect_right(self._salts, index, key=lambda entry: entry[0]) - 1
        return SimBlock(
            number=number,
            hash=hash_to_text(self._raw(index), self.network),
            parent_hash=hash_to_text(parent, self.network),
            parent_number=self._numbers[index - 1] if index else max(number - 1, 0),
            height=self._first_height + index,
            timestamp=self._time_of(index),
            salt=self._salts[last][1],
        )

    def _time_of(self, index: int) -> int:
        if self._times and (time := self._times.get(self._raw(index))) is not None:
            return time
        passed = self._numbers[index] - self.start_block
        return self.genesis_time + passed * self._time_ms // 1000

    def _skipped_after(self, parent: bytes, salt: int) -> int:
        """Return how many slots stay empty after a block, by chance that its hash decides."""
        drawn = int.from_bytes(parent[8:10], "big") ^ (salt * 40503 & 0xFFFF)
        return 1 + (parent[10] + salt) % 4 if drawn < self._gap_chance else 0


def derive_hash(parent: bytes, number: int, salt: int) -> bytes:
    """Return the hash of the block that follows `parent` with this number and salt."""
    packed = parent + number.to_bytes(8, "big") + salt.to_bytes(8, "big")
    digest = blake2b(packed, digest_size=_DIGEST).digest()
    return digest + (number ^ _mask(digest)).to_bytes(8, "big")


def first_hash(root: bytes, seed: int, number: int) -> bytes:
    """Return the hash of a chain's first block; the seed makes it unlike that of other chains."""
    return derive_hash(root + str(seed).encode(), number, 0)


def root_hash(seed: int, network: Network, start_block: int) -> bytes:
    """Return the hash that stands before the first block: zeros if that is an EVM genesis block."""
    if network is Network.EVM and start_block == 0:
        return bytes(HASH_SIZE)
    return blake2b(f"{network}/{seed}/{start_block}".encode(), digest_size=HASH_SIZE).digest()


def number_in_hash(raw: bytes) -> int | None:
    """Return the number that a hash carries, or None if no block can have this hash."""
    if len(raw) != HASH_SIZE:
        return None
    number = int.from_bytes(raw[_DIGEST:], "big") ^ _mask(raw)
    return number if number < _LIMIT else None


@lru_cache(maxsize=1 << 14)  # a block's hash is written wherever the block is asked for
def hash_to_text(raw: bytes, network: Network) -> str:
    """Write a hash as the network does: hex digits with or without `0x`, or base58."""
    if network is Network.SOLANA:
        return base58.encode(raw)
    return raw.hex() if network in _BARE else "0x" + raw.hex()


def hash_from_text(text: str, network: Network) -> bytes | None:
    """Read a hash, or return None if the text is not one."""
    try:
        if network is Network.SOLANA:
            return base58.decode(text)
        if network in _BARE:
            return bytes.fromhex(text)
        return bytes.fromhex(text[2:]) if text[:2] in ("0x", "0X") else None
    except ValueError:
        return None


def _mask(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF
