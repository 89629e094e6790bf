"""A simulated Hyperliquid block in the portal's wire form: fills, two to a trade."""

from __future__ import annotations

from headwater.testing.chain.content.block import Row, Rows, WholeContent
from headwater.testing.chain.draw import Draw

_DIRECTIONS = (("Open Long", "Open Short"), ("Close Short", "Close Long"), ("Buy", "Sell"))


class HyperliquidContent(WholeContent):
    """The contents of one block."""

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
