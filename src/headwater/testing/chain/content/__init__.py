"""The complete contents of a simulated block, as a portal would send them if asked for everything.

Contents are never stored: they follow from the chain's seed and settings and the block's hash, so
a chain of millions of blocks costs nothing until it is read, and calling order changes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from headwater.testing.chain.content.bitcoin import BitcoinContent
from headwater.testing.chain.content.block import BlockContent, Row, Rows, WholeContent
from headwater.testing.chain.content.evm import EvmContent
from headwater.testing.chain.content.solana import SolanaContent
from headwater.testing.chain.content.substrate import SubstrateContent
from headwater.testing.chain.content.tron import TronContent
from headwater.testing.chain.population import ContentSettings, Draw, Network, populate
from headwater.testing.chain.tree import ChainSim, SimBlock

_DIRECTIONS = (("Open Long", "Open Short"), ("Close Short", "Close Long"), ("Buy", "Sell"))


class HyperliquidContent(WholeContent):
    """A Hyperliquid block: fills, two to a trade."""

    families = ("fills",)

    def _header(self) -> Row:
        return {**self._links, "timestamp": 1000 * self._block.timestamp}

    def _fill(self, rows: Rows) -> None:
        for key in self._keys:
            rows["fills"] += self._trade(Draw(key), len(rows["fills"]))

    def _trade(self, draw: Draw, index: int) -> list[Row]:
        people, names = self._people, draw.pick(_DIRECTIONS)
        coin, fee_token = draw.pick(people.tokens), "USDC"
        shared = {
            "coin": coin,
            "px": (1 + draw.bits(30)) / 10 ** draw.below(6),
            "sz": (1 + draw.bits(24)) / 10 ** draw.below(6),
            "time": 1000 * self._block.timestamp + draw.below(1000),
            "hash": draw.hex(32),
            "tid": draw.bits(50),
        }
        return [
            {
                "fillIndex": index + side,
                "user": draw.pick(people.accounts),
                **shared,
                "side": "BA"[side],
                "startPosition": (draw.bits(20) - 2**19) / 100,
                "dir": names[side],
                "closedPnl": (draw.bits(20) - 2**19) / 1000 if "Close" in names[side] else 0.0,
                "oid": draw.bits(37),
                "crossed": side == 0,
                "fee": (draw.bits(16) - 1000) / 10**6,
                "builderFee": 0.0001 if draw.chance(0.2) else None,
                "cloid": draw.hex(16) if draw.chance(0.5) else None,
                "feeToken": coin if names[side] == "Buy" else fee_token,
                "builder": draw.pick(people.producers) if draw.chance(0.2) else None,
                "twapId": draw.bits(20) if draw.chance(0.1) else None,
            }
            for side in range(2)
        ]


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
