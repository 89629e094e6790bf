"""The relay among strangers: who may send rows, and what those who may not can do to it.

The relays here listen on 127.0.0.1; those "with TLS" are made as for other machines.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest

from headwater.address import Secret
from headwater.errors import RelayError
from headwater.spark import entrance as module
from headwater.spark.entrance import PROOF_BYTES, Identity, driver_identity, is_loopback, trusting
from headwater.spark.relay import ATTEMPT_BYTES, RECEIVED, SIZE_BYTES, Relay, send, sent_pieces
from tests.shared import HANG_S

ROWS = b"rows that strangers must not read " * 10
WHOLE = len(ROWS).to_bytes(SIZE_BYTES) + ROWS + bytes(SIZE_BYTES)
pytestmark = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES_S", (0.01, 0.02))


@contextmanager
def relay_of(tls: bool, **limits: Any) -> Iterator[Relay]:
    relay = Relay("127.0.0.1", "127.0.0.1", 0, **limits)
    assert relay.identity is None
    if tls:
        relay.identity = driver_identity()
    with relay:
        yield relay


def stranger(relay: Relay, said: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", relay.port), HANG_S)
    connection.sendall(said)
    return connection


def is_cut(connection: socket.socket) -> bool:
    """Tell whether the other side has ended a connection, whatever it said before."""
    connection.settimeout(HANG_S)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def acquaintance(relay: Relay) -> socket.socket:
    """Connect as a task does, and be let in."""
    return module.connect(relay.entrance)


def arrived(relay: Relay) -> list[tuple[int, bytes]]:
    relay.end()
    return [(number, b"".join(sent_pieces(file))) for number, file in relay.arriving()]


def test_strangers_and_broken_attempts_are_not_heard(tls: bool) -> None:
    attempt = (8).to_bytes(ATTEMPT_BYTES)
    with relay_of(tls) as relay:
        other = replace(relay.entrance, token=Secret(bytes(PROOF_BYTES)))
        with pytest.raises(RelayError):
            send(other, 9, [ROWS])
        for said in (attempt + WHOLE[:-5], attempt[:3], b""):
            with acquaintance(relay) as broken:
                broken.sendall(said)
        with stranger(relay, bytes(2 * PROOF_BYTES) + attempt + WHOLE) as unknown:
            assert is_cut(unknown)
        send(relay.entrance, 7, [ROWS[:100], memoryview(ROWS)[100:]])
        assert arrived(relay) == [(7, ROWS)]
        relay.take([])
    token = relay.token.reveal()
    assert repr(token)[2:-1] not in repr(relay.entrance)


def test_a_stranger_who_holds_a_connection_does_not_delay_the_end(
    tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose thread has not begun when the relay ends."""
    slow, closing = Event(), Event()
    serve, close = module._Server.process_request_thread, module._Server.server_close

    def late(server: Any, request: Any, address: Any) -> None:
        if slow.is_set():
            closing.wait()
        serve(server, request, address)

    def noted(server: Any) -> None:
        closing.set()
        close(server)

    monkeypatch.setattr(module._Server, "process_request_thread", late)
    monkeypatch.setattr(module._Server, "server_close", noted)
    with ExitStack() as held:
        relay = Relay("127.0.0.1", "127.0.0.1", 0)
        if tls:
            relay.identity = driver_identity()
        relay.__enter__()
        for said in (b"", b"half a hello"):
            held.enter_context(stranger(relay, said))
        known = held.enter_context(acquaintance(relay))
        known.sendall((1).to_bytes(ATTEMPT_BYTES) + WHOLE[:20])
        slow.set()
        held.enter_context(stranger(relay))
        ending = Thread(target=relay.__exit__, daemon=True)
        ending.start()
        ending.join(HANG_S)
        assert not ending.is_alive(), "the driver hangs"


def test_who_proves_nothing_in_time_is_cut_however_busy(
    tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte at a time buys no time: what it says would be whole after 64 bytes, or 517 of TLS."""
    monkeypatch.setattr(module, "_PAUSES_S", (0.01,) * 100)  # a busy machine proves late
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # how a whole greeting begins
    with relay_of(tls, patience_s=0.3) as relay:
        with stranger(relay) as silent, stranger(relay, hello) as busy:
            said = 0
            with suppress(OSError):
                while said < 40:
                    busy.sendall(b"\x00")
                    said += 1
                    time.sleep(0.05)  # the pace of the stranger
            assert said < 40, "a byte at a time bought more time"
            assert is_cut(silent)
        with acquaintance(relay) as known:
            time.sleep(0.5)  # longer than strangers may take
            known.sendall((7).to_bytes(ATTEMPT_BYTES) + WHOLE)
            assert known.recv(1) == RECEIVED
        assert arrived(relay) == [(7, ROWS)]


def test_strangers_in_any_number_take_few_places_and_keep_nobody_out(tls: bool) -> None:
    with relay_of(tls, waiting=4) as relay, ExitStack() as held:
        working = held.enter_context(acquaintance(relay))
        crowd = [held.enter_context(stranger(relay)) for _ in range(40)]
        assert all(is_cut(one) for one in crowd[:36])
        send(relay.entrance, 7, [ROWS])
        working.sendall((8).to_bytes(ATTEMPT_BYTES) + WHOLE)
        assert working.recv(1) == RECEIVED
        assert arrived(relay) == [(7, ROWS), (8, ROWS)]


def test_who_listens_learns_no_secret_and_cannot_repeat_what_was_said(tls: bool) -> None:
    """With TLS not a byte of the rows either."""
    heard: dict[str, bytes] = {"task": b"", "driver": b""}

    def pass_on(name: str, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(4096):
                heard[name] += part
                to.sendall(part)
            to.shutdown(socket.SHUT_WR)

    with relay_of(tls) as relay, socket.create_server(("127.0.0.1", 0)) as tap:
        entrance = replace(relay.entrance, port=tap.getsockname()[1])
        sending = Thread(target=send, args=(entrance, 7, [ROWS]))
        sending.start()
        near, _ = tap.accept()
        far = socket.create_connection(("127.0.0.1", relay.port))
        with near, far:
            both = [
                Thread(target=pass_on, args=("task", near, far)),
                Thread(target=pass_on, args=("driver", far, near)),
            ]
            for one in both:
                one.start()
            for one in (sending, *both):
                one.join()
        everything = heard["task"] + heard["driver"]
        assert relay.token.reveal() not in everything
        assert (ROWS[:34] in everything) is not tls
        with stranger(relay, heard["task"]) as repeating:
            assert is_cut(repeating)
        assert arrived(relay) == [(7, ROWS)]


def test_who_takes_the_drivers_place_gets_no_rows(tls: bool) -> None:
    heard: list[bytes] = []

    def pretend(server: socket.socket, other: Identity) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    if tls:
                        connection = other.context.wrap_socket(connection, server_side=True)
                    connection.sendall(bytes(PROOF_BYTES))
                    heard.append(connection.recv(4096))
                    connection.sendall(bytes(PROOF_BYTES))
                    while b"rows" not in b"".join(heard) and (part := connection.recv(4096)):
                        heard.append(part)

    with relay_of(tls) as relay, socket.create_server(("127.0.0.1", 0)) as server:
        driver_identity.cache_clear()  # what another process would make
        Thread(target=pretend, args=(server, driver_identity()), daemon=True).start()
        entrance = replace(relay.entrance, port=server.getsockname()[1])
        with pytest.raises(RelayError, match="cannot reach the driver"):
            send(entrance, 7, [ROWS])
        assert not re.search(rb"rows|strangers", b"".join(heard))
        if tls:
            assert heard == [], "nothing is said to who shows another certificate"


def test_addresses_of_other_machines_have_tls(tls: bool) -> None:
    where = "192.0.2.1" if tls else "::1"
    relay = Relay(where, where, 0)  # not entered, so it does not listen
    assert is_loopback(where) is not tls
    assert (relay.identity is not None) is tls
    if relay.identity is not None:
        context = trusting(relay.identity.certificate)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) <= 1, "and trusts nothing else"
