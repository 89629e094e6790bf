"""Servers and databases for the tests of the PostgreSQL target: one server per version."""

from __future__ import annotations

import atexit
import itertools
from contextlib import ExitStack
from functools import cache
from typing import Any

import psycopg

from headwater.core import Batch, BlockCursor, BlockHeader, Head
from headwater.targets import Delivery
from headwater.targets.postgres import PostgresTarget
from headwater.testing.servers.postgres import postgres_server
from tests.shared import starting

NEWEST, OTHER = 18, 16  # of the locked wheel: what else a machine has changes no test
Rows = list[dict[str, Any]]

_SERVERS = ExitStack()
atexit.register(_SERVERS.close)
_NUMBERS = itertools.count(1)


@cache
def server(version: int = NEWEST) -> str:
    """Return the address of a server that runs as long as this process."""
    with starting(f"PostgreSQL {version}"):
        return _SERVERS.enter_context(postgres_server(version))


@cache
def _admin(version: int) -> psycopg.Connection[tuple[Any, ...]]:
    connection = psycopg.connect(server(version), autocommit=True)
    _SERVERS.callback(connection.close)
    return connection


def database(version: int = NEWEST) -> str:
    """Return the address of a new, empty database."""
    name = f"place_{next(_NUMBERS)}"
    _admin(version).execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
    return server(version).removesuffix("/postgres") + f"/{name}"


def empty(dsn: str) -> None:
    """Remove everything from a database; faster than a new one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


class Stream:
    """Commits blocks to a target."""

    def __init__(self, target: PostgresTarget, dsn: str) -> None:
        self.target = target
        self.dsn = dsn
        self.state = target.recover()

    def block(self, number: int, data: Any = None, *, final: int = 1, ctx: Any = None) -> None:
        """Commit one block, of which the portal calls `final` finalized."""
        head = Head(BlockCursor(final, f"h{final}") if final >= 0 else None)
        header = BlockHeader(number, f"h{number}", f"h{number - 1}", number - 1, number)
        state = self.state.advance([header], head)
        batch = Batch((header,), head, state, (), Delivery(data or {}, ctx))
        self.target.commit([batch], state)
        self.state = state

    def do(self, number: int, *what: Any, final: int = 1) -> None:
        """Commit a block whose `on_data` calls these functions, or runs this SQL."""

        def run(tx: Any) -> None:
            for one in what:
                tx.execute(one) if isinstance(one, str) else one(tx)

        self.block(number, {"do": run}, final=final)

    def fork(self, number: int) -> None:
        """Go back to a block."""
        safe = next(one for one in self.state.landing_points() if one.number == number)
        state = self.state.rewind(safe)
        self.target.roll_back(state)
        self.state = state

    def rows(self, sql: str) -> Rows:
        """Read what is committed."""
        found: Rows = self.target.query(sql).to_pylist()
        return found

    def sql(self, sql: str) -> None:
        """Change the database behind the target's back."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.encode())
