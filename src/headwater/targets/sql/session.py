"""What the shared statements run on: a connection inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa


class Session(Protocol):
    """The session of a database, as far as statements for both need it. Runs on the driver."""

    def run(self, sql: str, params: Sequence[object] = (), *, prepare: bool = False) -> object:
        """Run a statement for its effect; with `prepare` the server keeps its plan."""
        ...

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        ...

    def arrow(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Run a query and return a table."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
