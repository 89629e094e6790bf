"""What targets on a database share: callbacks, the stream's id, what the stream keeps for itself.

`SqlTarget` and `ClickHouseTarget` derive from `DatabaseTarget`. All of it runs on the driver.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pyarrow as pa

from headwater.core import BlockCursor, PipeState
from headwater.core.callbacks import Callback
from headwater.core.rooms import Policy
from headwater.errors import InvalidOptionError
from headwater.runtime import ALONE, Runtime, Wait
from headwater.targets.contract import Capabilities, Delivery, KeepsConfig, KeepsSideTables
from headwater.targets.sql.side_tables import StoredSideTables
from headwater.targets.values import Altered

LEGACY_ID = "stream"  # of a stream that has none; the Pipes SDK's
Data = Mapping[str, Any]
Writer = TypeVar("Writer")  # what callbacks write with: a `Tx`, or ClickHouse's `Store`
OnData = Callable[[Writer, Data], object] | Callable[[Writer, Data, Any], object]
OnStart = Callable[[Writer], object]
OnRollback = Callable[[Writer, BlockCursor | None], object]
Found = TypeVar("Found")
logger = logging.getLogger("headwater.targets")


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The user's functions. The first argument of each is what they write with."""

    on_data: Callback | None = None
    on_start: Callback | None = None
    before_rollback: Callback | None = None
    after_rollback: Callback | None = None

    @classmethod
    def check(
        cls,
        on_data: Callable[..., object] | None,
        on_start: Callable[..., object] | None,
        on_before_rollback: Callable[..., object] | None = None,
        on_after_rollback: Callable[..., object] | None = None,
        *,
        writer: str = "tx",
    ) -> Self:
        """Return them; refuse what takes other arguments, and what is asynchronous."""
        data, cursor = f"{writer}, data", f"{writer}, cursor"
        return cls(
            Callback.optional("on_data", on_data, data, f"{data}, ctx"),
            Callback.optional("on_start", on_start, writer),
            Callback.optional("on_before_rollback", on_before_rollback, cursor),
            Callback.optional("on_after_rollback", on_after_rollback, cursor),
        )


class DatabaseTarget(KeepsSideTables, KeepsConfig, ABC):
    """A target that keeps its state in the database it writes.

    All calls come from one thread; it may be opened again after `close`. `on_statement` is called
    with each statement before it runs, for tests and logs. `runtime` is what its stream has handed
    it.
    """

    def __init__(
        self, callbacks: Callbacks, given_id: str | None, policy: Policy = Policy.REPLACE
    ) -> None:
        self.on_statement: Callable[[str], None] | None = None
        self.runtime = ALONE
        self.altered = Altered(policy)
        self._callbacks = callbacks
        self._given_id = given_id
        self._id = given_id or LEGACY_ID
        self._state = PipeState()

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps side tables and the configuration, and counts values that it cannot hold."""
        return Capabilities(
            side_tables=self,
            config=self,
            uses_frames=self._callbacks.on_data is not None,
            altered=self.altered.totals,
        )

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Take the stream's id, unless the settings name another."""
        if self._is_open:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._given_id or stream_id
        self.runtime = runtime

    def pause(self, seconds: float, why: str) -> None:
        """Wait for a server that is away, as the stream says."""
        self.runtime.wait(seconds, why)

    def read_side_table(
        self,
        name: str,
        *,
        after: tuple[int, int] | None = None,
        up_to_block: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return committed rows of this stream in the order of their keys."""
        return self._look(lambda: self._side.read(name, after, up_to_block, limit))

    def _adopt(self, adopt: Callable[[str], bool]) -> bool:
        """Take over, once, the state that was kept before streams had ids; tell whether it was."""
        if self._given_id is not None or self._id == LEGACY_ID or not adopt(LEGACY_ID):
            return False
        logger.warning("state.adopted id=%s from=%s", self._id, LEGACY_ID)
        return True

    def _announce(self, sql: str) -> None:
        if self.on_statement is not None:
            self.on_statement(sql)

    # --- what each database does in its own way ---------------------------------------------------

    @property
    @abstractmethod
    def _is_open(self) -> bool:
        """Whether the database is open, under the stream's id."""

    @property
    @abstractmethod
    def _side(self) -> StoredSideTables:
        """The side tables of the database, which is open."""

    @abstractmethod
    def _look(self, work: Callable[[], Found]) -> Found:
        """Open the database if need be, and read something that is committed."""


# --- a server that is away ------------------------------------------------------------------------

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.05, 5.0


class Patience:
    """How long failures of one piece of work are borne: `attempts` times, or else `wait_s` long."""

    def __init__(self, attempts: int | None, wait_s: float, pause: Wait) -> None:
        self.failures = 0
        self._attempts = attempts
        self._wait_s = wait_s
        self._pause = pause
        self._began = time.monotonic()

    def ends(self) -> bool:
        """Count a failure; tell whether it was the last one."""
        if not self.failures:
            self._began = time.monotonic()
        self.failures += 1
        if self._attempts is not None:
            return self.failures >= self._attempts
        return time.monotonic() - self._began >= self._wait_s

    def wait(self, why: str) -> None:
        """Wait before the next attempt."""
        self._pause(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (self.failures - 1)), why)
