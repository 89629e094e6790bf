"""All networks; and the builders of EVM and Solana, typed so that an editor knows every key.

A network is one module: a catalogue, and a builder with a method per family; Bitcoin's is a short
one to begin from. Here it enters `QUERIES`, in `decode/table_forms.py` its raw tables. The typed
dictionaries repeat the catalogue's names for the sake of type checkers; a test holds them to the
catalogue, and at run time the catalogue alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypedDict, Unpack

from headwater.query.bitcoin import BitcoinQuery
from headwater.query.catalog import Network
from headwater.query.evm import EVM
from headwater.query.filters import LogKeys
from headwater.query.hyperliquid import HyperliquidQuery
from headwater.query.query import Query
from headwater.query.solana import SOLANA
from headwater.query.substrate import SubstrateQuery
from headwater.query.tron import TronQuery


class EvmLogs(LogKeys, total=False):
    """Keys of `add_logs` on EVM."""

    transaction: bool
    transaction_traces: bool
    transaction_logs: bool
    transaction_state_diffs: bool


class EvmTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on EVM."""

    to: Iterable[str]
    from_: Iterable[str]
    sighash: Iterable[str]
    type: Iterable[int]
    first_nonce: int
    last_nonce: int
    logs: bool
    traces: bool
    state_diffs: bool


class EvmTraces(TypedDict, total=False):
    """Keys of `add_traces`."""

    type: Iterable[Literal["create", "call", "suicide", "reward"]]
    create_from: Iterable[str]
    create_result_address: Iterable[str]
    call_to: Iterable[str]
    call_from: Iterable[str]
    call_sighash: Iterable[str]
    suicide_refund_address: Iterable[str]
    reward_author: Iterable[str]
    transaction: bool
    transaction_logs: bool
    subtraces: bool
    parents: bool


class EvmStateDiffs(TypedDict, total=False):
    """Keys of `add_state_diffs`."""

    address: Iterable[str]
    key: Iterable[str]
    kind: Iterable[Literal["+", "-", "*", "="]]
    transaction: bool


class SolanaInstructions(TypedDict, total=False):
    """Keys of `add_instructions`; of d1, d2, d4, d8 one filter may use only one."""

    program_id: Iterable[str]
    d1: Iterable[str]
    d2: Iterable[str]
    d4: Iterable[str]
    d8: Iterable[str]
    a0: Iterable[str]
    a1: Iterable[str]
    a2: Iterable[str]
    a3: Iterable[str]
    a4: Iterable[str]
    a5: Iterable[str]
    a6: Iterable[str]
    a7: Iterable[str]
    a8: Iterable[str]
    a9: Iterable[str]
    a10: Iterable[str]
    a11: Iterable[str]
    a12: Iterable[str]
    a13: Iterable[str]
    a14: Iterable[str]
    a15: Iterable[str]
    is_committed: bool
    transaction: bool
    transaction_balances: bool
    transaction_token_balances: bool
    transaction_instructions: bool
    logs: bool
    inner_instructions: bool


class SolanaTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on Solana."""

    fee_payer: Iterable[str]
    instructions: bool
    logs: bool


class SolanaLogs(TypedDict, total=False):
    """Keys of `add_logs` on Solana."""

    program_id: Iterable[str]
    kind: Iterable[Literal["log", "data", "other"]]
    transaction: bool
    instruction: bool


class SolanaBalances(TypedDict, total=False):
    """Keys of `add_balances`."""

    account: Iterable[str]
    transaction: bool
    transaction_instructions: bool


class SolanaTokenBalances(TypedDict, total=False):
    """Keys of `add_token_balances`."""

    account: Iterable[str]
    pre_program_id: Iterable[str]
    post_program_id: Iterable[str]
    pre_mint: Iterable[str]
    post_mint: Iterable[str]
    pre_owner: Iterable[str]
    post_owner: Iterable[str]
    transaction: bool
    transaction_instructions: bool


class SolanaRewards(TypedDict, total=False):
    """Keys of `add_rewards`."""

    pubkey: Iterable[str]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EvmQuery(Query):
    """What to ask of an EVM network."""

    network: ClassVar[Network] = EVM

    def add_logs(self, **keys: Unpack[EvmLogs]) -> Self:
        """Add a filter on event logs."""
        return self.add_filter("logs", **keys)

    def add_transactions(self, **keys: Unpack[EvmTransactions]) -> Self:
        """Add a filter on transactions. The sender is `from_`, because `from` is Python's."""
        return self.add_filter("transactions", **keys)

    def add_traces(self, **keys: Unpack[EvmTraces]) -> Self:
        """Add a filter on execution traces."""
        return self.add_filter("traces", **keys)

    def add_state_diffs(self, **keys: Unpack[EvmStateDiffs]) -> Self:
        """Add a filter on state changes."""
        return self.add_filter("state_diffs", **keys)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SolanaQuery(Query):
    """What to ask of a Solana network; block numbers are slots."""

    network: ClassVar[Network] = SOLANA

    def add_instructions(self, **keys: Unpack[SolanaInstructions]) -> Self:
        """Add a filter on instructions, top-level and inner alike."""
        return self.add_filter("instructions", **keys)

    def add_transactions(self, **keys: Unpack[SolanaTransactions]) -> Self:
        """Add a filter on transactions."""
        return self.add_filter("transactions", **keys)

    def add_logs(self, **keys: Unpack[SolanaLogs]) -> Self:
        """Add a filter on log messages."""
        return self.add_filter("logs", **keys)

    def add_balances(self, **keys: Unpack[SolanaBalances]) -> Self:
        """Add a filter on changes of SOL balances."""
        return self.add_filter("balances", **keys)

    def add_token_balances(self, **keys: Unpack[SolanaTokenBalances]) -> Self:
        """Add a filter on changes of token balances."""
        return self.add_filter("token_balances", **keys)

    def add_rewards(self, **keys: Unpack[SolanaRewards]) -> Self:
        """Add a filter on rewards."""
        return self.add_filter("rewards", **keys)


QUERIES: Mapping[str, type[Query]] = {
    "evm": EvmQuery,
    "solana": SolanaQuery,
    "bitcoin": BitcoinQuery,
    "tron": TronQuery,
    "hyperliquid": HyperliquidQuery,
    "substrate": SubstrateQuery,
}
"""The builder of every network, by the name of the module whose functions make its tables."""

NETWORKS = tuple(query.network for query in QUERIES.values())
"""Every type of network that a portal serves and Headwater knows."""
