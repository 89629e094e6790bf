"""Webhooks over real sockets: signatures, answers, and what is never shown."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from headwater.effects import verify_signature, webhook
from headwater.errors import DeliveryError, DeliveryRefusedError, InvalidOptionError
from tests.effects.samples import messages

SECRET = "an open secret"


@dataclass
class Hook:
    """A receiver that answers what it is told to, and keeps what it was sent."""

    url: str = ""
    status: int = 204
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    answer_body: bytes = b""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def receiving(hook: Hook) -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.requests.append((dict(self.headers), body))
            answer = hook.answer_body
            self.send_response(hook.status)
            for name, value in hook.answer_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def handle(self) -> None:
            with suppress(ConnectionError):  # nobody has to read a long answer
                super().handle()

        def finish(self) -> None:
            with suppress(ConnectionError):
                super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        hook.url = f"http://127.0.0.1:{server.server_port}/hook/path-token?query-token"
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    with receiving(Hook()) as one:
        yield one


def test_a_batch_is_one_signed_request(hook: Hook) -> None:
    deliver = webhook(hook.url, secret=SECRET, headers={"Authorization": "Bearer x"})
    deliver(messages(3))
    deliver(messages(1))
    deliver.close()
    (headers, body), (single, _) = hook.requests
    assert [one["key"] for one in json.loads(body)["messages"]] == [one.key for one in messages(3)]
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer x"
    assert single["Idempotency-Key"] == messages(1)[0].key
    assert headers["Idempotency-Key"] != single["Idempotency-Key"]
    assert verify_signature(SECRET, headers, body)
    assert verify_signature(SECRET.encode(), {k.lower(): v for k, v in headers.items()}, body)


def test_a_signature_is_of_this_secret_this_body_and_this_moment(hook: Hook) -> None:
    deliver = webhook(hook.url, secret=SECRET)
    deliver(messages(1))
    deliver.close()
    ((headers, body),) = hook.requests
    sent = int(headers["Headwater-Timestamp"])
    assert verify_signature(SECRET, headers, body, now=sent + 300)
    assert not verify_signature(SECRET, headers, body, now=sent + 301)
    assert not verify_signature("another", headers, body)
    assert not verify_signature(SECRET, headers, body + b" ")
    assert not verify_signature(SECRET, {**headers, "Headwater-Timestamp": str(sent + 1)}, body)
    assert not verify_signature(SECRET, {}, body)


def test_the_same_messages_have_the_same_request_key_at_every_attempt(hook: Hook) -> None:
    hook.status = 500
    deliver = webhook(hook.url, secret=SECRET)
    for _ in range(2):
        with pytest.raises(DeliveryError):
            deliver(messages(2))
    with pytest.raises(DeliveryError):
        deliver(messages(3))
    deliver.close()
    first, again, other = (headers["Idempotency-Key"] for headers, _ in hook.requests)
    assert first == again != other


@pytest.mark.parametrize("status", [400, 401, 404, 410, 413, 422])
def test_a_refusal_is_for_good(hook: Hook, status: int) -> None:
    hook.status = status
    deliver = webhook(hook.url, secret=SECRET)
    with pytest.raises(DeliveryRefusedError, match=f"E7002.*status={status}"):
        deliver(messages(1))
    deliver.close()


@pytest.mark.parametrize("status", [302, 408, 429, 500, 503])
def test_anything_else_is_tried_again(hook: Hook, status: int) -> None:
    hook.status, hook.answer_headers = status, {"Location": "/elsewhere"}
    deliver = webhook(hook.url, secret=SECRET)
    with pytest.raises(DeliveryError, match=f"E7003.*status={status}") as caught:
        deliver(messages(1))
    deliver.close()
    assert caught.value.retry_after_s is None
    assert len(hook.requests) == 1


def test_connections_are_kept_and_long_answers_are_not_read(hook: Hook) -> None:
    hook.status = 200
    deliver = webhook(hook.url, secret=SECRET)
    for body in (b"ok", b"x" * 10_000_000, b"", b"x" * 65_536, b"ok"):
        hook.answer_body = body
        deliver(messages(1))
    deliver.close()
    assert len(hook.requests) == 5


def test_retry_after_is_respected(hook: Hook) -> None:
    hook.status, hook.answer_headers = 429, {"Retry-After": "17"}
    deliver = webhook(hook.url, secret=SECRET)
    with pytest.raises(DeliveryError) as caught:
        deliver(messages(1))
    deliver.close()
    assert caught.value.retry_after_s == 17


@pytest.mark.guarantee("OUTBOX-5")
def test_secrets_are_never_shown(hook: Hook) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nowhere = f"http://127.0.0.1:{port}/hook/path-token?query-token"
    shown = [repr(webhook(hook.url, secret=SECRET, headers={"X": "header-token"}))]
    for url, status in ((nowhere, 0), (hook.url, 400), (hook.url, 500)):
        hook.status = status or 200
        deliver = webhook(url, secret=SECRET, headers={"X": "header-token"}, timeout_s=5)
        with pytest.raises((DeliveryError, DeliveryRefusedError)) as caught:
            deliver(messages(1))
        deliver.close()
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        shown += [str(caught.value), repr(caught.value), str(caught.value.facts)]
    with pytest.raises(InvalidOptionError) as refused:
        webhook("http://user:path-token@host/", secret=SECRET)
    shown.append(str(refused.value))
    for text in shown:
        assert SECRET not in text
        assert "token" not in text


@pytest.mark.parametrize(
    ("url", "secret"), [("ftp://host/", "s"), ("http:///x", "s"), ("host", "s"), ("http://h/", "")]
)
def test_a_webhook_needs_an_address_and_a_secret(url: str, secret: str) -> None:
    with pytest.raises(InvalidOptionError):
        webhook(url, secret=secret)
