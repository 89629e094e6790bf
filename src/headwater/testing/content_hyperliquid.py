"""A simulated Hyperliquid block in the portal's wire form: fills, two to a trade."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from headwater.testing.chain import SimBlock
from headwater.testing.draw import Draw
from headwater.testing.population import Population
from headwater.testing.recurring import transaction_keys
from headwater.testing.settings import ContentSettings

Row = dict[str, Any]

_DIRECTIONS = (("Open Long", "Open Short"), ("Close Short", "Close Long"), ("Buy", "Sell"))


class HyperliquidContent:
    """The contents of one block; rows are shared, so do not change them."""

    def __init__(
        self, seed: int, block: SimBlock, people: Population, settings: ContentSettings
    ) -> None:
        self._seed, self._block = seed, block
        self._people, self._settings = people, settings

    def rows(self, family: str) -> list[Row]:
        """Return the fills, in block order."""
        return self._fills if family == "fills" else []

    @cached_property
    def header(self) -> Row:
        """The block's own fields."""
        block = self._block
        return {
            "number": block.number,
            "hash": block.hash,
            "parentHash": block.parent_hash,
            "timestamp": 1000 * block.timestamp,
        }

    @cached_property
    def _fills(self) -> list[Row]:
        rows: list[Row] = []
        for key in transaction_keys(self._seed, self._block, self._settings):
            rows += self._trade(Draw(key), len(rows))
        return rows

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
