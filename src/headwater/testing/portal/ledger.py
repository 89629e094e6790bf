"""What was asked and what was answered: the evidence a test needs about the traffic.

A pipeline can end with the right table for the wrong reason. The ledger shows how it got there: the
anchors it sent, the replicas that answered, the faults that hit, what was fetched twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from threading import Lock

from headwater.core.cursor import short_hash
from headwater.testing.portal.answer import STREAM_ROUTES


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
