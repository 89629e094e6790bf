"""Several sources of one chain behind one `Transport`: each request goes to one that works.

A request for blocks begins behind the last good one and names its hash, so the source may change
between any two requests: one on another branch answers 409, a fork like any other. Before a source
is used it has to show that it holds the same network, and the block that we know to be final.

Sources that are not in use are probed by threads of their own, so that a silent one delays nothing.
One request at a time; `abort` may be called from any thread. Nothing is stored: a restart begins
with the first source of the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import astuple, replace
from functools import partial
from threading import Thread
from typing import Protocol

import msgspec

from headwater.address import HttpAddress
from headwater.core import BlockCursor
from headwater.core.retry import is_retryable, parse_retry_after
from headwater.errors import (
    HeadwaterError,
    MalformedAnswerError,
    NetworkError,
    NodeLacksError,
    TransportError,
)
from headwater.portal.outage import Notice, NoticeKind, Observer, log_notice
from headwater.portal.sources.addresses import Sources
from headwater.portal.sources.answers import (
    Findings,
    Known,
    WatchedAnswer,
    WholeAnswer,
    decode_position,
    examine,
    in_short,
    query_number,
    read_whole,
)
from headwater.portal.sources.standing import Need, Panel, SourceState, Verdict
from headwater.portal.transport import Request, Response, Timeouts, Transport
from headwater.portal.wire import Dataset, explain, read_head, read_head_answer, read_missing

PROBE_S = 5.0  # that a probe waits for each of its answers
GRACE_S = 3.0  # that a start waits for the other sources, once one has answered
_LOOK_S = 0.02
_GOOD, _NOTHING_NEW, _BAD_REQUEST, _ABSENT, _FORK = 200, 204, 400, 404, 409
_QUESTIONS = ("head", "finalized-head")


class SourceTransport(Transport, Protocol):
    """A transport whose request can be broken off."""

    def abort(self) -> None:
        """Break off the request that is under way. May be called from another thread."""
        ...


Open = Callable[[HttpAddress, Timeouts | None, float | None], SourceTransport]
Spawn = Callable[[Callable[[], Findings]], "Future[Findings]"]


def in_a_thread(work: Callable[[], Findings]) -> Future[Findings]:
    """Examine a source in a thread that no process waits for when it ends."""
    future: Future[Findings] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            future.set_exception(error)

    Thread(target=run, name="headwater-source", daemon=True).start()
    return future


class SourcesTransport:
    """Sends each request to the source that is in use, and to the next one where that fails.

    `network` is what the driver knows of the chain, for executors. `spawn` runs a probe.
    """

    def __init__(
        self,
        sources: Sources,
        open_one: Open,
        timeouts: Timeouts | None = None,
        *,
        hold_s: float | None = None,
        network: Dataset | None = None,
        notify: Observer = log_notice,
        clock: Callable[[], float] = time.monotonic,
        spawn: Spawn = in_a_thread,
    ) -> None:
        limits = timeouts or Timeouts()
        self._probe_limits = Timeouts(*(min(PROBE_S, limit) for limit in astuple(limits)))
        self._made_of = sources, open_one, timeouts
        self._addresses = sources.addresses
        self._open = open_one
        self._transports = [open_one(address, limits, hold_s) for address in self._addresses]
        self._clock = clock
        self._spawn = spawn
        self._notify = notify
        self._panel = Panel(sources, clock())
        self._panel.network = network
        self._admitted: set[int] = set()
        self._probes: dict[int, Future[Findings]] = {}
        self._probing: dict[int, SourceTransport] = {}
        self._known = Known()
        self._aborted = False
        self._began = False

    def __reduce__(self) -> tuple[type[SourcesTransport], tuple[object, ...]]:
        return SourcesTransport, self._made_of

    # --- what a client calls ----------------------------------------------------------------------

    def send(self, request: Request) -> Response:
        """Send one request to the best source that answers it.

        Raises:
            TransportError: none of them answers now.
            NetworkError: at the first question for metadata, sources hold different networks.
            NodeLacksError: a node is asked for what no node has, and no other source answers.
        """
        self._aborted = False
        self._look()
        route = request.route.partition("?")[0]
        if route == "metadata":
            return self._metadata()
        if request.body is None and route not in _QUESTIONS:
            # whether a source finds blocks by their time must not change with the source
            return WholeAnswer(_ABSENT, {}, b"a list of sources finds no block by time")
        return self._ask(request, self._need(request, final_only=route.startswith("finalized")))

    def abort(self) -> None:
        """Break off what is under way, and ask no other source. Called from any thread."""
        self._aborted = True
        for transport in self._transports:
            transport.abort()

    def close(self) -> None:
        """Release every connection; what is known of the sources stays."""
        for transport in self._transports:
            transport.close()
        for probing in tuple(self._probing.values()):
            probing.abort()

    # --- what a run calls -------------------------------------------------------------------------

    def trust(self, final: BlockCursor | None) -> None:
        """Note our newest final block: a source that has another one there is not used."""
        ours = self._known.final
        if final is not None and (ours is None or final.number > ours.number):
            self._known = replace(self._known, final=final)

    def pass_over(self, reason: str) -> None:
        """Ask another source next, if one works: the one in use sent what cannot be used, or lags.

        It may be used again once it has proven itself.
        """
        self._fail(self._panel.current, reason)

    def distrust(self, error: HeadwaterError) -> bool:
        """Pass over a source that sent no blocks of a chain; tell whether to go on with another."""
        self.pass_over(in_short(error))
        return self._panel.has_other(self._clock())

    def best_first(self, sources: Sources) -> Sources:
        """Return the list for executors, which know nothing yet: final blocks are read there."""
        return sources.in_order(self._panel.order(self._clock(), Need(final_only=True)))

    def states(self) -> list[SourceState]:
        """Return what is known of each source. May be called from any thread."""
        return self._panel.states()

    # --- one request ------------------------------------------------------------------------------

    def _need(self, request: Request, *, final_only: bool) -> Need:
        if request.body is None:
            return Need(final_only=final_only)
        position = decode_position(request.body)
        if self._known.network is None:
            self._known = replace(self._known, network=position.type)
        refused = any(standing.lacks for standing in self._panel.standings)
        query = query_number(request.body) if refused else None
        return Need(position.from_block, final_only, query)

    def _ask(self, request: Request, need: Need) -> Response:
        """Ask one source after the other until one answers."""
        refusals: list[WholeAnswer] = []
        lacking: NodeLacksError | None = None
        broke = False
        for index in self._panel.order(self._clock(), need):
            if self._aborted:
                raise TransportError("the request was broken off")
            standing = self._panel.standings[index]
            if refusals and request.body is None and standing.verdict is Verdict.FAILING:
                continue  # a question has its answer: this source has no finality, that one is away
            if not self._is_admitted(index):
                broke = broke or standing.foreign is None
                continue
            standing.requests += 1
            try:
                response = self._transports[index].send(request)
                if request.body is None and response.status == _GOOD:
                    response = self._heard(index, request, read_whole(response))
            except (TransportError, MalformedAnswerError) as error:
                if self._aborted:
                    raise
                self._fail(index, in_short(error))
                broke = True
            except NodeLacksError as error:
                self._lacks(index, request, str(error.message))
                lacking = lacking or error
            else:
                if response.status == _FORK and need.final_only:
                    refusals.append(read_whole(response))
                    self._fail(index, "it reports a fork among final blocks")
                    continue
                if response.status < _BAD_REQUEST or response.status == _FORK:
                    return self._used(index, response, need)
                refusals.append(self._refused(index, read_whole(response), request))
        return self._in_vain(refusals, lacking, broke=broke)

    def _in_vain(
        self, refusals: list[WholeAnswer], lacking: NodeLacksError | None, *, broke: bool
    ) -> Response:
        """Say that no source answers, or why none ever will."""
        reasons = "; ".join(
            f"{state.source}: {state.reason or state.verdict}" for state in self.states()
        )
        said = f"none of the {len(self._transports)} sources answers"
        absent = next((refusal for refusal in refusals if refusal.status == _ABSENT), None)
        if absent is not None and absent.is_question:
            return absent
        later = next((refusal for refusal in refusals if refusal.may_change), None)
        if broke or (later is None and not refusals and lacking is None):
            raise TransportError(said, phase="sources", reason=reasons)
        if later is not None:
            return replace(later, body=f"{said}: {reasons}".encode())
        if lacking is not None:
            raise lacking
        return refusals[0]

    def _heard(self, index: int, request: Request, answer: WholeAnswer) -> WholeAnswer:
        """Note the head that a source names; without one there is no finality yet."""
        is_final = request.route == "finalized-head"
        head = read_head_answer(answer.body)
        if head is None:
            return replace(answer, status=_ABSENT) if is_final else answer
        shown = (None, head.number) if is_final else (head.number, None)
        self._panel.showed(index, self._clock(), *shown)
        return answer

    def _refused(self, index: int, answer: WholeAnswer, request: Request) -> WholeAnswer:
        """Note why a source does not answer."""
        said, status = explain(answer.body, 200), answer.status
        standing = self._panel.standings[index]
        retry_after_s = parse_retry_after(answer.headers.get("retry-after"), time.time())
        answer = replace(answer, is_question=request.body is None)
        missing = read_missing(said)
        if status == _ABSENT and request.route == "finalized-head":
            standing.has_finality = False
        elif missing is not None and missing.to_block is not None:
            standing.oldest = max(standing.oldest, missing.to_block + 1)
        elif status == _BAD_REQUEST and request.body is not None:
            self._lacks(index, request, said)
        else:
            self._fail(index, f"it answers {status}: {said}" if said else f"it answers {status}")
            return replace(answer, may_change=is_retryable(status, retry_after_s, 1))
        return answer

    def _lacks(self, index: int, request: Request, said: str) -> None:
        """Remember a query that a source refuses."""
        assert request.body is not None, "only a query is refused"
        standing = self._panel.standings[index]
        standing.lacks[query_number(request.body)] = said
        self._tell_of(index, f"{standing.name} does not answer the query: {said}")

    def _used(self, index: int, response: Response, need: Need) -> Response:
        now, panel = self._clock(), self._panel
        before = panel.standings[panel.current]
        panel.answered(index, now)
        head = read_head(response.headers)
        panel.showed(
            index,
            now,
            None if head.latest is None else head.latest.number,
            None if head.finalized is None else head.finalized.number,
        )
        if panel.use(index, now):
            why = before.fault or before.reason or "a better source works again"
            self._notify(
                Notice(
                    NoticeKind.SOURCE_CHANGED,
                    f"blocks are read from {panel.standings[index].name} now",
                    {"before": before.name, "reason": why},
                )
            )
        if need.first is None:
            return response
        if response.status == _NOTHING_NEW and not need.final_only:
            panel.sent(index, now, need.first, blocks=False)
        return WatchedAnswer(
            response, partial(self._delivered, index, need), partial(self._broke, index)
        )

    def _delivered(self, index: int, need: Need, blocks: bool) -> None:
        """Note whether blocks came in the body of an answer. Called by the response."""
        if need.first is not None and not need.final_only:
            self._panel.sent(index, self._clock(), need.first, blocks=blocks)

    def _broke(self, index: int, error: TransportError) -> None:
        """Note that the body of an answer broke. Called by the response."""
        if not self._aborted:
            self._fail(index, in_short(error))

    # --- which sources can be used ----------------------------------------------------------------

    def _is_admitted(self, index: int) -> bool:
        """Tell whether a source holds our network and chain; it is asked before it is used."""
        if index == self._panel.current and index in self._admitted:
            return True
        if self._panel.all_contradict:
            return True
        self._take(index, examine(self._transports[index], self._known, heads=False))
        return index in self._admitted

    def _take(self, index: int, findings: Findings) -> None:
        """Note what a source says of itself."""
        now, standing = self._clock(), self._panel.standings[index]
        if findings.fault is not None:
            self._fail(index, findings.fault)
            return
        self._panel.answered(index, now)
        standing.requests += 1
        standing.contradicts = findings.contradicts
        if findings.dataset is not None:
            self._panel.described(index, findings.dataset)
        if findings.has_finality is not None:
            standing.has_finality = findings.has_finality
        final = findings.final
        self._panel.showed(index, now, findings.head, None if final is None else final.number)
        if standing.foreign is None and standing.contradicts is None:
            self._admitted.add(index)
        else:
            self._admitted.discard(index)
        self._review()

    def _fail(self, index: int, reason: str) -> None:
        self._admitted.discard(index)
        self._panel.failed(index, self._clock(), reason)
        self._review()

    def _review(self) -> None:
        for standing, before in self._panel.review(self._clock()):
            if {standing.verdict, before} != {Verdict.GOOD, Verdict.UNKNOWN}:
                why = f": {standing.reason}" if standing.reason else ""
                self._tell_of(
                    self._panel.standings.index(standing),
                    f"{standing.name} is {standing.verdict.value}{why}",
                )

    def _tell_of(self, index: int, message: str) -> None:
        self._notify(Notice(NoticeKind.SOURCE_JUDGED, message, {"source": index + 1}))

    # --- probes -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take what probes have found, and begin those that are due."""
        self._harvest()
        self._review()
        for index in self._panel.due(self._clock()):
            self._begin(index)
        self._harvest()  # a probe in this thread is done

    def _begin(self, index: int) -> None:
        if index in self._probes:
            return
        transport = self._open(self._addresses[index], self._probe_limits, None)
        known = self._known
        self._probing[index] = transport

        def work() -> Findings:
            with closing(transport):
                return examine(transport, known)

        self._probes[index] = self._spawn(work)

    def _harvest(self) -> None:
        for index in sorted(self._probes):
            if self._probes[index].done():
                findings = self._probes.pop(index).result()
                del self._probing[index]
                self._take(index, findings)

    def _metadata(self) -> Response:
        """Ask all sources what they hold, and say it of the list.

        The list holds what its sources hold together: it begins with their oldest block.
        """
        for index in range(len(self._addresses)):
            self._begin(index)
        answered_at: float | None = None
        while self._probes and not self._aborted:
            self._harvest()
            now = self._clock()
            if answered_at is None and self._described():
                answered_at = now
            if answered_at is not None and now - answered_at > GRACE_S:
                break
            if self._probes:
                time.sleep(_LOOK_S)
        if self._aborted:
            raise TransportError("the request was broken off")
        self._refuse_different_networks()
        described = self._described()
        if not described:
            return self._ask(Request("GET", "metadata"), Need())
        first = described[0]
        evm = None if first.chain_id is None else {"chain_id": first.chain_id}
        details = {"kind": first.kind, "display_name": first.display_name, "evm": evm}
        answer = {
            "dataset": first.name,
            "aliases": list(first.aliases),
            "real_time": any(dataset.real_time for dataset in described),
            "start_block": min(dataset.start_block for dataset in described),
            "metadata": details,
        }
        return WholeAnswer(200, {}, msgspec.json.encode(answer))

    def _described(self) -> list[Dataset]:
        standings = self._panel.standings
        return [
            standing.dataset
            for standing in standings
            if standing.dataset and standing.foreign is None
        ]

    def _refuse_different_networks(self) -> None:
        """Refuse a list whose sources hold different networks, before anything is read."""
        if self._began:
            return
        foreign = [standing for standing in self._panel.standings if standing.foreign is not None]
        if foreign:
            raise NetworkError(
                "the sources of the list hold different networks",
                source=foreign[0].name,
                reason=foreign[0].foreign,
            )
        self._began = bool(self._described())
