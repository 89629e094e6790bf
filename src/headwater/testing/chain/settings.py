"""What a user may set on a simulated chain: its network, and how much its blocks hold."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from headwater.errors import InvalidOptionError


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
    """

    transactions_per_block: float = 5
    transfers_per_transaction: float = 2
    failed_share: float = 0.1
    recurring_share: float = 0.4
    huge_value_share: float = 0.02
    pool_share: float = 0.0
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
