"""A port of the driver that its own tasks can connect to, and nothing else.

Both sides prove that they know the port's secret, without saying it. Where other machines can reach
the port, connections are TLS, and tasks accept only the certificate that came with their work: no
authority vouches for it, and it is gone with the process. A connection that proves nothing within
`patience_s` is cut, and so is the oldest such connection where more than `waiting` of them are
open. A machine that is lost loses its connections within two minutes. Leaving the port cuts all
connections.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from socketserver import BaseRequestHandler, ThreadingTCPServer
from tempfile import NamedTemporaryFile
from threading import Lock, Thread
from typing import Any, Self

from Crypto.Hash import SHA256
from Crypto.PublicKey import ECC
from Crypto.Signature import DSS
from Crypto.Util.asn1 import (
    DerBitString,
    DerInteger,
    DerObjectId,
    DerOctetString,
    DerSequence,
    DerSetOf,
)

from headwater.address import Secret
from headwater.errors import InvalidOptionError, RelayError

PROOF_BYTES = 32
PATIENCE_S = 10.0
WAITING = 256
LOOPBACK = "127.0.0.1"
_CONNECT_S = 30.0
_PAUSES_S = (0.1, 0.5, 2.0)
_SILENCE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # seconds, and how often
_UNANSWERED_MS = 60_000
_CUT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)


def driver_address(conf: Mapping[str, str]) -> tuple[str, str]:
    """Return the name by which executors know the driver, and the address to listen on.

    A session whose executors are all on this machine is not reached from others.
    """
    if conf.get("spark.master", "").startswith("local"):
        return LOOPBACK, LOOPBACK
    host = conf.get("spark.driver.host", LOOPBACK)
    return host, conf.get("spark.driver.bindAddress", host)


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a task needs to connect; it pickles. Without a certificate there is no TLS."""

    host: str
    port: int
    token: Secret[bytes]
    certificate: bytes | None = None


class DriverPort:
    """Listens while it is entered. Runs on the driver, with a thread for each connection.

    `host` is the name by which executors know the driver, `bind` the address to listen on.
    """

    option = "relay_port"

    def __init__(
        self,
        host: str,
        bind: str,
        port: int,
        *,
        patience_s: float = PATIENCE_S,
        waiting: int = WAITING,
    ) -> None:
        self.token = Secret(secrets.token_bytes(PROOF_BYTES))
        self.patience_s = patience_s
        self.waiting = waiting
        self.identity = None if is_loopback(bind) else driver_identity()
        self._host = host
        self._bind = bind
        self._port = port

    def serve(self, connection: socket.socket) -> None:
        """Talk to a task that has proved to be one of ours. What it raises ends the connection."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def entrance(self) -> Entrance:
        """What tasks are given to connect."""
        certificate = None if self.identity is None else self.identity.certificate
        return Entrance(self._host, self.port, self.token, certificate)

    def __enter__(self) -> Self:
        try:
            self._server = _Server((self._bind, self._port), self)
        except (OSError, OverflowError) as error:
            raise InvalidOptionError(
                f"{self.option} must be free, or 0 for any: {error}", got=self._port
            ) from error
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.cut_all()
        self._server.server_close()


def connect(entrance: Entrance) -> socket.socket:
    """Return a connection on which both sides know each other.

    Strangers that crowd the port may have a connection of ours cut before it has proved anything:
    that is tried again.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            return _open(entrance)
        except OSError as error:
            if pause_s is None or not isinstance(error, _CUT):
                raise RelayError(
                    "an executor cannot reach the driver",
                    driver=entrance.host,
                    port=entrance.port,
                    reason=error,
                ) from error
        time.sleep(random.uniform(pause_s / 2, pause_s))
    raise AssertionError("the last attempt returns or raises")


def _open(entrance: Entrance) -> socket.socket:
    connection = socket.create_connection((entrance.host, entrance.port), _CONNECT_S)
    try:
        _notice_loss(connection)
        if entrance.certificate is not None:
            connection = trusting(entrance.certificate).wrap_socket(connection)
        _introduce(connection, entrance.token)
    except BaseException:
        connection.close()
        raise
    return connection


def _notice_loss(connection: socket.socket) -> None:
    """Have the system cut a silent connection whose other machine is gone: its default is hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SILENCE.items():
        if hasattr(socket, name):  # Linux has all of them, macOS some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _introduce(connection: socket.socket, token: Secret[bytes]) -> None:
    """Prove to the driver that this is a task of its own, and have it prove that it is the driver.

    Raises:
        OSError: it is not, or the connection was cut.
    """
    asked, own = exactly(connection, PROOF_BYTES), secrets.token_bytes(PROOF_BYTES)
    connection.sendall(own + _proof(token, b"executor", asked, own))
    proof = exactly(connection, PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(token, b"driver", asked, own)):
        raise PermissionError("what answers does not know the secret")


def _proof(token: Secret[bytes], side: bytes, *nonces: bytes) -> bytes:
    """Return what only a holder of the secret can say, at this one time, on this one side."""
    return hmac.digest(token.reveal(), b"".join((side, *nonces)), hashlib.sha256)


def exactly(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Read so many bytes, to a deadline for all of them."""
    parts = b""
    while len(parts) < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the connection was cut")
        parts += part
    return parts


class _Server(ThreadingTCPServer):
    daemon_threads = False  # so that server_close waits for them
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], port: DriverPort) -> None:
        self.driver_port = port
        self._lock = Lock()
        self._open: dict[socket.socket, bool] = {}  # whether it is known; the oldest is first
        super().__init__(address, BaseRequestHandler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection, and note it before a thread serves it: so none is left uncut."""
        connection, address = super().get_request()
        _notice_loss(connection)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # not on the other side: a driver may be slow
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        connection.settimeout(self.driver_port.patience_s)
        identity = self.driver_port.identity
        if identity is not None:
            connection = identity.context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        with self._lock:
            strangers = [stranger for stranger, is_known in self._open.items() if not is_known]
            if len(strangers) >= self.driver_port.waiting:
                del self._open[strangers[0]]  # cut once, however late its thread notices
                _cut(strangers[0])
            self._open[connection] = False
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Let a task in, and serve it. Runs in a thread of the connection."""
        port = self.driver_port
        if _is_known(request, port.token, time.monotonic() + port.patience_s):
            self.let_in(request)
            request.settimeout(None)
            port.serve(request)

    def let_in(self, connection: socket.socket) -> None:
        """Note that a connection has proved who it is.

        Raises:
            ConnectionAbortedError: it was cut meanwhile.
        """
        with self._lock:
            if connection not in self._open:
                raise ConnectionAbortedError("the connection was cut")
            self._open[connection] = True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        """Wake every thread that still reads. No new connection is taken any more."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: Spark knows what became of the task, and tries it again."""


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS: its own would wait


def _is_known(connection: socket.socket, token: Secret[bytes], deadline: float) -> bool:
    """Have what connects prove that it is a task of ours, and prove that this is its driver."""
    if isinstance(connection, ssl.SSLSocket):
        connection.do_handshake()  # within the timeout of the socket
    asked = secrets.token_bytes(PROOF_BYTES)
    connection.sendall(asked)
    said = exactly(connection, 2 * PROOF_BYTES, deadline)
    own, proof = said[:PROOF_BYTES], said[PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"executor", asked, own)):
        return False
    connection.sendall(_proof(token, b"driver", asked, own))
    return True


# --- TLS: `ssl` cannot make certificates, so the few fields of one are written here ---------------


_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
_COMMON_NAME = "2.5.4.3"
_UTF8_STRING, _UTC_TIME, _VERSION = 0x0C, 0x17, 0xA0
_VALID = (b"200101000000Z", b"491231235959Z")  # clocks of machines differ; the process ends it


@dataclass(frozen=True, slots=True)
class Identity:
    """What the driver proves with that it is the driver."""

    certificate: bytes  # DER; public
    context: ssl.SSLContext


@cache
def driver_identity() -> Identity:
    """Return key and certificate of this process. Runs on the driver."""
    key = ECC.generate(curve="P-256")
    certificate = _self_signed(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with NamedTemporaryFile(mode="w", suffix=".pem") as file:  # for the user alone, and gone below
        file.write(ssl.DER_cert_to_PEM_cert(certificate) + key.export_key(format="PEM") + "\n")
        file.flush()
        context.load_cert_chain(file.name)
    return Identity(certificate, context)


def trusting(certificate: bytes) -> ssl.SSLContext:
    """Return the settings of a connection to the holder of this certificate, and to no other.

    Runs on executors. The name of the driver does not count: the certificate is the name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine as only this machine can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _self_signed(key: ECC.EccKey) -> bytes:
    algorithm = DerSequence([DerObjectId(_ECDSA_SHA256)])
    part = DerSequence([DerObjectId(_COMMON_NAME), _tagged(_UTF8_STRING, b"headwater")])
    name = DerSequence([DerSetOf([part.encode()])])
    content = DerSequence(
        [
            _tagged(_VERSION, DerInteger(2).encode()),  # X.509 v3
            DerInteger(secrets.randbits(120)),
            algorithm,
            name,
            DerSequence([_tagged(_UTC_TIME, moment) for moment in _VALID]),
            name,
            key.public_key().export_key(format="DER"),
        ]
    ).encode()
    signature = DSS.new(key, "fips-186-3", encoding="der").sign(SHA256.new(content))
    return DerSequence([content, algorithm, DerBitString(signature)]).encode()


def _tagged(tag: int, payload: bytes) -> bytes:
    return bytes([tag]) + DerOctetString(payload).encode()[1:]
