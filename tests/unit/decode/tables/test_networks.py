"""Bitcoin, Tron, Hyperliquid and Substrate: lines written by hand, values worked out by hand.

Then what is malformed: a coded error that names block and position, never a wrong value.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockRange
from headwater.decode import (
    Output,
    TableOutput,
    bitcoin,
    decode_outputs,
    hyperliquid,
    substrate,
    tron,
)
from headwater.errors import BlockContentError, ParameterError, QueryError

EVERYTHING = [BlockRange(0)]
GENESIS = "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"
USDT = "a614f803b6fd780986a42c78ec9c7f77e6ded13c"
OWNER, RECEIVER = (
    "41d95174a0903d3cc16a9b41e9668cf60d01af64f8",
    "415bdb8b4c4a3d0a93df56b88f8e2158cbe788fb39",
)


def line(timestamp: object = 1_293_623_863, number: int = 100, **families: Any) -> bytes:
    header = {"number": number, "hash": f"b{number}", "parentHash": "b", "timestamp": timestamp}
    return json.dumps({"header": header, **families}).encode()


def table_of(output: Output, *lines: bytes) -> pa.Table:
    table = decode_outputs({"t": output}, lines, {"t": EVERYTHING}).tables["t"]
    table.validate(full=True)
    return table


def rows_of(output: Output, *lines: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table_of(output, *lines).to_pylist()
    return rows


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- Bitcoin --------------------------------------------------------------------------------------

TRANSACTIONS = [
    {"transactionIndex": 0, "txid": "8c14", "hash": "8c14", "hex": "0100", "size": 135,
     "vsize": 135, "weight": 540, "version": 1, "locktime": 0},
    {"transactionIndex": 1, "txid": "fff2", "hash": "aaaa", "hex": "02FF", "size": 259,
     "vsize": 259, "weight": 1036, "version": 4294967295, "locktime": 4294967295},
]  # fmt: skip
OUTPUT = {"transactionIndex": 1, "outputIndex": 0, "value": 5.56, "scriptPubKeyHex": "76a9",
          "scriptPubKeyAsm": "OP_DUP", "scriptPubKeyDesc": "d", "scriptPubKeyType": "pubkeyhash",
          "scriptPubKeyAddress": GENESIS}  # fmt: skip


def output_of(value: object, index: int = 0, **rest: Any) -> dict[str, Any]:
    return {**OUTPUT, "value": value, "outputIndex": index, **rest}


def test_outputs_of_bitcoin_pay_whole_satoshis() -> None:
    values = [5.56, 50.0, 0, 1e-8, 0.00000546, 20999999.9769, 0.1, 0.3, 8.20000001]
    listed = [output_of(value, at) for at, value in enumerate(values)]
    table = table_of(bitcoin.outputs(), line(transactions=TRANSACTIONS, outputs=listed))
    assert table["value"].to_pylist() == [
        556_000_000, 5_000_000_000, 0, 1, 546, 2_099_999_997_690_000, 10_000_000, 30_000_000,
        820_000_001,
    ]  # fmt: skip
    first = table.to_pylist()[0]
    assert first == {
        "block_number": 100, "block_hash": "b100", "timestamp": moment("2010-12-29T11:57:43"),
        "transaction_hash": "fff2", "transaction_index": 1, "output_index": 0,
        "value": 556_000_000, "script_pub_key_type": "pubkeyhash",
        "script_pub_key_address": GENESIS, "script_pub_key_hex": b"\x76\xa9",
    }  # fmt: skip


@pytest.mark.parametrize("value", [5.123456789, -1.0, 1e9, 1e300, 0.000000001, "5.56", None, True])
def test_an_amount_that_is_no_whole_satoshi_names_its_place(value: object) -> None:
    listed = [OUTPUT, output_of(value, 7)]
    with pytest.raises(BlockContentError, match="block=100") as caught:
        table_of(bitcoin.outputs(), line(outputs=listed))
    text = str(caught.value)
    assert "output_index=7" in text or "$[1].value" in text


def test_inputs_of_bitcoin_say_what_they_spend() -> None:
    spends = {"transactionIndex": 1, "inputIndex": 0, "type": "tx", "txid": "87A1", "vout": 3,
              "scriptSigHex": "49FF", "scriptSigAsm": "x", "sequence": 4294967295,
              "coinbase": None, "txInWitness": ["", "00ff"], "prevoutGenerated": False,
              "prevoutHeight": 99059, "prevoutValue": 50.0, "prevoutScriptPubKeyHex": "76",
              "prevoutScriptPubKeyAsm": "a", "prevoutScriptPubKeyType": "pubkeyhash",
              "prevoutScriptPubKeyAddress": GENESIS}  # fmt: skip
    mined = {"transactionIndex": 0, "inputIndex": 0, "type": "coinbase", "sequence": 0,
             "coinbase": "044c", "txInWitness": []}  # fmt: skip
    fields = ["type", "txid", "vout", "script_sig_hex", "sequence", "coinbase", "tx_in_witness",
              "prevout_generated", "prevout_height", "prevout_value",
              "prevout_script_pub_key_desc"]  # fmt: skip
    sent = line(transactions=TRANSACTIONS, inputs=[mined, spends])
    first, second = rows_of(bitcoin.inputs(fields=fields), sent)
    assert first["transaction_hash"] == "8c14"
    assert (first["coinbase"], first["txid"], first["prevout_value"]) == (b"\x04\x4c", None, None)
    assert second == {
        "block_number": 100, "block_hash": "b100", "timestamp": moment("2010-12-29T11:57:43"),
        "transaction_hash": "fff2", "transaction_index": 1, "input_index": 0, "type": "tx",
        "txid": "87a1", "vout": 3, "script_sig_hex": b"\x49\xff", "sequence": 4294967295,
        "coinbase": None, "tx_in_witness": [b"", b"\x00\xff"], "prevout_generated": False,
        "prevout_height": 99059, "prevout_value": 5_000_000_000,
        "prevout_script_pub_key_desc": None,
    }  # fmt: skip
    only = bitcoin.inputs(type=["coinbase"], fields=["coinbase"])
    assert [row["coinbase"] for row in rows_of(only, sent)] == [b"\x04\x4c"]
    assert rows_of(bitcoin.inputs(prevout_generated=True), sent) == []


def test_transactions_of_bitcoin_are_named_by_their_txid() -> None:
    output = bitcoin.transactions(fields=["hash", "hex", "version", "locktime"])
    assert output.schema.names[3:] == [
        "transaction_hash", "transaction_index", "witness_hash", "hex", "version", "locktime",
    ]  # fmt: skip
    assert rows_of(output, line(transactions=TRANSACTIONS))[1] == {
        "block_number": 100, "block_hash": "b100", "timestamp": moment("2010-12-29T11:57:43"),
        "transaction_hash": "fff2", "transaction_index": 1, "witness_hash": "aaaa",
        "hex": b"\x02\xff", "version": 4294967295, "locktime": 4294967295,
    }  # fmt: skip


def test_a_block_of_bitcoin_has_its_median_time_and_difficulty() -> None:
    header = {"number": 5, "hash": "aa", "parentHash": "99", "timestamp": 1293623863,
              "medianTime": 1293622620, "difficulty": 14484.1623612254, "size": 957,
              "weight": 3828}  # fmt: skip
    sent = json.dumps({"header": header}).encode()
    (row,) = rows_of(bitcoin.blocks(), sent)
    assert row["median_time"] == moment("2010-12-29T11:37:00")
    assert row["difficulty"] == 14484.1623612254
    (exact,) = rows_of(bitcoin.blocks(fields=["difficulty"], decimals=["difficulty"]), sent)
    assert exact["difficulty"] == Decimal("14484.1623612254")
    header["medianTime"] = 2**60
    with pytest.raises(BlockContentError, match=r"median_time is no time.*block=5"):
        rows_of(bitcoin.blocks(), json.dumps({"header": header}).encode())


# --- Tron -----------------------------------------------------------------------------------------

TRIGGER = {"transactionIndex": 12, "hash": "3267", "type": "TriggerSmartContract",
           "parameter": {"value": {"data": f"a9059cbb{'0' * 128}", "owner_address": OWNER,
                                   "contract_address": f"41{USDT}"}, "type_url": "t"},
           "ret": [{"contractRet": "SUCCESS"}], "feeLimit": "26400000",
           "expiration": 1782669723000, "timestamp": 1782669665096, "rawDataHex": "0a02",
           "fee": None, "contractResult": "0001", "contractAddress": f"41{USDT}",
           "energyUsageTotal": "64285", "netUsage": "345", "result": "SUCCESS",
           "resMessage": "5245", "signature": ["2175"], "permissionId": None}  # fmt: skip
SEND = {"transactionIndex": 2, "hash": "8104", "type": "TransferContract",
        "parameter": {"value": {"amount": 378000000, "owner_address": OWNER,
                                "to_address": RECEIVER}}, "ret": None, "feeLimit": None,
        "timestamp": 1782669665096000000, "rawDataHex": "", "fee": "269000",
        "contractResult": ""}  # fmt: skip
ASSET = {**SEND, "transactionIndex": 3, "type": "TransferAssetContract",
         "parameter": {"value": {"amount": 1, "owner_address": OWNER, "to_address": RECEIVER,
                                 "asset_name": "31303030323236"}}}  # fmt: skip
TRON_LINE = line(
    1782669669123,
    transactions=[TRIGGER, SEND, ASSET],
    logs=[{"transactionIndex": 12, "logIndex": 0, "address": USDT, "data": "1312d000",
           "topics": ["dd" * 32, "00" * 32]},
          {"transactionIndex": 12, "logIndex": 1, "address": "00" * 20}],
    internalTransactions=[
        {"transactionIndex": 12, "internalTransactionIndex": 0, "hash": "58d2",
         "callerAddress": f"41{USDT}", "transferToAddress": RECEIVER, "note": "63616c6c",
         "callValueInfo": [{"callValue": "7", "tokenId": None}], "rejected": None}],
)  # fmt: skip


def test_transactions_of_tron_have_times_amounts_and_contents() -> None:
    output = tron.contract_calls(
        fields=["type", "parameter", "ret", "fee_limit", "fee", "expiration", "timestamp",
                "raw_data_hex", "contract_result", "res_message", "contract_address",
                "energy_usage_total", "signature"],
    )  # fmt: skip
    (row,) = rows_of(output, TRON_LINE)
    assert json.loads(row.pop("parameter")) == TRIGGER["parameter"]
    assert row == {
        "block_number": 100, "block_hash": "b100", "timestamp": moment("2026-06-28T18:01:09.123"),
        "transaction_hash": "3267", "transaction_index": 12, "type": "TriggerSmartContract",
        "ret": '[{"contractRet": "SUCCESS"}]', "fee_limit": 26_400_000, "fee": None,
        "expiration": moment("2026-06-28T18:02:03"),
        "transaction_timestamp": moment("2026-06-28T18:01:05.096"),
        "raw_data_hex": b"\x0a\x02", "contract_result": b"\x00\x01", "res_message": b"RE",
        "contract_address": f"41{USDT}", "energy_usage_total": 64285, "signature": ["2175"],
    }  # fmt: skip


def test_a_time_that_a_sender_made_up_is_null_and_stops_nothing() -> None:
    (row,) = rows_of(tron.transfers(fields=["transaction_timestamp", "fee"]), TRON_LINE)
    assert (row["transaction_timestamp"], row["fee"]) == (None, 269_000)


@pytest.mark.parametrize(
    ("output", "indexes"),
    [
        (tron.transactions(), [12, 2, 3]),
        (tron.transactions(type=["TransferAssetContract"]), [3]),
        (tron.transfers(), [2]),
        (tron.transfers(owner=[OWNER], to=[OWNER]), []),
        (tron.transfers(to=[RECEIVER]), [2]),
        (tron.asset_transfers(to=[RECEIVER]), [3]),
        (tron.asset_transfers(asset=["31303030323237"]), []),
        (tron.contract_calls(contract=["TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"]), [12]),
        (tron.contract_calls(contract=[RECEIVER]), []),
        (tron.contract_calls(sighash=["a9059cbb", "095ea7b3"]), [12]),
        (tron.contract_calls(sighash=["095ea7b3"]), []),
    ],
)
def test_a_table_of_tron_holds_its_own_transactions_alone(
    output: TableOutput, indexes: list[int]
) -> None:
    assert [row["transaction_index"] for row in rows_of(output, TRON_LINE)] == indexes


def test_logs_of_tron_have_the_address_that_transactions_have() -> None:
    first, second = rows_of(tron.logs(), TRON_LINE)
    assert first == {
        "block_number": 100, "block_hash": "b100", "timestamp": moment("2026-06-28T18:01:09.123"),
        "transaction_hash": "3267", "transaction_index": 12, "log_index": 0,
        "address": f"41{USDT}", "topics": ["dd" * 32, "00" * 32], "data": b"\x13\x12\xd0\x00",
    }  # fmt: skip
    assert (second["data"], second["topics"]) == (None, None)
    assert len(rows_of(tron.logs(address=[f"0x{USDT}"], topic1=["00" * 32]), TRON_LINE)) == 1
    assert rows_of(tron.logs(topic2=["00" * 32]), TRON_LINE) == []
    (row,) = rows_of(tron.internal_transactions(caller=[f"41{USDT}"]), TRON_LINE)
    assert (row["transaction_hash"], row["hash"], row["note"]) == ("3267", "58d2", b"call")
    assert json.loads(row["call_value_info"]) == [{"callValue": "7", "tokenId": None}]
    assert rows_of(tron.internal_transactions(transfer_to=[OWNER]), TRON_LINE) == []


# --- Hyperliquid ----------------------------------------------------------------------------------

FILL = {"fillIndex": 4, "user": "0x31CA", "coin": "BTC", "px": 97123.5, "sz": 0.00042,
        "side": "B", "time": 1735689600123, "startPosition": -1.5, "dir": "Open Long",
        "closedPnl": 0, "hash": "0xab", "oid": 2**53 + 1, "crossed": True, "fee": 1e-7,
        "tid": 2**62, "feeToken": "USDC", "cloid": None, "builder": None, "twapId": None,
        "builderFee": None}  # fmt: skip


def test_fills_are_doubles_or_the_decimals_that_were_written() -> None:
    sent = line(1735689600999, fills=[FILL])
    (row,) = rows_of(hyperliquid.fills(), sent)
    assert row == {
        "block_number": 100, "block_hash": "b100", "timestamp": moment("2025-01-01T00:00:00.999"),
        "transaction_hash": "0xab", "fill_index": 4, "user": "0x31ca", "coin": "BTC",
        "px": 97123.5, "sz": 0.00042, "side": "B", "time": moment("2025-01-01T00:00:00.123"),
        "dir": "Open Long", "start_position": -1.5, "closed_pnl": 0.0, "oid": 2**53 + 1,
        "tid": 2**62, "crossed": True, "fee": 1e-7, "fee_token": "USDC", "builder_fee": None,
        "builder": None, "cloid": None, "twap_id": None,
    }  # fmt: skip
    exact = hyperliquid.fills(decimals=["px", "sz", "fee", "builder_fee", "start_position"])
    (row,) = rows_of(exact, sent)
    assert row["px"] * row["sz"] == Decimal("40.791870")
    assert (row["fee"], row["builder_fee"]) == (Decimal("0.0000001"), None)
    assert row["start_position"] == Decimal("-1.5")
    with pytest.raises(ParameterError, match="'oid' cannot be asked for as a decimal"):
        hyperliquid.fills(decimals=["oid"])


@pytest.mark.parametrize("value", [1e-19, 1e21])
def test_a_double_that_no_decimal_holds_names_its_place(value: float) -> None:
    sent = line(1735689600999, fills=[FILL, {**FILL, "fillIndex": 9, "px": value}])
    with pytest.raises(BlockContentError, match=r"does not fit.*block=100.*fill_index=9"):
        rows_of(hyperliquid.fills(decimals=["px"]), sent)


# --- Substrate ------------------------------------------------------------------------------------

H20, H32 = "0x" + "1a" * 20, "0x" + "2b" * 32
EVENTS: list[dict[str, Any]] = [
    {"index": 0, "extrinsicIndex": None, "name": "Session.NewSession", "phase": "Initialization",
     "callAddress": None, "args": {"sessionIndex": 3}},
    {"index": 1, "extrinsicIndex": 2, "name": "EVM.Log", "phase": "ApplyExtrinsic",
     "callAddress": [], "args": {"log": {"address": H20, "topics": [H32], "data": "0x"}}},
    {"index": 2, "extrinsicIndex": 2, "name": "EVM.Log", "phase": "ApplyExtrinsic",
     "callAddress": [0, 1], "args": {"address": H20.upper().replace("X", "x"),
                                     "topics": [H32, H32], "data": "0x"}},
    {"index": 3, "extrinsicIndex": 2, "name": "Contracts.ContractEmitted",
     "phase": "ApplyExtrinsic", "callAddress": [], "args": {"contract": H32}},
    {"index": 4, "extrinsicIndex": 2, "name": "Gear.MessageQueued", "phase": "ApplyExtrinsic",
     "callAddress": [], "args": {"destination": H32}},
    {"index": 5, "extrinsicIndex": 2, "name": "Gear.UserMessageSent", "phase": "ApplyExtrinsic",
     "callAddress": [], "args": {"message": {"source": H32}}},
    {"index": 6, "extrinsicIndex": 2, "name": "Revive.ContractEmitted", "phase": "ApplyExtrinsic",
     "callAddress": [], "args": {"contract": H20, "topics": []}},
    {"index": 7, "extrinsicIndex": 2, "name": "EVM.Log", "phase": "ApplyExtrinsic",
     "callAddress": [], "args": "odd"},
]  # fmt: skip


def transact(at: list[int], transaction: object) -> dict[str, Any]:
    return {"extrinsicIndex": 2, "address": at, "name": "Ethereum.transact", "success": True,
            "args": {"transaction": transaction}, "origin": None, "error": None}  # fmt: skip


CALLS: list[dict[str, Any]] = [
    {"extrinsicIndex": 0, "address": [], "name": "Timestamp.set", "success": True,
     "args": {"now": "1"}, "origin": {"__kind": "None"}, "error": None},
    transact([], {"action": {"__kind": "Call", "value": H20}, "input": "0xa9059cbb00"}),
    transact([0], {"__kind": "EIP1559", "value": {"action": {"__kind": "Create"},
                                                  "input": "0x60"}}),
    transact([1], {"__kind": "EIP7702", "value": {"destination": {"__kind": "Call", "value": H20},
                                                  "data": "0xA9059CBB"}}),
]  # fmt: skip
EXTRINSICS = [
    {"index": 0, "version": 4, "success": True, "hash": "0x00", "fee": None, "tip": None,
     "signature": None, "error": None},
    {"index": 2, "version": 4, "success": False, "hash": "0x02", "fee": str(2**126), "tip": "0",
     "signature": {"address": H32}, "error": {"__kind": "Other"}},
]  # fmt: skip
SUBSTRATE_LINE = line(1700000000123, events=EVENTS, calls=CALLS, extrinsics=EXTRINSICS)


def test_events_and_calls_are_named_by_their_extrinsic() -> None:
    first, second, third, *_ = rows_of(substrate.events(), SUBSTRATE_LINE)
    assert first == {
        "block_number": 100, "block_hash": "b100", "timestamp": moment("2023-11-14T22:13:20.123"),
        "transaction_hash": None, "transaction_index": None, "event_index": 0,
        "name": "Session.NewSession", "phase": "Initialization", "call_address": None,
        "args": '{"sessionIndex": 3}',
    }  # fmt: skip
    assert (second["transaction_hash"], second["transaction_index"]) == ("0x02", 2)
    assert (second["call_address"], third["call_address"]) == ([], [0, 1])
    calls = rows_of(substrate.calls(fields=["origin", "success"]), SUBSTRATE_LINE)
    assert [row["call_address"] for row in calls] == [[], [], [0], [1]]
    assert calls[0]["origin"] == '{"__kind": "None"}'
    assert [row["transaction_hash"] for row in calls] == ["0x00", "0x02", "0x02", "0x02"]


def test_fees_of_extrinsics_are_exact() -> None:
    first, second = rows_of(substrate.extrinsics(), SUBSTRATE_LINE)
    assert (first["fee"], first["signature"]) == (None, None)
    assert second["fee"] == Decimal(85070591730234615865843651857942052864)
    assert (second["transaction_hash"], second["transaction_index"]) == ("0x02", 2)
    assert (second["success"], second["error"]) == (False, '{"__kind": "Other"}')


@pytest.mark.parametrize(
    ("output", "column", "expected"),
    [
        (substrate.events(name=["EVM.Log"]), "event_index", [1, 2, 7]),
        (substrate.evm_logs(), "event_index", [1, 2, 7]),
        (substrate.evm_logs(address=[H20]), "event_index", [1, 2]),
        (substrate.evm_logs(topic1=[H32]), "event_index", [2]),
        (substrate.evm_logs(topic0=["0x" + "00" * 32]), "event_index", []),
        (substrate.contracts_events(contract_address=[H32]), "event_index", [3]),
        (substrate.gear_messages_enqueued(program_id=[H32]), "event_index", [4]),
        (substrate.gear_user_messages_sent(program_id=[H32]), "event_index", [5]),
        (substrate.revive_contract_emitted(contract=[H20]), "event_index", [6]),
        (substrate.revive_contract_emitted(topic0=[H32]), "event_index", []),
        (substrate.calls(name=["Timestamp.set"]), "call_address", [[]]),
        (substrate.ethereum_transactions(), "call_address", [[], [0], [1]]),
        (substrate.ethereum_transactions(to=[H20]), "call_address", [[], [1]]),
        (substrate.ethereum_transactions(sighash=["0xa9059cbb"]), "call_address", [[], [1]]),
    ],
)
def test_a_table_of_substrate_holds_its_own_items_alone(
    output: TableOutput, column: str, expected: list[Any]
) -> None:
    assert [row[column] for row in rows_of(output, SUBSTRATE_LINE)] == expected


def test_the_first_block_of_a_substrate_network_has_no_time() -> None:
    sent = line(None, number=0, events=[{**EVENTS[0], "args": None}])
    (row,) = rows_of(substrate.events(), sent)
    assert (row["block_number"], row["timestamp"], row["args"]) == (0, None, None)
    assert rows_of(substrate.blocks(fields=[]), sent)[0]["timestamp"] is None


# --- malformed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [bitcoin.outputs(), tron.logs(), hyperliquid.fills()])
@pytest.mark.parametrize("timestamp", [None, -1, 10**18, 1.5, "1", True])
def test_a_block_with_an_impossible_time_is_named(output: TableOutput, timestamp: object) -> None:
    with pytest.raises(BlockContentError, match="block=100"):
        table_of(output, line(timestamp))


@pytest.mark.parametrize(
    ("output", "families", "place"),
    [
        (bitcoin.transactions(fields=["hex"]),
         {"transactions": [{**TRANSACTIONS[0], "hex": "0g"}]}, "transaction_index=0"),
        (bitcoin.transactions(fields=["hex"]),
         {"transactions": [{**TRANSACTIONS[0], "hex": "012"}]}, "odd number"),
        (bitcoin.transactions(), {"transactions": [{**TRANSACTIONS[0], "txid": None}]},
         "txid is absent"),
        (bitcoin.inputs(), {"inputs": [{"transactionIndex": 1, "inputIndex": 5, "type": "tx",
                                        "sequence": 1, "vout": 2**32}]}, "input_index=5"),
        (tron.logs(), {"logs": [{"transactionIndex": 1, "logIndex": 6, "address": "",
                                 "data": "zz"}]}, "log_index=6"),
        (tron.transactions(fields=["fee"]), {"transactions": [{**SEND, "fee": "1.5"}]},
         "fee is no integer.*transaction_index=2"),
        (tron.transactions(fields=["fee"]), {"transactions": [{**SEND, "fee": str(2**63)}]},
         "fee is too large.*transaction_index=2"),
        (tron.transactions(), {"transactions": [{**SEND, "parameter": None}]},
         "parameter is absent.*transaction_index=2"),
        (tron.internal_transactions(), {"internalTransactions": 7}, "Expected `array`"),
        (hyperliquid.fills(), {"fills": [{**FILL, "time": -1}]}, "time is no time.*fill_index=4"),
        (hyperliquid.fills(), {"fills": [{**FILL, "px": "1"}]}, r"\$\[0\]\.px"),
        (hyperliquid.fills(), {"fills": [{**FILL, "tid": 2**63}]}, r"\$\[0\]\.tid"),
        (substrate.extrinsics(), {"extrinsics": [{**EXTRINSICS[0], "fee": "9" * 39}]},
         "fee is no integer.*transaction_index=0"),
        (substrate.events(), {"events": [{**EVENTS[1], "callAddress": [0.5]}]}, "callAddress"),
        (substrate.calls(), {"calls": [{**CALLS[0], "name": None}]},
         "an? call is malformed: name is absent.*call_address="),
    ],
)  # fmt: skip
@pytest.mark.guarantee("DECODE-1")
def test_what_is_malformed_names_block_and_position(
    output: TableOutput, families: dict[str, Any], place: str
) -> None:
    with pytest.raises(BlockContentError, match=place) as caught:
        table_of(output, line(1700000000, **families))
    assert caught.value.facts["block"] == 100


def test_json_that_is_torn_inside_is_an_error_where_it_is_looked_into() -> None:
    torn = TRON_LINE.replace(b'"owner_address": "41d9', b'"owner_address": "\\ud83d41d9')
    with pytest.raises(BlockContentError, match="block=100"):
        rows_of(tron.transfers(owner=[OWNER]), torn)


def test_fields_may_be_named_as_their_columns_are() -> None:
    assert tron.transactions(fields=["transaction_timestamp"]).schema.names[-1] == (
        "transaction_timestamp"
    )
    with pytest.raises(QueryError, match="fill has no field 'price'"):
        hyperliquid.fills(fields=["price"])
