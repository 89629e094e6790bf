"""How fast do lines leave the client? LineSplitter, header scan and order check, on one core.

The ceiling is a plain `bytes.split` of the same chunks, which checks nothing; the usual way is
`json.loads` of every line, which builds everything. Exit code 1 below LIMIT_MB_S.

    .venv/bin/python benchmarks/bench_parser.py
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from headwater.core import BlockCursor, BlockRange
from headwater.portal import BlockOrder, LineSplitter, read_header

LIMIT_MB_S = 300
FIRST = 20_000_000
BLOCKS = 1_200
LOGS = 100
CHUNK = 65_536
ROUNDS = 10

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
USDC = "0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48"


def fake_hash(*parts: object) -> str:
    return "0x" + hashlib.sha256(repr(parts).encode()).hexdigest()


def block(number: int) -> bytes:
    logs = []
    for index in range(LOGS):
        unique = fake_hash(number, index)
        logs.append(
            {
                "logIndex": index,
                "transactionIndex": index // 2,
                "transactionHash": unique,
                "address": USDC,
                "topics": [TRANSFER, f"0x{unique[-40:]:0>64}", f"0x{unique[2:42]:0>64}"],
                "data": f"0x{number * index:064x}",
            }
        )
    header = {
        "number": number,
        "hash": fake_hash(number),
        "parentHash": fake_hash(number - 1),
        "timestamp": 1_717_281_407 + 12 * number,
    }
    return json.dumps({"header": header, "logs": logs}, separators=(",", ":")).encode()


def scan(chunks: list[bytes]) -> int:
    """Do what the client does with a body."""
    splitter = LineSplitter()
    order = BlockOrder(
        BlockRange(FIRST), BlockCursor(FIRST - 1, fake_hash(FIRST - 1)), complete=True
    )
    seen = 0
    for chunk in chunks:
        for line in splitter.feed(chunk):
            order.accept(read_header(line))
            seen += 1
    return seen


def plain_lines(chunks: list[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def loads(chunks: list[bytes]) -> int:
    return sum(1 for line in plain_lines(chunks) if json.loads(line))


def split(chunks: list[bytes]) -> int:
    return sum(1 for _ in plain_lines(chunks))


def fastest(
    works: Mapping[str, Callable[[list[bytes]], int]], chunks: list[bytes]
) -> dict[str, float]:
    """Return the shortest of several runs of each, in seconds: the one least disturbed by others.

    The runs take turns, so that a busy machine is busy for all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.perf_counter()
            assert work(chunks) == BLOCKS
            times[name].append(time.perf_counter() - start)
    return {name: min(taken) for name, taken in times.items()}


def main() -> int:
    body = b"".join(block(number) + b"\n" for number in range(FIRST, FIRST + BLOCKS))
    chunks = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]
    megabytes = len(body) / 1e6
    works = {"headwater": scan, "json.loads": loads, "bytes.split": split}
    speed = {name: megabytes / taken for name, taken in fastest(works, chunks).items()}
    print(f"{megabytes:.1f} MB, {BLOCKS} blocks of {LOGS} logs, chunks of {CHUNK // 1024} KiB,")
    print(f"Python {platform.python_version()}, {platform.machine()}, one core, best of {ROUNDS}")
    print()
    print("| parser | MB/s | headwater is |")
    print("|---|---|---|")
    for name, value in speed.items():
        print(f"| {name} | {value:,.0f} | {speed['headwater'] / value:.2f}x |")
    if speed["headwater"] < LIMIT_MB_S:
        print(f"\nbelow the limit of {LIMIT_MB_S} MB/s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
