"""Raw tables: every field of the catalogues, typed, filtered again, joined to its transaction."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import BlockRange
from headwater.decode import (
    TableOutput,
    bitcoin,
    decode_outputs,
    evm,
    hyperliquid,
    solana,
    substrate,
    tron,
)
from headwater.decode.columns.field_columns import column_name
from headwater.errors import BlockContentError, ParameterError, QueryError
from headwater.query import (
    BITCOIN,
    EVM,
    HYPERLIQUID,
    SOLANA,
    SUBSTRATE,
    TRON,
    Network,
    WireType,
    base58,
)
from headwater.spark.frames import spark_schema
from headwater.testing import ChainSim, Selection
from headwater.testing import Network as Simulated
from tests.unit.decode.samples import ALICE, BOB, EVERYTHING, TOKEN, line, transfer

TABLES: dict[tuple[Network, str], Callable[..., TableOutput]] = {
    (EVM, "block"): evm.blocks,
    (EVM, "transaction"): evm.transactions,
    (EVM, "log"): evm.logs,
    (EVM, "trace"): evm.traces,
    (EVM, "stateDiff"): evm.state_diffs,
    (SOLANA, "block"): solana.blocks,
    (SOLANA, "transaction"): solana.transactions,
    (SOLANA, "instruction"): solana.instructions_raw,
    (SOLANA, "log"): solana.logs,
    (SOLANA, "balance"): solana.balances,
    (SOLANA, "tokenBalance"): solana.token_balances,
    (SOLANA, "reward"): solana.rewards,
    (BITCOIN, "block"): bitcoin.blocks,
    (BITCOIN, "transaction"): bitcoin.transactions,
    (BITCOIN, "input"): bitcoin.inputs,
    (BITCOIN, "output"): bitcoin.outputs,
    (TRON, "block"): tron.blocks,
    (TRON, "transaction"): tron.transactions,
    (TRON, "log"): tron.logs,
    (TRON, "internalTransaction"): tron.internal_transactions,
    (HYPERLIQUID, "block"): hyperliquid.blocks,
    (HYPERLIQUID, "fill"): hyperliquid.fills,
    (SUBSTRATE, "block"): substrate.blocks,
    (SUBSTRATE, "extrinsic"): substrate.extrinsics,
    (SUBSTRATE, "call"): substrate.calls,
    (SUBSTRATE, "event"): substrate.events,
}


NUMERIC = (
    WireType.QUANTITY,
    WireType.DECIMAL,
    WireType.WIDE_DECIMAL,
    WireType.NUMBER_OR_DECIMAL,
)
TIMES = {WireType.SECONDS: 1, WireType.MILLISECONDS: 1000}


def rows_of(output: TableOutput, lines: list[bytes]) -> list[dict[str, Any]]:
    table = decode_outputs({"t": output}, lines, {"t": EVERYTHING}).tables["t"]
    table.validate(full=True)
    assert table.schema == output.schema
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def simulated(output: TableOutput, seed: int = 5, blocks: int = 40) -> list[bytes]:
    network = Simulated(output.query.network.type)
    chain = ChainSim(seed=seed, network=network)
    selection = Selection(network, json.loads(output.query.body(0)))
    lines = [selection.line(chain, block, boundary=True) for block in chain.extend(blocks)]
    return [one for one in lines if one is not None]


def items(lines: list[bytes], collection: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for block in map(json.loads, lines):
        if collection == "header":
            yield block["header"], block["header"]
        for item in block.get(collection, []) if collection != "header" else []:
            yield block["header"], item


def moment(value: int | None, kind: WireType) -> datetime | None:
    """A time as the column holds it; one beyond the calendar is null."""
    if value is None or value // TIMES[kind] > 253_402_300_799:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value * 1000 // TIMES[kind])


def plain(value: Any) -> Any:
    """A decoded value in the form of the wire, as far as it tells."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, Decimal):
        return int(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return [plain(one) for one in value.values()]
    return value


def wire(value: Any, is_number: bool) -> Any:
    if isinstance(value, list):
        return [wire(one, is_number) for one in value]
    if isinstance(value, dict):
        numbers = ("index", "validatorIndex", "amount", "nonce")
        return [str(int(one, 16)) if key == "chainId" else wire(one, key in numbers)
                for key, one in value.items()]  # fmt: skip
    if is_number and isinstance(value, str):
        return int(value, 16) if value.startswith("0x") else int(value)
    return value


def bare(value: Any, prefix: str = "") -> Any:
    if isinstance(value, list):
        return [bare(one, prefix) for one in value]
    return value.hex() if isinstance(value, bytes) else value and prefix + value


NESTED = ("withdrawals", "accessList", "authorizationList")


def lookup(item: dict[str, Any], field: Any) -> Any:
    if field.variant is not None and item.get("type") != field.variant:
        return None
    found: Any = item
    for key in field.path:
        found = None if found is None else found.get(key)
    return found


@pytest.mark.parametrize(
    ("network", "entity"), list(TABLES), ids=[f"{one.type}-{name}" for one, name in TABLES]
)
@pytest.mark.guarantee("DECODE-3")
def test_every_field_is_a_typed_column_with_the_value_of_the_wire(
    network: Network, entity: str
) -> None:
    known = network.entity(entity)
    output = TABLES[network, entity](fields=[field.name for field in known.fields])
    lines = simulated(output)
    rows = rows_of(output, lines)
    expected = list(items(lines, known.collection))
    assert len(rows) == len(expected) > 0
    for row, (header, item) in zip(rows, expected, strict=True):
        assert row["block_number"] == header["number"]
        assert row["block_hash"] == header["hash"]
        unit = next(one.type for one in network.entities[0].fields if one.wire == "timestamp")
        assert row["timestamp"] == moment(header["timestamp"], unit)
        for field in output.columns:
            value = row[column_name(network, entity, field.name)]
            sent = lookup(item, field)
            if field.type in TIMES:
                assert value == moment(sent, field.type)
                continue
            if field.type is WireType.BITCOINS:
                assert value == (None if sent is None else int(Decimal(str(sent)) * 10**8))
                continue
            if field.type is WireType.BARE_HEX:
                assert bare(value) == (None if sent is None else bare(sent, field.prefix))
                continue
            if field.type is WireType.BASE58 and isinstance(value, bytes):
                assert base58.encode(value) == sent
                continue
            if field.type is WireType.JSON:
                assert (None if value is None else json.loads(value)) == sent
                continue
            if field.type is WireType.NUMBER_OR_STRING:
                assert value == str(sent)
                continue
            is_number = field.type in NUMERIC or field.wire in NESTED
            text = isinstance(value, str) and is_number
            assert (int(value) if text else plain(value)) == wire(sent, is_number), field.wire


def test_names_of_transactions_are_looked_up() -> None:
    for output in (evm.traces(), evm.state_diffs()):
        lines = simulated(output)
        hashes = {
            (header["number"], item["transactionIndex"]): item["hash"]
            for header, item in items(lines, "transactions")
        }
        rows = rows_of(output, lines)
        assert rows
        for row in rows:
            key = (row["block_number"], row["transaction_index"])
            assert row["transaction_hash"] == hashes.get(key)
            assert (row["transaction_hash"] is None) == (row.get("type") == "reward")


def test_signatures_are_looked_up_and_rewards_may_be_negative() -> None:
    joined = ("transaction", "instruction", "log", "balance", "tokenBalance")
    for output in (TABLES[SOLANA, name]() for name in joined):
        rows = rows_of(output, simulated(output))
        assert rows
        assert all(row["signature"] for row in rows)
    lamports = [row["lamports"] for row in rows_of(solana.rewards(), simulated(solana.rewards()))]
    assert min(lamports) < 0 < max(lamports)


def test_fee_payers_are_checked_again() -> None:
    rows = rows_of(solana.transactions(), simulated(solana.transactions()))
    payer = rows[0]["account_keys"][0]
    lines = simulated(solana.transactions())
    kept = rows_of(solana.transactions(fee_payer=[payer]), lines)
    assert kept == [row for row in rows if row["account_keys"][0] == payer]


@pytest.mark.parametrize("entity", ["transactions", "instructions"])
def test_what_a_bloom_filter_lets_through_is_looked_at(entity: str) -> None:
    """The simulated portal's is small: it answers with many others, as a real one sometimes."""
    fields = ["account_keys", "loaded_addresses"]
    make = partial(solana.transactions, fields=fields)
    if entity == "instructions":
        make = partial(solana.instructions_raw, fields=["accounts"])
    rows = rows_of(make(), simulated(make()))
    accounts = sorted({one for row in rows for one in mentioned(row)})
    for account in accounts[:: max(1, len(accounts) // 5)]:
        output = make(mentions_account=[account])
        lines = simulated(output)
        kept = rows_of(output, lines)
        assert kept == [row for row in rows if account in mentioned(row)] != []
        assert rows_of(make(), lines) != kept, "others came, too"


def mentioned(row: dict[str, Any]) -> list[str]:
    if "accounts" in row:
        return list(row["accounts"])
    loaded = row["loaded_addresses"] or {}
    return [*row["account_keys"], *loaded.get("readonly", ()), *loaded.get("writable", ())]


def test_data_that_is_no_base58_names_its_place() -> None:
    item = {"transactionIndex": 3, "instructionAddress": [1], "data": "0OIl"}
    given = [line(9, instructions=[{**item, "programId": "x", "accounts": []}])]
    for output in (
        solana.instructions_raw(d1=["0x03"]),
        solana.instructions_raw(fields=["data"]),
    ):
        with pytest.raises(BlockContentError, match="base58") as caught:
            rows_of(output, given)
        facts = caught.value.facts
        assert (facts["block"], facts["instruction_address"]) == (9, [1])


@pytest.mark.parametrize(
    ("fee", "reason"),
    [(str(2**63), "too large"), (str(-(2**63) - 1), "too large"), ("1.5", "no integer"),
     ("9" * 39, "no integer"), (None, "absent")],
)  # fmt: skip
def test_lamports_that_are_none_name_their_place(fee: str | None, reason: str) -> None:
    item = {"transactionIndex": 4, "signatures": ["x"], "fee": fee}
    given = [line(9, transactions=[{**item, "fee": "1", "transactionIndex": 3}, item])]
    with pytest.raises(BlockContentError, match=reason) as caught:
        rows_of(solana.transactions(fields=["fee"]), given)
    assert (caught.value.facts["block"], caught.value.facts["transaction_index"]) == (9, 4)


def test_very_long_data_is_read_too() -> None:
    data = bytes(3) + bytes(range(1, 201)) * 20
    item = {"transactionIndex": 0, "instructionAddress": [0], "programId": "x"}
    given = [line(9, instructions=[{**item, "data": base58.encode(data)}])]
    assert rows_of(solana.instructions_raw(fields=["data"]), given)[0]["data"] == data


def tx(index: int, **fields: Any) -> dict[str, Any]:
    return {"transactionIndex": index, "hash": f"0x{index:064x}", **fields}


def test_a_table_keeps_to_its_filter() -> None:
    given = [
        line(
            1,
            transactions=[
                tx(0, **{"from": ALICE, "to": BOB, "nonce": 3, "sighash": "0x11223344", "type": 2}),
                tx(1, **{"from": BOB, "to": ALICE, "nonce": "7", "sighash": None, "type": 0}),
                tx(2, **{"from": ALICE, "to": None, "nonce": 2**63, "type": 2}),
            ],
        )
    ]

    def found(**filters: Any) -> list[int]:
        rows = rows_of(evm.transactions(fields=[], **filters), given)
        return [row["transaction_index"] for row in rows]

    assert found() == [0, 1, 2]
    assert found(to=[BOB]) == [0]
    assert found(from_=[ALICE]) == [0, 2]
    assert found(from_=[ALICE], to=[ALICE]) == []
    assert found(sighash=["0x11223344"]) == [0]
    assert found(type=[2]) == [0, 2]
    assert found(first_nonce=4) == [1, 2]
    assert found(last_nonce=7) == [0, 1]


def test_a_table_keeps_to_its_range_and_does_not_need_its_fields_elsewhere() -> None:
    full = tx(0, **{"from": ALICE, "to": BOB})
    given = [line(1, transactions=[full]), line(2, transactions=[tx(1)]), line(3)]
    outputs = {"t": evm.transactions(fields=["from"]), "h": evm.transactions(fields=[])}
    ranges = {"t": [BlockRange(0, 1)], "h": [BlockRange(2)]}
    decoded = decode_outputs(outputs, given, ranges).tables
    assert decoded["t"]["block_number"].to_pylist() == [1]
    assert decoded["h"]["block_number"].to_pylist() == [2]


def test_logs_are_read_once_for_events_and_tables_alike() -> None:
    given = [line(4, [transfer(5), transfer(6, sender=BOB, index=1)])]
    outputs: dict[str, Any] = {
        "transfers": evm.events("erc20.Transfer", params={"from": ALICE}),
        "logs": evm.logs(topic0=[evm.events("erc20.Transfer").event.topic0], address=[TOKEN]),
        "none": evm.logs(topic3=[f"0x{1:064x}"]),
    }
    tables = decode_outputs(outputs, given, dict.fromkeys(outputs, EVERYTHING)).tables
    assert tables["transfers"]["value"].to_pylist() == ["5"]
    assert tables["logs"]["data"].to_pylist() == [(5).to_bytes(32), (6).to_bytes(32)]
    assert [len(one) for one in tables["logs"]["topics"].to_pylist()] == [3, 3]
    assert tables["none"].num_rows == 0


@pytest.mark.parametrize("index", [2**31, 2**32 - 1])
def test_items_of_a_transaction_above_2_31_find_its_hash(index: int) -> None:
    output = evm.traces(fields=["type"])
    trace = {"transactionIndex": index, "traceAddress": [], "type": "call"}
    given = [line(1, transactions=[tx(index, hash="0xab")], traces=[trace])]
    (row,) = rows_of(output, given)
    assert (row["transaction_index"], row["transaction_hash"]) == (index, "0xab")
    with pytest.raises(BlockContentError, match="transaction_index is too large"):
        rows_of(output, [line(1, transactions=[], traces=[{**trace, "transactionIndex": 2**32}])])


def test_blocks_are_all_asked_for() -> None:
    output = evm.blocks(fields=["gas_used", "number"])
    assert json.loads(output.query.body(0))["includeAllBlocks"] is True
    (row,) = rows_of(output, [b'{"header":{"number":3,"hash":"0x3","parentHash":"0x2",'
                              b'"timestamp":9,"gasUsed":"0x5208"}}'])  # fmt: skip
    assert list(row) == ["block_number", "block_hash", "timestamp", "gas_used"]
    assert row["gas_used"] == 21_000


def test_a_wide_quantity_is_text_unless_a_decimal_is_asked_for() -> None:
    given = [line(1, transactions=[tx(0, value=hex(10**18))])]
    (text,) = rows_of(evm.transactions(fields=["value"]), given)
    (number,) = rows_of(evm.transactions(fields=["value"], decimals=["value"]), given)
    assert (text["value"], number["value"]) == (str(10**18), Decimal(10**18))
    large = [line(1, transactions=[tx(0, value=hex(2**255))])]
    assert rows_of(evm.transactions(fields=["value"]), large)[0]["value"] == str(2**255)
    with pytest.raises(BlockContentError, match="38 digits"):
        rows_of(evm.transactions(fields=["value"], decimals=["value"]), large)
    with pytest.raises(ParameterError, match="value"):
        evm.transactions(fields=["value", "gas"], decimals=["gas"])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"gasUsed": "0x"}, "no quantity"),
        ({"gasUsed": "12"}, "no quantity"),
        ({"gasUsed": "0x12g4"}, "no quantity"),
        ({"gasUsed": "0x1 "}, "no quantity"),
        ({"gasUsed": "0x" + "f" * 65}, "no quantity"),
        ({"gasUsed": hex(2**63)}, "range"),
        ({"gasPrice": hex(10**38)}, "38 digits"),
        ({"input": "0x123"}, "odd"),
        ({"input": "0x12 4"}, "not hex"),
        ({"input": "1234"}, "0x"),
        ({"nonce": "seven"}, "no integer"),
        ({"nonce": "0x7"}, "no integer"),
        ({"status": 2**40}, "too large"),
        ({"from": None}, "absent"),
        ({"from": 5}, "str"),
        ({"status": 2**70}, "int"),
        ({"accessList": [{"address": 1}]}, "str"),
    ],
)
def test_malformed_values_name_their_place(broken: dict[str, Any], reason: str) -> None:
    good = {"from": ALICE, "gasUsed": "0x1", "gasPrice": "0x1", "input": "0x", "nonce": 1,
            "status": 1, "accessList": None}  # fmt: skip
    output = evm.transactions(
        fields=["from", "gas_used", "gas_price", "input", "nonce", "status", "access_list"]
    )
    given = [
        line(11, transactions=[tx(0, **good)]),
        line(12, transactions=[tx(7, **good | broken)]),
    ]
    with pytest.raises(BlockContentError, match=reason) as caught:
        rows_of(output, given)
    assert caught.value.facts["block"] == 12


@pytest.mark.parametrize(
    "make",
    [
        lambda: evm.transactions(fields=["nothing"]),
        lambda: evm.transactions(fields="hash"),  # type: ignore[arg-type]
        lambda: evm.transactions(logs=True),
        lambda: evm.transactions(to=["0x12"]),
        lambda: evm.logs(sender=[ALICE]),  # type: ignore[call-arg]
    ],
)
def test_what_a_table_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(QueryError):
        make()


def test_capitals_in_hex_do_not_hide_a_row() -> None:
    given = [line(1, transactions=[tx(0, **{"from": ALICE.upper().replace("X", "x")})])]
    (row,) = rows_of(evm.transactions(fields=["from"], from_=[ALICE]), given)
    assert row["from"] == ALICE


@pytest.mark.parametrize(
    ("network", "entity"), list(TABLES), ids=[f"{one.type}-{name}" for one, name in TABLES]
)
def test_spark_can_hold_every_column(network: Network, entity: str) -> None:
    fields = [field.name for field in network.entity(entity).fields]
    schema = TABLES[network, entity](fields=fields).schema
    assert spark_schema(schema).fieldNames() == schema.names


def test_tables_pickle() -> None:
    output = evm.traces(type=["create"], range=(1, 5))
    copy = pickle.loads(pickle.dumps(output))
    assert copy == output
    assert copy.schema == output.schema
    assert pa.types.is_list(copy.schema.field("trace_address").type)


@pytest.mark.parametrize("absent", [True, False], ids=["left out", "null"])
def test_what_a_chain_does_not_have_is_null_and_stops_no_stream(absent: bool) -> None:
    """Headers without proof of work, and transactions that batch several."""
    lacking = {
        "block": ["nonce", "mixHash", "difficulty"],
        "transaction": [
            "input", "value", "gasPrice", "v", "r", "s", "effectiveGasPrice", "type",
        ],
        "trace": ["createValue"],
    }  # fmt: skip
    fields = {one.wire: one.name for name in lacking for one in EVM.entity(name).fields}
    outputs = {
        "block": evm.blocks(fields=[fields[one] for one in lacking["block"]]),
        "transaction": evm.transactions(fields=[fields[one] for one in lacking["transaction"]]),
        "trace": evm.traces(fields=[fields[one] for one in lacking["trace"]]),
    }

    def without(name: str) -> dict[str, Any]:
        return {} if absent else dict.fromkeys(lacking[name])

    found = json.loads(line(7).decode())
    found["header"] |= without("block")
    found["transactions"] = [{"transactionIndex": 0, "hash": "0x01", **without("transaction")}]
    action = {} if absent else {"value": None}
    found["traces"] = [
        {"transactionIndex": 0, "traceAddress": [0], "type": "create", "action": action}
    ]
    tables = decode_outputs(
        outputs, [json.dumps(found).encode()], dict.fromkeys(outputs, EVERYTHING)
    ).tables
    for name, wires in lacking.items():
        (row,) = tables[name].to_pylist()
        assert {row[fields[one]] for one in wires} == {None}
