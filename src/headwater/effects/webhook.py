"""Delivery by HTTP: one signed POST per batch of messages.

The body is `{"messages": […]}`. `Headwater-Signature` is an HMAC-SHA256 over the time and the body,
so a receiver can tell that both are ours and fresh (`verify_signature`). Neither the secret nor the
address beyond its host is ever shown.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import urllib3

from headwater.core.retry import parse_retry_after
from headwater.effects.message import KEY_DIGITS, Message
from headwater.errors import DeliveryError, DeliveryRefusedError, InvalidOptionError
from headwater.portal import Clock, SystemClock

TIMESTAMP, SIGNATURE, KEY = "Headwater-Timestamp", "Headwater-Signature", "Idempotency-Key"
LONGEST_ANSWER = 65_536
_LATER = (408, 429)


def webhook(
    url: str,
    *,
    secret: str | bytes,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
) -> Webhook:
    """Return a deliverer for `on_finalized` that posts messages to an address.

    An answer of 2xx means delivered. 4xx, except 408 and 429, means that the receiver will never
    take it: the messages become dead letters. Everything else is tried again; `Retry-After` is
    respected. Redirects are not followed.

    Args:
        url: where to post, http or https; credentials belong in `headers`.
        secret: what both sides sign with.
        headers: sent with each request.
        timeout_s: how long a connection, and an answer, may take.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InvalidOptionError(
            "a webhook needs an http(s) address with a host and without credentials"
        )
    if not secret:
        raise InvalidOptionError("a webhook needs a secret to sign with")
    key = secret.encode() if isinstance(secret, str) else secret
    return Webhook(url, key, dict(headers or {}), timeout_s, SystemClock())


class Webhook:
    """Made by `webhook`. Called by the courier, in its thread."""

    def __init__(
        self, url: str, secret: bytes, headers: Mapping[str, str], timeout_s: float, clock: Clock
    ) -> None:
        self._url = url
        self._secret = secret
        self._headers = headers
        self._clock = clock
        self._host = urlsplit(url).hostname
        timeout = urllib3.Timeout(connect=timeout_s, read=timeout_s)
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, timeout=timeout, retries=False)

    def __call__(self, messages: Sequence[Message]) -> None:
        """Post a batch.

        Raises:
            DeliveryRefusedError: the receiver will never take it.
            DeliveryError: it did not take it now.
        """
        body = f'{{"messages":[{",".join(one.to_json() for one in messages)}]}}'.encode()
        timestamp = str(int(self._clock.now()))
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            TIMESTAMP: timestamp,
            SIGNATURE: sign(self._secret, timestamp, body),
            KEY: request_key(messages),
        }
        try:
            status, retry_after = self._post(body, headers)
        except urllib3.exceptions.HTTPError as error:
            raise DeliveryError(
                "the webhook cannot be reached", host=self._host, reason=type(error).__name__
            ) from None  # the error may show the whole address
        if 200 <= status < 300:
            return
        if 400 <= status < 500 and status not in _LATER:
            raise DeliveryRefusedError(
                "the webhook refuses messages",
                host=self._host,
                status=status,
                first=messages[0].key,
            )
        after = parse_retry_after(retry_after, self._clock.now())
        raise DeliveryError(
            "the webhook did not take messages", host=self._host, status=status, retry_after_s=after
        )

    def close(self) -> None:
        """Let go of connections; the next call makes new ones."""
        self._pool.clear()

    def __repr__(self) -> str:
        return f"webhook({self._host})"

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str | None]:
        """Return the status of the answer and its Retry-After; long bodies are not read."""
        answer = self._pool.request(
            "POST", self._url, body=body, headers=headers, redirect=False, preload_content=False
        )
        if len(answer.read(LONGEST_ANSWER)) < LONGEST_ANSWER:
            answer.release_conn()
        else:
            answer.close()
        return answer.status, answer.headers.get("Retry-After")


def request_key(messages: Sequence[Message]) -> str:
    """Return a key of exactly these messages; of a single one, its own."""
    if len(messages) == 1:
        return messages[0].key
    keys = "".join(one.key for one in messages)
    return hashlib.sha256(keys.encode()).hexdigest()[:KEY_DIGITS]


def sign(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the signature of a request."""
    signed = timestamp.encode() + b"." + body
    return "v1=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()


def verify_signature(
    secret: str | bytes,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_s: float = 300,
    now: float | None = None,
) -> bool:
    """Tell whether a request was signed with this secret, and not long ago. For receivers."""
    held = {name.lower(): value for name, value in headers.items()}
    timestamp = held.get(TIMESTAMP.lower(), "")
    if not timestamp.isascii() or not timestamp.isdigit():
        return False
    age = abs((SystemClock().now() if now is None else now) - int(timestamp))
    key = secret.encode() if isinstance(secret, str) else secret
    expected = sign(key, timestamp, body).encode()
    given = held.get(SIGNATURE.lower(), "").encode()
    return age <= tolerance_s and hmac.compare_digest(expected, given)
