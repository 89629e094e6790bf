"""Filters of the networks beside EVM and Solana: checked, and sent as portals compare them."""

import json
from typing import Any

import pytest

from headwater.errors import QueryError, QueryLimitError
from headwater.query import (
    BitcoinQuery,
    HyperliquidQuery,
    Query,
    SubstrateQuery,
    TronQuery,
    base58,
)
from headwater.query.values import is_bech32

USDT = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"
USDT_HEX = "a614f803b6fd780986a42c78ec9c7f77e6ded13c"
GENESIS = "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"
SEGWIT = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"
TAPROOT = "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0"


def sent(query: Query) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(query.body(7, 9, "ab"))
    return body


@pytest.mark.parametrize(
    "address", [USDT, f"41{USDT_HEX}", f"0x41{USDT_HEX}", f"0x{USDT_HEX}", USDT_HEX.upper()]
)
def test_an_address_of_tron_may_be_written_in_every_usual_way(address: str) -> None:
    query = (
        TronQuery()
        .add_logs(address=[address])
        .add_transfer_transactions(to=[address], logs=True)
        .add_trigger_smart_contract_transactions(contract=[address], sighash=["0xA9059CBB"])
        .add_internal_transactions(caller=[address], transaction=True)
    )
    body = sent(query)
    assert body["logs"] == [{"address": [USDT_HEX]}]  # 20 bytes, as logs have them
    assert body["transferTransactions"] == [{"to": [f"41{USDT_HEX}"], "logs": True}]
    assert body["triggerSmartContractTransactions"] == [
        {"contract": [f"41{USDT_HEX}"], "sighash": ["a9059cbb"]}
    ]
    assert body["internalTransactions"] == [{"caller": [f"41{USDT_HEX}"], "transaction": True}]


@pytest.mark.parametrize(
    "address", [GENESIS, "3P14159f73E4gFr7JterCCQh9QjiTjiZrG", SEGWIT, TAPROOT]
)
def test_addresses_of_bitcoin_are_sent_as_they_are(address: str) -> None:
    query = BitcoinQuery().add_outputs(script_pub_key_address=[address])
    assert sent(query)["outputs"] == [{"scriptPubKeyAddress": [address]}]


def test_a_bech32_address_may_be_in_capitals_but_not_in_both() -> None:
    query = BitcoinQuery().add_inputs(prevout_script_pub_key_address=[SEGWIT.upper()])
    assert sent(query)["inputs"] == [{"prevoutScriptPubKeyAddress": [SEGWIT]}]
    with pytest.raises(QueryError, match="Bitcoin address"):
        BitcoinQuery().add_outputs(script_pub_key_address=[SEGWIT.replace("w508", "W508")])


def test_every_family_is_sent_in_the_wires_names() -> None:
    bitcoin = (
        BitcoinQuery()
        .add_transactions(inputs=True)
        .add_inputs(type=["coinbase"], prevout_generated=False, transaction_outputs=True)
        .add_outputs(script_pub_key_type=["witness_v1_taproot"])
    )
    assert sent(bitcoin) == {
        "type": "bitcoin",
        "fields": {"block": dict.fromkeys(("hash", "number", "parentHash", "timestamp"), True)},
        "fromBlock": 7,
        "toBlock": 9,
        "parentBlockHash": "ab",
        "transactions": [{"inputs": True}],
        "inputs": [{"type": ["coinbase"], "prevoutGenerated": False, "transactionOutputs": True}],
        "outputs": [{"scriptPubKeyType": ["witness_v1_taproot"]}],
    }
    tron = (
        TronQuery()
        .add_transactions(type=["CancelAllUnfreezeV2Contract"], internal_transactions=True)
        .add_transfer_asset_transactions(asset=["31303030323236"])
    )
    body = sent(tron)
    assert body["transactions"] == [
        {"type": ["CancelAllUnfreezeV2Contract"], "internalTransactions": True}
    ]
    assert body["transferAssetTransactions"] == [{"asset": ["31303030323236"]}]
    fills = HyperliquidQuery().add_fills(user=["0x" + "AB" * 20], coin=["@107"], fee_token=["USDC"])
    assert sent(fills)["type"] == "hyperliquidFills"
    assert sent(fills)["fills"] == [
        {"user": ["0x" + "ab" * 20], "coin": ["@107"], "feeToken": ["USDC"]}
    ]
    substrate = (
        SubstrateQuery()
        .add_calls(name=["Utility.batch"], subcalls=True, events=True)
        .add_events(name=["Balances.Transfer"], stack=True)
        .add_evm_logs(topic3=["0x" + "0" * 64])
        .add_ethereum_transactions(to=["0x" + "1" * 40])
        .add_contracts_events(contract_address=["0x" + "2" * 64])
        .add_gear_messages_enqueued(program_id=["0x" + "3" * 64])
        .add_gear_user_messages_sent(program_id=["0x" + "4" * 64])
        .add_revive_contract_emitted(contract=["0x" + "5" * 40])
    )
    body = sent(substrate)
    assert {key: body[key] for key in list(body)[5:]} == {
        "events": [{"name": ["Balances.Transfer"], "stack": True}],
        "calls": [{"name": ["Utility.batch"], "subcalls": True, "events": True}],
        "evmLogs": [{"topic3": ["0x" + "0" * 64]}],
        "ethereumTransactions": [{"to": ["0x" + "1" * 40]}],
        "contractsEvents": [{"contractAddress": ["0x" + "2" * 64]}],
        "gearMessagesEnqueued": [{"programId": ["0x" + "3" * 64]}],
        "gearUserMessagesSent": [{"programId": ["0x" + "4" * 64]}],
        "reviveContractEmitted": [{"contract": ["0x" + "5" * 40]}],
    }


@pytest.mark.parametrize(
    ("query", "family", "arguments"),
    [
        (BitcoinQuery(), "outputs", {"script_pub_key_address": [GENESIS[:-1] + "b"]}),
        (BitcoinQuery(), "outputs", {"script_pub_key_address": [SEGWIT[:-1] + "5"]}),
        (BitcoinQuery(), "outputs", {"script_pub_key_address": ["bc1"]}),
        (BitcoinQuery(), "outputs", {"script_pub_key_address": [USDT[:-1]]}),
        (BitcoinQuery(), "outputs", {"script_pub_key_address": [b"1A1z"]}),
        (BitcoinQuery(), "outputs", {"script_pub_key_type": ["taproot"]}),
        (BitcoinQuery(), "inputs", {"prevout_generated": [True]}),
        (BitcoinQuery(), "transactions", {"txid": ["ab"]}),
        (TronQuery(), "logs", {"address": [USDT[:-1] + "u"]}),
        (TronQuery(), "logs", {"address": [GENESIS]}),  # a good checksum, but of Bitcoin
        (TronQuery(), "logs", {"address": ["42" + USDT_HEX]}),
        (TronQuery(), "logs", {"address": [12]}),
        (TronQuery(), "logs", {"topic0": ["ab"]}),
        (TronQuery(), "trigger_smart_contract_transactions", {"sighash": ["a9059c"]}),
        (TronQuery(), "transactions", {"type": ["Transfer"]}),
        (TronQuery(), "transfer_asset_transactions", {"asset": [""]}),
        (HyperliquidQuery(), "fills", {"user": ["0xab"]}),
        (HyperliquidQuery(), "fills", {"coin": "BTC"}),
        (HyperliquidQuery(), "fills", {"coin": [1]}),
        (SubstrateQuery(), "events", {"name": ["Transfer"]}),
        (SubstrateQuery(), "events", {"name": [3]}),
        (SubstrateQuery(), "evm_logs", {"address": ["0x" + "1" * 64]}),
    ],
)
def test_what_would_match_nothing_for_ever_is_refused(
    query: Query, family: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(QueryError, match=r"E0\d{3}"):
        query.add_filter(family, **arguments)


def test_limits_count_the_filters_of_all_families() -> None:
    query: Query = TronQuery()
    for number in range(51):
        query = query.add_filter("logs", topic0=[f"{number:064x}"])
        query = query.add_filter("transfer_transactions", owner=[f"41{number:040x}"])
    with pytest.raises(QueryLimitError, match="filters=102"):
        query.body(0)


def test_checksums_are_those_of_the_published_examples() -> None:
    assert base58.decode_with_checksum(GENESIS) == bytes.fromhex(
        "0062e907b15cbf27d5425399ebf6f0fb50ebb88f18"
    )
    assert base58.decode_with_checksum(USDT) == bytes.fromhex("41" + USDT_HEX)
    assert base58.decode("2NEpo7TZRRrLZSi2U") == b"Hello World!"
    for text in ("1l", "11", "", GENESIS[:-1] + "b"):
        with pytest.raises(ValueError, match=r"base58|checksum"):
            base58.decode_with_checksum(text)
    assert is_bech32("a12uel5l")
    assert is_bech32("abcdef1l7aum6echk45nj3s0wdvt2fg8x9yrzpqzd3ryx")  # bech32m
    assert not is_bech32("a12uel5m")
    assert not is_bech32("1pzry9x0s0muk")
    assert not is_bech32("x1b4n0q5v")
