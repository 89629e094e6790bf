"""A server and databases for the tests of the ClickHouse target: one server per process."""

from __future__ import annotations

import atexit
import itertools
import os
from contextlib import ExitStack
from functools import cache
from typing import Any

from headwater.core import Batch, BlockCursor, BlockHeader, Head
from headwater.targets import Delivery
from headwater.targets.clickhouse import ClickHouseClient, ClickHouseTarget
from headwater.testing.servers.clickhouse import VARIABLE, clickhouse_server
from tests.shared import starting

Rows = list[dict[str, Any]]

_SERVERS = ExitStack()
atexit.register(_SERVERS.close)
_NUMBERS = itertools.count(1)
_MADE: dict[str, str] = {}  # databases that are there, and the test that asked for each


@cache
def server() -> str:
    """Return the address of a server that runs as long as this process."""
    with starting("ClickHouse"):
        return _SERVERS.enter_context(clickhouse_server()).rstrip("/")


def database() -> str:
    """Return the address of a new, empty database. It is there until the test has ended.

    Those of tests before are dropped: a server looks at every table again and again, which took 10
    to 15 % of a core for 750 tables.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    for old in [name for name, asked_for in _MADE.items() if asked_for != test]:
        _drop(old)
    name = f"place_{os.getpid()}_{next(_NUMBERS)}"
    admin(f"CREATE DATABASE {name}")
    _MADE[name] = test
    if VARIABLE in os.environ:  # a server that stays
        _SERVERS.callback(_drop, name)
    return f"{server()}/{name}?fsync_metadata=0&max_threads=1"


def _drop(name: str) -> None:
    if _MADE.pop(name, None) is not None:
        admin(f"DROP DATABASE IF EXISTS {name}")


def admin(sql: str) -> None:
    """Run a statement on the server."""
    client = ClickHouseClient(server())
    client.run(sql)
    client.close()


def at_once(seconds: float, why: str) -> None:
    """Pause for no time: where a test shows what is tried again, and another one when."""


class Stream:
    """Commits blocks to a target."""

    def __init__(self, target: ClickHouseTarget, url: str) -> None:
        self.target = target
        self.client = ClickHouseClient(url)
        self.state = target.recover()

    def block(
        self,
        number: int,
        data: Any = None,
        *,
        final: int = 1,
        ctx: Any = None,
        branch: str = "h",
        side: Any = None,
    ) -> None:
        """Commit one block, of which the portal calls `final` finalized."""
        head = Head(BlockCursor(final, f"h{final}") if final >= 0 else None)
        header = BlockHeader(number, f"{branch}{number}", None, number - 1, number)
        state = self.state.advance([header], head)
        batch = Batch((header,), head, state, (), Delivery(data or {}, ctx, side or {}))
        self.target.commit([batch], state)
        self.state = state

    def fork(self, number: int) -> None:
        """Go back to a block."""
        safe = next(one for one in self.state.landing_points() if one.number == number)
        state = self.state.rewind(safe)
        self.target.roll_back(state)
        self.state = state

    def rows(self, sql: str) -> Rows:
        """Read what is stored."""
        found: Rows = self.client.query(sql).to_pylist()
        return found

    def sql(self, sql: str) -> None:
        """Change the database behind the target's back."""
        self.client.run(sql)
