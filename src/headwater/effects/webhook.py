"""Delivery by HTTP: one signed POST per batch of messages.

The body is `{"messages": […]}`. `Headwater-Signature` is an HMAC-SHA256 over the time and the body,
so a receiver can tell that both are ours and fresh (`verify_signature`). Neither the secret nor the
address beyond its host is ever shown.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Mapping, Sequence
from http.client import HTTPException

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from headwater.address import HttpAddress, Secret, UrlError
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
    try:
        address = HttpAddress.parse(url, shows_path=False)
    except UrlError as error:
        raise InvalidOptionError(f"the webhook's address cannot be used: {error}") from None
    if address.user is not None:
        raise InvalidOptionError("a webhook's address has no user: credentials belong in headers")
    if not secret:
        raise InvalidOptionError("a webhook needs a secret to sign with")
    key = secret.encode() if isinstance(secret, str) else secret
    return Webhook(address, Secret(key), Secret(dict(headers or {})), timeout_s, SystemClock())


class Webhook:
    """Made by `webhook`. Called by the courier, in its thread."""

    def __init__(
        self,
        address: HttpAddress,
        secret: Secret[bytes],
        headers: Secret[dict[str, str]],
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._address = address
        self._secret = secret
        self._headers = headers
        self._clock = clock
        self._host = address.host
        self._timeout_s = timeout_s
        self._connection: HTTPConnection | None = None

    def __call__(self, messages: Sequence[Message]) -> None:
        """Post a batch.

        Raises:
            DeliveryRefusedError: the receiver will never take it.
            DeliveryError: it did not take it now.
        """
        body = f'{{"messages":[{",".join(message.to_json() for message in messages)}]}}'.encode()
        timestamp = str(int(self._clock.now()))
        headers = {
            **self._headers.reveal(),
            "Content-Type": "application/json",
            TIMESTAMP: timestamp,
            SIGNATURE: sign(self._secret.reveal(), timestamp, body),
            KEY: request_key(messages),
        }
        try:
            status, retry_after = self._post(body, headers)
        except (HTTPError, HTTPException, OSError) as error:
            self.close()
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
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __repr__(self) -> str:
        return f"webhook({self._host})"

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str | None]:
        """Return the status of the answer and its Retry-After; long bodies are not read.

        The connection is used without a pool, which would log the whole address.
        """
        connection = self._connection
        if connection is None or not connection.is_connected:
            self.close()
            connection = self._connection = self._new_connection()
        target = self._address.own_target
        connection.request("POST", target, body=body, headers=headers, preload_content=False)
        answer = connection.getresponse()
        if len(answer.read(LONGEST_ANSWER)) >= LONGEST_ANSWER:
            self.close()
        return answer.status, answer.headers.get("Retry-After")

    def _new_connection(self) -> HTTPConnection:
        address, limit = self._address, self._timeout_s
        if address.scheme == "http":
            return HTTPConnection(address.host, address.port, timeout=limit)
        tls = ssl.create_default_context()
        return HTTPSConnection(address.host, address.port, timeout=limit, ssl_context=tls)


def request_key(messages: Sequence[Message]) -> str:
    """Return a key of exactly these messages; of a single one, its own."""
    if len(messages) == 1:
        return messages[0].key
    keys = "".join(message.key for message in messages)
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
    lowered = {name.lower(): value for name, value in headers.items()}
    timestamp = lowered.get(TIMESTAMP.lower(), "")
    if not timestamp.isascii() or not timestamp.isdigit():
        return False
    age = abs((SystemClock().now() if now is None else now) - int(timestamp))
    key = secret.encode() if isinstance(secret, str) else secret
    expected = sign(key, timestamp, body).encode()
    signature = lowered.get(SIGNATURE.lower(), "").encode()
    return age <= tolerance_s and hmac.compare_digest(expected, signature)
