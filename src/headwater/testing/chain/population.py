"""Who takes part in a simulated chain: a small cast that follows from the seed.

The cast is small so that addresses recur, which is what filters, balances and factories need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from headwater.query import base58
from headwater.testing.chain.draw import Draw
from headwater.testing.chain.settings import ContentSettings, Network

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
    """The cast of a chain. What a network does not have is empty.

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
    """Return the cast of a chain."""
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
    """Return the cast of a chain without pools and programs."""
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
