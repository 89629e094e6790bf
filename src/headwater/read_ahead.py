"""Iterates in a thread of its own, some items ahead of the code that uses them.

A task that waits for the portal's answers leaves its core idle: while it decodes and writes what
has come, a thread fetches what follows. In the same way the driver encodes rows while PostgreSQL
reads those before them. Runs on executors and on the driver; it keeps nothing between two uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
READ_AHEAD = 2  # items that may wait
_LOOK_S = 0.1


class ReadAhead(Generic[Item]):
    """Iterates over what `source` makes, which is iterated in a thread of its own.

    What waits between the two is bounded: `depth` items, and one that is being made.

    `source` is called in that thread, and its iterator is closed there. What it raises is raised
    here, after all that came before it. Leaving the `with` block lets the thread end: before its
    next item, if it is not waiting for one at that moment.
    """

    def __init__(self, source: Callable[[], Iterable[Item]], depth: int = READ_AHEAD) -> None:
        self._source = source
        self._queue: Queue[tuple[Item | None, BaseException | None, bool]] = Queue(depth)
        self._left = Event()
        self._thread = Thread(target=self._fill, name="headwater-read-ahead", daemon=True)

    def __enter__(self) -> Iterator[Item]:
        self._thread.start()
        return self._items()

    def __exit__(self, *error: object) -> None:
        self._left.set()

    def _items(self) -> Iterator[Item]:
        while True:
            item, error, ended = self._queue.get()
            if error is not None:
                raise error
            if ended:
                return
            yield item  # type: ignore[misc]  # only the last entry holds none

    def _fill(self) -> None:
        try:
            for item in self._source():
                if not self._put((item, None, False)):
                    return
            self._put((None, None, True))
        except BaseException as error:  # noqa: BLE001 - raised where the items are used
            self._put((None, error, True))

    def _put(self, entry: tuple[Item | None, BaseException | None, bool]) -> bool:
        """Hand an item over; False once nobody takes any more."""
        while not self._left.is_set():
            try:
                self._queue.put(entry, timeout=_LOOK_S)
            except Full:
                continue
            return True
        return False
