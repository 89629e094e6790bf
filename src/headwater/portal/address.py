"""The address of a dataset, and what of it may be shown.

A portal address can hold secrets in two places: `user:password@` and the query string (keys are
often passed there). Both are needed to send a request and neither may reach an error, a log line or
a notice, so the text form of an `Address` simply does not contain them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from headwater.errors import PortalUrlError

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a dataset is served. Made on the driver, pickled to executors with its secrets."""

    scheme: str
    host: str
    port: int
    path: str  # without a slash at its end
    query: str = field(default="", repr=False)
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Understand a URL as a user wrote it.

        Called once per transport, before anything is sent.

        Raises:
            PortalUrlError: it is not an http(s) URL with a host. The text of the URL is not in the
                error, because it may hold a password.
        """
        parts, port = _split(url)
        if parts.scheme not in _PORTS:
            raise PortalUrlError("the portal address must begin with http:// or https://")
        if not parts.hostname:
            raise PortalUrlError("the portal address names no host")
        if parts.fragment or "@" in parts.path or "@" in parts.query:
            # most often a password with '#', '/' or '?' in it: its rest would be shown as a path
            raise PortalUrlError("the portal address has a '#' or '@' that must be percent-encoded")
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=_PORTS[parts.scheme] if port is None else port,
            path=parts.path.rstrip("/"),
            query=parts.query,
            authorization=_basic(parts),
        )

    def target(self, route: str) -> str:
        """Return what to put on the request line for a route; the transport alone needs it."""
        path, _, own = route.partition("?")
        query = "&".join(part for part in (own, self.query) if part)
        return f"{self.path}/{path}{'?' if query else ''}{query}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def _split(url: object) -> tuple[SplitResult, int | None]:
    if not isinstance(url, str):
        raise PortalUrlError("the portal address must be a text", got=type(url).__name__)
    text = url.strip()
    if not text.isprintable() or " " in text:
        raise PortalUrlError("the portal address holds a space or a control character")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise PortalUrlError("the portal address is not a URL") from None  # its text has the URL
    return parts, port


def _basic(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
