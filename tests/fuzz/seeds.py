"""Where mutation begins: a few good inputs of each target, so that the interesting is near."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from eth_abi.abi import encode as eth_abi_encode

from headwater.changes.database_changes import read_database_changes
from headwater.decode.solana.data_layout import parse_layout
from headwater.decode.tables.table_definitions import TABLE_DEFINITIONS
from headwater.query import NETWORKS
from headwater.testing import ChainSim, ContentSettings, Selection
from headwater.testing import Network as Simulated
from tests.fuzz.targets import LAYOUTS
from tests.unit.decode.samples import line, transfer
from tests.unit.decode.solana_samples import KEYS, encode

KEPT = Path(__file__).parent / "kept"

STATE = {
    "version": 1,
    "cursor": {"number": 9, "hash": "0x9", "timestamp": 5},
    "finalized": {"number": 3, "hash": "0x3"},
    "rollback_chain": [{"number": 3, "hash": "0x3"}, {"number": 9, "hash": "0x9"}],
}
ABI = [{"type": "event", "name": "T", "inputs": [{"name": "a", "type": "tuple[]", "indexed": False,
        "components": [{"name": "x", "type": "uint256[2]"}]}]},
       {"type": "function", "name": "f", "inputs": [{"name": "a", "type": "bytes"}],
        "outputs": []}]  # fmt: skip
IDL = {"address": KEYS[0], "metadata": {"name": "p"}, "instructions": [
       {"name": "go", "discriminator": [1, 2], "accounts": [{"name": "payer"}],
        "args": [{"name": "n", "type": {"vec": {"defined": {"name": "S"}}}}]}],
       "types": [{"name": "S", "type": {"kind": "struct", "fields": [
           {"name": "a", "type": {"option": "u64"}}]}}]}  # fmt: skip
ARGUMENTS: tuple[dict[str, object], ...] = (
    {"a": 7, "b": KEYS[0], "c": True},
    {"a": "hello", "b": [1, 2], "c": -5},
    {"a": ["x", ""], "b": [1, None]},
    {"a": b"abc", "b": [[1], []], "c": b"zz"},
    {"a": 2**200, "b": [[True, False]], "c": -1},
)


def seeds_of(target: str) -> Iterator[bytes]:
    """Yield good inputs of a target, and all that was found before."""
    kept = KEPT / target
    if kept.exists():
        yield from (path.read_bytes() for path in sorted(kept.iterdir()))
    yield from globals()[f"_{target}"]()


def _portal_lines() -> Iterator[bytes]:
    yield b"\x05\x90\x01" + line(7, [transfer(5)]) + b"\n\n" + line(8) + b"\n"


def _portal_answers() -> Iterator[bytes]:
    yield b'{"previousBlocks":[{"number":4,"hash":"0x4"}]}'
    yield b'{"dataset":"x","aliases":[],"real_time":true,"metadata":{"kind":"evm"}}'
    yield b'{"number":4,"hash":"0x4"}'
    yield b'{"block_number":3}'
    yield b'{"error":{"message":"slow down"}}'
    yield b"123456"


def _abi_data() -> Iterator[bytes]:
    yield b"\x00" + eth_abi_encode(["uint256", "string", "bytes"], [7, "hi", b"ab"])
    yield b"\x01" + eth_abi_encode(["uint8[]", "(bool,bytes)[]"], [[1, 2], [(True, b"x")]])
    yield b"\x02" + eth_abi_encode(["int24", "address", "bool", "bytes7"],
                                   [-1, "0x" + "11" * 20, True, b"1234567"])  # fmt: skip
    yield b"\x03" + eth_abi_encode(["string[2]", "uint256[][]", "(uint64,string[])"],
                                   [["a", "b"], [[1], []], (5, ["q"])])  # fmt: skip
    yield b"\x04" + eth_abi_encode(["bytes32[3]", "(int128,(address,bool[]))"],
                                   [[bytes(32)] * 3, (-9, ("0x" + "22" * 20, [True]))])  # fmt: skip
    yield b"\x05" + eth_abi_encode(["(uint8,uint16[2])[2][]"], [[[(1, [2, 3]), (4, [5, 6])]]])


def _evm_logs() -> Iterator[bytes]:
    logs = [transfer(value, index=at) for at, value in enumerate((1, 2**255))]
    yield line(7, logs) + b"\n" + line(8, []) + b"\n" + line(9, logs[:1])


def _borsh_data() -> Iterator[bytes]:
    for at, (args, values) in enumerate(zip(LAYOUTS, ARGUMENTS, strict=True)):
        layout = parse_layout("x", {"discriminator": "0x2a", "args": args})
        yield bytes([at]) + encode(layout.args, values)


def _raw_tables() -> Iterator[bytes]:
    for at, network in enumerate(NETWORKS):
        simulated = Simulated(network.type)
        chain = ChainSim(3, network=simulated, content=ContentSettings(transactions_per_block=2))
        fields = {one.wire: {field.wire: True for field in one.fields} for one in network.entities}
        asked: dict[str, object] = {one.wire: [{}] for one in network.families
                                    if one.implied is None}  # fmt: skip
        if "extrinsics" in TABLE_DEFINITIONS[network.type]:
            asked["calls"] = [{"extrinsic": True}]
        selection = Selection(simulated, {"type": network.type, "fields": fields, **asked})
        for block in chain.extend(6):
            found = selection.line(chain, block)
            if found is not None and len(found) < 20_000:
                yield bytes([at]) + found


def _definitions() -> Iterator[bytes]:
    yield b"Transfer(address indexed from, address indexed to, uint256 value)"
    yield b"swap((address a, uint24[2] b)[] path, bytes data) returns (int256 x, bool)"
    yield json.dumps(ABI).encode()
    yield json.dumps(IDL).encode()
    yield json.dumps({"discriminator": "0x09", "args": {"a": "vec<option<u8>>"},
                      "accounts": ["pool", "user?"]}).encode()  # fmt: skip


def _stored_text() -> Iterator[bytes]:
    yield json.dumps(STATE).encode()
    yield json.dumps(STATE["rollback_chain"]).encode()
    yield json.dumps(STATE["cursor"]).encode()
    yield b"2024-01-01"
    yield b"12,000,000"
    yield b"latest"
    yield b"1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"
    yield b"TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"


def _database_changes() -> Iterator[bytes]:
    field = b"\x0a\x05value\x12\x03100\x20\x02"
    change = b"\x0a\x08transfer\x12\x03tx1\x18\x05\x20\x01\x2a" + bytes([len(field)]) + field
    message = b"\x0a" + bytes([len(change)]) + change
    assert read_database_changes([(7, message)]).num_rows == 1
    yield message
