"""The catalogue of Solana, and `SolanaQuery`. A `number` is a slot; `height` counts blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypedDict, Unpack

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, related
from headwater.query.query import Query
from headwater.query.values import Condition, ValueKind

_NUMBER, _DECIMAL, _BASE58 = WireType.NUMBER, WireType.DECIMAL, WireType.BASE58
_STRING, _BOOL, _HEX = WireType.STRING, WireType.BOOL, WireType.HEX
_OPTIONAL, _NULLABLE = Presence.OPTIONAL, Presence.NULLABLE

_BLOCK = (
    Field("number", _NUMBER),
    Field("hash", _BASE58),
    *fields("height parentNumber", _NUMBER),
    Field("parentHash", _BASE58),
    Field("timestamp", WireType.SECONDS),
)

_LOOKUP = (
    Field("accountKey", _BASE58),
    *fields("readonlyIndexes writableIndexes", _NUMBER, is_list=True),
)

_LOADED = fields("readonly writable", _BASE58, is_list=True)

_TRANSACTION = (
    Field("transactionIndex", WireType.INDEX),
    Field("version", WireType.NUMBER_OR_STRING),
    Field("accountKeys", _BASE58, is_list=True),
    Field("addressTableLookups", WireType.OBJECT, is_list=True, members=_LOOKUP),
    *fields("numReadonlySignedAccounts numReadonlyUnsignedAccounts numRequiredSignatures", _NUMBER),
    Field("recentBlockhash", _BASE58),
    Field("signatures", _BASE58, is_list=True),
    Field("err", WireType.JSON, _NULLABLE),
    *fields("computeUnitsConsumed fee", _DECIMAL),
    Field("loadedAddresses", WireType.OBJECT, _OPTIONAL, members=_LOADED),
    Field("hasDroppedLogMessages", _BOOL),
)

_WIDTHS = (1, 2, 4, 8)

_INSTRUCTION = (
    Field("transactionIndex", WireType.INDEX),
    Field("instructionAddress", _NUMBER, is_list=True),
    Field("programId", _BASE58),
    Field("accounts", _BASE58, is_list=True),
    Field("data", _BASE58),
    # The first bytes of `data` as hex; known to servers, not to the SDK.
    *(Field(f"d{width}", _HEX, _OPTIONAL) for width in _WIDTHS),
    Field("computeUnitsConsumed", _DECIMAL, _OPTIONAL),
    Field("error", WireType.JSON, _OPTIONAL),
    *fields("isCommitted hasDroppedLogMessages", _BOOL),
)

_LOG = (
    *fields("transactionIndex logIndex", WireType.INDEX),
    Field("instructionAddress", _NUMBER, is_list=True),
    Field("programId", _BASE58),
    *fields("kind message", _STRING),
)

_BALANCE = (
    Field("transactionIndex", WireType.INDEX),
    Field("account", _BASE58),
    *fields("pre post", _DECIMAL),
)

_TOKEN_BALANCE = (
    Field("transactionIndex", WireType.INDEX),
    Field("account", _BASE58),
    # An account that was opened has no `pre…`, one that was closed no `post…`.
    *(
        Field(f"{side}{what}", kind, _OPTIONAL)
        for side in ("pre", "post")
        for what, kind in (
            ("ProgramId", _BASE58),
            ("Mint", _BASE58),
            ("Decimals", _NUMBER),
            ("Owner", _BASE58),
            ("Amount", _DECIMAL),
        )
    ),
)

_REWARD = (
    Field("pubkey", _BASE58),
    *fields("lamports postBalance", _DECIMAL),
    Field("rewardType", _STRING, _OPTIONAL),
    Field("commission", _NUMBER, _OPTIONAL),
)


def _pubkeys(*wires: str) -> tuple[Condition, ...]:
    return tuple(Condition(wire, ValueKind.PUBKEY) for wire in wires)


_INSTRUCTIONS = Family(
    "instructions",
    "instruction",
    (
        *_pubkeys("programId"),
        *(Condition(f"d{width}", ValueKind.HEX, width=width) for width in _WIDTHS),
        # a10 to a15 are known to servers, not to the SDK.
        *_pubkeys(*(f"a{index}" for index in range(16))),
        Condition("isCommitted", ValueKind.BOOL, is_list=False),
    ),
    related(
        transaction="transaction",
        transactionBalances="balance",
        transactionTokenBalances="tokenBalance",
        transactionInstructions="instruction",
        logs="log",
        innerInstructions="instruction",
        parentInstructions="instruction",
    ),
    discriminators=tuple(f"d{width}" for width in _WIDTHS),
)

_TRANSACTIONS = Family(
    "transactions",
    "transaction",
    _pubkeys("feePayer"),
    related(
        instructions="instruction", logs="log", balances="balance", tokenBalances="tokenBalance"
    ),
)

_LOGS = Family(
    "logs",
    "log",
    (*_pubkeys("programId"), Condition("kind", ValueKind.CHOICE, choices=("log", "data", "other"))),
    related(transaction="transaction", instruction="instruction"),
)

_OF_A_BALANCE = related(transaction="transaction", transactionInstructions="instruction")

_BALANCES = Family("balances", "balance", _pubkeys("account"), _OF_A_BALANCE)

_TOKEN_BALANCES = Family(
    "tokenBalances",
    "tokenBalance",
    _pubkeys(
        "account",
        *("preProgramId", "postProgramId", "preMint", "postMint", "preOwner", "postOwner"),
    ),
    (
        *_OF_A_BALANCE,
        *related(transactionBalances="balance", transactionTokenBalances="tokenBalance"),
    ),
)

_REWARDS = Family("rewards", "reward", _pubkeys("pubkey"))

SOLANA = Network(
    "solana",
    (
        header(_BLOCK),
        Entity("transaction", "transactions", _TRANSACTION, key=("transactionIndex",)),
        Entity(
            "instruction",
            "instructions",
            _INSTRUCTION,
            key=("transactionIndex", "instructionAddress"),
        ),
        Entity("log", "logs", _LOG, key=("transactionIndex", "logIndex")),
        Entity("balance", "balances", _BALANCE, key=("transactionIndex", "account")),
        Entity(
            "tokenBalance",
            "tokenBalances",
            _TOKEN_BALANCE,
            key=("transactionIndex", "account"),
        ),
        Entity("reward", "rewards", _REWARD),
    ),
    (_INSTRUCTIONS, _TRANSACTIONS, _LOGS, _BALANCES, _TOKEN_BALANCES, _REWARDS),
)


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
    parent_instructions: bool


class SolanaTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on Solana."""

    fee_payer: Iterable[str]
    instructions: bool
    logs: bool
    balances: bool
    token_balances: bool


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
    transaction_balances: bool
    transaction_token_balances: bool


class SolanaRewards(TypedDict, total=False):
    """Keys of `add_rewards`."""

    pubkey: Iterable[str]


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
