"""The complete contents of a simulated block, as a portal would send them if asked for everything.

Contents are never stored: they follow from the chain's seed and settings and the block's hash, so
a chain of millions of blocks costs nothing until it is read, and calling order changes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from headwater.testing.chain.content.bitcoin import BitcoinContent
from headwater.testing.chain.content.block import BlockContent
from headwater.testing.chain.content.evm import EvmContent
from headwater.testing.chain.content.hyperliquid import HyperliquidContent
from headwater.testing.chain.content.solana import SolanaContent
from headwater.testing.chain.content.substrate import SubstrateContent
from headwater.testing.chain.content.tron import TronContent
from headwater.testing.chain.population import populate
from headwater.testing.chain.settings import ContentSettings, Network
from headwater.testing.chain.tree import ChainSim, SimBlock

_CONTENTS: dict[Network, type[BlockContent]] = {
    Network.EVM: EvmContent,
    Network.SOLANA: SolanaContent,
    Network.BITCOIN: BitcoinContent,
    Network.TRON: TronContent,
    Network.HYPERLIQUID: HyperliquidContent,
    Network.SUBSTRATE: SubstrateContent,
}

FAMILIES = {network: content.families for network, content in _CONTENTS.items()}
"""The item families of a line, in the order in which lines hold them."""


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
    return _CONTENTS[network](seed, block, block.number - start_block, people, settings)


_cached = lru_cache(maxsize=256)(_make)
