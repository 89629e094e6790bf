"""One endpoint over gRPC: sessions that follow each other, and what to do when one ends.

A session is one call. It is asked for by cursor, so that the next one goes on exactly where the
last one ended, whatever ended it: a broken connection, silence, a cut on purpose. The newest
version of the protocol is tried first; the first message tells whether the endpoint speaks it.
Runs on the driver, in a thread of the source; `abort` may be called from any thread.
"""

from __future__ import annotations

import random as chance
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from threading import Event, Lock, Thread
from typing import Any

import grpc

from headwater.errors import (
    InvalidOptionError,
    ModuleFailedError,
    PlaintextEndpointError,
    QuotaExceededError,
    SubstreamsRefusedError,
    SubstreamsUnreachableError,
)
from headwater.portal import Clock, Notice, NoticeKind, Observer, SystemClock, log_notice
from headwater.substreams.endpoint import Credentials, Endpoint
from headwater.substreams.messages import (
    CLASSES,
    V2,
    VERSIONS,
    FatalError,
    Message,
    Outputs,
    UndoSignal,
    read_response,
)

RECEIVE_LIMIT = 1 << 30
METADATA_LIMIT = 1 << 20  # a status with the reason of a failed module may be long
IDLE_S = 90.0
FIRST_PAUSE_S, PAUSE_GROWTH, LONGEST_PAUSE_S = 0.5, 1.5, 60.0
_LOGS_SHOWN = 20
_REASON_SHOWN = 4000
_NO_TLS = re.compile(r"handshake failed.*WRONG_VERSION_NUMBER", re.IGNORECASE | re.DOTALL)
_FAILED = re.compile(
    r'block (\d+): module "([^"]+)": (.*wasm execution failed deterministically.*)', re.DOTALL
)
"""How an endpoint says in a status that a module fails on a block each time."""


class Verdict(Enum):
    """What the end of a session calls for."""

    RETRY = "retry"
    RECONNECT = "reconnect"  # cut on purpose: no failure
    OLDER_VERSION = "older version"
    FATAL = "fatal"
    QUOTA = "quota"


_FATAL = {"UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION"}
_UNKNOWN_METHOD = {"UNIMPLEMENTED", "NOT_FOUND"}


def judge(status: str, text: str, *, said: bool, blocks: bool) -> Verdict:
    """Tell what a status calls for: `said` if the session had a message, `blocks` if it had data.

    A quota is recognised in any spelling: providers do not agree on one.
    """
    if status in _UNKNOWN_METHOD:
        return Verdict.FATAL if said else Verdict.OLDER_VERSION
    if status in _FATAL:
        return Verdict.FATAL
    if status == "RESOURCE_EXHAUSTED" and "quota exceeded" in text.lower():
        return Verdict.QUOTA
    if status == "UNAVAILABLE" and blocks:
        return Verdict.RECONNECT
    return Verdict.RETRY


def pause_s(failures: int, random: Callable[[], float]) -> float:
    """Return how long to wait after this many failures in a row; half of it is up to chance."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * PAUSE_GROWTH ** min(failures - 1, 20))
    return float(longest * (0.5 + random()))


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of the endpoint in every session, except where it begins.

    `package` is sent to v4 and v3, which apply `params` and `network` themselves; v2 is sent
    `modules`, to which they were applied before.
    """

    module: str
    package: bytes
    modules: bytes
    params: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    production: bool = True
    final_only: bool = False

    def request(self, version: int, cursor: str, start: int, stop: int) -> bytes:
        """Return the request of a session."""
        common: dict[str, Any] = {
            "start_block_num": start,
            "start_cursor": cursor,
            "stop_block_num": stop,
            "final_blocks_only": self.final_only,
            "production_mode": self.production,
            "output_module": self.module,
        }
        if version == V2:
            return bytes(CLASSES["v2.Request"](modules=self.modules, **common).SerializeToString())
        request = CLASSES["v3.Request"](package=self.package, network=self.network, **common)
        for module, value in self.params.items():
            request.params.add(key=module, value=value)
        return bytes(request.SerializeToString())


@dataclass(frozen=True, slots=True)
class Dialling:
    """How sessions are opened and watched.

    `idle_s` is how long an endpoint may be silent before it is dialled anew. `max_retries` bounds
    the sessions in a row that bring no block; None is without end. `roots` are certificates to
    trust instead of the system's. `version` forces one version of the protocol.
    """

    idle_s: float = IDLE_S
    max_retries: int | None = None
    receive_limit: int = RECEIVE_LIMIT
    roots: bytes | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        if type(self.idle_s) not in (int, float) or not self.idle_s > 0:
            raise InvalidOptionError("idle_s is a number above 0", got=repr(self.idle_s))
        if self.max_retries is not None and (
            type(self.max_retries) is not int or self.max_retries < 0
        ):
            raise InvalidOptionError(
                "max_retries is a number from 0, or None", got=self.max_retries
            )
        if self.version is not None and self.version not in VERSIONS:
            raise InvalidOptionError("version is 2, 3, 4 or None", got=repr(self.version))


class SubstreamsClient:
    """Reads one module of one endpoint. `on_notice` is told of retries, silence and reconnects."""

    def __init__(
        self,
        endpoint: Endpoint,
        order: Order,
        *,
        credentials: Credentials = Credentials(),  # noqa: B008 - immutable
        dialling: Dialling = Dialling(),  # noqa: B008 - immutable
        clock: Clock | None = None,
        random: Callable[[], float] = chance.random,
        on_notice: Observer = log_notice,
    ) -> None:
        self.endpoint = endpoint
        self.order = order
        self.credentials = credentials
        self.dialling = dialling
        self.clock = clock or SystemClock()
        self.random = random
        self.versions = [v for v in VERSIONS if dialling.version in (None, v)]
        self._notify = on_notice
        self._channel: Any = None
        self._guard = Lock()

    def read(self, *, cursor: str = "", start: int = 0, stop: int = 0) -> Reading:
        """Return a reading from a cursor, or from a block; nothing is dialled yet."""
        return Reading(self, cursor, start, stop)

    def dial(self, request: bytes) -> Any:
        """Begin a call with the version that is spoken, or tried next."""
        with self._guard:
            channel = self._connect()
        return channel.unary_stream(f"/sf.substreams.rpc.v{self.versions[0]}.Stream/Blocks")(
            request,
            metadata=self.credentials.metadata(plaintext=self.endpoint.plaintext),
            compression=grpc.Compression.Gzip,
        )

    def close(self) -> None:
        """Release the connection; a session on it ends."""
        with self._guard:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def tell(self, kind: NoticeKind, message: str, status: str, **facts: object) -> None:
        """Tell the operator."""
        shown = {"endpoint": str(self.endpoint), "status": status, **facts}
        self._notify(Notice(kind, message, shown))

    def _connect(self) -> Any:
        """Return the channel, opened at the first use."""
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", self.dialling.receive_limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", METADATA_LIMIT),
                ("grpc.keepalive_time_ms", 300_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.initial_reconnect_backoff_ms", 500),
                ("grpc.max_reconnect_backoff_ms", 60_000),
                ("grpc.enable_retries", 0),
                ("grpc.primary_user_agent", "headwater"),
            ]
            if self.endpoint.plaintext:
                self._channel = grpc.insecure_channel(self.endpoint.address, options=options)
            else:
                trusted = grpc.ssl_channel_credentials(root_certificates=self.dialling.roots)
                self._channel = grpc.secure_channel(self.endpoint.address, trusted, options=options)
        return self._channel


class Reading:
    """What an endpoint says after one place, over as many sessions as it takes. Iterated once."""

    def __init__(self, client: SubstreamsClient, cursor: str, start: int, stop: int) -> None:
        self._client = client
        self._place = (cursor, start, stop)
        self._last = -1  # the newest block that has arrived
        self._call: Any = None
        self._guard = Lock()
        self._aborted = False
        self._failures = 0
        self._since = client.clock.monotonic()

    def abort(self) -> None:
        """Break off the session, and begin none again. Called from any thread, once or twice."""
        with self._guard:
            self._aborted = True
            if self._call is not None:
                self._call.cancel()

    def _is_over(self) -> bool:
        return self._aborted

    def _has_all(self) -> bool:
        """Tell whether the range's last block has come: nothing is left to dial for.

        An endpoint refuses to begin behind the end of a range.
        """
        return 0 < self._place[2] <= self._last + 1

    def __iter__(self) -> Iterator[Message]:
        """Yield what the endpoint says until the range is read; an abort ends it too.

        Each session goes on after the last block that was yielded.

        Raises:
            SubstreamsRefusedError, QuotaExceededError: a status that a new session cannot mend.
            ModuleFailedError: a module failed.
            PlaintextEndpointError: no TLS is spoken there.
            SubstreamsUnreachableError: too many sessions in a row brought no block.
            SubstreamsMessageError: a message cannot be read.
        """
        while not self._aborted:
            session = _Session(self._client.dialling.idle_s, self._client.clock)
            try:
                yield from self._session(session)
            except grpc.RpcError as error:
                if self._is_over():
                    return
                status, text = error.code().name, error.details() or ""
                self._check_module(session)
                if self._has_all():
                    return
                self._follow(session, status, text)
            else:
                self._check_module(session)
                if self._place[2] or self._is_over():
                    return
                self._follow(session, "UNAVAILABLE", "the session ended, the chain does not")

    def _session(self, session: _Session) -> Iterator[Message]:
        """Yield the messages of one call."""
        version = self._client.versions[0]
        request = self._client.order.request(version, *self._place)
        with self._guard:
            if self._aborted:
                return
            call = self._call = self._client.dial(request)
        with session.watching(call):
            for data in call:
                session.heard()
                message = read_response(version, data)
                if isinstance(message, FatalError):
                    session.failed = message
                else:
                    if isinstance(message, Outputs | UndoSignal):
                        self._arrived(message)
                        session.blocks = True
                    yield message
                session.listen()

    def _arrived(self, message: Outputs | UndoSignal) -> None:
        """Note that blocks have arrived: the next session begins after them."""
        if isinstance(message, UndoSignal):
            self._last, cursor = message.last_valid.number, message.cursor
        else:
            self._last, cursor = message.items[-1].clock.number, message.items[-1].cursor
        self._place = (cursor, 0, self._place[2])
        now = self._client.clock.monotonic()
        if self._failures:
            waited = round(now - self._since, 1)
            self._client.tell(
                NoticeKind.RECOVERED, "the endpoint answers again", "OK", waited_s=waited
            )
        self._failures, self._since = 0, now

    def _follow(self, session: _Session, status: str, text: str) -> None:
        """Do what a status calls for: dial anew, at once or later, or raise."""
        client, shown = self._client, self._client.credentials.hide(text)[:2000]
        verdict = judge(status, text, said=session.said, blocks=session.blocks)
        if verdict is Verdict.OLDER_VERSION and len(client.versions) > 1:
            client.versions.pop(0)
        elif _NO_TLS.search(text) and self._last < 0 and not client.endpoint.plaintext:
            raise PlaintextEndpointError(
                "the endpoint does not speak TLS", endpoint=client.endpoint, endpoint_says=shown
            ) from None
        elif verdict is Verdict.RECONNECT:
            client.tell(NoticeKind.RECONNECTED, "the endpoint asks for a new session", status)
        elif verdict is Verdict.RETRY:
            self._wait(session, status, shown)
        else:
            said, shown_as = f"the endpoint answered {status}", repr(shown)
            facts = {"endpoint": client.endpoint, "status": status, "endpoint_says": shown_as}
            if verdict is Verdict.QUOTA:
                raise QuotaExceededError(said, **facts) from None
            if (failed := _FAILED.search(text)) is not None:
                at, module, reason = failed.groups()
                raise self._failed(FatalError(module, f"block {at}: {reason}")) from None
            raise SubstreamsRefusedError(said, **facts) from None

    def _wait(self, session: _Session, status: str, shown: str) -> None:
        """Wait before the next session; raise once the retries are used up."""
        client, dialling = self._client, self._client.dialling
        self._failures += 1
        reason = f"{dialling.idle_s:g} s of silence" if session.silent else status
        if dialling.max_retries is not None and self._failures > dialling.max_retries:
            raise SubstreamsUnreachableError(
                f"{self._failures} sessions in a row brought no block: {reason}",
                endpoint=client.endpoint,
                status=status,
                endpoint_says=repr(shown),
            ) from None
        pause = pause_s(self._failures, client.random)
        client.tell(
            NoticeKind.RETRYING,
            f"dialling again in {pause:.1f} s after {reason}",
            status,
            failures=self._failures,
            pause_s=round(pause, 3),
        )
        waited = client.clock.monotonic() - self._since
        if waited >= dialling.idle_s:
            client.tell(NoticeKind.STALLED, f"no block for {waited:.0f} s", status)
        client.clock.sleep(pause)

    def _check_module(self, session: _Session) -> None:
        """Raise if the session ended because a module failed."""
        if session.failed is not None:
            raise self._failed(session.failed) from None

    def _failed(self, failed: FatalError) -> ModuleFailedError:
        """Return what to raise of a failed module; of a long reason its end, which is the cause."""
        hide, reason = self._client.credentials.hide, failed.reason
        cut = "… " if len(reason) > _REASON_SHOWN else ""
        return ModuleFailedError(
            f"module {failed.module} failed: {cut}{hide(reason)[-_REASON_SHOWN:]}",
            module=failed.module,
            logs=" | ".join(hide(line) for line in failed.logs[-_LOGS_SHOWN:]) or "none",
            logs_truncated=failed.logs_truncated or len(failed.logs) > _LOGS_SHOWN,
        )


class _Session:
    """What is known of one call, and the watch that ends it when it goes silent."""

    def __init__(self, idle_s: float, clock: Clock) -> None:
        self.said = self.blocks = self.silent = False
        self.failed: FatalError | None = None
        self._idle_s = idle_s
        self._clock = clock
        self._since: float | None = None
        self._over = Event()

    def listen(self) -> None:
        """Note that the next message is being waited for."""
        self._since = self._clock.monotonic()

    def heard(self) -> None:
        """Note that a message arrived; the time that its reader takes is not silence."""
        self.said, self._since = True, None

    def watching(self, call: Any) -> _Session:
        """Cancel the call once it has been silent too long, while the block runs."""
        self.listen()
        self._watched = call
        Thread(target=self._watch, name="headwater-substreams-idle", daemon=True).start()
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watched.cancel()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._idle_s / 4)):
            since = self._since
            if since is not None and self._clock.monotonic() - since >= self._idle_s:
                self.silent = True
                self._watched.cancel()
                return
