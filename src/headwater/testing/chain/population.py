"""What a simulated chain is made of: its network, how much blocks hold, its accounts and contracts.

Everything follows from the seed (`Draw`). Accounts are few, so that addresses recur, which is what
filters, balances and factories need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b, sha256
from random import Random
from typing import TypeVar

from headwater.errors import InvalidOptionError
from headwater.query import base58

Item = TypeVar("Item")


class Draw:
    """Random values that follow from parts: the same parts always draw the same values.

    Only operations whose results Python promises to keep between versions are used, so a seed means
    the same chain everywhere.
    """

    __slots__ = ("_bits", "_fraction")

    def __init__(self, *parts: str | int) -> None:
        digest = blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest()
        random = Random(int.from_bytes(digest, "big"))
        self._bits, self._fraction = random.getrandbits, random.random

    def below(self, limit: int) -> int:
        """Draw an integer from 0 up to, but not including, `limit`; for small limits."""
        return int(self._fraction() * limit)

    def pick(self, items: Sequence[Item]) -> Item:
        """Draw one of the items."""
        return items[int(self._fraction() * len(items))]

    def chance(self, share: float) -> bool:
        """Draw true in `share` of the cases."""
        return self._fraction() < share

    def count(self, average: float) -> int:
        """Draw a number of things, from none to twice the average."""
        return int(self._fraction() * (2 * average + 1)) if average else 0

    def bits(self, width: int) -> int:
        """Draw an integer of at most `width` bits."""
        return self._bits(width)

    def octets(self, size: int) -> bytes:
        """Draw `size` bytes."""
        return self._bits(8 * size).to_bytes(size, "big") if size else b""

    def hex(self, size: int) -> str:
        """Draw `size` bytes as `0x` and hex digits."""
        return "0x" + self.octets(size).hex()


class Network(StrEnum):
    """The networks that the simulator speaks; the values are the `type` of a portal request."""

    EVM = "evm"
    SOLANA = "solana"
    BITCOIN = "bitcoin"
    TRON = "tron"
    HYPERLIQUID = "hyperliquidFills"
    SUBSTRATE = "substrate"


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """How full blocks are, and how varied. Averages may be 0; shares lie between 0 and 1.

    `recurring_share` is the part of the transactions that belong to a height rather than to a
    block: when the block is replaced, its successor includes them again, with the same hash and
    mostly at another index, as a real chain's pending transactions are. `pool_share` of the
    transactions create pools that every account may register, and trade in them: for factories.
    `synthetic_log_share` of EVM blocks end with a log that nodes add: it has the index 0xffffffe2.
    """

    transactions_per_block: float = 5
    transfers_per_transaction: float = 2
    failed_share: float = 0.1
    recurring_share: float = 0.4
    huge_value_share: float = 0.02
    pool_share: float = 0.0
    synthetic_log_share: float = 0.0
    accounts: int = 48
    tokens: int = 6

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (field.name.endswith("_share") and value > 1):
                limit = "between 0 and 1" if field.name.endswith("_share") else "0 or more"
                raise InvalidOptionError(f"{field.name} must be {limit}", got=value)
        if self.accounts < 4 or self.tokens < 2:
            raise InvalidOptionError(
                "a population needs 4 accounts and 2 tokens at least",
                accounts=self.accounts,
                tokens=self.tokens,
            )


TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
SYSTEM_PROGRAM = "11111111111111111111111111111111"
POOLS, LAUNCHPADS = 48, 3


@dataclass(frozen=True, slots=True)
class Pair:
    """A pool of two tokens, ordered by address as the factory orders them."""

    address: str
    token0: str
    token1: str


@dataclass(frozen=True, slots=True)
class Population:
    """The accounts and contracts of a chain. What a network does not have is empty.

    `tokens` are ERC-20 contracts, SPL mints or coins; `collections` are ERC-721 contracts. `pairs`
    are announced by the `factory` one by one, pair k in the block k + 1 after the first; they trade
    only afterwards. `pools`, `launchpads` and `registrar` appear with `pool_share`: see
    `content.evm`. `program` is an Anchor-like program.
    """

    accounts: tuple[str, ...]
    tokens: tuple[str, ...]
    collections: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    pools: tuple[Pair, ...] = ()
    launchpads: tuple[str, ...] = ()
    router: str = ""
    factory: str = ""
    registrar: str = ""
    producers: tuple[str, ...] = ()
    program: str = ""


@lru_cache(maxsize=32)
def populate(seed: int, network: Network, settings: ContentSettings) -> Population:
    """Return the accounts and contracts of a chain."""
    if network is Network.SOLANA:
        return Population(
            accounts=_keys(seed, "account", settings.accounts),
            tokens=_keys(seed, "mint", settings.tokens),
            producers=_keys(seed, "validator", 4),
            program=_keys(seed, "program", 1)[0],
        )
    if network is not Network.EVM:
        return _others(seed, network, settings)
    tokens = _addresses(seed, "token", settings.tokens)
    pools = _addresses(seed, "pair", settings.tokens)
    return Population(
        accounts=_addresses(seed, "account", settings.accounts),
        tokens=tokens,
        collections=_addresses(seed, "collection", 2),
        pairs=tuple(
            pair_of(pool, tokens[index], tokens[(index + 1) % len(tokens)])
            for index, pool in enumerate(pools)
        ),
        pools=tuple(
            pair_of(pool, tokens[index % len(tokens)], tokens[(index + 1) % len(tokens)])
            for index, pool in enumerate(_addresses(seed, "pool", POOLS))
        ),
        launchpads=_addresses(seed, "launchpad", LAUNCHPADS),
        router=_addresses(seed, "router", 1)[0],
        factory=_addresses(seed, "factory", 1)[0],
        registrar=_addresses(seed, "registrar", 1)[0],
        producers=_addresses(seed, "producer", 4),
    )


def _others(seed: int, network: Network, settings: ContentSettings) -> Population:
    """Return those of a chain without pools and programs."""
    roles = {"account": settings.accounts, "token": settings.tokens, "producer": 4}

    def cast(role: str, size: int, prefix: str = "0x") -> tuple[str, ...]:
        draws = [Draw(seed, role, index) for index in range(roles[role])]
        return tuple(prefix + draw.octets(size).hex() for draw in draws)

    match network:
        case Network.BITCOIN:
            draws = [Draw(seed, "account", index) for index in range(settings.accounts)]
            return Population(accounts=tuple(map(bitcoin_address, draws)), tokens=())
        case Network.TRON:
            accounts, tokens, producers = (cast(role, 20, "41") for role in roles)
        case Network.HYPERLIQUID:
            accounts, producers = cast("account", 20), cast("producer", 20)
            tokens = (*("BTC", "ETH", "SOL", "HYPE", "@107"), *cast("token", 2))[: settings.tokens]
        case _:
            accounts, producers = cast("account", 32), cast("producer", 32)
            tokens = cast("token", 20)
    return Population(accounts=accounts, tokens=tokens, producers=producers)


def bitcoin_address(draw: Draw) -> str:
    """Draw an address with a right checksum: of a key, or now and then of a script."""
    raw = (b"\x05" if draw.chance(0.3) else b"\x00") + draw.octets(20)
    return base58.encode(raw + sha256(sha256(raw).digest()).digest()[:4])


def pair_of(address: str, token: str, other: str) -> Pair:
    """Return the pool of two tokens, in the factory's order."""
    return Pair(address, *sorted((token, other)))


def _addresses(seed: int, role: str, count: int) -> tuple[str, ...]:
    return tuple(Draw(seed, role, index).hex(20) for index in range(count))


def _keys(seed: int, role: str, count: int) -> tuple[str, ...]:
    return tuple(base58.encode(Draw(seed, role, index).octets(32)) for index in range(count))
