"""Addresses of servers, and the secrets that they hold.

Users, passwords and keys are needed to connect, and must not reach a log, an error, a metric or a
Spark plan. So they live in a `Secret`, whose text is always the same; only `reveal()` gives the
value, which code calls where it sends it. An `Address` shows where a server is and hides the rest:
`HttpAddress` is that of portals, ClickHouse servers and webhooks, `NodeAddress` that of nodes; a
plain `Address` that of PostgreSQL. They pickle, because executors connect too; what is pickled
holds the secrets.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import printable
from typing import Generic, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

HIDDEN = "***"
_SHORTEST = 4  # a shorter text is no secret, and stands in too many words
_PORTS = {"http": 80, "https": 443}
NODE_SCHEME = "rpc+"  # before http:// or https://
_CONFIRMATIONS = re.compile(r"confirmations=(\d{1,9})")
_FINALITY = re.compile(r"finality=(safe|finalized)")
T = TypeVar("T")


class Secret(Generic[T]):
    """A value that no text shows: not `str`, `repr` or `format`, and not those of its holder."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Return the value, to be sent and not to be kept."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, yours = self._value, other._value
        if isinstance(mine, str) and isinstance(yours, str):
            return hmac.compare_digest(mine.encode(), yours.encode())
        return bool(mine == yours)

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[type[Secret[T]], tuple[T]]:
        return Secret, (self._value,)


def hide(text: str, secrets: tuple[Secret[str], ...]) -> str:
    """Return a text of others, such as a server's answer, without these secrets."""
    for secret in sorted((secret.reveal() for secret in secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    return text


class UrlError(ValueError):
    """What a URL lacks, in words that follow a colon and repeat nothing of it."""


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """Where a server is. Its text is what may be shown; `whole` is what the user gave."""

    shown: str
    whole: Secret[str]
    secrets: tuple[Secret[str], ...]

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def hide(self, text: str) -> str:
        """Return a text of others without the secrets of this address."""
        return hide(text, (*self.secrets, self.whole))


@dataclass(frozen=True, slots=True, repr=False)
class HttpAddress(Address):
    """An address by HTTP. Its secrets are `user:password@` and the query string, which holds keys.

    What is not ASCII in path and query is percent-encoded.
    """

    scheme: str
    host: str
    port: int
    path: Secret[str]
    query: Secret[str]
    user: Secret[str] | None = field(default=None)
    password: Secret[str] | None = field(default=None)

    @classmethod
    def parse(
        cls,
        url: object,
        ports: Mapping[str, int] = _PORTS,
        *,
        shows_path: bool = True,
    ) -> HttpAddress:
        """Understand a URL as a user wrote it.

        `ports` are those of each scheme. With `shows_path=False` the path is a secret too.

        Raises:
            UrlError: it is not an http(s) URL with a host. Its text is not in the error, nor in a
                cause of it, because it may hold a password.
        """
        parts, port = _split(url)
        if parts.scheme not in ports:
            raise UrlError("it must begin with http:// or https://")
        if not parts.hostname:
            raise UrlError("it names no host")
        if parts.fragment or "@" in parts.path or "@" in parts.query:
            # most often a password with '#', '/' or '?' in it: its rest would be shown as a path
            raise UrlError(
                "it has a '#' or '@' outside user:password@; / ? # @ : of a user or password "
                "are written as %2F %3F %23 %40 %3A"
            )
        host, number = parts.hostname, ports[parts.scheme] if port is None else port
        path, query = (quote(part, safe=printable) for part in (parts.path, parts.query))
        shown_host = f"[{host}]" if ":" in host else host
        shown_port = "" if number == ports[parts.scheme] else f":{number}"
        shown_path = path.rstrip("/") if shows_path else ""
        return cls(
            shown=f"{parts.scheme}://{shown_host}{shown_port}{shown_path}",
            whole=Secret(str(url).strip()),
            secrets=_secrets_of(parts),
            scheme=parts.scheme,
            host=host,
            port=number,
            path=Secret(path),
            query=Secret(query),
            user=_secret(parts.username),
            password=_secret(parts.password),
        )

    @property
    def has_secrets(self) -> bool:
        """Whether it holds more than may be shown."""
        return self.user is not None or bool(self.query.reveal())

    @property
    def authorization(self) -> Secret[str] | None:
        """The header for user and password, if there are any."""
        if self.user is None:
            return None
        return Secret(_basic(self.user.reveal(), self.password.reveal() if self.password else ""))

    def target(self, route: str) -> str:
        """Return what to put on the request line for a route, with the keys of the address.

        The empty route is the address itself.
        """
        if not route:
            return self.own_target
        path, _, own = route.partition("?")
        query = "&".join(part for part in (own, self.query.reveal()) if part)
        return f"{self.path.reveal().rstrip('/')}/{path}{'?' if query else ''}{query}"

    @property
    def own_target(self) -> str:
        """What to put on the request line for the address itself, with its keys."""
        query = self.query.reveal()
        return f"{self.path.reveal() or '/'}{'?' if query else ''}{query}"


@dataclass(frozen=True, slots=True, repr=False)
class NodeAddress(HttpAddress):
    """The address of a node that speaks JSON-RPC: `rpc+https://host/key#confirmations=12`.

    Providers put keys into the path, so all of it is secret. What follows `#` never leaves this
    machine: `confirmations` is how deep a final block lies, for chains without finality of their
    own; `finality` is the tag by which the node calls its newest final block.
    """

    confirmations: int | None = None
    finality: str = "finalized"

    @property
    def has_secrets(self) -> bool:
        """Whether it holds more than may be shown; a path does, here."""
        return bool(self.secrets)

    @classmethod
    def of(cls, url: str) -> NodeAddress:
        """Understand the address of a node; `UrlError` says what it lacks and repeats nothing."""
        text, _, options = url.strip().removeprefix(NODE_SCHEME).partition("#")
        confirmations, finality = None, "finalized"
        if match := _CONFIRMATIONS.fullmatch(options):
            confirmations = int(match[1])
        elif match := _FINALITY.fullmatch(options):
            finality = match[1]
        elif options:
            raise UrlError(
                "behind # stands confirmations=N, finality=safe or nothing; / ? # @ : of a user or "
                "password are written as %2F %3F %23 %40 %3A"
            )
        address = HttpAddress.parse(text, shows_path=False)
        hidden = (address.path.reveal().strip("/"), *address.path.reveal().split("/"))
        keys = tuple(Secret(part) for part in dict.fromkeys(hidden) if len(part) >= _SHORTEST)
        return cls(
            shown=f"{NODE_SCHEME}{address.shown}",
            whole=address.whole,
            secrets=(*address.secrets, *keys),
            scheme=address.scheme,
            host=address.host,
            port=address.port,
            path=address.path,
            query=address.query,
            user=address.user,
            password=address.password,
            confirmations=confirmations,
            finality=finality,
        )


def _split(url: object) -> tuple[SplitResult, int | None]:
    if not isinstance(url, str):
        raise UrlError(f"it must be a text, not {type(url).__name__}")
    text = url.strip()
    if not text.isprintable() or " " in text:
        raise UrlError("it holds a space or a control character")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # quotes what it takes for the port: perhaps a part of a password
        raise UrlError(
            "it is not a URL; / ? # @ : of a user or password are written as %2F %3F %23 %40 %3A"
        ) from None
    return parts, port


def _secret(quoted: str | None) -> Secret[str] | None:
    return None if quoted is None else Secret(unquote(quoted))


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _secrets_of(parts: SplitResult) -> tuple[Secret[str], ...]:
    """Return every form in which a part of an address may come back in a text."""
    forms: list[str] = []
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        forms += [_basic(user, password).removeprefix("Basic "), password, parts.password or ""]
        forms += [user, parts.username] if not password else [f"{user}:{password}"]
    forms += [parts.query, *(pair.partition("=")[2] for pair in parts.query.split("&"))]
    forms += [value for _, value in parse_qsl(parts.query)]
    return tuple(Secret(form) for form in dict.fromkeys(forms) if form)
