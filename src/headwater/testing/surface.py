"""The query surface of the simulated portal: fields, filters and relations of each network.

Written from the wire's own description and apart from `headwater.query`, which builds requests: the
simulator is where requests are judged, so a mistake in one must not be hidden by the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwater.testing.settings import Network

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
    """One family of items: the name of its fields' entity, its fields, filters and relations."""

    entity: str
    fields: tuple[str, ...]
    filters: dict[str, Filter]
    relations: dict[str, Relation]


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that a request to one network may name."""

    block_fields: tuple[str, ...]
    families: dict[str, Family]


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

TRACE_FIELDS: dict[str, tuple[str, str, str, str]] = {
    "createFrom": ("create", "action", "from", "from"),
    "createValue": ("create", "action", "value", "value"),
    "createGas": ("create", "action", "gas", "gas"),
    "createInit": ("create", "action", "init", "init"),
    "createResultGasUsed": ("create", "result", "gasUsed", "gasUsed"),
    "createResultCode": ("create", "result", "code", "code"),
    "createResultAddress": ("create", "result", "address", "address"),
    "callCallType": ("call", "action", "callType", "callType"),
    "callType": ("call", "action", "type", "callType"),
    "callFrom": ("call", "action", "from", "from"),
    "callTo": ("call", "action", "to", "to"),
    "callValue": ("call", "action", "value", "value"),
    "callGas": ("call", "action", "gas", "gas"),
    "callInput": ("call", "action", "input", "input"),
    "callSighash": ("call", "action", "sighash", "sighash"),
    "callResultGasUsed": ("call", "result", "gasUsed", "gasUsed"),
    "callResultOutput": ("call", "result", "output", "output"),
    "suicideAddress": ("suicide", "action", "address", "address"),
    "suicideRefundAddress": ("suicide", "action", "refundAddress", "refundAddress"),
    "suicideBalance": ("suicide", "action", "balance", "balance"),
    "rewardAuthor": ("reward", "action", "author", "author"),
    "rewardValue": ("reward", "action", "value", "value"),
    "rewardType": ("reward", "action", "type", "type"),
}
"""Flat selection key: the trace type it is of, and the part, name and source it is sent as.

`callType` is what older portals call `callCallType`; they send it as `action.type`.
"""


def _column(name: str) -> Getter:
    return lambda row: row[name]


def _item(name: str, position: int) -> Getter:
    def get(row: Row) -> Any:
        items = row[name]
        return items[position] if position < len(items) else None

    return get


def _trace(key: str) -> Getter:
    kind, part, _, source = TRACE_FIELDS[key]
    return lambda row: row[part][source] if row["type"] == kind else None


def _nonce(row: Row) -> int:
    return int(row["nonce"])


def _columns(kind: str, *names: str) -> dict[str, Filter]:
    return {name: Filter(kind, _column(name)) for name in names}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _related(by: str = TRANSACTION, **flags: str) -> dict[str, Relation]:
    return {flag: Relation(target, by) for flag, target in flags.items()}


EVM = Surface(
    block_fields=_words(
        "number hash parentHash timestamp transactionsRoot receiptsRoot stateRoot logsBloom "
        "sha3Uncles extraData miner nonce mixHash size gasLimit gasUsed difficulty "
        "totalDifficulty baseFeePerGas blobGasUsed excessBlobGas l1BlockNumber uncles "
        "withdrawalsRoot withdrawals"
    ),
    families={
        "transactions": Family(
            "transaction",
            _words(
                "transactionIndex hash nonce from to input value gas gasPrice maxFeePerGas "
                "maxPriorityFeePerGas v r s yParity chainId sighash contractAddress gasUsed "
                "cumulativeGasUsed effectiveGasPrice type status logsBloom blobVersionedHashes "
                "accessList l1Fee l1FeeScalar l1GasPrice l1GasUsed l1BlobBaseFee "
                "l1BlobBaseFeeScalar l1BaseFeeScalar"
            ),
            _columns("hex", "to", "from", "sighash")
            | _columns("number", "type")
            | {"firstNonce": Filter(LOWEST, _nonce), "lastNonce": Filter(HIGHEST, _nonce)},
            _related(logs="logs", traces="traces", stateDiffs="stateDiffs"),
        ),
        "logs": Family(
            "log",
            _words("logIndex transactionIndex transactionHash address data topics"),
            _columns("hex", "address")
            | {f"topic{index}": Filter("hex", _item("topics", index)) for index in range(4)},
            _related(
                transaction="transactions",
                transactionTraces="traces",
                transactionLogs="logs",
                transactionStateDiffs="stateDiffs",
            ),
        ),
        "traces": Family(
            "trace",
            (
                *_words("transactionIndex traceAddress subtraces type error revertReason"),
                *TRACE_FIELDS,
            ),
            _columns("text", "type")
            | {
                key: Filter("hex", _trace(key))
                for key in _words(
                    "createFrom createResultAddress callTo callFrom callSighash "
                    "suicideRefundAddress rewardAuthor"
                )
            },
            _related(transaction="transactions", transactionLogs="logs")
            | _related(BELOW, subtraces="traces")
            | _related(ABOVE, parents="traces"),
        ),
        "stateDiffs": Family(
            "stateDiff",
            _words("transactionIndex address key kind prev next"),
            _columns("hex", "address", "key") | _columns("text", "kind"),
            _related(transaction="transactions"),
        ),
    },
)

SOLANA = Surface(
    block_fields=_words("number hash height parentNumber parentHash timestamp"),
    families={
        "transactions": Family(
            "transaction",
            _words(
                "transactionIndex version accountKeys addressTableLookups "
                "numReadonlySignedAccounts numReadonlyUnsignedAccounts numRequiredSignatures "
                "recentBlockhash signatures err computeUnitsConsumed fee loadedAddresses "
                "hasDroppedLogMessages"
            ),
            {"feePayer": Filter("text", _item("accountKeys", 0))},
            _related(instructions="instructions", logs="logs"),
        ),
        "instructions": Family(
            "instruction",
            _words(
                "transactionIndex instructionAddress programId accounts data "
                "computeUnitsConsumed error isCommitted hasDroppedLogMessages d1 d2 d4 d8"
            ),
            _columns("text", "programId")
            | {f"d{width}": Filter(f"bytes{width}", _column(f"d{width}")) for width in (1, 2, 4, 8)}
            | {f"a{index}": Filter("text", _item("accounts", index)) for index in range(16)}
            | {"isCommitted": Filter("flag", _column("isCommitted"))},
            _related(
                transaction="transactions",
                transactionBalances="balances",
                transactionTokenBalances="tokenBalances",
                transactionInstructions="instructions",
            )
            | _related(INSTRUCTION, logs="logs")
            | _related(BELOW, innerInstructions="instructions"),
        ),
        "logs": Family(
            "log",
            _words("transactionIndex logIndex instructionAddress programId kind message"),
            _columns("text", "programId", "kind"),
            _related(transaction="transactions")
            | _related(INSTRUCTION, instruction="instructions"),
        ),
        "balances": Family(
            "balance",
            _words("transactionIndex account pre post"),
            _columns("text", "account"),
            _related(transaction="transactions", transactionInstructions="instructions"),
        ),
        "tokenBalances": Family(
            "tokenBalance",
            _words(
                "transactionIndex account preProgramId preMint preDecimals preOwner preAmount "
                "postProgramId postMint postDecimals postOwner postAmount"
            ),
            _columns(
                "text",
                *_words("account preProgramId postProgramId preMint postMint preOwner postOwner"),
            ),
            _related(transaction="transactions", transactionInstructions="instructions"),
        ),
        "rewards": Family(
            "reward",
            _words("pubkey lamports postBalance rewardType commission"),
            _columns("text", "pubkey"),
            {},
        ),
    },
)

SURFACES = {Network.EVM: EVM, Network.SOLANA: SOLANA}
