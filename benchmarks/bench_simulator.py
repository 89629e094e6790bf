"""How fast the simulator serves NDJSON, so that benchmarks against it measure the client.

The server runs in a child process. The parent asks over one plain socket and throws the bytes away,
so its share is small; the figure that counts is still the server's own: megabytes per second of its
CPU time, which no client and no neighbour on the machine distorts.

    python benchmarks/bench_simulator.py
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headwater.testing import ChainSim, ContentSettings, PortalServer, PortalSim

LIMIT = 200.0  # MB per second of server CPU; below, the client would be measured through it
MB = 1_000_000
RESULTS = Path(__file__).with_name("RESULTS.md")
FIELDS = {
    "block": {"number": True, "hash": True, "parentHash": True, "timestamp": True},
    "log": {
        "logIndex": True,
        "transactionIndex": True,
        "transactionHash": True,
        "address": True,
        "topics": True,
        "data": True,
    },
}


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of the whole chain."""

    name: str
    size: int
    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        return (
            f"{self.name:<5} {self.size / MB:7.1f} MB in {self.wall_s:6.2f} s: "
            f"{self.size / MB / self.wall_s:7.0f} MB/s over the socket, server CPU "
            f"{self.cpu_s:6.2f} s: {self.rate:7.0f} MB per CPU second"
        )

    @property
    def rate(self) -> float:
        return self.size / MB / max(self.cpu_s, 1e-6)


def serve(blocks: int, logs: int) -> None:
    """Be the server: print the address, then the CPU time for each line that comes in."""
    content = ContentSettings(transactions_per_block=logs / 2, transfers_per_transaction=2)
    chain = ChainSim(7, content=content)
    chain.grow(blocks - 1)
    chain.finalize(chain.head.number)
    sim = PortalSim(chain, blocks_per_answer=blocks, chunk_bytes=None, cache_bytes=2_000 * MB)
    with PortalServer(sim) as server:
        print(server.url, flush=True)
        for _ in sys.stdin:
            print(time.process_time(), flush=True)


def read_all(connection: socket.socket, path: str, blocks: int, per_answer: int) -> None:
    """Ask for every block, a fixed range at a time, and throw the bytes away."""
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    for first in range(0, blocks, per_answer):
        last = min(first + per_answer, blocks) - 1
        query = {
            "type": "evm",
            "fromBlock": first,
            "toBlock": last,
            "fields": FIELDS,
            "includeAllBlocks": True,
            "logs": [{}],
        }
        body = json.dumps(query).encode()
        connection.sendall(
            f"POST {path}/finalized-stream HTTP/1.1\r\nHost: simulator\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            size = connection.recv_into(view)
            if size == 0 or (not tail and not buffer.startswith(b"HTTP/1.1 200")):
                raise SystemExit(f"the simulator answered {bytes(view[:200])!r}")
            tail = (tail + bytes(view[max(0, size - 8) : size]))[-8:]


def bytes_sent(url: str) -> int:
    """Ask the ledger how many bytes of NDJSON went out so far."""
    base = url.split("/datasets/")[0]
    with urllib.request.urlopen(f"{base}/control/ledger", timeout=60) as answer:
        return sum(exchange["sent"] for exchange in json.load(answer))


def measure(server: subprocess.Popen[str], blocks: int, per_answer: int) -> list[Pass]:
    assert server.stdin is not None
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    address = urlsplit(url)
    passes = []
    for name in ("cold", "warm", "warm", "warm"):
        before = bytes_sent(url)
        with socket.create_connection((str(address.hostname), address.port or 0)) as connection:
            cpu, began = ask_cpu(server), time.perf_counter()
            read_all(connection, address.path, blocks, per_answer)
            wall, cpu = time.perf_counter() - began, ask_cpu(server) - cpu
        passes.append(Pass(name, bytes_sent(url) - before, wall, cpu))
        print(passes[-1], flush=True)
    return passes


def ask_cpu(server: subprocess.Popen[str]) -> float:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    return float(server.stdout.readline())


def record(passes: list[Pass], options: argparse.Namespace) -> None:
    """Replace the section "Simulator" of the results file."""
    heading = "## Simulator\n"
    command = (
        f"python benchmarks/bench_simulator.py --blocks {options.blocks} --logs {options.logs}"
    )
    lines = "\n".join(map(str, passes))
    section = (
        f"{heading}\n`{command}`\n\n```\n{options.blocks} blocks x {options.logs} logs, "
        f"one connection, no content encoding\n{lines}\nlimit {LIMIT:.0f} MB per CPU second\n```\n"
    )
    text = RESULTS.read_text() if RESULTS.exists() else "# Benchmark results\n"
    before, found, after = text.partition(heading)
    rest = after.partition("\n## ")[1:] if found else ("", "")
    RESULTS.write_text(before.rstrip() + "\n\n" + section + "".join(rest))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=5000)
    parser.add_argument("--logs", type=int, default=100, help="logs per block, on average")
    parser.add_argument("--per-answer", type=int, default=500)
    parser.add_argument("--no-record", action="store_true", help="leave RESULTS.md alone")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.blocks, options.logs)
        return 0
    arguments = ["--serve", "--blocks", str(options.blocks), "--logs", str(options.logs)]
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        passes = measure(server, options.blocks, options.per_answer)
    if not options.no_record:
        record(passes, options)
    best = max(one.rate for one in passes[1:])
    print(f"best warm pass: {best:.0f} MB per CPU second, limit {LIMIT:.0f}")
    return 0 if best >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
