"""A PostgreSQL user that may only read, for dashboards and colleagues.

The password is hashed here: the server, and its log, never see it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from headwater.address import Secret
from headwater.errors import InvalidOptionError, PostgresStatementError
from headwater.targets.postgres.dialect import LONGEST, postgres_address
from headwater.targets.postgres.session import connect
from headwater.targets.text import compose, literal


@dataclass(frozen=True, slots=True)
class ReadOnlyUser:
    """What became of the user: made now or known before, with the password if it was made up."""

    name: str
    created: bool
    password: Secret[str] | None = None


def add_read_only_user(
    dsn: str, name: str, *, password: str | None = None, schemas: Sequence[str] = ("public",)
) -> ReadOnlyUser:
    """Create a user who may read all present and future tables of these schemas.

    Future ones are those that the user of `dsn` creates: connect as the stream does. A user who
    exists keeps the password, unless one is given, and gets the rights. Without a password one is
    made up. May be repeated.
    """
    if not name.strip() or len(name.encode()) > LONGEST or "\0" in name:
        raise InvalidOptionError(f"a user's name has 1 to {LONGEST} bytes", got=repr(name))
    with connect(postgres_address(dsn)) as connection:
        known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone()
        made_up = secrets.token_urlsafe(24) if known is None and password is None else None
        try:
            with connection.transaction():
                _create(connection, name, password or made_up, create=known is None)
                for sql in _grants(connection, name, schemas):
                    connection.execute(sql.encode())
        except psycopg.Error as error:
            raise PostgresStatementError(
                "the user could not be created", user=name, reason=str(error).splitlines()[0]
            ) from error
    return ReadOnlyUser(name, known is None, None if made_up is None else Secret(made_up))


def _create(
    connection: psycopg.Connection[tuple[object, ...]],
    name: str,
    password: str | None,
    *,
    create: bool,
) -> None:
    if create:
        connection.execute(compose("CREATE ROLE {name} LOGIN", name=name).encode())
    if password is not None:
        hashed = connection.pgconn.encrypt_password(
            password.encode(), name.encode(), b"scram-sha-256"
        ).decode()
        connection.execute(
            compose(
                "ALTER ROLE {name} PASSWORD {hashed}", name=name, hashed=literal(hashed)
            ).encode()
        )
    connection.execute(
        compose("ALTER ROLE {name} SET default_transaction_read_only = on", name=name).encode()
    )


def _grants(
    connection: psycopg.Connection[tuple[object, ...]], name: str, schemas: Sequence[str]
) -> list[str]:
    parts = {"name": name, "database": connection.info.dbname}
    grants = [compose("GRANT CONNECT ON DATABASE {database} TO {name}", **parts)]
    for schema in schemas:
        parts["schema"] = schema
        grants += [
            compose("GRANT USAGE ON SCHEMA {schema} TO {name}", **parts),
            compose("GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}", **parts),
            compose(
                "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {name}",
                **parts,
            ),
        ]
    return [str(grant) for grant in grants]
