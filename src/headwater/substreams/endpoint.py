"""Where an endpoint is, and what it is told about who asks: addresses and credentials.

Credentials come from the environment and are sent over TLS alone; no text shows them. Runs on the
driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.address import Secret, hide
from headwater.errors import InvalidOptionError, SubstreamsEndpointError

API_KEY, API_TOKEN = "SUBSTREAMS_API_KEY", "SUBSTREAMS_API_TOKEN"  # names of variables
_CONFIGURED = "SUBSTREAMS_ENDPOINTS_CONFIG_"
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?!.*-bin$)[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that gRPC takes, and whether TLS is spoken there."""

    address: str
    plaintext: bool = False

    def __str__(self) -> str:
        return f"{'http' if self.plaintext else 'https'}://{self.address}"

    @classmethod
    def parse(
        cls, text: object, network: str = "", environment: Mapping[str, str] = os.environ
    ) -> Endpoint:
        """Understand `host:port`, `http://…`, `https://…`, or nothing: then the environment tells.

        Raises:
            SubstreamsEndpointError: it is none of these. The text is not in the error, because it
                may hold a key.
        """
        if not isinstance(text, str) or not text.strip():
            variable = f"{_CONFIGURED}{network.upper().replace('-', '_')}"
            text = environment.get(variable, "") if network else ""
            if not text:
                raise SubstreamsEndpointError(
                    "no endpoint is given, and none is configured for the network",
                    network=network or "unknown",
                    variable=variable,
                )
        scheme, separator, rest = text.strip().rpartition("://")
        if separator and scheme not in _PORTS:
            raise SubstreamsEndpointError("the endpoint begins with neither http nor https")
        rest = rest.rstrip("/")
        host, colon, port = rest.rpartition(":")
        if separator and (not colon or rest.endswith("]")):
            host, port = rest, str(_PORTS[scheme])
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SubstreamsEndpointError("the endpoint names no host with a port")
        if any(odd in host for odd in "@/?# ") or (":" in host and not host.startswith("[")):
            raise SubstreamsEndpointError("the endpoint holds more than a host and a port")
        return cls(f"{host}:{port}", plaintext=scheme == "http")


@dataclass(frozen=True, slots=True)
class Credentials:
    """An API key, or else a token, as the user's environment has them."""

    key: Secret[str] | None = None
    token: Secret[str] | None = None
    headers: tuple[tuple[str, Secret[str]], ...] = field(default=())

    @classmethod
    def read(
        cls,
        *,
        key_variable: str = API_KEY,
        token_variable: str = API_TOKEN,
        headers: Mapping[str, str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Credentials:
        """Read them; `headers` are sent as they are, and may hold keys too.

        Raises:
            InvalidOptionError: gRPC cannot send one of them; it would fail each session the same.
        """
        key, token = environment.get(key_variable, ""), environment.get(token_variable, "")
        for variable, value in ((key_variable, key), (token_variable, token)):
            if not _VALUE.fullmatch(value.strip()):
                raise InvalidOptionError("a credential is text of one line, in ASCII", of=variable)
        extra = []
        for name, value in (headers or {}).items():
            if not isinstance(name, str) or not isinstance(value, str) or not name:
                raise InvalidOptionError("headers maps names to texts", name=repr(name))
            if not _NAME.fullmatch(name.lower()) or not _VALUE.fullmatch(value):
                raise InvalidOptionError(
                    "a header's name is made of a-z, 0-9, -, _ and . and does not end in -bin; its "
                    "text is one line, in ASCII",
                    name=repr(name),
                )
            extra.append((name.lower(), Secret(value)))
        return cls(
            Secret(key.strip()) if key.strip() else None,
            Secret(token.strip()) if token.strip() else None,
            tuple(extra),
        )

    def metadata(self, *, plaintext: bool) -> list[tuple[str, str]]:
        """Return the headers of a session. Over plaintext no credential is sent."""
        sent = [(name, value.reveal()) for name, value in self.headers]
        if plaintext:
            return sent
        if self.key is not None:
            sent.append(("x-api-key", self.key.reveal()))
        elif self.token is not None:
            sent.append(("authorization", f"Bearer {self.token.reveal()}"))
        return sent

    def hide(self, text: str) -> str:
        """Return a text of the endpoint without the credentials and headers that it may repeat."""
        secrets = [secret for secret in (self.key, self.token) if secret is not None]
        return hide(text, (*secrets, *(value for _, value in self.headers)))
