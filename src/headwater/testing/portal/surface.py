"""The query surface of the simulated portal: what it is made of, and those of EVM and Solana.

Written from the wire's own description and apart from `headwater.query`, which builds requests: the
simulator is where requests are judged, so a mistake in one must not be hidden by the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Getter = Callable[[Row], Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter key: how its values are written, and what of a row they are compared with."""

    kind: str
    get: Getter


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation flag: the family that it pulls in, and by what the rows belong together."""

    target: str
    by: str


@dataclass(frozen=True, slots=True)
class Family:
    """One family of items: the name of its fields' entity, its fields, filters and relations.

    Some families ask for items of another (`items`), those of which a value is `implied`. Items
    that are not `is_asked` for come by relations alone.
    """

    entity: str
    fields: tuple[str, ...]
    filters: dict[str, Filter]
    relations: dict[str, Relation]
    items: str | None = None
    implied: tuple[Getter, frozenset[str]] | None = None
    is_asked: bool = True


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that a request to one network may name."""

    block_fields: tuple[str, ...]
    families: dict[str, Family]
    owners: dict[str, str] = field(default_factory=dict)

    def owner(self, family: str) -> str:
        """Return the key by which rows of a family name their transaction."""
        return self.owners.get(family, "transactionIndex")


TRANSACTION = "transaction"
"""Rows of one transaction belong together."""
INSTRUCTION = "instruction"
"""Rows of one instruction belong together."""
BELOW = "below"
"""Rows whose address continues this row's."""
ABOVE = "above"
"""Rows whose address this row's continues."""

LOWEST, HIGHEST = "lowest", "highest"
"""Kinds of filter that hold one number: the lower or the upper end of a range."""

BLOOM = "bloom"
"""Kind of filter on any item of a list that is asked of a bloom filter: some others match, too."""

_TRACES = {
    "create": {"action": "from value gas init", "result": "gasUsed code address"},
    "call": {"action": "callType from to value gas input sighash", "result": "gasUsed output"},
    "suicide": {"action": "address refundAddress balance"},
    "reward": {"action": "author value type"},
}
TRACE_FIELDS = {
    f"{kind}{part.removeprefix('action').title()}{name[0].upper()}{name[1:]}": (
        kind,
        part,
        name,
        name,
    )
    for kind, parts in _TRACES.items()
    for part, names in parts.items()
    for name in names.split()
} | {"callType": ("call", "action", "type", "callType")}
"""Flat selection key: the trace type it is of, and the part, name and source it is sent as.

`callType` is what older portals call `callCallType`; they send it as `action.type`.
"""


def _column(name: str) -> Getter:
    return lambda row: row[name]


def item(name: str, position: int) -> Getter:
    """Return what reads one item of a list; nothing where it is shorter."""

    def get(row: Row) -> Any:
        items = row[name] or ()
        return items[position] if position < len(items) else None

    return get


def _trace(key: str) -> Getter:
    kind, part, _, source = TRACE_FIELDS[key]
    return lambda row: row[part][source] if row["type"] == kind else None


def _nonce(row: Row) -> int:
    return int(row["nonce"])


def _accounts(row: Row) -> list[str]:
    loaded = row["loadedAddresses"] or {}
    return [*row["accountKeys"], *loaded.get("readonly", ()), *loaded.get("writable", ())]


def columns(kind: str, *names: str) -> dict[str, Filter]:
    """Return filters on fields of the same names."""
    return {name: Filter(kind, _column(name)) for name in names}


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


def related(by: str = TRANSACTION, **flags: str) -> dict[str, Relation]:
    """Return flags that pull in these families."""
    return {flag: Relation(target, by) for flag, target in flags.items()}


EVM = Surface(
    block_fields=words(
        "number hash parentHash timestamp transactionsRoot receiptsRoot stateRoot logsBloom "
        "sha3Uncles extraData miner nonce mixHash size gasLimit gasUsed difficulty "
        "totalDifficulty baseFeePerGas blobGasUsed excessBlobGas l1BlockNumber uncles "
        "withdrawalsRoot withdrawals parentBeaconBlockRoot requestsHash "
        "mainBlockGeneralGasLimit sharedGasLimit timestampMillisPart"
    ),
    families={
        "transactions": Family(
            "transaction",
            words(
                "transactionIndex hash nonce from to input value gas gasPrice maxFeePerGas "
                "maxPriorityFeePerGas v r s yParity chainId sighash contractAddress gasUsed "
                "cumulativeGasUsed effectiveGasPrice type status logsBloom blobVersionedHashes "
                "accessList l1Fee l1FeeScalar l1GasPrice l1GasUsed l1BlobBaseFee "
                "l1BlobBaseFeeScalar l1BaseFeeScalar maxFeePerBlobGas blobGasUsed blobGasPrice "
                "authorizationList"
            ),
            columns("hex", "to", "from", "sighash")
            | columns("number", "type")
            | {"firstNonce": Filter(LOWEST, _nonce), "lastNonce": Filter(HIGHEST, _nonce)},
            related(logs="logs", traces="traces", stateDiffs="stateDiffs"),
        ),
        "logs": Family(
            "log",
            words("logIndex transactionIndex transactionHash address data topics"),
            columns("hex", "address")
            | {f"topic{index}": Filter("hex", item("topics", index)) for index in range(4)},
            related(
                transaction="transactions",
                transactionTraces="traces",
                transactionLogs="logs",
                transactionStateDiffs="stateDiffs",
            ),
        ),
        "traces": Family(
            "trace",
            (
                *words("transactionIndex traceAddress subtraces type error revertReason"),
                *TRACE_FIELDS,
            ),
            columns("text", "type")
            | {"callCallType": Filter("text", _trace("callCallType"))}
            | {
                key: Filter("hex", _trace(key))
                for key in words(
                    "createFrom createResultAddress callTo callFrom callSighash "
                    "suicideAddress suicideRefundAddress rewardAuthor"
                )
            },
            related(transaction="transactions", transactionLogs="logs", transactionTraces="traces")
            | related(BELOW, subtraces="traces")
            | related(ABOVE, parents="traces"),
        ),
        "stateDiffs": Family(
            "stateDiff",
            words("transactionIndex address key kind prev next"),
            columns("hex", "address", "key") | columns("text", "kind"),
            related(transaction="transactions"),
        ),
    },
)

SOLANA = Surface(
    block_fields=words("number hash height parentNumber parentHash timestamp"),
    families={
        "transactions": Family(
            "transaction",
            words(
                "transactionIndex version accountKeys addressTableLookups "
                "numReadonlySignedAccounts numReadonlyUnsignedAccounts numRequiredSignatures "
                "recentBlockhash signatures err computeUnitsConsumed fee loadedAddresses "
                "hasDroppedLogMessages"
            ),
            {
                "feePayer": Filter("text", item("accountKeys", 0)),
                "mentionsAccount": Filter(BLOOM, _accounts),
            },
            related(
                instructions="instructions",
                logs="logs",
                balances="balances",
                tokenBalances="tokenBalances",
            ),
        ),
        "instructions": Family(
            "instruction",
            words(
                "transactionIndex instructionAddress programId accounts data "
                "computeUnitsConsumed error isCommitted hasDroppedLogMessages d1 d2 d4 d8"
            ),
            columns("text", "programId")
            | {f"d{width}": Filter(f"bytes{width}", _column(f"d{width}")) for width in (1, 2, 4, 8)}
            | {"mentionsAccount": Filter(BLOOM, _column("accounts"))}
            | {f"a{index}": Filter("text", item("accounts", index)) for index in range(16)}
            | {"isCommitted": Filter("flag", _column("isCommitted"))},
            related(
                transaction="transactions",
                transactionBalances="balances",
                transactionTokenBalances="tokenBalances",
                transactionInstructions="instructions",
            )
            | related(INSTRUCTION, logs="logs")
            | related(BELOW, innerInstructions="instructions")
            | related(ABOVE, parentInstructions="instructions"),
        ),
        "logs": Family(
            "log",
            words("transactionIndex logIndex instructionAddress programId kind message"),
            columns("text", "programId", "kind"),
            related(transaction="transactions") | related(INSTRUCTION, instruction="instructions"),
        ),
        "balances": Family(
            "balance",
            words("transactionIndex account pre post"),
            columns("text", "account"),
            related(transaction="transactions", transactionInstructions="instructions"),
        ),
        "tokenBalances": Family(
            "tokenBalance",
            words(
                "transactionIndex account preProgramId preMint preDecimals preOwner preAmount "
                "postProgramId postMint postDecimals postOwner postAmount"
            ),
            columns(
                "text",
                *words("account preProgramId postProgramId preMint postMint preOwner postOwner"),
            ),
            related(
                transaction="transactions",
                transactionInstructions="instructions",
                transactionBalances="balances",
                transactionTokenBalances="tokenBalances",
            ),
        ),
        "rewards": Family(
            "reward",
            words("pubkey lamports postBalance rewardType commission"),
            columns("text", "pubkey"),
            {},
        ),
    },
)
