"""`solana.instructions`, `solana.events`: golden vectors, Borsh by hand, places of errors."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from headwater.core import BlockRange
from headwater.decode import decode_outputs, load_idl, solana
from headwater.decode.solana.data_layout import snake_case
from headwater.errors import (
    InvalidOptionError,
    LayoutError,
    ParameterError,
    QueryError,
    SignatureError,
    UndecodableInstructionError,
)
from headwater.query import base58
from headwater.testing import ChainSim, Network, Selection
from tests.unit.decode.solana_samples import (
    KEYS,
    PROGRAM,
    decode,
    instruction,
    rows_of,
    signature,
    slot,
)

# --- golden vectors -------------------------------------------------------------------------------


def test_a_token_transfer_is_the_golden_vector() -> None:
    item = instruction("3DXy58UDhJuu", 85, programId=solana.TOKEN, instructionAddress=[2, 0, 0])
    lines = [slot(371602677, instructions=[item])]
    (row,) = rows_of(solana.instructions("spl_token.transfer"), lines)
    assert row["amount"] == Decimal(50_000_000_000)
    assert (row["source"], row["destination"], row["authority"]) == tuple(KEYS[:3])
    assert (row["block_number"], row["transaction_index"]) == (371602677, 85)
    assert (row["instruction_address"], row["signature"]) == ([2, 0, 0], signature(85))


def test_a_system_transfer_is_the_golden_vector() -> None:
    output = solana.instructions("system.transfer")
    asked = json.loads(output.query.body(0))["instructions"]
    assert asked == [{"programId": [solana.SYSTEM], "d4": ["0x02000000"], "isCommitted": True,
                      "transaction": True}]  # fmt: skip
    item = instruction("3Bxs4Ty4XnVSszuM", programId=solana.SYSTEM)
    (row,) = rows_of(output, [slot(1, instructions=[item])])
    assert row["lamports"] == Decimal(1_185_186)


@pytest.mark.parametrize(
    ("code", "width"),
    [("0x02", "d1"), ("0x0200", "d2"), ("0x02000000", "d4"), ("0x02000000a2151200", "d8"),
     ("0x020000", "d2"), ("0x02000000a215120000", "d8")],
)  # fmt: skip
def test_discriminators_of_all_widths_match_the_golden_vector(code: str, width: str) -> None:
    output = solana.instructions(program=PROGRAM, layouts={"x": {"discriminator": code}})
    (asked,) = json.loads(output.query.body(0))["instructions"]
    assert asked[width] == [code[: 2 + 2 * int(width[1:])]]
    other = "0x03" + code[4:]
    lines = [slot(1, instructions=[instruction("3Bxs4Ty4XnVSszuM")])]
    assert len(rows_of(output, lines)) == 1
    missing = solana.instructions(program=PROGRAM, layouts={"x": {"discriminator": other}})
    assert rows_of(missing, lines) == []


def test_data_that_is_too_short_is_the_golden_error() -> None:
    item = instruction("4", 9, programId=solana.TOKEN, instructionAddress=[1, 2])
    with pytest.raises(UndecodableInstructionError, match="'amount' is cut off") as caught:
        decode(solana.instructions("spl_token.transfer"), [slot(77, instructions=[item])])
    facts = caught.value.facts
    assert (facts["slot"], facts["transaction_index"]) == (77, 9)
    assert (facts["instruction_address"], facts["signature"]) == ([1, 2], signature(9))
    skipping = decode(
        solana.instructions("spl_token.transfer", on_error="skip"),
        [slot(77, instructions=[item, instruction("3DXy58UDhJuu", programId=solana.TOKEN)])],
    )
    assert (skipping.tables["t"].num_rows, skipping.skipped["t"]) == (1, 1)


def test_the_rule_of_anchor_gives_the_golden_discriminator() -> None:
    idl = {"instructions": [{"name": "swap", "args": [], "accounts": []}]}
    assert load_idl(idl).instruction("swap").discriminator.hex() == "f8c69e91e17587c8"


# --- Borsh by hand --------------------------------------------------------------------------------

IDL_TYPES = [
    {"name": "Side", "type": {"kind": "enum", "variants": [{"name": "Buy"}, {"name": "Sell"}]}},
    {"name": "Leg", "type": {"kind": "struct", "fields": [
        {"name": "mint", "type": "publicKey"}, {"name": "feeBps", "type": "u16"}]}},
    {"name": "Limit", "type": {"kind": "enum", "variants": [
        {"name": "None"},
        {"name": "Price", "fields": [{"name": "value", "type": "u128"}]},
        {"name": "Pair", "fields": ["u8", "bool"]}]}},
]  # fmt: skip
OLD_IDL: dict[str, Any] = {
    "version": "0.1.0",
    "name": "dex",
    "metadata": {"address": PROGRAM},
    "instructions": [{
        "name": "placeOrder",
        "accounts": [
            {"name": "user", "isMut": True, "isSigner": True},
            {"name": "vaults", "accounts": [{"name": "baseVault"}, {"name": "quoteVault"}]},
            {"name": "referrer", "isOptional": True},
        ],
        "args": [
            {"name": "side", "type": {"defined": "Side"}},
            {"name": "maxAmount", "type": "u64"},
            {"name": "note", "type": {"option": "string"}},
            {"name": "legs", "type": {"vec": {"defined": "Leg"}}},
            {"name": "limit", "type": {"defined": "Limit"}},
            {"name": "seed", "type": {"array": ["u8", 4]}},
            {"name": "delta", "type": "i128"},
        ],
    }],
    "events": [{"name": "OrderPlaced", "fields": [
        {"name": "orderId", "type": "u64", "index": False},
        {"name": "owner", "type": "publicKey", "index": True}]}],
    "types": IDL_TYPES,
}  # fmt: skip
ORDER = bytes.fromhex(
    "01"  # Sell
    "ffffffffffffffff"  # 2^64 - 1
    "01" "03000000" "c3a978"  # "éx"
    "02000000" + "01" * 32 + "0a00" + "02" * 32 + "1027"  # 10, 10000
    "01" "00000000000000000000000000000080"  # 2^127
    "deadbeef"
    "feffffffffffffffffffffffffffffff"  # -2
)  # fmt: skip
ORDER_ROW = {
    "side": "Sell",
    "max_amount": Decimal(2**64 - 1),
    "note": "éx",
    "legs": [{"mint": KEYS[0], "fee_bps": 10}, {"mint": KEYS[1], "fee_bps": 10_000}],
    "limit": {"variant": "Price", "Price": {"value": str(2**127)}, "Pair": None},
    "seed": b"\xde\xad\xbe\xef",
    "delta": "-2",
    "user": KEYS[0],
    "vaults_base_vault": KEYS[1],
    "vaults_quote_vault": KEYS[2],
    "referrer": None,
}


def new_idl() -> dict[str, Any]:
    """The same program as Anchor describes it since 0.30."""
    text = json.dumps(OLD_IDL).replace("publicKey", "pubkey").replace("isOptional", "optional")
    idl: dict[str, Any] = json.loads(text)
    for name in ("Side", "Leg", "Limit"):
        old, new = f'{{"defined": "{name}"}}', f'{{"defined": {{"name": "{name}"}}}}'
        idl = json.loads(json.dumps(idl).replace(old, new))
    (order,), (event,) = idl["instructions"], idl["events"]
    order["name"] = "place_order"
    order["discriminator"] = list(sha256(b"global:place_order").digest()[:8])
    fields = event.pop("fields")
    event["discriminator"] = list(sha256(b"event:OrderPlaced").digest()[:8])
    idl["types"].append({"name": "OrderPlaced", "type": {"kind": "struct", "fields": fields}})
    del idl["metadata"]
    return {"address": PROGRAM, **idl}


@pytest.mark.parametrize("idl", [OLD_IDL, new_idl()], ids=["old", "new"])
def test_both_formats_of_idl_give_the_values_computed_by_hand(idl: Any, tmp_path: Path) -> None:
    path = tmp_path / "idl.json"
    path.write_text(json.dumps(idl))
    data = sha256(b"global:place_order").digest()[:8] + ORDER
    lines = [slot(5, instructions=[instruction(data, accounts=[*KEYS[:3], PROGRAM]),
                                   instruction(b"\0" * 8 + ORDER, 1)])]  # fmt: skip
    for source in (idl, path, str(path), json.dumps(idl)):
        output = solana.instructions(idl=source)
        assert json.loads(output.query.body(0))["instructions"][0]["programId"] == [PROGRAM]
        (row,) = rows_of(output, lines)
        assert {name: row[name] for name in ORDER_ROW} == ORDER_ROW
    with_referrer = [slot(5, instructions=[instruction(data, accounts=KEYS[:4])])]
    assert rows_of(solana.instructions("placeOrder", idl=idl), with_referrer)[0][
        "referrer"] == KEYS[3]  # fmt: skip


@pytest.mark.parametrize("length", range(len(ORDER)))
def test_an_order_cut_anywhere_is_an_error_with_its_place(length: int) -> None:
    data = sha256(b"global:place_order").digest()[:8] + ORDER[:length]
    lines = [slot(5, instructions=[instruction(data, 3, instructionAddress=[4])])]
    with pytest.raises(UndecodableInstructionError) as caught:
        decode(solana.instructions(idl=OLD_IDL), lines)
    assert (caught.value.facts["slot"], caught.value.facts["instruction_address"]) == (5, [4])


LAYOUT = {
    "discriminator": b"\x09",
    "args": {
        "a": "i8", "b": "u16", "c": "i32", "d": "u32", "e": "i64", "f": "f64", "g": "f32",
        "h": "bool", "i": "vec<option<string>>", "j": "[vec<u16>; 2]", "k": "u256",
        "l": {"x": "pubkey", "y": "bytes"},
    },
    "accounts": ["a", "program_id", "last?"],
}  # fmt: skip
VALUES = bytes.fromhex(
    "09" "80" "ffff" "ffffff7f" "ffffffff" "0000000000000080" "000000000000f83f" "000020c0" "01"
    "03000000" "00" "01" "01000000" "78" "01" "00000000"
    "01000000" "0500" "00000000"
    + "ff" * 32 + "03" * 32 + "02000000" "abcd"
    "99"  # what follows is not looked at
)  # fmt: skip


def test_plain_layouts_give_the_values_computed_by_hand() -> None:
    output = solana.instructions(program=[PROGRAM], layouts={"x": LAYOUT}, committed_only=False)
    lines = [slot(5, instructions=[instruction(VALUES, isCommitted=False)])]
    (row,) = rows_of(output, lines)
    expected = {
        "a": -128, "b": 65535, "c": 2**31 - 1, "d": 2**32 - 1, "e": -(2**63), "f": 1.5, "g": -2.5,
        "h": True, "i": [None, "x", ""], "j": [[5], []], "k": str(2**256 - 1),
        "l": {"x": KEYS[2], "y": b"\xab\xcd"}, "account_a": KEYS[0],
        "account_program_id": KEYS[1], "last": KEYS[2], "is_committed": False,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_wide_integers_are_decimals_on_request() -> None:
    layouts = {"x": {"discriminator": "0x01", "args": {"a": "u128", "b": "i128"}}}
    output = solana.instructions(program=PROGRAM, layouts=layouts, decimals=["a", "b"])
    data = b"\1" + (7).to_bytes(16, "little") + (-(10**38) + 1).to_bytes(16, "little", signed=True)
    (row,) = rows_of(output, [slot(1, instructions=[instruction(data)])])
    assert (row["a"], row["b"]) == (Decimal(7), Decimal(-(10**38) + 1))
    with pytest.raises(UndecodableInstructionError, match="38 digits"):
        decode(output, [slot(1, instructions=[instruction(b"\1" + b"\xff" * 32)])])
    with pytest.raises(ParameterError):
        solana.instructions("spl_token.transfer", decimals=["amount"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x09\x02", "absent"),
        (b"\x09\x01\x05", "neither 0 nor 1"),
        (b"\x09\x00\x07", "known variant"),
        (b"\x09\x00\x00\xff\xff\xff\xff", "exceeds"),
        (b"\x09\x00\x00\x01\x00\x00\x00\xff", "UTF-8"),
        ("0OIl", "base58"),
        (None, "absent"),
    ],
)
def test_malformed_data_says_what_is_wrong(data: Any, reason: str) -> None:
    idl = {
        "instructions": [{"name": "x", "discriminator": [9], "accounts": [], "args": [
            {"name": "a", "type": {"option": "bool"}}, {"name": "b", "type": {"defined": "Side"}},
            {"name": "c", "type": "string"}]}],
        "types": IDL_TYPES,
    }  # fmt: skip
    item = instruction(b"", 2)
    item["data"] = base58.encode(data) if isinstance(data, bytes) else data
    lines = [slot(6, instructions=[instruction(b"\x09" + bytes(6)), item])]
    with pytest.raises(UndecodableInstructionError, match=reason) as caught:
        decode(solana.instructions(program=PROGRAM, idl=idl), lines)
    assert caught.value.facts["transaction_index"] == 2
    skipping = decode(solana.instructions(program=PROGRAM, idl=idl, on_error="skip"), lines)
    assert (skipping.tables["t"].num_rows, skipping.skipped["t"]) == (1, 1)


# --- what is an output's own ----------------------------------------------------------------------


def test_programs_accounts_failures_and_slots_are_checked_again() -> None:
    data = b"\x03" + (5).to_bytes(8, "little")
    items = [
        instruction(data, 0, programId=solana.TOKEN),
        instruction(data, 1, programId=solana.TOKEN_2022),
        instruction(data, 2, programId=PROGRAM),
        instruction(data, 3, programId=solana.TOKEN, isCommitted=False),
        instruction(data, 4, programId=solana.TOKEN, accounts=KEYS[3:6]),
        instruction(data, 5, programId=solana.TOKEN, accounts=KEYS[:1]),
    ]
    outputs: dict[str, Any] = {
        "token": solana.instructions("spl_token.transfer"),
        "both": solana.instructions("spl_token.transfer",
                                    program=[solana.TOKEN, solana.TOKEN_2022]),
        "failed": solana.instructions("spl_token.transfer", committed_only=False),
        "account": solana.instructions("token_2022.transfer", program=solana.TOKEN,
                                       accounts={"destination": [KEYS[4], KEYS[5]]}),
        "later": solana.instructions("spl_token.transfer"),
        "raw": solana.instructions_raw(d1=["0x03"], a0=[KEYS[3]]),
        "none": solana.instructions_raw(d2=["0x0304"]),
    }  # fmt: skip
    ranges = {name: [BlockRange(0)] for name in outputs} | {"later": [BlockRange(8)]}
    tables = decode_outputs(outputs, [slot(7, instructions=items)], ranges).tables
    found = {name: table["transaction_index"].to_pylist() for name, table in tables.items()}
    assert found == {"token": [0, 4, 5], "both": [0, 1, 4, 5], "failed": [0, 3, 4, 5],
                     "account": [4], "later": [], "raw": [4], "none": []}  # fmt: skip
    assert tables["token"]["authority"].to_pylist() == [KEYS[2], KEYS[5], None]
    assert json.loads(outputs["account"].query.body(0))["instructions"][0]["a1"] == KEYS[4:6]


# --- events ---------------------------------------------------------------------------------------

EVENT = (7).to_bytes(8, "little") + b"\x05" * 32


def log(message: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"transactionIndex": index, "logIndex": index, "instructionAddress": [1, 0],
            "programId": PROGRAM, "kind": "data", "message": message, **fields}  # fmt: skip


@pytest.mark.parametrize("idl", [OLD_IDL, new_idl()], ids=["old", "new"])
def test_events_of_logs(idl: Any) -> None:
    code = sha256(b"event:OrderPlaced").digest()[:8]
    text = b64encode(code + EVENT).decode()
    near = code[:7] + bytes([code[7] ^ 1])
    logs = [log(f"Program data: {text}"), log(text, 1), log(text, 2, programId=KEYS[0]),
            log(text, 3, kind="log"), log(b64encode(near + EVENT).decode(), 4),
            log("Program data: AAAA", 5)]  # fmt: skip
    output = solana.events("OrderPlaced", idl=idl)
    rows = rows_of(output, [slot(3, logs=logs)])
    assert [row["transaction_index"] for row in rows] == [0, 1]
    assert (rows[0]["order_id"], rows[0]["owner"]) == (Decimal(7), KEYS[4])
    assert (rows[0]["signature"], rows[0]["is_committed"]) == (signature(0), True)
    assert (rows[0]["instruction_address"], rows[0]["log_index"]) == ([1, 0], 0)


def test_events_of_failed_transactions_come_on_request() -> None:
    text = b64encode(sha256(b"event:OrderPlaced").digest()[:8] + EVENT).decode()
    failed = {"transactionIndex": 0, "signatures": [signature(0)], "err": {"Custom": 1}}
    lines = [slot(3, logs=[log(text)], transactions=[failed])]
    assert rows_of(solana.events(idl=OLD_IDL), lines) == []
    (row,) = rows_of(solana.events(idl=OLD_IDL, committed_only=False), lines)
    assert row["is_committed"] is False


@pytest.mark.parametrize("tail", ["", "A", " AAAA", "===="])
def test_a_malformed_event_names_its_place(tail: str) -> None:
    text = b64encode(sha256(b"event:OrderPlaced").digest()[:8] + bytes(4)).decode()
    lines = [slot(3, logs=[log(text + tail, 2)])]
    with pytest.raises(UndecodableInstructionError) as caught:
        decode(solana.events(idl=OLD_IDL), lines)
    assert (caught.value.facts["slot"], caught.value.facts["log_index"]) == (3, 2)
    assert decode(solana.events(idl=OLD_IDL, on_error="skip"), lines).skipped == {"t": 1}


def test_events_by_self_call() -> None:
    code = bytes.fromhex("e445a52e51cb9a1d") + sha256(b"event:OrderPlaced").digest()[:8]
    output = solana.events(idl=OLD_IDL, source="cpi")
    asked = json.loads(output.query.body(0))["instructions"]
    assert asked[0]["d8"] == ["0xe445a52e51cb9a1d"]
    items = [instruction(code + EVENT, 1, instructionAddress=[0, 2]),
             instruction(code[:8] + EVENT, 2)]  # fmt: skip
    (row,) = rows_of(output, [slot(3, instructions=items)])
    assert (row["order_id"], row["instruction_address"]) == (Decimal(7), [0, 2])


# --- the simulator --------------------------------------------------------------------------------


def simulated(output: Any, blocks: int = 60) -> list[bytes]:
    chain = ChainSim(seed=4, network=Network.SOLANA)
    selection = Selection(Network.SOLANA, json.loads(output.query.body(0)))
    made = chain.extend(blocks)
    return [one for block in made if (one := selection.line(chain, block, boundary=True))]


def test_transfers_of_the_simulator_are_what_plain_python_reads() -> None:
    output = solana.instructions("spl_token.transfer")
    lines = simulated(output)
    rows = rows_of(output, lines)
    expected = [
        (block["header"]["number"], item["instructionAddress"], item["accounts"][0],
         int.from_bytes(base58.decode(item["data"])[1:], "little"))
        for block in map(json.loads, lines)
        for item in block.get("instructions", [])
        if item["programId"] == solana.TOKEN and base58.decode(item["data"])[0] == 3
    ]  # fmt: skip
    got = [(row["block_number"], row["instruction_address"], row["source"], int(row["amount"]))
           for row in rows]  # fmt: skip
    assert got == expected
    assert rows
    assert all(row["signature"] for row in rows)


def test_events_of_the_simulator_are_found() -> None:
    layouts = {"Swapped": {"discriminator": sha256(b"event:Swapped").digest()[:8],
                           "args": {"sold": "u64", "bought": "u64"}}}  # fmt: skip
    lines = simulated(solana.instructions_raw(fields=["program_id"]))
    programs = {item["programId"] for line in lines
                for item in json.loads(line).get("instructions", [])}  # fmt: skip
    (program,) = programs - {solana.TOKEN, solana.SYSTEM}
    output = solana.events(program=program, layouts=layouts)
    assert len(rows_of(output, simulated(output))) > 0


# --- what is refused ------------------------------------------------------------------------------

NO_ERROR: dict[str, Any] = {"on_error": "no"}
NO_FLAG: dict[str, Any] = {"committed_only": 1}
NO_SOURCE: dict[str, Any] = {"source": "no"}


@pytest.mark.parametrize(
    "layout",
    [
        {"discriminator": "0x"}, {"discriminator": "03"}, {"discriminator": 3},
        {"discriminator": "0x03", "args": {"a": "u7"}},
        {"discriminator": "0x03", "args": {"a": "u8", "A": "u8"}},
        {"discriminator": "0x03", "args": {"a": "vec<{}>"}},
        {"discriminator": "0x03", "args": {"a": 5}},
        {"discriminator": "0x03", "args": {"a": "[u64; 999999999]"}},
        {"discriminator": "0x03", "args": {"a": "option<" * 40 + "u8" + ">" * 40}},
        {"discriminator": "0x03", "args": ["u8"]},
        {"discriminator": "0x03", "accounts": "source"},
        {"discriminator": "0x03", "arguments": {}},
        5,
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_understood_is_refused(layout: Any) -> None:
    with pytest.raises(LayoutError):
        solana.instructions(program=PROGRAM, layouts={"x": layout})


@pytest.mark.parametrize(
    "kind",
    [
        {"defined": "Nowhere"}, {"hashMap": ["u8", "u8"]}, "u7", {"array": ["u8", 0]},
        {"array": ["u8", {"generic": "N"}]}, {"defined": {"name": "Side", "generics": [1]}},
        {"defined": "Endless"}, {"vec": {"defined": "Empty"}}, {"coption": "u8"},
    ],
)  # fmt: skip
def test_a_type_of_an_idl_without_column_is_refused(kind: Any) -> None:
    endless = {"name": "Endless", "type": {"kind": "struct", "fields": [
        {"name": "a", "type": {"defined": "Endless"}}]}}  # fmt: skip
    empty = {"name": "Empty", "type": {"kind": "struct", "fields": []}}
    idl = {"types": [*IDL_TYPES, endless, empty], "instructions": [
        {"name": "x", "accounts": [], "args": [{"name": "a", "type": kind}]},
        {"name": "y", "accounts": [], "args": []}]}  # fmt: skip
    with pytest.raises(LayoutError):
        solana.instructions("x", program=PROGRAM, idl=idl)
    assert solana.instructions("y", program=PROGRAM, idl=idl).layout.name == "y"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: solana.instructions("spl_token.burp"), LayoutError),
        (lambda: solana.instructions(), LayoutError),
        (lambda: solana.instructions("x", idl=OLD_IDL, layouts={}), LayoutError),
        (lambda: solana.instructions("x", idl=OLD_IDL), LayoutError),
        (lambda: solana.instructions("x", idl="nowhere.json"), LayoutError),
        (lambda: solana.instructions("x", idl="{"), LayoutError),
        (lambda: solana.instructions("x", idl={}), LayoutError),
        (lambda: solana.events("x", idl=OLD_IDL), LayoutError),
        (lambda: solana.instructions("y", layouts={"x": LAYOUT}, program=PROGRAM), LayoutError),
        (lambda: solana.events("y", layouts={"x": LAYOUT}, program=PROGRAM), LayoutError),
        (lambda: solana.events("x"), LayoutError),
        (lambda: solana.events(layouts={"x": LAYOUT}, program=PROGRAM), LayoutError),
        (lambda: solana.instructions(layouts={"x": {"discriminator": "0x01"}}), LayoutError),
        (lambda: solana.instructions("spl_token.transfer", program="x"), QueryError),
        (lambda: solana.instructions("spl_token.transfer", accounts={"mint": "x"}),
         ParameterError),
        (lambda: solana.instructions("spl_token.transfer", **NO_ERROR), InvalidOptionError),
        (lambda: solana.instructions("spl_token.transfer", **NO_FLAG), InvalidOptionError),
        (lambda: solana.events(idl=OLD_IDL, **NO_SOURCE), InvalidOptionError),
        (lambda: solana.instructions(program=PROGRAM, layouts={"x": {
            "discriminator": "0x01", "args": {"signature": "u8", "arg_signature": "u8"}}}),
         SignatureError),
    ],
)  # fmt: skip
def test_options_are_checked(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_outputs_pickle() -> None:
    for output in (solana.instructions(idl=OLD_IDL), solana.events(idl=OLD_IDL)):
        copy = pickle.loads(pickle.dumps(output))
        assert copy == output
        assert copy.schema == output.schema


@pytest.mark.parametrize(
    ("name", "expected"),
    [("swapBaseIn", "swap_base_in"), ("createATAToken", "create_ata_token"),
     ("initializeV2", "initialize_v2"), ("swap", "swap"), ("place_order", "place_order")],
)  # fmt: skip
def test_names_are_written_as_rust_writes_them(name: str, expected: str) -> None:
    assert snake_case(name) == expected
