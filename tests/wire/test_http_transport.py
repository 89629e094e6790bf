"""`HttpTransport` against real sockets: what is sent, when chunks arrive, and how things break."""

from __future__ import annotations

import gzip
import pickle
import socket
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from backports import zstd

from headwater.core import BlockCursor, BlockRange, Fork
from headwater.errors import AnswerTooLargeError, InvalidOptionError, TransportError
from headwater.portal import HttpTransport, PortalClient, Request, RetryPolicy, Timeouts
from headwater.portal import transport as portal_transport
from headwater.portal.transport import USER_AGENT, NoAnswerYet
from headwater.portal.wire import Dataset
from headwater.query import EvmQuery
from headwater.testing import VirtualClock
from tests.shared import HANG_S

SHORT = Timeouts(connect_s=5, headers_s=0.2, chunk_s=0.2)


class Peer:
    """One accepted connection, driven by the test's script in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")

    def request(self) -> tuple[str, dict[str, str], bytes]:
        """Read one request: its first line, its headers, its body."""
        first = self._file.readline().decode().strip()
        headers: dict[str, str] = {}
        while text := self._file.readline().decode().strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        return first, headers, self._file.read(int(headers.get("content-length", 0)))

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, status: str = "200 OK", **headers: str) -> None:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def ended(self) -> bool:
        """Wait until the other side has closed."""
        try:
            return self._file.read(1) == b""
        except OSError:
            return True


Script = Callable[[Peer], None]


class Server:
    """Runs the n-th script on the n-th connection; remembers what went wrong in it."""

    def __init__(self, *scripts: Script) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, args=(scripts,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/datasets/test"

    def _serve(self, scripts: tuple[Script, ...]) -> None:
        try:
            for script in scripts:
                sock, _ = self._listener.accept()
                sock.settimeout(HANG_S)
                self.connections += 1
                peer = Peer(sock)
                with closing(peer):
                    script(peer)
        except BaseException as error:  # noqa: BLE001 - handed to the test thread
            self.failure = error

    def abandon(self) -> None:
        """Wake an accept that nobody will come for, because the test has failed."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._thread.join(HANG_S)
        self._listener.close()
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


@contextmanager
def serving(
    *scripts: Script, timeouts: Timeouts | None = None, hold_s: float | None = None
) -> Iterator[HttpTransport]:
    server = Server(*scripts)
    try:
        with closing(HttpTransport(server.url, timeouts, hold_s=hold_s)) as transport:
            yield transport
    except BaseException:
        server.abandon()
        raise
    finally:
        server.stop()
    assert server.connections == len(scripts)


def read(transport: HttpTransport, route: str = "stream") -> bytes:
    with closing(transport.send(Request("POST", route, b"{}"))) as response:
        return b"".join(response.chunks())


def read_in_pieces(transport: HttpTransport) -> bytes:
    while True:
        with suppress(NoAnswerYet):
            return read(transport)


def answers(body: bytes, **headers: str) -> Script:
    def script(peer: Peer) -> None:
        peer.request()
        peer.head(content_length=str(len(body)), **headers)
        peer.send(body)

    return script


# --- what is sent


def test_a_request_says_what_it_accepts_and_who_asks() -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    def script(peer: Peer) -> None:
        for _ in range(2):
            seen.append(peer.request())
            peer.head(content_length="2", X_Sqd_Head_Number="7")
            peer.send(b"ok")

    with serving(script) as transport:
        with closing(transport.send(Request("POST", "stream", b'{"a":1}'))) as response:
            assert response.status == 200
            assert response.headers["x-sqd-head-number"] == "7"
            assert b"".join(response.chunks()) == b"ok"
        with closing(transport.send(Request("GET", "metadata?expand[]=metadata"))) as response:
            assert b"".join(response.chunks()) == b"ok"

    (post, post_headers, body), (get, get_headers, _) = seen
    assert post == "POST /datasets/test/stream HTTP/1.1"
    assert body == b'{"a":1}'
    assert post_headers["content-type"] == "application/json"
    assert post_headers["accept-encoding"] == "gzip, zstd"
    assert post_headers["user-agent"] == USER_AGENT
    assert post_headers["user-agent"].startswith("headwater/")
    assert get.startswith("GET /datasets/test/metadata?expand")
    assert "content-type" not in get_headers
    assert "authorization" not in get_headers


def test_credentials_are_sent_and_never_shown() -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    def script(peer: Peer) -> None:
        seen.append(peer.request())

    server = Server(script)
    url = f"http://us:pa55@127.0.0.1:{server.port}/d?key=s3cret"
    with closing(HttpTransport(url)) as transport:
        with pytest.raises(TransportError) as caught:
            read(transport)
        server.stop()
    assert seen[0][0] == "POST /d/stream?key=s3cret HTTP/1.1"
    assert seen[0][1]["authorization"] == "Basic dXM6cGE1NQ=="
    assert seen[0][1]["host"] == f"127.0.0.1:{server.port}"
    for text in (str(caught.value), repr(transport), str(transport.address)):
        assert not any(secret in text for secret in ("pa55", "s3cret", "dXM6"))


# --- when chunks arrive


Packer = tuple[Callable[[bytes], bytes], Callable[[], bytes]]


def _plain() -> Packer:
    return bytes, bytes


def _gzip() -> Packer:
    packer = zlib.compressobj(wbits=31)
    return lambda data: packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH), packer.flush


def _zstd() -> Packer:
    packer = zstd.ZstdCompressor()
    return lambda data: packer.compress(data, mode=packer.FLUSH_BLOCK), packer.flush


@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
@pytest.mark.parametrize("closes", [False, True])
def test_a_small_chunk_is_delivered_before_the_next_is_sent(encoding: str, closes: bool) -> None:
    pack, finish = {"": _plain, "gzip": _gzip, "zstd": _zstd}[encoding]()
    seen = threading.Semaphore(0)
    lines = [f"line {n}\n".encode() for n in range(5)]

    def script(peer: Peer) -> None:
        peer.request()
        headers = {"content_encoding": encoding} if encoding else {}
        headers["connection"] = "close" if closes else "keep-alive"
        peer.head(transfer_encoding="chunked", **headers)
        for line in lines:
            peer.chunk(pack(line))
            assert seen.acquire(timeout=HANG_S), "the chunk was held back"
        if rest := finish():
            peer.chunk(rest)
        peer.chunk(b"")

    with serving(script) as transport:
        received = []
        with closing(transport.send(Request("POST", "stream", b"{}"))) as response:
            for chunk in response.chunks():
                received.append(chunk)
                seen.release()
    assert received == lines


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_large_compressed_bodies_come_in_bounded_chunks(encoding: str) -> None:
    body = b"0123456789abcdef" * 200_000
    packed = gzip.compress(body) if encoding == "gzip" else zstd.compress(body)
    with (
        serving(answers(packed, content_encoding=encoding)) as transport,
        closing(transport.send(Request("POST", "stream", b"{}"))) as response,
    ):
        chunks = list(response.chunks())
    assert b"".join(chunks) == body
    assert max(map(len, chunks)) <= 65_536


# --- connections


def test_a_connection_is_used_again_after_a_body_was_read_to_its_end() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.head(transfer_encoding="chunked")
        peer.chunk(b"one")
        peer.chunk(b"")
        peer.request()
        peer.head("204 No Content", content_encoding="zstd")
        peer.request()
        peer.head("204 No Content")
        peer.request()
        peer.head(content_length="0", content_encoding="zstd")
        peer.request()
        peer.head(content_length="4")
        peer.send(b"last")
        assert peer.ended()

    with serving(script) as transport:
        assert read(transport) == b"one"
        assert read(transport) == b""
        transport.send(Request("GET", "head")).close()  # 204: nothing to read
        assert read(transport) == b""
        response = transport.send(Request("GET", "head"))
        assert [b"".join(response.chunks()), b"".join(response.chunks())] == [b"last", b""]


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    closed = threading.Event()

    def first(peer: Peer) -> None:
        answers(b"one")(peer)
        peer.close()
        closed.set()

    with serving(first, answers(b"two", connection="close"), answers(b"three")) as transport:
        assert read(transport) == b"one"
        assert closed.wait(HANG_S)
        assert read(transport) == b"two"
        assert read(transport) == b"three"


def test_a_body_that_is_not_read_to_its_end_drops_the_connection() -> None:
    dropped = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.head(transfer_encoding="chunked")
        peer.chunk(b"one")
        assert peer.ended()
        dropped.set()

    with serving(script, answers(b"two")) as transport:
        response = transport.send(Request("POST", "stream", b"{}"))
        assert next(response.chunks()) == b"one"
        response.close()
        response.close()
        assert dropped.wait(HANG_S)
        assert read(transport) == b"two"


def test_a_redirect_is_not_followed() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.head("302 Found", location="http://127.0.0.1:1/", content_length="0")

    with (
        serving(script) as transport,
        closing(transport.send(Request("GET", "head"))) as response,
    ):
        assert response.status == 302


# --- how things break


def failure(transport: HttpTransport) -> TransportError:
    with pytest.raises(TransportError, match=r"\[E3007\]") as caught:
        read(transport)
    assert caught.value.retryable
    return caught.value


def test_a_refused_connection_names_its_phase() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = failure(HttpTransport(f"http://127.0.0.1:{port}/d"))
    assert error.facts["phase"] == "connect"
    assert "refused" in str(error).lower()


def test_a_connection_that_is_never_accepted_times_out() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        try:
            for _ in range(8):  # the queue of pending connections is short; fill it
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
                fillers.append(filler)
            error = failure(HttpTransport(f"http://127.0.0.1:{port}/d", Timeouts(connect_s=0.2)))
        finally:
            for filler in fillers:
                filler.close()
    assert error.facts == {"phase": "connect", "timeout_s": 0.2}


def test_a_plain_server_behind_https_fails_to_connect() -> None:
    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = Server(script)
    transport = HttpTransport(f"https://127.0.0.1:{server.port}/d")
    assert failure(transport).facts["phase"] == "connect"
    server.stop()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-"])
def test_headers_that_do_not_come_time_out(sent: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(sent)
        assert peer.ended()

    with serving(script, timeouts=SHORT) as transport:
        assert failure(transport).facts == {"phase": "headers", "timeout_s": 0.2}


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_body_that_stops_times_out_by_its_own_limit(connection: str) -> None:
    head = f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: {connection}\r\n\r\n"

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(head.encode() + b"3\r\none\r\n")  # at once: no pause that could count
        assert peer.ended()

    limits = Timeouts(connect_s=5, headers_s=HANG_S, chunk_s=0.2)
    with serving(script, timeouts=limits) as transport:
        response = transport.send(Request("POST", "stream", b"{}"))
        chunks = response.chunks()
        assert next(chunks) == b"one"
        with pytest.raises(TransportError) as caught:
            next(chunks)
        assert caught.value.facts == {"phase": "body", "timeout_s": 0.2}
        response.close()


def test_the_limit_between_chunks_may_be_longer_than_that_for_headers() -> None:
    asleep = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.head(content_length="3")
        asleep.wait(2.5)  # nobody sets it: longer than headers_s, shorter than chunk_s
        peer.send(b"one")

    with serving(script, timeouts=Timeouts(headers_s=2, chunk_s=HANG_S)) as transport:
        assert read(transport) == b"one"


def test_an_answer_that_is_held_back_is_waited_for_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One request, however often its caller comes back; a question is not broken off."""
    monkeypatch.setattr(portal_transport, "_RIGHT_BACK_S", HANG_S)  # a busy machine comes back late
    asked, goes_on = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        first, _, _ = peer.request()
        assert first.startswith("POST")
        assert goes_on.wait(HANG_S)
        peer.head(content_length="3")
        peer.send(b"one")
        peer.request()
        asked.wait(0.1)  # nobody sets it: longer than hold_s
        peer.head(content_length="3")
        peer.send(b"two")

    with serving(script, hold_s=0.02) as transport:
        for _ in range(3):
            with pytest.raises(NoAnswerYet):
                read(transport)
        goes_on.set()
        assert read_in_pieces(transport) == b"one"
        with closing(transport.send(Request("GET", "head"))) as response:
            assert b"".join(response.chunks()) == b"two"


@pytest.mark.parametrize("late", [True, False], ids=["late", "another"])
def test_an_answer_that_its_caller_does_not_come_back_for_is_dropped(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(peer: Peer) -> None:
        peer.request()
        assert peer.ended()

    if late:
        monkeypatch.setattr(portal_transport, "_RIGHT_BACK_S", -1)
    with serving(held, held, hold_s=0.02) as transport:
        with pytest.raises(NoAnswerYet):
            read(transport)
        with pytest.raises(NoAnswerYet):
            read(transport, "stream" if late else "finalized-stream")


def test_an_answer_in_pieces_does_not_take_longer_than_headers_may() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        assert peer.ended()

    with serving(script, timeouts=SHORT, hold_s=0.05) as transport:
        with pytest.raises(TransportError) as caught:
            read_in_pieces(transport)
        assert caught.value.facts == {"phase": "headers", "timeout_s": 0.2}


def test_a_server_that_hangs_up_before_the_headers() -> None:
    with serving(lambda peer: peer.close()) as transport:
        assert failure(transport).facts["phase"] == "headers"


def test_an_interrupt_while_waiting_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def script(peer: Peer) -> None:
        peer.request()
        assert peer.ended()

    with serving(script) as transport:
        monkeypatch.setattr("headwater.portal.transport.HTTPConnection.getresponse", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read(transport)


def whole(status: str, headers: str, body: bytes) -> tuple[bytes, int]:
    """Return the bytes of an answer, and how many of them are its headers."""
    head = f"HTTP/1.1 {status}\r\n{headers}\r\n".encode()
    return head + body, len(head)


def cut(answer: bytes, at: int) -> Script:
    """Send as much of an answer, then hang up."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(answer[:at])

    return script


@pytest.mark.guarantee("WIRE-6")
@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        ("200 OK", "content-length: 12\r\nserver: x\r\n", b"twelve bytes"),
        ("200 OK", "server: x\r\ncontent-length: 12\r\n", b"twelve bytes"),
        ("200 OK", "transfer-encoding: chunked\r\nserver: x\r\n", b"4\r\nbody\r\n0\r\n\r\n"),
        ("409 Conflict", "server: x\r\ntransfer-encoding: chunked\r\n", b"1\r\nb\r\n0\r\n\r\n"),
        (
            "204 No Content",
            "x-sqd-finalized-head-hash: 0xab\r\nx-sqd-finalized-head-number: 1234\r\n",
            b"",
        ),
    ],
)
def test_an_answer_that_ends_inside_its_headers_is_a_lost_connection(
    status: str, headers: str, body: bytes
) -> None:
    """After every byte: a head number that was cut would be another block's number."""
    answer, size = whole(status, headers, body)
    with serving(*(cut(answer, at) for at in range(size)), answers(b"whole")) as transport:
        for _ in range(size):
            assert failure(transport).facts["phase"] == "headers"
        assert read(transport) == b"whole"


@pytest.mark.guarantee("WIRE-6")
def test_an_answer_that_does_not_say_where_it_ends_is_a_lost_connection() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.head(connection="close")
        peer.send(b"as far as the connection held")

    with serving(script, answers(b"whole")) as transport:
        assert failure(transport).facts["phase"] == "headers"
        assert read(transport) == b"whole"


@pytest.mark.guarantee("WIRE-6")
@pytest.mark.parametrize("framing", ["content-length: {}\r\n", "transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("question", ["fork", "metadata", "head"])
def test_the_client_asks_again_when_an_answer_is_cut_after_any_byte(
    framing: str, question: str
) -> None:
    """A fork ended the stream (E3006), and a head of "latest" was taken for an empty chain."""
    block, sample = BlockCursor(7, "0x7"), b'{"previousBlocks":[{"number":7,"hash":"0x7"}]}'
    said = {
        "fork": sample,
        "metadata": b'{"dataset":"test","start_block":5}',
        "head": b'{"number":7,"hash":"0x7"}',
    }[question]
    chunked = f"{len(said):x}\r\n".encode() + said + b"\r\n0\r\n\r\n"
    answer, _ = whole(
        "409 Conflict" if question == "fork" else "200 OK",
        "server: x\r\n" + framing.format(len(said)),
        said if "length" in framing else chunked,
    )
    end = len(answer) - (0 if "length" in framing else len(b"0\r\n\r\n"))  # all is said by then
    server = Server(*(cut(answer, at) for at in range(end)), cut(answer, len(answer)))
    known = None if question == "metadata" else Dataset("test")
    patient = RetryPolicy(attempts=end + 1)
    try:
        with PortalClient(server.url, retry=patient, clock=VirtualClock(), dataset=known) as client:
            if question == "fork":
                found = list(client.read(EvmQuery(), BlockRange(8), BlockCursor(7, "0xother")))
                assert found == [Fork((block,))]
            elif question == "metadata":
                assert client.metadata() == Dataset("test", start_block=5)
            else:
                assert client.head() == block
    except BaseException:
        server.abandon()
        raise
    finally:
        server.stop()
    assert server.connections == end + 1


# --- answers without measure


def too_much(script: Script) -> AnswerTooLargeError:
    """Read blocks of a peer that sends without end; return the error. Its memory is measured."""
    tracemalloc.start()
    server = Server(script)
    try:
        with PortalClient(
            server.url,
            clock=VirtualClock(),
            dataset=Dataset("test"),
            retry=RetryPolicy(attempts=1),
        ) as client:
            with pytest.raises(AnswerTooLargeError, match="E3009") as caught:
                list(client.read(EvmQuery(), BlockRange(0)))
            used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        server.abandon()
        server.stop()
    assert used < 24 * 2**20
    return caught.value


def endless(head: bytes, packed: Callable[[bytes], bytes], piece: bytes) -> Script:
    """Send a head and the same piece over and over, up to 64 MB, until the reader hangs up."""

    def script(peer: Peer) -> None:
        peer.request()
        with suppress(OSError):
            peer.send(head)
            for _ in range(min(2**26 // len(piece), 20_000)):
                peer.send(packed(piece))

    return script


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.mark.guarantee("WIRE-7")
@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_a_line_without_end_is_a_coded_error_and_takes_bounded_memory(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14 MB of gzip became 3 GB."""
    monkeypatch.setattr("headwater.portal.wire.LINE_BYTES", 4 * 2**20)
    squeeze = {
        "identity": lambda data: data,
        "gzip": zlib.compressobj(wbits=31),
        "zstd": zstd.ZstdCompressor(),
    }[encoding]

    def packed(data: bytes) -> bytes:
        if encoding == "identity":
            return chunked(data)
        mode = zlib.Z_SYNC_FLUSH if encoding == "gzip" else zstd.ZstdCompressor.FLUSH_BLOCK
        return chunked(squeeze.compress(data) + squeeze.flush(mode))  # type: ignore[attr-defined]

    head = f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-encoding: {encoding}\r\n\r\n"
    error = too_much(endless(head.encode(), packed, b"x" * 2**20))
    assert error.facts["limit"] == 4 * 2**20


@pytest.mark.guarantee("WIRE-7")
def test_blank_lines_without_end_are_a_coded_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.portal.wire.LINE_BYTES", 4 * 2**20)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    too_much(endless(head, chunked, b"\n" * 2**16))


@pytest.mark.guarantee("WIRE-7")
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x-more: of the same\r\n"),
        (b"HTTP/1.1 200 OK\r\nx-long: ", b"x" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        (b"HTTP/1.1 2", b"0" * 1000),
    ],
    ids=["many headers", "a long header", "100 for ever", "103 for ever", "a long status"],
)
def test_headers_without_end_are_a_coded_error(head: bytes, piece: bytes) -> None:
    too_much(endless(head, bytes, piece))


@pytest.mark.guarantee("WIRE-7")
def test_a_small_answer_without_end_is_a_coded_error() -> None:
    head = b"HTTP/1.1 409 Conflict\r\ntransfer-encoding: chunked\r\n\r\n"
    too_much(endless(head, chunked, b" " * 2**18))


@pytest.mark.parametrize("status", ["100 Continue", "102 Processing", "103 Early Hints"])
def test_an_answer_may_be_announced_first(status: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.head(status, link="</style.css>")
        peer.head(content_length="4")
        peer.send(b"body")

    with serving(script) as transport:
        assert read(transport) == b"body"


def test_what_is_not_http_fails_in_the_headers() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"SSH-2.0-nonsense\r\n")

    with serving(script) as transport:
        assert failure(transport).facts["phase"] == "headers"


def _reset(peer: Peer) -> None:
    peer.request()
    peer.head(transfer_encoding="chunked")
    peer.chunk(b"one")
    peer.reset()


def _ends_between_chunks(peer: Peer) -> None:
    peer.request()
    peer.head(transfer_encoding="chunked")
    peer.chunk(b"one")


def _ends_inside_a_chunk(peer: Peer) -> None:
    peer.request()
    peer.head(transfer_encoding="chunked")
    peer.send(b"10\r\none")


def _bad_chunk_size(peer: Peer) -> None:
    peer.request()
    peer.head(transfer_encoding="chunked")
    peer.chunk(b"one")
    peer.send(b"zz\r\n")


def _shorter_than_promised(peer: Peer) -> None:
    peer.request()
    peer.head(content_length="100")
    peer.send(b"one")


@pytest.mark.parametrize(
    "script",
    [_reset, _ends_between_chunks, _ends_inside_a_chunk, _bad_chunk_size, _shorter_than_promised],
)
def test_an_incomplete_body_is_an_error_and_the_next_request_connects_anew(script: Script) -> None:
    with serving(script, answers(b"two")) as transport:
        assert failure(transport).facts["phase"] == "body"
        assert read(transport) == b"two"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"this is not gzip"),
        ("zstd", b"this is not zstd"),
        ("zstd", zstd.compress(b"one" * 1_000)[:-4]),
    ],
)
def test_a_body_that_cannot_be_unpacked_is_an_error(encoding: str, body: bytes) -> None:
    with serving(answers(body, content_encoding=encoding)) as transport:
        assert failure(transport).facts["phase"] == "body"


def test_more_than_promised_is_not_read() -> None:
    sent = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.head(content_length="3")
        peer.send(b"one and more")
        peer.close()
        sent.set()

    with serving(script, answers(b"two")) as transport:
        assert read(transport) == b"one"
        assert sent.wait(HANG_S)
        assert read(transport) == b"two"


# --- configuration


def test_a_transport_travels_without_its_connections() -> None:
    with serving(answers(b"one"), answers(b"two")) as transport:
        assert read(transport) == b"one"
        with closing(pickle.loads(pickle.dumps(transport))) as copy:
            assert copy.address == transport.address
            assert copy.timeouts == transport.timeouts
            assert read(copy) == b"two"


@pytest.mark.parametrize("name", ["connect_s", "headers_s", "chunk_s"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_timeout_must_be_above_zero_and_finite(name: str, value: float) -> None:
    with pytest.raises(InvalidOptionError, match=name):
        Timeouts(**{name: value})
