"""A portal for benchmarks: blocks that are made of templates, so that serving costs a copy.

Every block holds the same ERC-20 transfers under a header of its own, or those of one of several
templates in turn, where what is measured depends on how much rows differ; all blocks are final. A
client that takes zstd gets it: groups of blocks were compressed before, into a file that later runs
use again, with a window that is smaller than a block, so that the ratio is that of one block. Run
as a process, it prints its address and ends when its input is closed. `GET …/asked` tells when the
first request for blocks came, and how much was sent; that starts the count anew.

With a pace an answer comes no faster than so many MB/s, unpacked, as over a long way; answers to
several requests at once do not slow each other down.

    python benchmarks/template_portal.py BLOCKS LOGS_PER_BLOCK [TEMPLATES [PACE]]
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
from backports import zstd

from headwater.core import BlockRange, Blocks
from headwater.decode import decode_outputs, evm
from headwater.portal import PortalClient

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
ANSWER_BYTES = 32 << 20  # then an answer ends, as a portal's does
_CHUNK = 1 << 20
_GROUP = 16  # blocks that are compressed together
_WINDOW: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.window_log: 15,
}


def word(*parts: object) -> str:
    return "0x" + hashlib.sha256(repr(parts).encode()).hexdigest()


def logs_of(count: int, template: int = 0) -> bytes:
    """Return the logs of a block, rendered."""
    first = template * count
    logs = [
        {
            "logIndex": index,
            "transactionIndex": index // 2,
            "transactionHash": word("transaction", first + index // 2),
            "address": word("token", (first + index) % 7)[:42],
            "data": "0x" + word("value", first + index)[2:34].rjust(64, "0"),
            "topics": [
                TRANSFER,
                *("0x" + word(one, first + index)[2:42].rjust(64, "0") for one in "ft"),
            ],
        }
        for index in range(count)
    ]
    return json.dumps(logs, separators=(",", ":")).encode()


class Chain:
    """The lines of all blocks, plain and compressed."""

    def __init__(self, blocks: int, logs: int, templates: int = 1) -> None:
        self.last = blocks - 1
        self.logs = [logs_of(logs, one) for one in range(templates)]
        folder = Path(tempfile.gettempdir(), "headwater-benchmarks")
        folder.mkdir(exist_ok=True)
        several = f"-{templates}" if templates > 1 else ""
        file = folder / f"template-{blocks}-{logs}{several}-{_GROUP}.zst"
        ends = file.with_suffix(".json")
        if not ends.exists():
            self._write(file, ends)
        self._ends = [0, *json.loads(ends.read_text())]
        with file.open("rb") as opened:
            self._packed = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

    def pieces(
        self, first: int, last: int, *, with_logs: bool, packed: bool
    ) -> Iterator[tuple[bytes, int]]:
        """Yield pieces of an answer, and how long they are unpacked."""
        while first <= last:
            end = min(last, first - first % _GROUP + _GROUP - 1)
            whole = first % _GROUP == 0 and end - first == _GROUP - 1
            if packed and with_logs and whole:
                group = first // _GROUP
                size = _GROUP * (len(self.logs[0]) + 200)
                yield self._packed[self._ends[group] : self._ends[group + 1]], size
            else:
                lines = self._lines(first, end, with_logs=with_logs)
                yield (zstd.compress(lines, options=_WINDOW) if packed else lines), len(lines)
            first = end + 1

    def _write(self, file: Path, ends: Path) -> None:
        written: list[int] = []
        part = file.with_suffix(f".{os.getpid()}")
        with part.open("wb") as out:
            for first in range(0, self.last + 1, _GROUP):
                last = min(first + _GROUP - 1, self.last)
                lines = self._lines(first, last, with_logs=True)
                out.write(zstd.compress(lines, options=_WINDOW))
                written.append(out.tell())
        part.replace(file)
        ends.write_text(json.dumps(written))

    def _lines(self, first: int, last: int, *, with_logs: bool) -> bytes:
        return b"".join(self._line(one, with_logs=with_logs) for one in range(first, last + 1))

    def _line(self, number: int, *, with_logs: bool) -> bytes:
        header = {
            "number": number, "hash": word(number), "parentHash": word(number - 1),
            "timestamp": 1_700_000_000 + 12 * number,
        }  # fmt: skip
        head = b'{"header":%b' % json.dumps(header, separators=(",", ":")).encode()
        logs = self.logs[number % len(self.logs)]
        return head + (b',"logs":%b}\n' % logs if with_logs else b"}\n")


class Asked:
    """What was asked since the count was begun."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.requests = self.sent = 0


class Handler(BaseHTTPRequestHandler):
    """Answers like a portal whose blocks are all final."""

    protocol_version = "HTTP/1.1"
    chain: Chain
    asked: Asked
    pace: float

    def do_GET(self) -> None:
        last = self.chain.last
        answer: dict[str, object] = {"number": last, "hash": word(last)}
        path = self.path.partition("?")[0]
        if path.endswith("metadata"):
            answer = {
                "dataset": "template", "aliases": [], "real_time": True, "start_block": 0,
                "metadata": {"kind": "evm", "display_name": "Template", "evm": {"chain_id": 1}},
            }  # fmt: skip
        elif path.endswith("asked"):
            answer = {**vars(self.asked), "cpu_s": time.process_time()}
            vars(self.asked).update(vars(Asked()))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with_logs = bool(asked.get("logs"))
        if with_logs:
            self.asked.first_at = self.asked.first_at or time.time()
        self.asked.requests += 1
        packed = "zstd" in self.headers.get("accept-encoding", "")
        last = self.chain.last
        self.send_response(200)
        for name, value in {
            "content-type": "application/jsonl",
            "transfer-encoding": "chunked",
            "x-sqd-finalized-head-number": last,
            "x-sqd-finalized-head-hash": word(last),
            "x-sqd-head-number": last,
            **({"content-encoding": "zstd"} if packed else {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        end = min(asked.get("toBlock", last), last)
        sent, began = 0, time.monotonic()
        held: list[bytes] = []
        for piece, size in self.chain.pieces(
            asked["fromBlock"], end, with_logs=with_logs, packed=packed
        ):
            held.append(piece)
            sent += size
            if self.pace:
                time.sleep(max(0.0, began + sent / self.pace - time.monotonic()))
            if sum(map(len, held)) >= _CHUNK:
                self._send(b"".join(held))
                held = []
            if sent >= ANSWER_BYTES:
                break
        if held:
            self._send(b"".join(held))
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, chunk: bytes) -> None:
        self.asked.sent += len(chunk)
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Says nothing of connections that clients close early, as they do when they measure."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextmanager
def template_portal(blocks: int, logs: int, templates: int = 1, pace: float = 0) -> Iterator[str]:
    """Serve in a process of its own while the block runs; yield the address."""
    command = [sys.executable, str(Path(__file__)), *map(str, (blocks, logs, templates, pace))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def decoded(url: str, blocks: int) -> pa.Table:
    """Return the transfers of the first blocks, as the driver decodes them."""
    output = evm.events("erc20.Transfer")
    whole = BlockRange(0, blocks - 1)
    with closing(PortalClient(url)) as client:
        tables = [
            decode_outputs({"t": output}, answer.lines, {"t": [whole]}).tables["t"]
            for answer in client.read(output.query, whole, finalized=True)
            if isinstance(answer, Blocks)
        ]
    return pa.concat_tables(tables)


def main() -> None:
    chain = Chain(*map(int, sys.argv[1:4]))
    pace = 1e6 * float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    handler = type("Bound", (Handler,), {"chain": chain, "asked": Asked(), "pace": pace})
    with Server(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}/template", flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
