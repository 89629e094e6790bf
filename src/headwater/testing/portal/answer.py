"""An answer of the simulated portal, while it is being planned and once it is settled.

`Draft` is the honest answer; a fault may still bend it. `SimAnswer` is the result: plain data that
the in-memory transport and the HTTP server both know how to deliver, in gzip, zstd or neither.

The `Ledger` keeps what was asked and answered. A pipeline can end with the right table for the
wrong reason; the ledger shows how it got there: the anchors it sent, the replicas that answered,
the faults that hit, what was fetched twice.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from threading import Lock
from typing import TYPE_CHECKING

from headwater.core import BlockCursor
from headwater.core.cursor import short_hash

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from headwater.testing.faults import Fault
    from headwater.testing.portal.replicas import View


Buffer = bytes | memoryview

STREAM_ROUTES = ("stream", "finalized-stream")
ENCODINGS = ("gzip", "zstd")
_BLOCK = 16 * 1024  # zstd would wait for 128 KiB before it lets anything out


@dataclass(frozen=True, slots=True)
class Break:
    """How a connection goes wrong: it hangs until the client gives up, or it is dropped.

    `after` counts body bytes as sent; None is before the headers. `share` gives it as a part of a
    body whose encoded length is not known yet. A drop with `reset` loses what is on its way, too.
    """

    stall: bool
    after: int | None = None
    share: float | None = None
    reset: bool = False

    def within(self, size: int) -> Break:
        """Return the break with its share worked out for a body of this size."""
        if self.share is None:
            return self
        return Break(self.stall, after=int(self.share * size), reset=self.reset)


@dataclass(slots=True)
class Draft:
    """The answer a portal would give, open to change by one fault."""

    route: str
    status: int
    view: View | None = None
    content_type: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[Buffer] = field(default_factory=list)
    sample: list[BlockCursor] | None = None  # of a 409
    reports_head: bool = False
    finalized: BlockCursor | None = None
    latest: int | None = None
    first: int | None = None  # the blocks scanned, which the lines cover
    last: int | None = None
    count: int = 0  # lines
    broken: Break | None = None
    delay: float = 0.0

    @property
    def has_lines(self) -> bool:
        """Tell whether this answer delivers blocks."""
        return self.status == 200 and self.route in STREAM_ROUTES and self.count > 0

    @property
    def on_stream(self) -> bool:
        """Tell whether this answers a request for blocks."""
        return self.route in STREAM_ROUTES

    def lines(self) -> list[bytes]:
        """Return the lines of the body, each with its newline."""
        return b"".join(self.parts).splitlines(keepends=True)

    def put_lines(self, lines: list[bytes]) -> None:
        """Replace the body."""
        self.parts = list(lines)
        self.count = len(lines)

    def become(self, status: int, text: str) -> None:
        """Turn into a plain answer without blocks."""
        self.status = status
        self.content_type = "text/plain; charset=utf-8"
        self.parts = [text.encode()] if text else []
        self.sample = None
        self.reports_head = False
        self.first = self.last = None
        self.count = 0

    def conflict(self, sample: list[BlockCursor]) -> None:
        """Turn into a 409 with this sample of the chain."""
        self.become(409, "")
        self.sample = sample

    def head_headers(self) -> dict[str, str]:
        """Return what the answer says about the head of the chain."""
        if not self.reports_head:
            return {}
        headers = {}
        if self.finalized is not None:
            headers["x-sqd-finalized-head-number"] = str(self.finalized.number)
            headers["x-sqd-finalized-head-hash"] = self.finalized.hash or ""
        if self.latest is not None:
            headers["x-sqd-head-number"] = str(self.latest)
        return headers

    def body(self) -> list[Buffer]:
        """Return the body, before any content encoding."""
        if self.sample is None:
            return self.parts
        self.content_type = "application/json"
        blocks = [{"number": block.number, "hash": block.hash} for block in self.sample]
        return [json.dumps({"previousBlocks": blocks}, separators=(",", ":")).encode()]


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """One settled answer: header names in lower case, body as sent (after content encoding).

    `broken` tells the carrier to drop or stall instead of finishing; `delay` to wait first.
    """

    status: int
    headers: dict[str, str]
    body: tuple[Buffer, ...] = ()
    broken: Break | None = None
    delay: float = 0.0
    fault: Fault | None = None
    cuts: tuple[int, int] | None = None  # smallest and largest chunk; None: as the buffers are
    seed: int = 0

    @property
    def size(self) -> int:
        """The length of the whole body in bytes."""
        return sum(len(part) for part in self.body)

    @property
    def sent(self) -> int:
        """The number of body bytes that get out before a break."""
        if self.broken is None:
            return self.size
        return min(self.size, self.broken.after or 0)

    def chunks(self) -> Iterator[Buffer]:
        """Yield what is sent of the body, in pieces that respect no line; the same every time."""
        left = self.sent
        dice = Random(self.seed)
        for part in self.body:
            piece = memoryview(part)[:left]
            left -= len(piece)
            if self.cuts is None:
                if len(piece):
                    yield piece
                continue
            start = 0
            while start < len(piece):
                end = start + _chunk_size(dice, *self.cuts)
                yield piece[start:end]
                start = end

    def read(self) -> bytes:
        """Return what is sent of the body in one piece."""
        return b"".join(self.chunks())


def _chunk_size(dice: Random, smallest: int, largest: int) -> int:
    """Draw a size so that small and large chunks are equally common."""
    return min(largest, int(smallest * (largest / smallest) ** dice.random()) or 1)


def choose_encoding(accepted: str, offered: Sequence[str]) -> str | None:
    """Return the first offered encoding that an Accept-Encoding header names, if any."""
    names = set()
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            names.add(name.strip())
    return next((name for name in offered if name in names or "*" in names), None)


def encode(parts: Iterable[Buffer], encoding: str) -> bytes:
    """Compress a body, fast rather than small, so that its beginning can be read by itself."""
    whole = b"".join(parts)
    if encoding == "gzip":
        return gzip.compress(whole, 1, mtime=0)
    engine = zstd.ZstdCompressor(level=1)
    blocks = [
        engine.compress(whole[start : start + _BLOCK], engine.FLUSH_BLOCK)
        for start in range(0, len(whole), _BLOCK)
    ]
    return b"".join(blocks) + engine.flush()


def decoded(chunks: Iterable[Buffer], encoding: str | None) -> Iterator[bytes]:
    """Yield a body piece by piece, decompressed as far as it goes."""
    if encoding is None:
        yield from (bytes(chunk) for chunk in chunks)
        return
    engine = zlib.decompressobj(31) if encoding == "gzip" else zstd.ZstdDecompressor()
    for chunk in chunks:
        if piece := engine.decompress(bytes(chunk)):
            yield piece


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer.

    `first` and `last` are the blocks the answer covers, `count` its lines; `sent` counts body bytes
    up to where the connection broke, if it did. `head` and `finalized` are what it reported.
    """

    sequence: int
    replica: int | None
    method: str
    route: str
    status: int
    from_block: int | None = None
    to_block: int | None = None
    parent_block_hash: str | None = None
    first: int | None = None
    last: int | None = None
    count: int = 0
    sent: int = 0
    fault: str | None = None
    head: int | None = None
    finalized: int | None = None

    def __str__(self) -> str:
        asked = self.route
        if self.from_block is not None:
            end = "" if self.to_block is None else self.to_block
            asked += f" {self.from_block}..{end} after {short_hash(self.parent_block_hash)}"
        got = str(self.status)
        if self.count:
            got += f" {self.first}..{self.last}, {self.count} lines, {self.sent} bytes"
        where = "-" if self.replica is None else f"r{self.replica}"
        hit = f"  !{self.fault}" if self.fault else ""
        return f"{self.sequence:>5} {where:>3} {asked} -> {got}{hit}"


class Ledger:
    """Every exchange in order; with `limit`, only the newest, while the counters keep all.

    May be written and read from several threads.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=limit)
        self._statuses: Counter[int] = Counter()
        self._faults: Counter[str] = Counter()
        self._sequence = 0
        self._lock = Lock()

    def next_sequence(self) -> int:
        """Number the next request; numbers start at 1."""
        with self._lock:
            self._sequence += 1
            return self._sequence

    def record(self, exchange: Exchange) -> None:
        """Add one exchange."""
        with self._lock:
            self._exchanges.append(exchange)
            self._statuses[exchange.status] += 1
            if exchange.fault is not None:
                self._faults[exchange.fault.partition("(")[0]] += 1

    def stream_requests(self) -> list[Exchange]:
        """Return the requests for blocks, on either route."""
        return [exchange for exchange in self if exchange.route in STREAM_ROUTES]

    def statuses(self) -> Counter[int]:
        """Count answers by status, including those that `limit` dropped."""
        return Counter(self._statuses)

    def faults(self) -> Counter[str]:
        """Count answers by the name of the fault that hit them."""
        return Counter(self._faults)

    def of_status(self, status: int) -> list[Exchange]:
        """Return the exchanges that were answered with this status."""
        return [exchange for exchange in self if exchange.status == status]

    def lines_sent(self) -> int:
        """Count the lines of all answers kept."""
        return sum(exchange.count for exchange in self)

    def to_json(self) -> list[dict[str, object]]:
        """Return the exchanges as plain dictionaries."""
        return [asdict(exchange) for exchange in self]

    def clear(self) -> None:
        """Forget everything but the numbering."""
        with self._lock:
            self._exchanges.clear()
            self._statuses.clear()
            self._faults.clear()

    def __iter__(self) -> Iterator[Exchange]:
        with self._lock:
            return iter(tuple(self._exchanges))

    def __len__(self) -> int:
        return len(self._exchanges)

    def __getitem__(self, index: int) -> Exchange:
        return self._exchanges[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "(no requests)"
