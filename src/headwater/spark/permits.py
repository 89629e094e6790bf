"""How executors keep within the budget of a run: they ask the driver, each over one connection.

A task that is killed loses its connection, and with it what it held; so does one whose machine is
lost, within two minutes. The office listens from the first span of a run to its end, and then waits
for no task. Where no limit was set and a task cannot reach it, the task goes on alone and slows
down by itself when the portal tells it to.
"""

from __future__ import annotations

import logging
import socket
import struct
from dataclasses import dataclass
from threading import Event
from typing import Any

from headwater.errors import RelayError
from headwater.portal.budget import Permits, PortalBudget
from headwater.spark.entrance import DriverPort, Entrance, connect, exactly

logger = logging.getLogger("headwater.spark")

PORT = "spark.headwater.permits.port"
_MESSAGE = struct.Struct("!cd")
_BEGIN, _SPEND, _REFUSED, _SUCCEEDED, _FAILED = b"b", b"s", b"r", b"e", b"f"
_GRANTED = b"\x06"
_UNKNOWN = -1.0  # a refusal that names no time


@dataclass(frozen=True, slots=True)
class Office:
    """Where a task asks; it pickles. `required`: a task that cannot ask must not go on."""

    entrance: Entrance
    required: bool


class PermitOffice(DriverPort):
    """Hands out what a budget allows. Runs on the driver, with a thread for each task."""

    option = PORT

    def __init__(self, budget: PortalBudget, *address: Any) -> None:
        super().__init__(*address)
        self._budget = budget
        self._ended = Event()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        super().__exit__(*error)

    @property
    def office(self) -> Office:
        """What tasks are given."""
        limits = self._budget.limits
        required = limits.requests is not None or limits.bytes_per_second is not None
        return Office(self.entrance, required)

    def serve(self, connection: socket.socket) -> None:
        """Do what one task asks for, until it goes; then it holds nothing."""
        held = 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while True:
                kind, number = _MESSAGE.unpack(exactly(connection, _MESSAGE.size))
                if kind == _BEGIN:
                    self._budget.begin(self._wait)
                    held += 1
                    connection.sendall(_GRANTED)
                elif kind == _SPEND:
                    self._budget.spend(int(number), self._sleep)
                    connection.sendall(_GRANTED)
                elif kind == _REFUSED:
                    self._budget.refused(None if number == _UNKNOWN else number)
                else:
                    held -= 1
                    self._budget.end(succeeded=kind == _SUCCEEDED)
        finally:
            for _ in range(held):
                self._budget.end(succeeded=False)

    def _wait(self, seconds: float) -> None:
        """Wait until a request of any task has ended; break off where the run has."""
        self._budget.wait(seconds)
        self._sleep(0.0)

    def _sleep(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise ConnectionAbortedError("the run has ended")


class TaskPermits(Permits):
    """The permits of a task's client. Runs on executors; connects when it is first asked."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._connection: socket.socket | None = None
        self._alone = False

    def begin(self) -> None:
        """Wait until a request may begin.

        Raises:
            RelayError: the driver cannot be asked, and limits were set.
        """
        self._say(_BEGIN, answered=True)

    def spend(self, size: int) -> None:
        """Count bytes; wait until more may come."""
        self._say(_SPEND, size, answered=True)

    def refused(self, retry_after_s: float | None) -> None:
        """Have all tasks slow down."""
        self._say(_REFUSED, _UNKNOWN if retry_after_s is None else retry_after_s)

    def end(self, *, succeeded: bool) -> None:
        """Note the end of a request."""
        self._say(_SUCCEEDED if succeeded else _FAILED)

    def close(self) -> None:
        """Close the connection, which frees the permits that it held."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _say(self, kind: bytes, number: float = 0.0, *, answered: bool = False) -> None:
        if self._alone or (self._connection is None and kind != _BEGIN):
            return
        try:
            if self._connection is None:
                self._connection = connect(self._office.entrance)
                self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connection.settimeout(None)
            self._connection.sendall(_MESSAGE.pack(kind, number))
            if answered:
                exactly(self._connection, 1)
        except (OSError, RelayError) as error:
            self.close()
            if self._office.required:
                raise _unreachable(self._office.entrance, error) from error
            self._alone = True
            logger.warning("permits.alone: the driver cannot be asked: %s", error)


def _unreachable(entrance: Entrance, error: Exception) -> RelayError:
    return RelayError(
        "an executor cannot ask the driver how much it may request",
        driver=entrance.host,
        port=entrance.port,
        reason=error,
    )
