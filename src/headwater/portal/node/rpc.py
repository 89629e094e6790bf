"""JSON-RPC over HTTP: batches, several requests in flight, whole answers, and what refusals mean.

Runs on the driver and on executors. No retry happens here: what the node refuses is a `NodeRefusal`
with the status that says so, what broke is a `TransportError`, and the portal client, which sends
the request, waits and asks again as it does with a portal. An error inside a 200 is one too.

Providers say the same in many words: that a range is too wide, that a batch is too large, that they
are asked too often. What a text means is decided here alone; a text that nobody knows is a failure
that may pass, never an empty answer.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import msgspec

from headwater.address import NodeAddress
from headwater.errors import TransportError
from headwater.portal.transport import HttpTransport, Request, Response, Timeouts

IN_FLIGHT = 4
BATCH = 100
ANSWER_BYTES = 128 * 2**20  # of one HTTP answer
_SHOWN = 300
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BATCH_REFUSALS = frozenset({400, 405, 413, 414, 422, 500, 501})

METHOD_MISSING = -32601
INVALID_PARAMS = -32602
TOO_MANY = 429
BAD_REQUEST = 400
UNAVAILABLE = 503

_RATE_CODES = frozenset({429, -32029, -32090})
_RATE = re.compile(
    r"too many requests|rate.?limit|(requests?|calls?|credits|units) per (second|minute|day)|"
    r"compute units|throughput|quota|capacity exceeded|slow down|back.?off|throttl",
    re.IGNORECASE,
)
_UNKNOWN_METHOD = re.compile(
    r"method .{0,60}(not found|not exist|not available|not supported|unsupported|disabled)|"
    r"(unsupported|unknown|unrecognized) method|not whitelisted",
    re.IGNORECASE,
)
_GONE = re.compile(r"pruned|history (is )?(not|un)available|missing trie node", re.IGNORECASE)
_SUGGESTED = re.compile(r"\[\s*(0x[0-9a-f]{1,16})\s*,\s*(0x[0-9a-f]{1,16})\s*\]", re.IGNORECASE)
_WIDEN_AFTER = 20


@dataclass(frozen=True, slots=True)
class RpcError:
    """What a node answered instead of a result."""

    code: int
    message: str

    @property
    def is_rate(self) -> bool:
        """Whether the node was asked too much at once."""
        return self.code in _RATE_CODES or _RATE.search(self.message) is not None

    @property
    def is_missing_method(self) -> bool:
        """Whether the node does not know the method."""
        return self.code == METHOD_MISSING or _UNKNOWN_METHOD.search(self.message) is not None

    @property
    def status(self) -> int:
        """The HTTP status that says the same: what may pass is tried again, what stays is not."""
        if self.is_rate:
            return TOO_MANY
        lasts = self.is_missing_method or self.code == INVALID_PARAMS or _GONE.search(self.message)
        return BAD_REQUEST if lasts else UNAVAILABLE

    @property
    def suggested(self) -> int | None:
        """How many blocks the node would answer for, if it says so."""
        match = _SUGGESTED.search(self.message)
        if match is None:
            return None
        size = int(match[2], 16) - int(match[1], 16) + 1
        return size if size > 0 else None


class NodeRefusal(Exception):  # noqa: N818 - becomes the status of an answer
    """The node answers with something else than what it was asked for."""

    def __init__(self, status: int, text: str, retry_after: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after = retry_after


class TooWide(Exception):  # noqa: N818 - a smaller range is asked for
    """The node does not answer for so many blocks at once."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


class Unsettled(Exception):  # noqa: N818 - it is read again
    """Two answers of the node do not belong to the same chain."""


class LearnedSize:
    """How much to ask for at once: grows while all goes well, shrinks with each refusal.

    It grows quickly up to the first refusal. From then on it doubles only when so many requests in
    a row have been answered that it is worth trying again.
    """

    def __init__(self, first: int, most: int) -> None:
        self.size = first
        self._most = most
        self._was_refused = False
        self._answered = 0

    def answered(self, asked: int, share: float = 0.0) -> None:
        """Take note of an answer; `share` of the memory for one was used."""
        self._answered += 1
        if share > 1:
            self.size = max(1, int(asked / share))
        elif asked >= self.size and (not self._was_refused or self._answered >= _WIDEN_AFTER):
            quick = 2.0 if self._was_refused else 4.0
            growth = quick if share * quick <= 1 else 1 / share
            self.size = min(int(self.size * growth), self._most)
            self._answered = 0

    def refused(self, asked: int, suggested: int | None = None) -> None:
        """Take note of a refusal of so much."""
        self._answered = 0
        self._was_refused = True
        smaller = asked // 2 if suggested is None else min(suggested, asked - 1)
        self.size = max(1, min(self.size, smaller))


Call = tuple[str, Sequence[object]]
Answer = msgspec.Raw | RpcError


class _Failure(msgspec.Struct):
    code: int | None = None
    message: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")


class _Reply(msgspec.Struct):
    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw(b"")  # `null` is an answer, nothing at all is none
    error: _Failure | str | None = None


_decode_one = msgspec.json.Decoder(_Reply).decode
_decode_many = msgspec.json.Decoder(list[_Reply]).decode
_encode = msgspec.json.Encoder().encode


class _TooLong(Exception):  # noqa: N818 - becomes a refusal
    """An answer is larger than what is held in memory."""


class NodeRpc:
    """Asks one node. One thread asks at a time; `abort` may be called from any."""

    def __init__(self, address: NodeAddress, timeouts: Timeouts | None) -> None:
        self._address = address
        self._timeouts = timeouts
        self._batch = LearnedSize(BATCH, BATCH)
        self._pool: ThreadPoolExecutor | None = None
        self._idle: deque[HttpTransport] = deque()
        self._all: list[HttpTransport] = []
        self._aborted = False
        self.received = 0

    def begin(self) -> None:
        """Forget an earlier `abort`: another request is sent now."""
        self._aborted = False

    def abort(self) -> None:
        """Break off all that is under way, and what would follow it."""
        self._aborted = True
        for transport in tuple(self._all):
            transport.abort()

    def close(self) -> None:
        """Release every connection and thread; nobody waits for answers that are under way."""
        for transport in tuple(self._all):
            transport.abort()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        while self._idle:
            self._idle.pop().close()
        self._all.clear()

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """Return an answer to each call, in their order; one may be an error of its own.

        Raises:
            NodeRefusal: the node refuses, or is asked too much.
            TransportError: the connection broke, or the answer cannot be read.
        """
        size = self._batch.size
        parts = [calls[start : start + size] for start in range(0, len(calls), size)]
        if len(parts) <= 1:
            answered = [self._part(part) for part in parts]
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="headwater-node")
            futures = [self._pool.submit(self._part, part) for part in parts]
            try:
                answered = [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
        answers = [answer for part in answered for answer in part]
        for answer in answers:
            if isinstance(answer, RpcError) and answer.is_rate:
                raise NodeRefusal(TOO_MANY, self._show(answer.message))
        return answers

    def one(self, method: str, *params: object) -> msgspec.Raw:
        """Return the result of one call; an error of the node is a `NodeRefusal`."""
        (answer,) = self.ask([(method, params)])
        if isinstance(answer, RpcError):
            raise self.refusal(method, answer)
        return answer

    def refusal(self, method: str, error: RpcError) -> NodeRefusal:
        """Return what is raised for an error of one call."""
        said = f"{method}: {error.message} (code {error.code})"
        return NodeRefusal(error.status, self._show(said))

    def _part(self, calls: Sequence[Call]) -> list[Answer]:
        """Ask for one batch; one that is refused as a batch is asked for in halves."""
        status, headers, body = self._post(calls)
        retry_after = headers.get("retry-after")
        failure = None
        if status == 200:
            try:
                return self._read(calls, body)
            except _Refused as refused:
                failure = refused.error
        if failure is None:
            failure = _error_in(body) or RpcError(0, body[:_SHOWN].decode(errors="replace"))
        if status == TOO_MANY or failure.is_rate:
            raise NodeRefusal(TOO_MANY, self._show(failure.message), retry_after)
        if len(calls) > 1 and (status == 200 or status in _BATCH_REFUSALS):
            self._batch.refused(len(calls))
            middle = len(calls) // 2
            return self._part(calls[:middle]) + self._part(calls[middle:])
        if status == 200 or (status in _BATCH_REFUSALS and _error_in(body) is not None):
            return [failure] * len(calls)
        if 400 <= status < 500 and status not in (401, 403, 408, 425):
            status = (
                BAD_REQUEST if status != 413 else 413
            )  # 404 would say that there is no finality
        raise NodeRefusal(status, self._show(f"the node answered: {failure.message}"), retry_after)

    def _read(self, calls: Sequence[Call], body: bytes) -> list[Answer]:
        """Return the answers of a batch in the order of its calls."""
        try:
            if not body.lstrip().startswith(b"["):
                reply = _decode_one(body)
                if reply.error is not None:
                    raise _Refused(_error_of(reply.error))
                replies = [reply]
            else:
                replies = _decode_many(body)
        except _UNREADABLE as error:
            raise TransportError("the node's answer cannot be read", reason=str(error)) from None
        by_id = {reply.id: reply for reply in replies}
        if len(calls) == 1 and len(replies) == 1:
            by_id = {0: replies[0]}
        answers: list[Answer] = []
        for place in range(len(calls)):
            reply_of = by_id.get(place) or by_id.get(str(place))
            if reply_of is None and len(replies) == 1 and replies[0].error is not None:
                raise _Refused(_error_of(replies[0].error))
            if reply_of is None:
                raise TransportError("the node left out answers of a batch", calls=len(calls))
            if reply_of.error is not None:
                answers.append(_error_of(reply_of.error))
            elif not reply_of.result:
                raise TransportError("the node answered neither a result nor an error")
            else:
                answers.append(reply_of.result)
        self._batch.answered(len(calls))
        return answers

    def _post(self, calls: Sequence[Call]) -> tuple[int, dict[str, str], bytes]:
        requests = [
            {"jsonrpc": "2.0", "id": place, "method": method, "params": params}
            for place, (method, params) in enumerate(calls)
        ]
        content = _encode(requests[0] if len(requests) == 1 else requests)
        if self._aborted:
            raise TransportError("the request was broken off")
        transport = self._take()
        try:
            with closing(transport.send(Request("POST", "", content))) as response:
                body = self._body(response)
                return response.status, dict(response.headers), body
        except _TooLong:
            text = '{"error":{"code":-32005,"message":"the answer is too large to be held"}}'
            return 413, {}, text.encode()
        finally:
            self._idle.append(transport)

    def _body(self, response: Response) -> bytes:
        parts, size = [], 0
        for chunk in response.chunks():
            size += len(chunk)
            if size > ANSWER_BYTES:
                raise _TooLong
            parts.append(chunk)
        self.received += size
        return b"".join(parts)

    def _take(self) -> HttpTransport:
        try:
            return self._idle.pop()
        except IndexError:
            transport = HttpTransport(self._address, self._timeouts)
            self._all.append(transport)
            return transport

    def _show(self, text: str) -> str:
        return self._address.hide(text)[:_SHOWN]


class _Refused(Exception):  # noqa: N818 - the whole batch was
    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


def _error_of(failure: _Failure | str) -> RpcError:
    if isinstance(failure, str):
        return RpcError(0, failure)
    more = bytes(failure.data).decode(errors="replace")
    said = failure.message or "an error without a message"
    return RpcError(failure.code or 0, f"{said} {more}".strip() if more else said)


def _error_in(body: bytes) -> RpcError | None:
    """Return the error that a refusal's body holds, if it is JSON-RPC."""
    try:
        many = body.lstrip().startswith(b"[")
        replies = _decode_many(body) if many else [_decode_one(body)]
    except _UNREADABLE:
        return None
    return next((_error_of(reply.error) for reply in replies if reply.error is not None), None)
