"""The query surfaces of all networks: those of `surface` and the rest, from Bitcoin to Substrate.

Written from the wire's own description, apart from `headwater.query`, as `surface` says.
"""

from __future__ import annotations

from typing import Any

from headwater.testing.chain.population import Network
from headwater.testing.portal.surface import (
    ABOVE,
    BELOW,
    EVM,
    INSTRUCTION,
    SOLANA,
    Family,
    Filter,
    Getter,
    Row,
    Surface,
    columns,
    item,
    related,
    words,
)


def _inside(*places: str, length: int | None = None) -> Getter:
    """Return what stands at the first of some places, keys with dots between; or its beginning."""

    def get(row: Row) -> Any:
        for place in places:
            value: Any = row
            for key in place.split("."):
                if isinstance(value, list):
                    value = value[int(key)] if int(key) < len(value) else None
                else:
                    value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                return value[:length]
        return None

    return get


def _of(field: str, *values: str) -> tuple[Getter, frozenset[str]]:
    return (lambda row: row[field]), frozenset(values)


# --- Bitcoin --------------------------------------------------------------------------------------

_OF_THE_TRANSACTION = related(
    transaction="transactions", transactionInputs="inputs", transactionOutputs="outputs"
)
_SCRIPT = "ScriptPubKeyHex ScriptPubKeyAsm ScriptPubKeyDesc ScriptPubKeyType ScriptPubKeyAddress"

BITCOIN = Surface(
    block_fields=words(
        "number hash parentHash timestamp medianTime version merkleRoot nonce target bits "
        "difficulty chainWork strippedSize size weight"
    ),
    families={
        "transactions": Family(
            "transaction",
            words("transactionIndex hex txid hash size vsize weight version locktime"),
            {},
            related(inputs="inputs", outputs="outputs"),
        ),
        "inputs": Family(
            "input",
            (
                *words(
                    "transactionIndex inputIndex type txid vout scriptSigHex scriptSigAsm "
                    "sequence coinbase txInWitness prevoutGenerated prevoutHeight prevoutValue"
                ),
                *(f"prevout{name}" for name in _SCRIPT.split()),
            ),
            columns("text", "type", "prevoutScriptPubKeyAddress", "prevoutScriptPubKeyType")
            | columns("flag", "prevoutGenerated"),
            _OF_THE_TRANSACTION,
        ),
        "outputs": Family(
            "output",
            (
                *words("transactionIndex outputIndex value"),
                *(f"s{name[1:]}" for name in _SCRIPT.split()),
            ),
            columns("text", "scriptPubKeyAddress", "scriptPubKeyType"),
            _OF_THE_TRANSACTION,
        ),
    },
)

# --- Tron -----------------------------------------------------------------------------------------

_TRON_TRANSACTION = words(
    "transactionIndex hash ret signature type parameter permissionId refBlockBytes refBlockHash "
    "feeLimit expiration timestamp rawDataHex fee contractResult contractAddress resMessage "
    "withdrawAmount unfreezeAmount withdrawExpireAmount cancelUnfreezeV2Amount result energyFee "
    "energyUsage energyUsageTotal netUsage netFee originEnergyUsage energyPenaltyTotal"
)
_TRON_RELATED = related(logs="logs", internalTransactions="internalTransactions")


def _parameter(key: str, kind: str = "hex", length: int | None = None) -> Filter:
    return Filter(kind, _inside(f"parameter.value.{key}", length=length))


def _tron(kind: str, filters: dict[str, Filter]) -> Family:
    return Family(
        "transaction",
        _TRON_TRANSACTION,
        filters,
        _TRON_RELATED,
        items="transactions",
        implied=_of("type", kind),
    )


_OWNER_AND_TO = {"owner": _parameter("owner_address"), "to": _parameter("to_address")}

TRON = Surface(
    block_fields=words(
        "number hash parentHash txTrieRoot version timestamp witnessAddress witnessSignature"
    ),
    families={
        "transactions": Family(
            "transaction", _TRON_TRANSACTION, columns("text", "type"), _TRON_RELATED
        ),
        "logs": Family(
            "log",
            words("transactionIndex logIndex address data topics"),
            columns("hex", "address")
            | {f"topic{at}": Filter("hex", item("topics", at)) for at in range(4)},
            related(transaction="transactions"),
        ),
        "internalTransactions": Family(
            "internalTransaction",
            words(
                "transactionIndex internalTransactionIndex hash callerAddress transferToAddress "
                "callValueInfo note rejected extra"
            ),
            {
                "caller": Filter("hex", _inside("callerAddress")),
                "transferTo": Filter("hex", _inside("transferToAddress")),
            },
            related(transaction="transactions"),
        ),
        "transferTransactions": _tron("TransferContract", _OWNER_AND_TO),
        "transferAssetTransactions": _tron(
            "TransferAssetContract", {**_OWNER_AND_TO, "asset": _parameter("asset_name", "text")}
        ),
        "triggerSmartContractTransactions": _tron(
            "TriggerSmartContract",
            {
                "owner": _parameter("owner_address"),
                "contract": _parameter("contract_address"),
                "sighash": _parameter("data", length=8),
            },
        ),
    },
)

# --- Hyperliquid ----------------------------------------------------------------------------------

HYPERLIQUID = Surface(
    block_fields=words("number hash parentHash timestamp"),
    families={
        "fills": Family(
            "fill",
            words(
                "fillIndex user coin px sz side time startPosition dir closedPnl hash oid crossed "
                "fee builderFee tid cloid feeToken builder twapId"
            ),
            columns("text", "user", "coin", "dir", "cloid", "feeToken", "builder"),
            {},
        )
    },
)

# --- Substrate ------------------------------------------------------------------------------------

_CALL = words("extrinsicIndex address name success args origin error")
_EVENT = words("index extrinsicIndex name phase callAddress topics args")
_OF_AN_EVENT = (
    related(extrinsic="extrinsics")
    | related(INSTRUCTION, call="calls")
    | related(ABOVE, stack="calls")
)
_OF_A_CALL = (
    related(extrinsic="extrinsics")
    | related(ABOVE, stack="calls")
    | related(INSTRUCTION, events="events")
)


def _args(kind: str, *places: str, length: int | None = None) -> Filter:
    return Filter(kind, _inside(*(f"args.{place}" for place in places), length=length))


def _topics(*places: str) -> dict[str, Filter]:
    return {f"topic{at}": _args("hex", *(f"{place}.{at}" for place in places)) for at in range(4)}


def _event(name: str, filters: dict[str, Filter]) -> Family:
    return Family("event", _EVENT, filters, _OF_AN_EVENT, items="events", implied=_of("name", name))


SUBSTRATE = Surface(
    block_fields=words(
        "number hash parentHash stateRoot extrinsicsRoot digest specName specVersion implName "
        "implVersion timestamp validator"
    ),
    families={
        "extrinsics": Family(
            "extrinsic",
            words("index version success hash fee tip signature error"),
            {},
            {},
            is_asked=False,
        ),
        "calls": Family(
            "call", _CALL, columns("text", "name"), _OF_A_CALL | related(BELOW, subcalls="calls")
        ),
        "events": Family("event", _EVENT, columns("text", "name"), _OF_AN_EVENT),
        "evmLogs": _event(
            "EVM.Log",
            {"address": _args("hex", "log.address", "address"), **_topics("log.topics", "topics")},
        ),
        "ethereumTransactions": Family(
            "call",
            _CALL,
            {
                "to": _args(
                    "hex",
                    "transaction.value.action.value",
                    "transaction.value.destination.value",
                    "transaction.action.value",
                ),
                "sighash": _args(
                    "hex",
                    "transaction.value.input",
                    "transaction.value.data",
                    "transaction.input",
                    length=10,
                ),
            },
            _OF_A_CALL,
            items="calls",
            implied=_of("name", "Ethereum.transact"),
        ),
        "contractsEvents": _event(
            "Contracts.ContractEmitted", {"contractAddress": _args("text", "contract")}
        ),
        "gearMessagesEnqueued": _event(
            "Gear.MessageQueued", {"programId": _args("text", "destination")}
        ),
        "gearUserMessagesSent": _event(
            "Gear.UserMessageSent", {"programId": _args("text", "message.source")}
        ),
        "reviveContractEmitted": _event(
            "Revive.ContractEmitted", {"contract": _args("text", "contract"), **_topics("topics")}
        ),
    },
    owners={"extrinsics": "index", "calls": "extrinsicIndex", "events": "extrinsicIndex"},
)

SURFACES = {
    Network.EVM: EVM,
    Network.SOLANA: SOLANA,
    Network.BITCOIN: BITCOIN,
    Network.TRON: TRON,
    Network.HYPERLIQUID: HYPERLIQUID,
    Network.SUBSTRATE: SUBSTRATE,
}
