"""Ports of the driver: tasks send their rows to a `Relay`, and ask a `PermitOffice` for permits.

A relay is open while a job runs. Each attempt of a task has a connection of its own (`entrance`).
The attempt says its number, then sends bytes, and is told when the driver holds all of them. They
lie in a file without a name, so memory stays small however many there are. An attempt that breaks
off leaves nothing. One that is repeated has another number, so its bytes do not mix with earlier
ones; which attempts count, the results of the job say.

An office keeps executors within the budget of a run. It is opened where a limit is set, or once the
portal was asked too much, and listens to the end of the run. A task that is killed loses its
connection, and with it what it held. Where no limit was set and a task cannot reach the office, the
task goes on alone and slows down by itself when the portal tells it to.
"""

from __future__ import annotations

import io
import logging
import secrets
import socket
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from threading import Condition, Event
from typing import IO, Any, ClassVar

import pyarrow as pa

from headwater.errors import RelayError
from headwater.portal.budget import Permits, PortalBudget
from headwater.spark.entrance import DriverPort, Entrance, connect, exactly

logger = logging.getLogger("headwater.spark")

PERMITS_PORT = "spark.headwater.permits.port"
ATTEMPT_BYTES, SIZE_BYTES = 8, 4
RECEIVED = b"\x06"
_PIECE = 1 << 20


class Relay(DriverPort):
    """Takes in what tasks send while it is entered. Runs on the driver, in threads of its own."""

    def __init__(self, *address: Any, **limits: Any) -> None:
        super().__init__(*address, **limits)
        self._files: dict[int, IO[bytes]] = {}
        self._changed = Condition()
        self._ended = False

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.end()
        for file in self._files.values():
            file.close()

    def serve(self, connection: socket.socket) -> None:
        """Take the rows of an attempt."""
        attempt = int.from_bytes(exactly(connection, ATTEMPT_BYTES))
        file = tempfile.TemporaryFile()  # noqa: SIM115 - kept until the batch is committed
        try:
            for piece in _pieces(connection):
                file.write(piece)
        except BaseException:
            file.close()
            raise
        self.keep(attempt, file)
        connection.sendall(RECEIVED)

    def keep(self, attempt: int, file: IO[bytes]) -> None:
        """Note that an attempt is complete. Called by the connection's thread."""
        with self._changed:
            self._files[attempt] = file
            self._changed.notify_all()

    def end(self) -> None:
        """Note that no more attempts are waited for."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def arriving(self) -> Iterator[tuple[int, IO[bytes]]]:
        """Yield attempts as they become complete, and what they have sent, until the end."""
        seen: set[int] = set()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or len(self._files) > len(seen))
                new = [
                    (attempt, file) for attempt, file in self._files.items() if attempt not in seen
                ]
                ended = self._ended
            yield from new
            seen.update(attempt for attempt, _ in new)
            if ended:
                return

    def take(self, attempts: list[int]) -> list[IO[bytes]]:
        """Return what these attempts have sent; the caller closes it. The rest is deleted."""
        return [self._files.pop(attempt) for attempt in attempts]


def sent_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Yield what an attempt has sent, a megabyte at a time. May be called again."""
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece


def send(entrance: Entrance, attempt: int, chunks: Iterable[bytes | memoryview]) -> None:
    """Send what an attempt has to send, and wait until the driver holds it. Runs on executors.

    Raises:
        RelayError: the driver cannot be reached, or another program answers in its place.
    """
    with connect(entrance) as connection:
        connection.settimeout(None)
        connection.sendall(attempt.to_bytes(ATTEMPT_BYTES))
        for chunk in chunks:
            connection.sendall(len(chunk).to_bytes(SIZE_BYTES))
            connection.sendall(chunk)
        connection.sendall(bytes(SIZE_BYTES))
        if connection.recv(1) != RECEIVED:
            raise ConnectionResetError("the driver did not take the rows")


def new_attempt() -> int:
    """Return a number for an attempt of a task. Runs on executors."""
    return secrets.randbits(62)


@dataclass(frozen=True, slots=True)
class IpcSender:
    """Sends the batches of a part to the driver as they are. It pickles, and runs on executors."""

    RESULT: ClassVar = pa.schema([("attempt", pa.int64())])

    entrance: Entrance

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Send; yield the number of the attempt, or nothing where there are no rows."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        attempt = new_attempt()
        send(self.entrance, attempt, _ipc_stream(first, filled))
        yield pa.RecordBatch.from_pydict({"attempt": [attempt]}, schema=self.RESULT)


def _ipc_stream(first: pa.RecordBatch, others: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the bytes of an Arrow stream, a batch at a time."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, first.schema) as writer:
        for batch in chain([first], others):
            writer.write_batch(batch)
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


def read_batches(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that an `IpcSender` has sent, one at a time. Runs on the driver."""
    file.seek(0)
    with pa.ipc.open_stream(file) as reader:
        yield from reader


def _pieces(connection: socket.socket) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_PIECE))
    while size := int.from_bytes(exactly(connection, SIZE_BYTES)):
        while size:
            got = connection.recv_into(buffer, min(size, _PIECE))
            if not got:
                raise ConnectionResetError("the attempt broke off")
            yield buffer[:got]
            size -= got


# --- permits --------------------------------------------------------------------------------------


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

    option = PERMITS_PORT

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
        requests = 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while True:
                kind, number = _MESSAGE.unpack(exactly(connection, _MESSAGE.size))
                if kind == _BEGIN:
                    self._budget.begin(self._wait)
                    requests += 1
                    connection.sendall(_GRANTED)
                elif kind == _SPEND:
                    self._budget.spend(int(number), self._sleep)
                    connection.sendall(_GRANTED)
                elif kind == _REFUSED:
                    self._budget.refused(None if number == _UNKNOWN else number)
                else:
                    requests -= 1
                    self._budget.end(succeeded=kind == _SUCCEEDED)
        finally:
            for _ in range(requests):
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
                raise RelayError(
                    "an executor cannot ask the driver how much it may request",
                    driver=self._office.entrance.host,
                    port=self._office.entrance.port,
                    reason=error,
                ) from error
            self._alone = True
            logger.warning("permits.alone: the driver cannot be asked: %s", error)
