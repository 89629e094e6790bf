"""The catalogue of Solana, and `SolanaQuery`. A `number` is a slot; `height` counts blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self, TypedDict, Unpack, get_args

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family, Relation
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


_Pubkeys = Annotated[Iterable[str], Condition(ValueKind.PUBKEY)]
_Transaction = Annotated[bool, Relation("transaction")]
_Instructions = Annotated[bool, Relation("instruction")]
_Logs = Annotated[bool, Relation("log")]
_Balances = Annotated[bool, Relation("balance")]
_TokenBalances = Annotated[bool, Relation("tokenBalance")]

LogKind = Literal["log", "data", "other"]


_MENTIONED = (("accountKeys", "*"), ("loadedAddresses", "*"))  # its own, and those it loaded


def _account(place: int | str) -> Condition:
    return Condition(ValueKind.PUBKEY, at=(("accounts", str(place)),))


def _prefix(width: int) -> Condition:
    return Condition(ValueKind.HEX, width=width, at=(("data",),), is_prefix=True)


class SolanaInstructions(TypedDict, total=False):
    """Keys of `add_instructions`; of d1, d2, d4, d8 one filter may use only one."""

    program_id: _Pubkeys
    d1: Annotated[Iterable[str], _prefix(1)]
    d2: Annotated[Iterable[str], _prefix(2)]
    d4: Annotated[Iterable[str], _prefix(4)]
    d8: Annotated[Iterable[str], _prefix(8)]
    # in any place; a portal asks a bloom filter, we look
    mentions_account: Annotated[Iterable[str], _account("*")]
    a0: Annotated[Iterable[str], _account(0)]
    a1: Annotated[Iterable[str], _account(1)]
    a2: Annotated[Iterable[str], _account(2)]
    a3: Annotated[Iterable[str], _account(3)]
    a4: Annotated[Iterable[str], _account(4)]
    a5: Annotated[Iterable[str], _account(5)]
    a6: Annotated[Iterable[str], _account(6)]
    a7: Annotated[Iterable[str], _account(7)]
    a8: Annotated[Iterable[str], _account(8)]
    a9: Annotated[Iterable[str], _account(9)]
    a10: Annotated[Iterable[str], _account(10)]  # a10 to a15 are known to servers, not to the SDK
    a11: Annotated[Iterable[str], _account(11)]
    a12: Annotated[Iterable[str], _account(12)]
    a13: Annotated[Iterable[str], _account(13)]
    a14: Annotated[Iterable[str], _account(14)]
    a15: Annotated[Iterable[str], _account(15)]
    is_committed: Annotated[bool, Condition(ValueKind.BOOL, is_list=False)]
    transaction: _Transaction
    transaction_balances: _Balances
    transaction_token_balances: _TokenBalances
    transaction_instructions: _Instructions
    logs: _Logs
    inner_instructions: _Instructions
    parent_instructions: _Instructions


class SolanaTransactions(TypedDict, total=False):
    """Keys of `add_transactions` on Solana."""

    fee_payer: Annotated[Iterable[str], Condition(ValueKind.PUBKEY, at=(("accountKeys", "0"),))]
    mentions_account: Annotated[Iterable[str], Condition(ValueKind.PUBKEY, at=_MENTIONED)]
    instructions: _Instructions
    logs: _Logs
    balances: _Balances
    token_balances: _TokenBalances


class SolanaLogs(TypedDict, total=False):
    """Keys of `add_logs` on Solana."""

    program_id: _Pubkeys
    kind: Annotated[Iterable[LogKind], Condition(ValueKind.CHOICE, choices=get_args(LogKind))]
    transaction: _Transaction
    instruction: _Instructions


class SolanaBalances(TypedDict, total=False):
    """Keys of `add_balances`."""

    account: _Pubkeys
    transaction: _Transaction
    transaction_instructions: _Instructions


class SolanaTokenBalances(TypedDict, total=False):
    """Keys of `add_token_balances`."""

    account: _Pubkeys
    pre_program_id: _Pubkeys
    post_program_id: _Pubkeys
    pre_mint: _Pubkeys
    post_mint: _Pubkeys
    pre_owner: _Pubkeys
    post_owner: _Pubkeys
    transaction: _Transaction
    transaction_instructions: _Instructions
    transaction_balances: _Balances
    transaction_token_balances: _TokenBalances


class SolanaRewards(TypedDict, total=False):
    """Keys of `add_rewards`."""

    pubkey: _Pubkeys


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
    (
        Family.of(
            "instructions",
            "instruction",
            SolanaInstructions,
            discriminators=tuple(f"d{width}" for width in _WIDTHS),
        ),
        Family.of("transactions", "transaction", SolanaTransactions),
        Family.of("logs", "log", SolanaLogs),
        Family.of("balances", "balance", SolanaBalances),
        Family.of("tokenBalances", "tokenBalance", SolanaTokenBalances),
        Family.of("rewards", "reward", SolanaRewards),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SolanaQuery(Query):
    """A query of a Solana network; block numbers are slots."""

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
