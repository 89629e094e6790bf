"""What a portal must not send is an error that names its place: no row vanishes, none is wrong."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.decode import TableOutput, bitcoin, evm, solana
from headwater.decode.evm.factory import with_children
from headwater.decode.lines.block_lines import Header
from headwater.decode.lines.entities import items_batch
from headwater.errors import (
    BlockContentError,
    UndecodableCallError,
    UndecodableInstructionError,
)
from headwater.query import EVM, SOLANA, SUBSTRATE, Network
from headwater.query.values import snake_name
from tests.unit.decode.samples import ALICE, BOB, TOKEN, line, transfer
from tests.unit.decode.solana_samples import (
    KEYS,
    PROGRAM,
    decode,
    instruction,
    rows_of,
    signature,
    slot,
)

pytestmark = pytest.mark.guarantee("DECODE-1")

TRANSFER = b"\x03" + (5).to_bytes(8, "little")
HASH = f"0x{7:064x}"


def without(item: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in keys}


# --- a row that lacks what its filter asks for ----------------------------------------------------


def test_an_instruction_that_does_not_say_whether_it_was_committed_is_an_error() -> None:
    items = [
        instruction(TRANSFER, 0, programId=solana.TOKEN),
        without(instruction(TRANSFER, 1, programId=solana.TOKEN), "isCommitted"),
        without(instruction(TRANSFER, 2, programId=PROGRAM), "isCommitted"),
        without(instruction(b"\x07", 3, programId=solana.TOKEN), "isCommitted"),
    ]
    lines = [slot(9, instructions=items)]
    with pytest.raises(UndecodableInstructionError, match="is_committed is absent") as caught:
        decode(solana.instructions("spl_token.transfer"), lines)
    assert (caught.value.facts["slot"], caught.value.facts["transaction_index"]) == (9, 1)
    skipping = decode(solana.instructions("spl_token.transfer", on_error="skip"), lines)
    assert skipping.tables["t"]["transaction_index"].to_pylist() == [0]
    assert skipping.skipped["t"] == 1  # items of others are none of its own


@pytest.mark.parametrize("missing", ["programId", "accounts"])
def test_an_instruction_without_what_it_is_chosen_by_is_an_error(missing: str) -> None:
    items = [without(instruction(TRANSFER, 1, programId=solana.TOKEN), missing)]
    output = solana.instructions("spl_token.transfer", accounts={"source": KEYS[0]})
    with pytest.raises(UndecodableInstructionError, match="is absent"):
        decode(output, [slot(9, instructions=items)])


def test_an_event_whose_transaction_is_absent_is_an_error() -> None:
    code = sha256(b"event:Moved").digest()[:8]
    layouts = {"Moved": {"discriminator": code, "args": {"amount": "u64"}}}
    message = b64encode(code + (5).to_bytes(8, "little")).decode()
    logs = [
        {"transactionIndex": at, "logIndex": at, "instructionAddress": [0], "programId": PROGRAM,
         "kind": "data", "message": message} for at in (0, 1)
    ]  # fmt: skip
    known = [{"transactionIndex": 0, "signatures": [signature(0)], "err": None}]
    lines = [slot(9, logs=logs, transactions=known)]
    output = solana.events("Moved", program=PROGRAM, layouts=layouts)
    with pytest.raises(UndecodableInstructionError, match="transaction is absent") as caught:
        decode(output, lines)
    assert (caught.value.facts["slot"], caught.value.facts["log_index"]) == (9, 1)
    skipping = decode(
        solana.events("Moved", program=PROGRAM, layouts=layouts, on_error="skip"), lines
    )
    assert (skipping.tables["t"].num_rows, skipping.skipped["t"]) == (1, 1)


def test_an_event_without_a_message_is_an_error() -> None:
    layouts = {"Moved": {"discriminator": b"12345678", "args": {"amount": "u64"}}}
    item = {"transactionIndex": 1, "logIndex": 4, "instructionAddress": [0], "programId": PROGRAM,
            "kind": "data"}  # fmt: skip
    output = solana.events("Moved", program=PROGRAM, layouts=layouts)
    with pytest.raises(UndecodableInstructionError, match="message is absent"):
        decode(output, [slot(9, logs=[item])])


TRACE = {
    "transactionIndex": 3,
    "traceAddress": [0],
    "type": "call",
    "error": None,
    "action": {"callType": "call", "from": ALICE, "input": "0xa9059cbb"},
}


@pytest.mark.parametrize(
    ("output", "items", "reason"),
    [
        (
            solana.instructions_raw(is_committed=True),
            {"instructions": [without(instruction(TRANSFER), "isCommitted")]},
            "is_committed is absent",
        ),
        (
            solana.transactions(fee_payer=[KEYS[0]]),
            {"transactions": [{"transactionIndex": 0, "signatures": [signature(0)]}]},
            "account_keys is absent",
        ),
        (
            solana.balances(account=[KEYS[0]], fields=["pre"]),
            {"balances": [{"transactionIndex": 0, "pre": "1"}]},
            "account is absent",
        ),
    ],
)
def test_a_row_of_solana_that_lacks_the_field_of_a_filter_is_an_error(
    output: TableOutput, items: Any, reason: str
) -> None:
    with pytest.raises(BlockContentError, match=reason) as caught:
        decode(output, [slot(9, **items)])
    assert caught.value.facts["block"] == 9


@pytest.mark.parametrize(
    ("output", "items", "reason"),
    [
        (
            evm.transactions(from_=[ALICE], fields=["to"]),
            {"transactions": [{"transactionIndex": 3, "hash": HASH}]},
            "from is absent",
        ),
        (
            evm.traces(call_to=[TOKEN], fields=["call_from"]),
            {"traces": [TRACE]},
            "call_to is absent",
        ),
        (
            evm.traces(call_to=[TOKEN], fields=["call_from"]),
            {"traces": [without(TRACE, "type")]},
            "is absent",
        ),
        (
            evm.state_diffs(kind=["*"], fields=["prev"]),
            {"stateDiffs": [{"transactionIndex": 3, "address": ALICE, "key": "code"}]},
            "kind is absent",
        ),
    ],
)
def test_a_row_of_evm_that_lacks_the_field_of_a_filter_is_an_error(
    output: TableOutput, items: Any, reason: str
) -> None:
    with pytest.raises(BlockContentError, match=reason) as caught:
        decode(output, [line(9, **{"transactions": [], **items})])
    assert caught.value.facts["block"] == 9


@pytest.mark.parametrize("of_children", [False, True])
def test_a_call_that_does_not_say_what_it_calls_is_an_error(of_children: bool) -> None:
    pools = evm.factory(TOKEN, "PoolCreated(address pool, int8 n)", child="pool", columns="n")
    action = {"callType": "call", "from": ALICE, "to": BOB, "input": f"0xa9059cbb{'0' * 128}",
              "sighash": "0xa9059cbb"}  # fmt: skip
    traces = [{**TRACE, "action": action},
              {**TRACE, "action": without(action, "to"), "traceAddress": [1]}]  # fmt: skip
    lines = [line(9, traces=traces, transactions=[{"transactionIndex": 3, "hash": HASH}])]
    numbers = pa.array([7], pools.fields[0].type)
    found = pa.table({"block_number": [1], "transaction_index": [0], "log_index": [0],
                      "address": [BOB], "factory_n": numbers})  # fmt: skip
    outputs = [evm.calls("transfer(address,uint256)", source="traces", on_error=on_error,
                         contracts=pools if of_children else None)
               for on_error in ("raise", "skip")]  # fmt: skip
    if of_children:
        outputs = [with_children(one, pools.none().add(found))
                   for one in outputs if one.scope is not None]  # fmt: skip
    with pytest.raises(UndecodableCallError, match="call_to is absent"):
        decode(outputs[0], lines)
    skipping = decode(outputs[1], lines)
    assert (skipping.tables["t"].num_rows, skipping.skipped["t"]) == (1, 1)


def test_other_kinds_of_traces_need_not_have_the_fields_of_calls() -> None:
    create = {**TRACE, "type": "create", "action": {"from": ALICE}}
    assert rows_of(evm.traces(call_to=[TOKEN], fields=[]), [line(9, traces=[create])]) == []


# --- text that is no hex or base58, numbers below zero --------------------------------------------


def tx(**fields: Any) -> dict[str, Any]:
    return {"transactionIndex": 2, "hash": HASH, "from": ALICE, "to": BOB, "nonce": 1,
            "chainId": 1, **fields}  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"hash": "0xzz"}, "hash is not hex"),
        ({"hash": "12ab"}, "hash is not hex"),
        ({"hash": ""}, "hash is not hex"),
        ({"hash": "0x12 ab"}, "hash is not hex"),
        ({"from": "not an address"}, "from is not hex"),
        ({"to": "0x" + "é" * 20}, "to is not hex"),
        ({"accessList": [{"address": BOB, "storageKeys": ["0x0", "0xg"]}]}, "storage_keys is not"),
        ({"blobVersionedHashes": [HASH, "?"]}, "blob_versioned_hashes is not hex"),
        ({"transactionIndex": -1}, "transaction_index is negative"),
        ({"chainId": -5}, "chain_id is negative"),
        ({"nonce": -1}, "nonce is negative"),
        ({"nonce": "-1"}, "nonce is negative"),
    ],
)
def test_a_raw_table_holds_hex_and_numbers_only(broken: dict[str, Any], reason: str) -> None:
    fields = ["from", "to", "nonce", "chain_id", "access_list", "blob_versioned_hashes"]
    given = [line(8, transactions=[tx()]), line(9, transactions=[tx(**broken)])]
    with pytest.raises(BlockContentError, match=reason) as caught:
        rows_of(evm.transactions(fields=fields), given)
    assert caught.value.facts["block"] == 9


@pytest.mark.parametrize("field", ["size", "l1BlockNumber"])
def test_a_block_has_no_negative_size(field: str) -> None:
    header = {"number": 9, "hash": HASH, "timestamp": 1_700_000_000, "size": 1, "l1BlockNumber": 2}
    given = [line(9, header={**header, field: -1})]
    with pytest.raises(BlockContentError, match="is negative"):
        rows_of(evm.blocks(fields=["size", "l1_block_number"]), given)


@pytest.mark.parametrize("space", ["", " "])  # regular lines are scanned, others read as objects
@pytest.mark.parametrize("text", ["0xzz", "zz", "", "0x12G4", "0x", "0x" + "1" * 63])
@pytest.mark.parametrize("output", [evm.logs(), evm.events("erc20.Transfer")])
def test_logs_name_their_transaction_by_its_hash(output: Any, text: str, space: str) -> None:
    logs = [transfer(1), {**transfer(2, index=1), "transactionHash": text}]
    given = [line(9, logs).replace(b'"logs":', f'"logs":{space}'.encode()).replace(
        b'"logIndex":', f'"logIndex":{space}'.encode())]  # fmt: skip
    with pytest.raises(BlockContentError, match="transactionHash") as caught:
        rows_of(output, given)
    assert (caught.value.facts["block"], caught.value.facts["log_index"]) == (9, 1)


def test_capitals_in_the_hash_of_a_transaction_become_small() -> None:
    item = {**transfer(1), "transactionHash": f"0x{'AB' * 32}"}
    (row,) = rows_of(evm.events("erc20.Transfer"), [line(9, [item])])
    assert row["transaction_hash"] == f"0x{'ab' * 32}"


def test_the_name_of_a_transaction_is_checked_where_it_is_looked_up() -> None:
    trace = {**TRACE, "action": {**TRACE["action"], "to": TOKEN}}  # type: ignore[dict-item]
    known = [{"transactionIndex": 3, "hash": "nonsense"}]
    with pytest.raises(BlockContentError, match="transaction_hash is not hex"):
        rows_of(evm.traces(fields=["call_to"]), [line(9, traces=[trace], transactions=known)])
    output = evm.calls("transfer(address,uint256)", source="traces")
    action = {"callType": "call", "from": ALICE, "to": TOKEN, "input": f"0xa9059cbb{'0' * 128}",
              "sighash": "0xa9059cbb"}  # fmt: skip
    full = {**trace, "action": action}
    with pytest.raises(UndecodableCallError, match="transaction_hash is not hex"):
        rows_of(output, [line(9, traces=[full], transactions=known)])


@pytest.mark.parametrize("broken", [{"from": "0xzz"}, {"to": "12"}])
def test_calls_are_between_addresses(broken: dict[str, Any]) -> None:
    call = tx(input=f"0xa9059cbb{'0' * 128}", sighash="0xa9059cbb", status=1, **broken)
    with pytest.raises(UndecodableCallError, match="is not hex"):
        rows_of(evm.calls("transfer(address,uint256)"), [line(9, transactions=[call])])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"programId": "0OIl"}, "program_id is not base58"),
        ({"accounts": [KEYS[0], "+"]}, "accounts is not base58"),
        ({"instructionAddress": [0, -1]}, "instruction_address is negative"),
    ],
)
def test_raw_instructions_hold_base58_only(broken: dict[str, Any], reason: str) -> None:
    items = [instruction(TRANSFER, 1), instruction(TRANSFER, 2, **broken)]
    with pytest.raises(BlockContentError, match=reason) as caught:
        rows_of(solana.instructions_raw(), [slot(9, instructions=items)])
    assert caught.value.facts["transaction_index"] == 2


def test_versions_of_bitcoin_may_be_negative_and_nothing_else_is() -> None:
    item = {"transactionIndex": 0, "txid": "ab" * 32, "hash": "ab" * 32, "hex": "00", "size": 1,
            "vsize": 1, "weight": 4, "version": -2, "locktime": 0}  # fmt: skip
    (row,) = rows_of(bitcoin.transactions(), [line(9, transactions=[item])])
    assert row["version"] == -2
    with pytest.raises(BlockContentError, match="locktime is negative"):
        rows_of(bitcoin.transactions(), [line(9, transactions=[{**item, "locktime": -1}])])


# --- two items of one place -----------------------------------------------------------------------


@pytest.mark.parametrize("order", [[0, 1, 1], [1, 0, 1]])
@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("output", [evm.logs(), evm.events("erc20.Transfer")])
def test_two_logs_of_one_index_are_an_error(output: Any, space: str, order: list[int]) -> None:
    logs = [transfer(value, index=index) for value, index in enumerate(order)]
    given = [line(8, [transfer(5, index=1)]), line(9, logs).replace(
        b'"logIndex":', f'"logIndex":{space}'.encode())]  # fmt: skip
    with pytest.raises(BlockContentError, match="two logs") as caught:
        rows_of(output, given)
    assert (caught.value.facts["block"], caught.value.facts["log_index"]) == (9, 1)


def test_logs_in_any_order_are_fine_as_long_as_they_differ() -> None:
    logs = [transfer(value, index=index) for value, index in enumerate([2, 0, 1])]
    rows = rows_of(evm.events("erc20.Transfer"), [line(8, logs[:1]), line(9, logs)])
    assert [row["log_index"] for row in rows] == [2, 2, 0, 1]


@pytest.mark.parametrize(
    ("output", "given"),
    [
        (evm.transactions(), line(9, transactions=[tx(), tx()])),
        (
            solana.logs(fields=[]),
            slot(9, logs=[{"transactionIndex": 1, "logIndex": 4, "instructionAddress": [0],
                           "programId": PROGRAM}] * 2),
        ),
    ],
)  # fmt: skip
def test_two_items_of_one_index_are_an_error(output: TableOutput, given: bytes) -> None:
    with pytest.raises(BlockContentError, match="two ") as caught:
        rows_of(output, [given])
    assert caught.value.facts["block"] == 9


KEYED = [
    (EVM, "trace", {"transactionIndex": 1, "traceAddress": [0, 2]}),
    (EVM, "stateDiff", {"transactionIndex": 1, "address": TOKEN, "key": "balance"}),
    (SOLANA, "instruction", {"transactionIndex": 1, "instructionAddress": [3, 0]}),
    (SOLANA, "balance", {"transactionIndex": 1, "account": KEYS[0]}),
    (SOLANA, "tokenBalance", {"transactionIndex": 1, "account": KEYS[0]}),
    (SUBSTRATE, "call", {"extrinsicIndex": 1, "address": [0]}),
]


def keyed_batch(network: Network, name: str, *blocks: list[dict[str, Any]]) -> pa.RecordBatch:
    """Read items that have their key alone, one list per block."""
    entity = network.entity(name)
    fields = tuple(one for one in entity.fields if one.wire in entity.key)
    headers = [Header(9 + index, f"0x{index}", 0) for index in range(len(blocks))]
    return items_batch(entity, fields, headers, [json.dumps(one).encode() for one in blocks])


@pytest.mark.parametrize(("network", "name", "item"), KEYED, ids=[one[1] for one in KEYED])
def test_two_items_of_one_key_are_an_error_whatever_it_is_made_of(
    network: Network, name: str, item: dict[str, Any]
) -> None:
    key = list(item)[-1]
    other = {**item, key: [*item[key], 1] if isinstance(item[key], list) else "another"}
    earlier = {**item, next(iter(item)): 0}
    with pytest.raises(BlockContentError, match="two ") as caught:
        keyed_batch(network, name, [item], [item, other, earlier, item])
    assert caught.value.facts["block"] == 10
    assert caught.value.facts[snake_name(key)] == item[key]
    assert keyed_batch(network, name, [item], [other, item, earlier], [item]).num_rows == 5
    unknown = {**item, key: None}
    assert keyed_batch(network, name, [unknown, unknown]).num_rows == 2  # outputs refuse it


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4), max_size=30))
def test_addresses_repeat_exactly_where_they_are_equal(addresses: list[list[int]]) -> None:
    items = [{"transactionIndex": 0, "traceAddress": one} for one in addresses]
    if len({tuple(one) for one in addresses}) == len(addresses):
        assert keyed_batch(EVM, "trace", items).num_rows == len(items)
    else:
        with pytest.raises(BlockContentError, match="two traces"):
            keyed_batch(EVM, "trace", items)
