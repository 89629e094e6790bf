"""Block lines of Solana for tests, and a plain Borsh encoder to compare with."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from headwater.decode import Decoded, Output, decode_outputs
from headwater.decode.solana.borsh import (
    BorshType,
    Enum,
    FixedBytes,
    Option,
    Scalar,
    Struct,
)
from headwater.decode.solana.borsh import Sequence as Items
from headwater.query import base58
from tests.unit.decode.samples import EVERYTHING

PROGRAM = base58.encode(b"\x07" * 32)
KEYS = [base58.encode(bytes([at + 1]) * 32) for at in range(6)]


def instruction(data: bytes | str, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "transactionIndex": index,
        "instructionAddress": [0],
        "programId": PROGRAM,
        "accounts": KEYS[:3],
        "data": data if isinstance(data, str) else base58.encode(data),
        "isCommitted": True,
        **fields,
    }


def slot(number: int, **items: Sequence[Mapping[str, Any]]) -> bytes:
    header = {"number": number, "hash": base58.encode(number.to_bytes(32)), "parentNumber": 0,
              "parentHash": KEYS[0], "timestamp": 1_700_000_000 + number}  # fmt: skip
    indexes = {item["transactionIndex"] for rows in items.values() for item in rows
               if "transactionIndex" in item}  # fmt: skip
    known = [{"transactionIndex": at, "signatures": [signature(at)], "err": None}
             for at in sorted(indexes)]  # fmt: skip
    block = {"header": header, "transactions": known, **items}
    return json.dumps(block, separators=(",", ":")).encode()


def signature(index: int) -> str:
    return base58.encode(bytes([index + 1]) * 64)


def decode(output: Output, lines: list[bytes]) -> Decoded:
    decoded = decode_outputs({"t": output}, lines, {"t": EVERYTHING})
    decoded.tables["t"].validate(full=True)
    assert decoded.tables["t"].schema == output.schema
    return decoded


def rows_of(output: Output, lines: list[bytes]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode(output, lines).tables["t"].to_pylist()
    return rows


def encode(borsh: BorshType, value: Any) -> bytes:
    """Encode a value as the specification of Borsh says, one step at a time."""
    match borsh:
        case Scalar("bool"):
            return bytes([value])
        case Scalar("f32" | "f64"):
            return struct.pack("<f" if borsh.name == "f32" else "<d", value)
        case Scalar("string" | "bytes" | "long_string"):
            raw = value.encode() if isinstance(value, str) else value
            return len(raw).to_bytes(8 if borsh.name == "long_string" else 4, "little") + bytes(raw)
        case Scalar("pubkey"):
            return base58.decode(value)
        case Scalar():
            signed = borsh.name[0] == "i"
            return int(value).to_bytes(int(borsh.name[1:]) // 8, "little", signed=signed)
        case FixedBytes():
            return bytes(value)
        case Option(item):
            return b"\0" if value is None else b"\1" + encode(item, value)
        case Items(item, length):
            count = len(value).to_bytes(4, "little") if length is None else b""
            return count + b"".join(encode(item, one) for one in value)
        case Struct(members):
            return b"".join(encode(one.type, value[one.name]) for one in members)
        case Enum(variants):
            name = value if isinstance(value, str) else value["variant"]
            tag = [one.name for one in variants].index(name)
            content = variants[tag].content
            return bytes([tag]) + (encode(content, value[name]) if content is not None else b"")
