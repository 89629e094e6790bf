"""The catalogue of Solana networks. A block's `number` is its slot; `height` counts blocks."""

from __future__ import annotations

from headwater.query.catalog import (
    Condition,
    Entity,
    Family,
    Field,
    Network,
    Presence,
    ValueKind,
    WireType,
    fields,
    header,
    related,
)

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
    Field("transactionIndex", _NUMBER),
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
    Field("transactionIndex", _NUMBER),
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
    *fields("transactionIndex logIndex", _NUMBER),
    Field("instructionAddress", _NUMBER, is_list=True),
    Field("programId", _BASE58),
    *fields("kind message", _STRING),
)

_BALANCE = (
    Field("transactionIndex", _NUMBER),
    Field("account", _BASE58),
    *fields("pre post", _DECIMAL),
)

_TOKEN_BALANCE = (
    Field("transactionIndex", _NUMBER),
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
    ),
    discriminators=tuple(f"d{width}" for width in _WIDTHS),
)

_TRANSACTIONS = Family(
    "transactions",
    "transaction",
    _pubkeys("feePayer"),
    related(instructions="instruction", logs="log"),
)

_LOGS = Family(
    "logs",
    "log",
    (
        *_pubkeys("programId"),
        Condition("kind", ValueKind.CHOICE, choices=("log", "data", "other")),
    ),
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
    _OF_A_BALANCE,
)

_REWARDS = Family("rewards", "reward", _pubkeys("pubkey"))

SOLANA = Network(
    "solana",
    (
        header(_BLOCK),
        Entity("transaction", "transactions", _TRANSACTION, key=("transactionIndex",)),
        Entity("instruction", "instructions", _INSTRUCTION),
        Entity("log", "logs", _LOG, key=("transactionIndex", "logIndex")),
        Entity("balance", "balances", _BALANCE),
        Entity("tokenBalance", "tokenBalances", _TOKEN_BALANCE),
        Entity("reward", "rewards", _REWARD),
    ),
    (_INSTRUCTIONS, _TRANSACTIONS, _LOGS, _BALANCES, _TOKEN_BALANCES, _REWARDS),
)
