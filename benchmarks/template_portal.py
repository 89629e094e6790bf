"""A portal for benchmarks: blocks that are made of one template, so that serving costs a copy.

Every block holds the same ERC-20 transfers under a header of its own; all blocks are final. Nothing
is kept but the template, so a chain of any length takes no memory. Run as a process, it prints its
address and ends when its input is closed.

    python benchmarks/template_portal.py BLOCKS LOGS_PER_BLOCK
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
ANSWER_BYTES = 32 << 20  # then an answer ends, as a portal's does
_CHUNK = 1 << 20


def word(*parts: object) -> str:
    return "0x" + hashlib.sha256(repr(parts).encode()).hexdigest()


def logs_of(count: int) -> bytes:
    """Return the logs of a block, rendered."""
    logs = [
        {
            "logIndex": index,
            "transactionIndex": index // 2,
            "transactionHash": word("transaction", index // 2),
            "address": word("token", index % 7)[:42],
            "data": "0x" + word("value", index)[2:34].rjust(64, "0"),
            "topics": [TRANSFER, *("0x" + word(one, index)[2:42].rjust(64, "0") for one in "ft")],
        }
        for index in range(count)
    ]
    return json.dumps(logs, separators=(",", ":")).encode()


class Handler(BaseHTTPRequestHandler):
    """Answers like a portal whose blocks are all final."""

    protocol_version = "HTTP/1.1"
    blocks: int
    logs: bytes

    def do_GET(self) -> None:
        last = self.blocks - 1
        answer: dict[str, object] = {"number": last, "hash": word(last)}
        if self.path.partition("?")[0].endswith("metadata"):
            answer = {
                "dataset": "template", "aliases": [], "real_time": True, "start_block": 0,
                "metadata": {"kind": "evm", "display_name": "Template", "evm": {"chain_id": 1}},
            }  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = self.blocks - 1
        self.send_response(200)
        for name, value in {
            "content-type": "application/jsonl",
            "transfer-encoding": "chunked",
            "x-sqd-finalized-head-number": last,
            "x-sqd-finalized-head-hash": word(last),
            "x-sqd-head-number": last,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        end = min(asked.get("toBlock", last), last)
        for chunk in self._chunks(asked["fromBlock"], end, with_logs=bool(asked.get("logs"))):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _chunks(self, first: int, last: int, *, with_logs: bool) -> Iterator[bytes]:
        held: list[bytes] = []
        size = sent = 0
        for number in range(first, last + 1):
            held.append(self._line(number, with_logs=with_logs))
            size += len(held[-1])
            if size >= _CHUNK:
                yield b"".join(held)
                sent, held, size = sent + size, [], 0
                if sent >= ANSWER_BYTES:
                    return
        if held:
            yield b"".join(held)

    def _line(self, number: int, *, with_logs: bool) -> bytes:
        header = {
            "number": number, "hash": word(number), "parentHash": word(number - 1),
            "timestamp": 1_700_000_000 + 12 * number,
        }  # fmt: skip
        head = b'{"header":%b' % json.dumps(header, separators=(",", ":")).encode()
        return head + (b',"logs":%b}\n' % self.logs if with_logs else b"}\n")


class Server(ThreadingHTTPServer):
    """Says nothing of connections that clients close early, as they do when they measure."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextmanager
def template_portal(blocks: int, logs: int) -> Iterator[str]:
    """Serve in a process of its own while the block runs; yield the address."""
    command = [sys.executable, str(Path(__file__)), str(blocks), str(logs)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def main() -> None:
    blocks, logs = map(int, sys.argv[1:])
    handler = type("Bound", (Handler,), {"blocks": blocks, "logs": logs_of(logs)})
    with Server(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}/template", flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
