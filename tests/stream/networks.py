"""A raw table per network for end-to-end tests, and what it must hold, from the contents alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headwater import bitcoin, evm, hyperliquid, solana, substrate, tron
from headwater.decode import TableOutput
from headwater.testing import ChainSim, Network
from headwater.testing.chain.content import content_of

Row = dict[str, Any]
Truth = Callable[[Row], tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class Sample:
    """A raw table, the columns that are compared, and the same from one item of a block."""

    make: Callable[[Any], TableOutput]
    columns: str
    family: str
    truth: Truth
    unit_ms: int


def _paid(row: Row) -> tuple[Any, ...] | None:
    if row["scriptPubKeyType"] != "pubkeyhash":
        return None
    return row["transactionIndex"], row["outputIndex"], round(row["value"] * 10**8)


def _called(row: Row) -> tuple[Any, ...] | None:
    value = row["parameter"]["value"]
    if row["type"] != "TriggerSmartContract" or not value["data"].startswith("a9059cbb"):
        return None
    return row["transactionIndex"], row["hash"], value["contract_address"]


def _filled(row: Row) -> tuple[Any, ...] | None:
    if row["side"] != "B" and row["feeToken"] != "USDC":
        return None
    return (row["fillIndex"], row["hash"], row["px"]) if row["feeToken"] == "USDC" else None


def _moved(row: Row) -> tuple[Any, ...] | None:
    return (row["index"], row["name"], row["extrinsicIndex"]) if row["name"] == "EVM.Log" else None


SAMPLES = {
    Network.EVM: Sample(
        lambda blocks: evm.transactions(type=[2], range=blocks),
        "transaction_index, transaction_hash, nonce::TEXT",
        "transactions",
        lambda row: (
            (row["transactionIndex"], row["hash"], str(row["nonce"])) if row["type"] == 2 else None
        ),
        1000,
    ),
    Network.SOLANA: Sample(
        lambda blocks: solana.rewards(range=blocks),
        "pubkey, lamports, reward_type",
        "rewards",
        lambda row: (row["pubkey"], int(row["lamports"]), row["rewardType"]),
        1000,
    ),
    Network.BITCOIN: Sample(
        lambda blocks: bitcoin.outputs(script_pub_key_type=["pubkeyhash"], range=blocks),
        "transaction_index, output_index, value",
        "outputs",
        _paid,
        1000,
    ),
    Network.TRON: Sample(
        lambda blocks: tron.contract_calls(sighash=["a9059cbb"], range=blocks),
        "transaction_index, transaction_hash, contract_address",
        "transactions",
        _called,
        1,
    ),
    Network.HYPERLIQUID: Sample(
        lambda blocks: hyperliquid.fills(fee_token=["USDC"], range=blocks),
        "fill_index, transaction_hash, px",
        "fills",
        _filled,
        1,
    ),
    Network.SUBSTRATE: Sample(
        lambda blocks: substrate.evm_logs(range=blocks),
        "event_index, name, transaction_index",
        "events",
        _moved,
        1,
    ),
}


def truth(chain: ChainSim, last: int | None = None) -> list[tuple[Any, ...]]:
    """Return block number, hash, time and the sample's columns of all canonical items."""
    sample, rows = SAMPLES[chain.network], []
    for block in chain.canonical(None, last):
        content = content_of(chain, block)
        sent = content.header["timestamp"]
        moment = None if sent is None else EPOCH + timedelta(milliseconds=sent * sample.unit_ms)
        for item in content.rows(sample.family):
            found = sample.truth(item)
            if found is not None:
                rows.append((block.number, block.hash, moment, *found))
    return sorted(rows, key=repr)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
