"""A portal that says exactly what a test wrote down, and a clock that only moves when told to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headwater.core import Answer, BlockCursor, BlockRange
from headwater.errors import TransportError
from headwater.portal import Notice, NoticeKind, PortalClient, Request, RetryPolicy
from headwater.portal.wire import Dataset


class VirtualClock:
    def __init__(self) -> None:
        self.time = 1_000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.time

    def now(self) -> float:
        return 1_700_000_000.0 + self.time

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.sleeps.append(seconds)
        self.time += seconds


@dataclass
class Reply:
    """One response. An exception among the chunks is raised when the reader gets there."""

    status: int = 200
    body: Sequence[bytes | TransportError] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    takes_s: float = 0.0
    closed: bool = False
    read: int = 0

    def chunks(self) -> Iterator[bytes]:
        for chunk in self.body:
            self.read += 1
            if isinstance(chunk, TransportError):
                raise chunk
            yield chunk

    def close(self) -> None:
        self.closed = True


class ScriptedTransport:
    """Answers the n-th request with the n-th entry; the last entry of a script may repeat."""

    def __init__(
        self,
        script: Sequence[Reply | TransportError],
        clock: VirtualClock,
        again: Callable[[], Reply | TransportError] | None = None,
    ) -> None:
        self.replies = list(script)
        self.requests: list[Request] = []
        self.starts: list[float] = []
        self.closed = False
        self._again = again
        self._clock = clock

    def send(self, request: Request) -> Reply:
        index = len(self.requests)
        self.requests.append(request)
        self.starts.append(self._clock.time)
        if index >= len(self.replies):
            assert self._again is not None, f"unexpected request {index + 1}: {request}"
            self.replies.append(self._again())
        reply = self.replies[index]
        if isinstance(reply, TransportError):
            raise reply
        self._clock.time += reply.takes_s
        return reply

    def close(self) -> None:
        self.closed = True

    @property
    def asked(self) -> list[tuple[int, int | None, str | None]]:
        """What the stream requests asked for: from, to, anchor."""
        bodies = [json.loads(r.body) for r in self.requests if r.body is not None]
        return [(b["from"], b["to"], b["parent"]) for b in bodies]


@dataclass(frozen=True)
class AnyQuery:
    include_all_blocks: bool = False

    def body(
        self, from_block: int, to_block: int | None = None, parent_block_hash: str | None = None
    ) -> bytes:
        fields = {"from": from_block, "to": to_block, "parent": parent_block_hash}
        return json.dumps(fields).encode()


KNOWN = Dataset("test", real_time=True)
LOST = TransportError("lost", phase="body")


@dataclass
class Harness:
    """A client on a script, with everything a test looks at."""

    script: Sequence[Reply | TransportError]
    again: Callable[[], Reply | TransportError] | None = None
    retry: RetryPolicy = RetryPolicy(jitter=0)  # noqa: RUF009
    dataset: Dataset | None = KNOWN
    max_bytes: int = 10_000
    poll_interval_s: float = 0.25

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.notices: list[Notice] = []
        self.transport = ScriptedTransport(self.script, self.clock, self.again)
        self.client = PortalClient(
            self.transport,
            retry=self.retry,
            clock=self.clock,
            on_notice=self.notices.append,
            max_bytes=self.max_bytes,
            poll_interval_s=self.poll_interval_s,
            dataset=self.dataset,
        )

    def read(
        self,
        to_block: int | None = 3,
        from_block: int = 1,
        after: BlockCursor | None = None,
        *,
        finalized: bool = False,
        complete: bool = False,
    ) -> Iterator[Answer]:
        block_range = BlockRange(from_block, to_block)
        return self.client.read(AnyQuery(complete), block_range, after, finalized=finalized)

    @property
    def kinds(self) -> list[NoticeKind]:
        return [notice.kind for notice in self.notices]


def line(number: int, *, parent: bool = True, pad: int = 0, **more: object) -> bytes:
    header: dict[str, object] = {"number": number, "hash": f"0x{number}", "timestamp": number * 10}
    if parent:
        header["parentHash"] = f"0x{number - 1}"
    return json.dumps({"header": header | more, "pad": "x" * pad}).encode()


def lines(*numbers: int, **options: bool) -> bytes:
    return b"".join(line(number, **options) + b"\n" for number in numbers)


def heads(finalized: int | None = None, latest: int | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    if finalized is not None:
        found["x-sqd-finalized-head-number"] = str(finalized)
        found["x-sqd-finalized-head-hash"] = f"0x{finalized}"
    if latest is not None:
        found["x-sqd-head-number"] = str(latest)
    return found
