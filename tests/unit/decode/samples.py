"""Block lines and logs for tests, written as portals write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eth_abi.abi import encode

from headwater.core import BlockRange
from headwater.decode import DecodedRows, Event, EventsOutput, parse_logs
from headwater.decode.evm.types import AbiType, Elementary, canonical, is_dynamic

ALICE, BOB, TOKEN = (f"0x{digit * 40}" for digit in "abc")
EVERYTHING = [BlockRange(0)]


def log(
    topics: Sequence[str] = (),
    data: str = "0x",
    *,
    index: int = 0,
    address: str = TOKEN,
) -> dict[str, Any]:
    return {
        "logIndex": index,
        "transactionIndex": index // 2,
        "transactionHash": f"0x{index:064x}",
        "address": address,
        "data": data,
        "topics": list(topics),
    }


def line(number: int, logs: Sequence[Mapping[str, Any]] | None = None, **rest: Any) -> bytes:
    header = {
        "number": number,
        "hash": f"0x{number:064x}",
        "parentHash": f"0x{number - 1:064x}",
        "timestamp": 1_700_000_000 + number,
    }
    block: dict[str, Any] = {"header": header, **rest}
    if logs is not None:
        block["logs"] = list(logs)
    return json.dumps(block, separators=(",", ":")).encode()


def word(value: int) -> str:
    return f"0x{value % 2**256:064x}"


def topic_of_address(address: str) -> str:
    return f"0x{address[2:]:0>64}"


def transfer(
    value: int, sender: str = ALICE, to: str = BOB, *, index: int = 0, address: str = TOKEN
) -> dict[str, Any]:
    topic0 = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    topics = [topic0, topic_of_address(sender), topic_of_address(to)]
    return log(topics, word(value), index=index, address=address)


def log_of(event: Event, values: Mapping[str, Any], *, index: int = 0) -> dict[str, Any]:
    """Encode an event with eth-abi; an indexed value that is no single word is given as hash."""
    topics = [event.topic0]
    for one in event.indexed:
        kind = canonical(one.type) if is_single_word(one.type) else "bytes32"
        topics.append(f"0x{encode([kind], [values[one.name]]).hex()}")
    kinds = [canonical(one.type) for one in event.unindexed]
    data = encode(kinds, [values[one.name] for one in event.unindexed])
    return log(topics, f"0x{data.hex()}", index=index)


def is_single_word(abi_type: AbiType) -> bool:
    return isinstance(abi_type, Elementary) and not is_dynamic(abi_type)


def decode_logs(output: EventsOutput, logs: Sequence[Mapping[str, Any]]) -> DecodedRows:
    return output.decode({"log": parse_logs([line(7, logs)])}, EVERYTHING)
