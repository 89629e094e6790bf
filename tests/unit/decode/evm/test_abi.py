"""Events from text, JSON and names; hashes and addresses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from headwater.decode import KNOWN_EVENTS, evm, parse_event, parse_function
from headwater.decode.evm.abi import keccak256
from headwater.decode.evm.topics import check_address, checksum
from headwater.decode.evm.types import Array, Elementary, Kind, Tuple, canonical
from headwater.errors import AddressError, SignatureError

TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


@pytest.mark.parametrize(
    ("message", "digest"),
    [
        (b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
        (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        (b"Transfer(address,address,uint256)", TRANSFER),
    ],
)
def test_keccak_gives_the_published_digests(message: bytes, digest: str) -> None:
    assert keccak256(message).hex() == digest
    assert keccak256(message) != hashlib.sha3_256(message).digest()


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("Transfer(address indexed from, address indexed to, uint256 value)",
         "Transfer(address,address,uint256)"),
        ("event Transfer(address,address,uint);", "Transfer(address,address,uint256)"),
        ("  event  A ( int  x ,uint8[ 3 ][] y )  ", "A(int256,uint8[3][])"),
        ("event(uint256 event)", "event(uint256)"),
        ("A()", "A()"),
        ("A((uint256 a, address b)[] items, tuple(bool)[2] pair)",
         "A((uint256,address)[],(bool)[2])"),
        ("A(((string s, (bytes32)[] t) u)[1] v)", "A(((string,(bytes32)[]))[1])"),
    ],
)  # fmt: skip
def test_text_gives_the_canonical_signature(text: str, signature: str) -> None:
    event = parse_event(text)
    assert event.signature == signature
    assert event.topic0 == f"0x{keccak256(signature.encode()).hex()}"
    assert parse_event(event) is event


def test_unnamed_parameters_and_members_are_numbered() -> None:
    event = parse_event("A(uint8, uint8 b, (bool, bool c))")
    assert [one.name for one in event.parameters] == ["arg0", "b", "arg2"]
    inner = event.parameters[2].type
    assert isinstance(inner, Tuple)
    assert [member.name for member in inner.members] == ["arg0", "c"]


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("Transfer(address indexed from, adress to)", 31, "'adress'"),
        ("Transfer(uint257 value)", 9, "'uint257'"),
        ("Transfer(uint12 value)", 9, "'uint12'"),
        ("Transfer(bytes33 value)", 9, "'bytes33'"),
        ("Transfer(uint0256 value)", 9, "'uint0256'"),
        ("Transfer(function f)", 9, "'function'"),
        ("Transfer(fixed128x18 f)", 9, "'fixed128x18'"),
        ("Transfer(address from", 21, "the end"),
        ("Transfer", 8, "the end"),
        ("", 0, "the end"),
        ("Transfer(address,)", 17, "')'"),
        ("Transfer(address from to)", 22, "'to'"),
        ("Transfer(address indexed indexed x)", 25, "twice"),
        ("Transfer(address[0] x)", 17, "length 0"),
        ("Transfer(address[1 x)", 19, "']'"),
        ("Transfer(()[] x)", 10, "a type"),
        ("Transfer((uint8 indexed a) x)", 16, "cannot be indexed"),
        ("Transfer((uint8 a, bool A) x)", 9, "same name"),
        ("Transfer(tuple x)", 15, "after 'tuple'"),
        ("Transfer(address a) anonymous x", 30, "'x'"),
        ("Transfer(address a) returns", 20, "'returns'"),
        ("Transfer(uint8" + "[]" * 40 + " x)", 78, "deeply"),
        ("Transfer(" + "(" * 40 + "uint8" + ")" * 40 + " x)", 42, "deeply"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, position: int, reason: str) -> None:
    with pytest.raises(SignatureError, match=rf"\[E4001\] position {position}: ") as caught:
        parse_event(text)
    assert reason in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "A(uint8 a, bool A)",
        "A(uint8 indexed a, uint8 indexed b, uint8 indexed c, uint8 indexed d)",
        "A(uint8[1000000][1000000] a)",
        "erc20.Nothing",
        '[{"type": "event", "name": "A"}]',
        '{"type": "event", "name": ',
        '"A()"',
    ],
)
def test_what_no_event_can_be_is_refused(text: str) -> None:
    with pytest.raises(SignatureError):
        parse_event(text)


ENTRY: dict[str, Any] = {
    "type": "event",
    "name": "Filled",
    "anonymous": False,
    "inputs": [
        {"name": "maker", "type": "address", "indexed": True},
        {"name": "", "type": "uint256"},
        {
            "name": "orders",
            "type": "tuple[2][]",
            "components": [{"name": "id", "type": "bytes32"}, {"name": "note", "type": "string"}],
        },
    ],
}


@pytest.mark.parametrize("source", [ENTRY, json.dumps(ENTRY)])
def test_a_json_entry_gives_the_same_event_as_text(source: Any) -> None:
    assert parse_event(source) == parse_event(
        "Filled(address indexed maker, uint256, (bytes32 id, string note)[2][] orders)"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"type": "function"},
        {"name": ""},
        {"name": None},
        {"inputs": {}},
        {"inputs": ["uint256"]},
        {"inputs": [{"name": "a"}]},
        {"inputs": [{"name": 5, "type": "bool"}]},
        {"inputs": [{"name": "a", "type": "uint257"}]},
        {"inputs": [{"name": "a", "type": "uint256["}]},
        {"inputs": [{"name": "a", "type": "uint256[0]"}]},
        {"inputs": [{"name": "a", "type": "uint256" + "[]" * 40}]},
        {"inputs": [{"name": "a", "type": "tuple"}]},
        {"inputs": [{"name": "a", "type": "tuple", "components": []}]},
        {"inputs": [{"name": "a", "type": "bool", "indexed": "yes"}]},
    ],
)
def test_a_malformed_json_entry_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SignatureError, match="E4001"):
        parse_event({**ENTRY, **change})


def test_something_else_is_no_event() -> None:
    with pytest.raises(SignatureError, match="int"):
        parse_event(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", KNOWN_EVENTS)
def test_built_in_events_are_well_formed(name: str) -> None:
    event = parse_event(name)
    assert event == parse_event(KNOWN_EVENTS[name])
    assert name.endswith(f".{event.name}")


@pytest.mark.parametrize(
    ("name", "topic0"),
    [
        ("erc20.Transfer", TRANSFER),
        ("erc721.Transfer", TRANSFER),
        ("erc20.Approval", "8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925"),
        ("erc1155.TransferSingle",
         "c3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62"),
        ("uniswap_v2.Sync", "1c411e9a96e071241c2f21f7726b17ae89e3cab4c78be50e062b03a9fffbbad1"),
        ("uniswap_v2.Swap", "d78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822"),
        ("uniswap_v3.Swap", "c42079f94a6350d7e6235f29174924f928cc2ac818eb64fed8004e115fbcca67"),
    ],
)  # fmt: skip
def test_built_in_events_have_the_topics_seen_on_chain(name: str, topic0: str) -> None:
    assert parse_event(name).topic0 == f"0x{topic0}"


def test_types_nest() -> None:
    parsed = parse_event("A(uint24[2][] x)").parameters[0].type
    assert parsed == Array(Array(Elementary(Kind.UINT, 24), 2), None)
    assert canonical(parsed) == "uint24[2][]"


# --- addresses ------------------------------------------------------------------------------------

CHECKSUMMED = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"


@pytest.mark.parametrize("text", [CHECKSUMMED, CHECKSUMMED.lower(), f"0x{CHECKSUMMED[2:].upper()}"])
def test_an_address_is_lowered(text: str) -> None:
    assert check_address(text, "contracts") == CHECKSUMMED.lower()
    assert checksum(text[2:]) == CHECKSUMMED[2:]


@pytest.mark.parametrize(
    "value",
    ["", "0x", CHECKSUMMED[:-1], f"{CHECKSUMMED}0", CHECKSUMMED[2:], f"0x{'g' * 40}", 5, None,
     CHECKSUMMED.replace("aA", "Aa"), f" {CHECKSUMMED}"],
)  # fmt: skip
def test_what_is_no_address_is_refused(value: object) -> None:
    with pytest.raises(AddressError, match="E4004"):
        check_address(value, "contracts")


# --- functions and whole ABIs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "signature", "sighash"),
    [
        ("transfer(address to, uint256 amount) returns (bool)", "transfer(address,uint256)",
         "0xa9059cbb"),
        ("function balanceOf(address) external view returns (uint256);", "balanceOf(address)",
         "0x70a08231"),
        ("multicall(bytes[] calldata data) payable", "multicall(bytes[])", "0xac9650d8"),
        ("getReserves()", "getReserves()", "0x0902f1ac"),
    ],
)  # fmt: skip
def test_a_function_has_the_known_sighash(text: str, signature: str, sighash: str) -> None:
    parsed = parse_function(text)
    assert (parsed.signature, parsed.sighash) == (signature, sighash)
    assert parse_function(parsed) is parsed


def test_unnamed_inputs_and_outputs_get_names() -> None:
    one = parse_function("f(uint8, bool flag) returns (bool)")
    several = parse_function("f() returns (bool, uint8 count, bool)")
    assert [each.name for each in one.inputs] == ["arg0", "flag"]
    assert [each.name for each in one.outputs] == ["result"]
    assert [each.name for each in several.outputs] == ["result0", "count", "result2"]


@pytest.mark.parametrize(
    "source",
    ["f(uint8 indexed a)", "f(uint8 a, bool A)", "f(uint8) gives (bool)", "f", "{", 5,
     '{"name": ""}', '{"type": "event", "name": "E"}', '{"name": "f", "inputs": {}}',
     f"f(uint8[{2**30}] a)"],
)  # fmt: skip
def test_what_is_no_function_is_refused(source: Any) -> None:
    with pytest.raises(SignatureError):
        parse_function(source)


ABI = [
    {"type": "constructor", "inputs": []},
    {"type": "event", "name": "E", "inputs": [{"name": "a", "type": "uint8", "indexed": True}]},
    {"type": "event", "name": "E", "inputs": [], "anonymous": True},
    {"type": "function", "name": "f", "inputs": [{"name": "a", "type": "uint8"}], "outputs": []},
    {"type": "function", "name": "f", "inputs": [{"name": "a", "type": "bool"}], "outputs": []},
    {"type": "function", "name": "g", "inputs": [], "outputs": [{"name": "", "type": "bool"}]},
]


def test_an_abi_gives_its_entries_by_name_and_overloads_by_signature(tmp_path: Path) -> None:
    path = tmp_path / "abi.json"
    path.write_text(json.dumps({"abi": ABI}))
    for abi in (evm.abi(path), evm.abi(str(path)), evm.abi(json.dumps(ABI)), evm.abi(ABI)):
        assert abi.function("g").signature == "g()"
        assert abi.function("f(bool)").sighash == parse_function("f(bool)").sighash
        assert abi.event("E(uint8)").indexed[0].name == "a"
        assert abi.event("E()").anonymous
        with pytest.raises(SignatureError, match=r"f\(uint8\), f\(bool\)"):
            abi.function("f")
        with pytest.raises(SignatureError, match="has no function 'h'"):
            abi.function("h")


@pytest.mark.parametrize("source", ["nowhere.json", "[", "5", {"abi": 5}, {}])
def test_what_is_no_abi_is_refused(source: Any) -> None:
    with pytest.raises(SignatureError):
        evm.abi(source)
