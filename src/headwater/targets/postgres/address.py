"""The address of a PostgreSQL database, in each form that libpq takes, and what of it is shown.

libpq quotes what it cannot read, and takes the rest of a password for a host, a port or a database
where a character of it should have been written as %xx. So nothing that it says about the form of
an address is repeated, and no part is shown before the whole makes sense.
"""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headwater.address import Address, Secret
from headwater.errors import InvalidOptionError

_SHOWN = ("host", "port", "dbname", "user")
_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_ASKED = (
    "the PostgreSQL address cannot be read: postgresql://user:password@host:5432/database, where "
    "/ ? # @ : % of a user or password are written as %2F %3F %23 %40 %3A %25, or "
    "host=… user=… password='…', where ' and \\ are written as \\' and \\\\"
)


def postgres_address(dsn: str | Address) -> Address:
    """Understand an address as a user wrote it. Called where a target is made, on the driver.

    Raises:
        InvalidOptionError: it cannot be read; the error repeats nothing of it.
    """
    if isinstance(dsn, Address):
        return dsn
    if not isinstance(dsn, str):
        raise InvalidOptionError("the PostgreSQL address must be a text", got=type(dsn).__name__)
    try:
        found = conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError):
        raise InvalidOptionError(_ASKED) from None  # the cause quotes the address
    parts = {name: str(value) for name, value in found.items() if value is not None}
    in_order = all(one.isdecimal() for one in parts.get("port", "").split(",") if one)
    if not in_order or _has_stray_at(dsn):
        raise InvalidOptionError(_ASKED)
    return Address(
        shown=" ".join(f"{name}={parts[name]}" for name in _SHOWN if name in parts),
        whole=Secret(dsn),
        secrets=tuple(Secret(parts[name]) for name in _SECRET if parts.get(name)),
    )


def _has_stray_at(dsn: str) -> bool:
    """Tell whether a URL has an '@' where libpq takes the rest of a password for something else."""
    scheme, is_url, rest = dsn.strip().partition("://")
    if not is_url or scheme not in ("postgresql", "postgres"):
        return False
    server, _, path = rest.partition("/")
    return server.count("@") > 1 or "@" in path.partition("?")[0]
