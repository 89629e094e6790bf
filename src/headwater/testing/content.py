"""The complete contents of a simulated block, as a portal would send them if asked for everything.

Contents are never stored: they follow from the chain's seed and settings and the block's hash, so
a chain of millions of blocks costs nothing until it is read, and calling order changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from headwater.testing.chain import ChainSim, SimBlock
from headwater.testing.content_bitcoin import BitcoinContent
from headwater.testing.content_evm import EvmContent
from headwater.testing.content_hyperliquid import HyperliquidContent
from headwater.testing.content_solana import SolanaContent
from headwater.testing.content_substrate import SubstrateContent
from headwater.testing.content_tron import TronContent
from headwater.testing.population import populate
from headwater.testing.settings import ContentSettings, Network

FAMILIES: dict[Network, tuple[str, ...]] = {
    Network.EVM: ("transactions", "logs", "traces", "stateDiffs"),
    Network.SOLANA: (
        "transactions",
        "instructions",
        "logs",
        "balances",
        "tokenBalances",
        "rewards",
    ),
    Network.BITCOIN: ("transactions", "inputs", "outputs"),
    Network.TRON: ("transactions", "logs", "internalTransactions"),
    Network.HYPERLIQUID: ("fills",),
    Network.SUBSTRATE: ("extrinsics", "calls", "events"),
}
"""The item families of a line, in the order in which lines hold them."""

Row = dict[str, Any]


class BlockContent(Protocol):
    """One block's contents, family by family; rows are shared, so readers leave them as is."""

    @property
    def header(self) -> Row:
        """The block's own fields."""
        ...

    def rows(self, family: str) -> list[Row]:
        """Return the rows of a family, in block order."""
        ...


def contents(chain: ChainSim, block: SimBlock) -> dict[str, Any]:
    """Return a block in full: `header`, and every family with all its rows and fields.

    The result is the caller's own to change.
    """
    fresh = _make(chain.seed, chain.network, chain.start_block, chain.content, block)
    families = {family: fresh.rows(family) for family in FAMILIES[chain.network]}
    return {"header": fresh.header, **families}


def content_of(chain: ChainSim, block: SimBlock) -> BlockContent:
    """Return a block's contents, lazily made and shared between readers."""
    return _cached(chain.seed, chain.network, chain.start_block, chain.content, block)


def _make(
    seed: int, network: Network, start_block: int, settings: ContentSettings, block: SimBlock
) -> BlockContent:
    people = populate(seed, network, settings)
    if network is Network.EVM:
        return EvmContent(seed, block, block.number - start_block, people, settings)
    return _CONTENTS[network](seed, block, people, settings)


_CONTENTS: dict[Network, Callable[..., BlockContent]] = {
    Network.SOLANA: SolanaContent,
    Network.BITCOIN: BitcoinContent,
    Network.TRON: TronContent,
    Network.HYPERLIQUID: HyperliquidContent,
    Network.SUBSTRATE: SubstrateContent,
}


_cached = lru_cache(maxsize=256)(_make)
