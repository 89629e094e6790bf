"""A simulated SQD portal dataset: request in, answer out, no socket.

`PortalSim` speaks the whole wire of one dataset in front of a `ChainSim`. `SimTransport` carries
its answers in memory, with a clock that tests own: a drop is a `TransportError`, a stall is a
`TransportError` after the clock has been moved by the timeout. `simulated_portal` carries them over
HTTP; both deliver the same bytes and the same faults. Everything random is drawn from `seed`, so a
run can be repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from urllib.parse import parse_qsl, unquote

from headwater.errors import InvalidOptionError, TransportError
from headwater.portal.transport import Request
from headwater.testing.chain.tree import ChainSim, Network
from headwater.testing.fault_plan import Asked, FaultPlan
from headwater.testing.faults import Fault
from headwater.testing.portal.answer import (
    ENCODINGS,
    STREAM_ROUTES,
    Buffer,
    Draft,
    Exchange,
    Ledger,
    SimAnswer,
    choose_encoding,
    decoded,
    encode,
)
from headwater.testing.portal.replicas import Balance, ReplicaSet, View
from headwater.testing.portal.select import BadRequest
from headwater.testing.portal.stream_plan import Behind, StreamPlanner, Surface


class PortalSim:
    """One dataset of a portal in front of a simulated chain.

    `blocks_per_answer`: how many block numbers one answer scans at most; a pair draws it anew for
    each answer. `sample_size`: how many `previousBlocks` a 409 names. `behind`: what a replica says
    to an anchor above its tip. `conflict_before_no_content`: whether a reorganization is reported
    while no block follows the anchor; a real portal may hide it behind 204 until one does.
    `finalized_stream_conflicts`: whether finalized-stream checks the anchor; it then names one
    block. `encodings`: what is offered, best first; () for none. `chunk_bytes`: smallest and
    largest piece of a body; None sends large buffers. `no_content_delay`: seconds before a 204
    (a real portal takes 5); over HTTP the answer comes as soon as the chain grows or forks.

    `surface="hotblocks"` is the real-time service behind a portal, as it is seen where no archive
    stands before it: a 409 names the blocks of one stored chunk, one block at the tip; 204 says
    nothing of the head; metadata has no kind; no block is found by time; finalized-stream checks
    the anchor; bodies are always compressed. `window`: how many of the newest blocks are kept; what
    lies below is refused (400), and `start_block` of the metadata moves. `drop_below` moves it too.

    May be called from several threads. `chain.lock` guards planning; hold it to change the chain,
    the replicas and the faults as one step.
    """

    def __init__(
        self,
        chain: ChainSim,
        *,
        seed: int = 0,
        replicas: int = 1,
        balance: Balance = Balance.ROUND_ROBIN,
        faults: FaultPlan | None = None,
        ledger: Ledger | None = None,
        dataset: str = "simulated",
        blocks_per_answer: int | tuple[int, int] = 500,
        sample_size: int = 50,
        behind: Behind | str = Behind.WAIT,
        conflict_before_no_content: bool = True,
        finalized_stream_conflicts: bool = False,
        encodings: Sequence[str] = ENCODINGS,
        chunk_bytes: tuple[int, int] | None = (1, 65536),
        no_content_delay: float = 0.0,
        cache_bytes: int = 512 * 1024 * 1024,
        surface: Surface | str = Surface.PORTAL,
        window: int | None = None,
    ) -> None:
        per_answer = blocks_per_answer
        low, high = (per_answer, per_answer) if isinstance(per_answer, int) else per_answer
        if not 1 <= low <= high or sample_size < 1:
            raise InvalidOptionError(
                "blocks_per_answer and sample_size must be 1 or more, pairs ascending",
                blocks_per_answer=blocks_per_answer,
                sample_size=sample_size,
            )
        if chunk_bytes is not None and not 1 <= chunk_bytes[0] <= chunk_bytes[1]:
            raise InvalidOptionError("chunk_bytes must be 1 or more, ascending", got=chunk_bytes)
        if not set(encodings) <= set(ENCODINGS):
            raise InvalidOptionError(f"encodings are {', '.join(ENCODINGS)}", got=encodings)
        if window is not None and window < 1:
            raise InvalidOptionError("window must be 1 or more", got=window)
        self.surface = Surface(surface)
        self._window = window
        self._oldest = chain.start_block
        self.chain = chain
        self.seed = seed
        self.dataset = dataset
        self.replicas = ReplicaSet(chain, replicas, seed=seed, balance=balance)
        self.faults = FaultPlan(seed=seed) if faults is None else faults
        self.ledger = Ledger() if ledger is None else ledger
        self._limits = (low, high)
        self._sample_size = sample_size
        self._encodings = tuple(encodings)
        self._cuts = chunk_bytes
        self._planner = StreamPlanner(
            chain,
            behind=Behind(behind),
            conflict_before_no_content=conflict_before_no_content,
            finalized_stream_conflicts=finalized_stream_conflicts or self._is_real_time,
            no_content_delay=no_content_delay,
            surface=self.surface,
            cache_bytes=cache_bytes,
        )

    @property
    def _is_real_time(self) -> bool:
        return self.surface is Surface.HOTBLOCKS

    @property
    def oldest(self) -> int:
        """The first block that is left. It never moves back, also if the chain gets shorter."""
        with self.chain.lock:
            if self._window is not None:
                self.drop_below(self.chain.head.number - self._window + 1)
            return self._oldest

    def drop_below(self, number: int) -> None:
        """Forget the blocks below a number, as retention does; the head is never forgotten."""
        with self.chain.lock:
            self._oldest = max(self._oldest, min(number, self.chain.head.number))

    def respond(
        self,
        request: Request,
        headers: Mapping[str, str] | None = None,
        *,
        now: float | None = None,
    ) -> SimAnswer:
        """Answer one request. `headers` has lower-case names; `now` dates a Retry-After."""
        with self.chain.lock:
            sequence = self.ledger.next_sequence()
            dice = Random(f"portal {self.seed} {sequence}")
            view = self.replicas.choose().view(self._sample_size)
            route, _, search = request.route.strip("/").partition("?")
            asked, draft = self._plan(request, unquote(route), search, view, sequence, dice)
            fault = self.faults.pick(asked, draft)
            if fault is not None:
                fault.apply(draft, dice, time.time() if now is None else now)
        answer = self._settle(draft, headers or {}, fault, dice)
        self._record(request, asked, draft, answer)
        return answer

    # --- planning ---------------------------------------------------------------------------------

    def _plan(
        self, request: Request, route: str, search: str, view: View, sequence: int, dice: Random
    ) -> tuple[Asked, Draft]:
        """Return what was asked and the honest answer."""
        asked = Asked(sequence, route)
        allowed = "POST" if route in STREAM_ROUTES else "GET"
        if route not in STREAM_ROUTES and not _is_lookup(route):
            return asked, _text(route, 404, "not found", view)
        if request.method != allowed:
            return asked, _text(route, 405, f"use {allowed}", view)
        if route not in STREAM_ROUTES:
            return asked, self._look_up(route, search, view)
        try:
            query = self._planner.parse(request.body)
        except BadRequest as error:
            return asked, _text(route, 400, str(error), view)
        asked = Asked(sequence, route, query.from_block, query.to_block, query.parent_hash)
        limit = dice.randint(*self._limits)
        return asked, self._planner.plan(route, query, view, limit, self.oldest)

    def _look_up(self, route: str, search: str, view: View) -> Draft:
        """Answer one of the routes that need no body."""
        if route == "metadata":
            expanded = ("expand[]", "metadata") in parse_qsl(search)
            return _json(route, self._metadata(expanded=expanded), view)
        if route == "head":
            return _json(route, {"number": view.tip.number, "hash": view.tip.hash}, view)
        if route == "finalized-head":
            final = view.finalized
            answer = None if final is None else {"number": final.number, "hash": final.hash}
            return _json(route, answer, view)
        if self._is_real_time:  # it has no such route
            return _text(route, 404, "", view)
        block = view.first_at(int(route.split("/")[1]))
        if block is None:
            return _text(route, 404, "no block at or after this timestamp", view)
        return _json(route, {"block_number": block.number}, view)

    def _metadata(self, *, expanded: bool) -> dict[str, object]:
        metadata: dict[str, object] = {
            "dataset": self.dataset,
            "aliases": [],
            "real_time": True,
            "start_block": self.oldest,
        }
        if expanded and not self._is_real_time:
            kind = self.chain.network.value
            details: dict[str, object] = {"kind": kind, "display_name": f"Simulated {kind}"}
            if self.chain.network is Network.EVM:
                details["evm"] = {"chain_id": 1}
            metadata["metadata"] = details
        return metadata

    # --- settling ---------------------------------------------------------------------------------

    def _settle(
        self, draft: Draft, headers: Mapping[str, str], fault: Fault | None, dice: Random
    ) -> SimAnswer:
        """Encode the body and write the headers."""
        parts: list[Buffer] = draft.body()
        sent = {**draft.headers, **draft.head_headers()}
        if draft.status != 204:
            sent["content-type"] = draft.content_type
        accepted = headers.get("accept-encoding", "")
        encoding = choose_encoding(accepted, self._encodings)
        if self._is_real_time:  # always compressed, whatever is asked for
            encoding = "zstd" if "zstd" in accepted else "gzip"
        if encoding is not None and draft.status == 200 and draft.on_stream:
            parts = [encode(parts, encoding)]
            sent["content-encoding"] = encoding
        broken = draft.broken and draft.broken.within(sum(len(part) for part in parts))
        return SimAnswer(
            status=draft.status,
            headers=sent,
            body=tuple(parts),
            broken=broken,
            delay=draft.delay,
            fault=fault,
            cuts=self._cuts if draft.on_stream else None,
            seed=dice.getrandbits(32),
        )

    def _record(self, request: Request, asked: Asked, draft: Draft, answer: SimAnswer) -> None:
        reported = draft.reports_head
        final = draft.finalized if reported else None
        self.ledger.record(
            Exchange(
                sequence=asked.sequence,
                replica=None if draft.view is None else draft.view.replica,
                method=request.method,
                route=asked.route,
                status=draft.status,
                from_block=asked.from_block,
                to_block=asked.to_block,
                parent_block_hash=asked.parent_block_hash,
                first=draft.first,
                last=draft.last,
                count=draft.count,
                sent=answer.sent,
                fault=None if answer.fault is None else str(answer.fault),
                head=draft.latest if reported else None,
                finalized=None if final is None else final.number,
            )
        )


def _is_lookup(route: str) -> bool:
    if route in ("metadata", "head", "finalized-head"):
        return True
    parts = route.split("/")
    return len(parts) == 3 and parts[::2] == ["timestamps", "block"] and parts[1].isdecimal()


def _text(route: str, status: int, text: str, view: View) -> Draft:
    draft = Draft(route, status, view)
    draft.become(status, text)
    return draft


def _json(route: str, value: object, view: View) -> Draft:
    text = json.dumps(value, separators=(",", ":")).encode()
    return Draft(route, 200, view, content_type="application/json", parts=[text])


class VirtualClock:
    """Time that passes only when a caller sleeps or moves it.

    `on_sleep` is called with the seconds after each sleep: the place to move the chain while a
    client waits.
    """

    def __init__(
        self, start: float = 1_750_000_000.0, on_sleep: Callable[[float], object] | None = None
    ) -> None:
        self.sleeps: list[float] = []
        self.on_sleep = on_sleep
        self._start = start
        self._elapsed = 0.0

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._elapsed

    def now(self) -> float:
        """Return the seconds since 1970 UTC."""
        return self._start + self._elapsed

    def sleep(self, seconds: float) -> None:
        """Record the wish and let the time pass at once."""
        self.sleeps.append(seconds)
        self.advance(max(0.0, seconds))
        if self.on_sleep is not None:
            self.on_sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass without a sleep."""
        self._elapsed += seconds

    def jump(self, seconds: float) -> None:
        """Set the clock of the machine forward or back; no time passes by it."""
        self._start += seconds


class SimResponse:
    """An answer in memory."""

    def __init__(self, answer: SimAnswer, transport: SimTransport) -> None:
        self.closed = False
        self._answer = answer
        self._transport = transport

    @property
    def status(self) -> int:
        """The HTTP status code."""
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The response headers; names are in lower case."""
        return self._answer.headers

    def chunks(self) -> Iterator[bytes]:
        """Yield the decoded body, cut anywhere; `TransportError` where it breaks."""
        yield from decoded(self._answer.chunks(), self.headers.get("content-encoding"))
        if self._answer.broken is not None:
            self._transport.fail(stall=self._answer.broken.stall)

    def close(self) -> None:
        """Mark the response as done with."""
        if not self.closed:
            self.closed = True
            self._transport.open_responses -= 1


class SimTransport:
    """Sends requests to a `PortalSim`.

    `timeout` is what a stall costs on the clock. `on_request` is called before each request, so
    that a test can move the chain between two of them. `open_responses` counts what the client has
    not closed yet.
    """

    def __init__(
        self,
        portal: PortalSim,
        clock: VirtualClock,
        *,
        timeout: float = 20.0,
        accept_encoding: str = "identity",
        on_request: Callable[[Request], object] | None = None,
    ) -> None:
        self.portal = portal
        self.clock = clock
        self.on_request = on_request
        self.open_responses = 0
        self.closed = False
        self._timeout = timeout
        self._accept_encoding = accept_encoding

    def send(self, request: Request) -> SimResponse:
        """Answer at once; `TransportError` if the connection fails before the headers."""
        if self.on_request is not None:
            self.on_request(request)
        headers = {"accept-encoding": self._accept_encoding}
        answer = self.portal.respond(request, headers, now=self.clock.now())
        self.clock.advance(answer.delay)
        if answer.broken is not None and answer.broken.after is None:
            self.fail(stall=answer.broken.stall)
        self.open_responses += 1
        return SimResponse(answer, self)

    def close(self) -> None:
        """Note that the client is done."""
        self.closed = True

    def fail(self, *, stall: bool) -> None:
        """Raise what a broken connection raises, after the time it takes to notice."""
        if stall:
            self.clock.advance(self._timeout)
            raise TransportError("the portal stopped answering", timeout=self._timeout)
        raise TransportError("the connection was closed by the portal")
