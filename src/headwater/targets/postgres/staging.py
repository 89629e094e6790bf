"""Rows that lie on executors: encoded there in parallel, published by the driver's commit.

Each attempt of a task encodes its rows and sends them to the driver (`relay`), under a number of
its own, which it returns. The driver copies what complete attempts have sent into the table, inside
the batch's transaction, while other tasks still run. In the end it compares: if it has copied an
attempt that Spark does not count (it failed after it had sent its rows, or lost a race), the
transaction begins again with those that Spark counts. A crash leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from headwater.spark.entrance import Entrance
from headwater.spark.relay import Relay, new_attempt, send, sent_pieces
from headwater.targets.frames import block_range
from headwater.targets.postgres.session import TryAgain
from headwater.targets.postgres.transfer import Transfer
from headwater.targets.values import Fitting, Tally

if TYPE_CHECKING:
    from headwater.spark.executors import ExecutorRows

_NAMES = ("attempt", "rows", "lowest", "highest", "nulls")
_ALTERED = "altered"  # what was done to values, as text
RECEIPT = pa.schema([*((name, pa.int64()) for name in _NAMES), (_ALTERED, pa.string())])
Note = Callable[[Tally], None]


@dataclass(frozen=True, slots=True)
class RowSender:
    """What a task does with its rows: encode them, send them to the driver, return a receipt.

    Runs on executors, which reach the driver as they do for Spark itself, and never the database.
    An attempt that is repeated has another number, so its rows do not mix with earlier ones.
    """

    entrance: Entrance
    transfer: Transfer
    block_column: str = ""
    fitting: Fitting | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Send, and yield the receipt: how many rows there are, and between which blocks."""
        told: dict[str, Any] = {"attempt": new_attempt(), "rows": 0, "nulls": 0}
        tally = Tally()
        if self.fitting is not None:
            batches = self.fitting.through(batches, tally)
        remaining = (batch for batch in batches if batch.num_rows)
        first = next(remaining, None)
        if first is not None:
            seen = self._counted(chain([first], remaining), told)
            send(self.entrance, told["attempt"], self.transfer.encode(first.schema, seen))
        yield pa.RecordBatch.from_pylist([{**told, _ALTERED: tally.dump()}], schema=RECEIPT)

    def _counted(
        self, batches: Iterable[pa.RecordBatch], told: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Pass batches on, and note in the receipt what they hold."""
        for batch in batches:
            ends: Sequence[int] = ()
            nulls = batch.num_rows
            if self.block_column in batch.schema.names:
                ends, nulls = block_range(batch.column(self.block_column))
            told["rows"] += batch.num_rows
            told["nulls"] += nulls
            known = [*ends, *(told[name] for name in ("lowest", "highest") if name in told)]
            if known:
                told["lowest"], told["highest"] = min(known), max(known)
            yield batch


Rows = Iterator[bytes]
Publish = Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Staged:
    """What the tasks of one frame have sent, as far as Spark counts them."""

    files: list[IO[bytes]]
    num_rows: int
    blocks: tuple[int | None, int | None, int]
    altered: Tally

    def read(self) -> Rows:
        """Yield the rows, a megabyte at a time."""
        for file in self.files:
            yield from sent_pieces(file)


class Distributed:
    """A frame whose rows lie on executors. Used like an Arrow table, within one transaction."""

    def __init__(
        self,
        staging: Staging,
        rows: ExecutorRows,
        fitting: Fitting | None = None,
        note: Note | None = None,
    ) -> None:
        self._staging = staging
        self._rows = rows
        self._fitting = fitting
        self._note = note
        self._staged: Staged | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._rows.schema

    def select(self, names: Sequence[str]) -> Distributed:
        """Return the same rows with fewer columns."""
        return Distributed(self._staging, self._rows.select(names), self._fitting, self._note)

    def fitted(self, fitting: Fitting, note: Note) -> Distributed:
        """Return the same rows, made to fit where they are encoded; `note` is told of it."""
        return Distributed(self._staging, self._rows, fitting, note)

    @property
    def num_rows(self) -> int:
        """How many rows there are, once they are staged."""
        return 0 if self._staged is None else self._staged.num_rows

    @property
    def blocks(self) -> tuple[int | None, int | None, int]:
        """The lowest and the highest block of the rows, and how many have none."""
        return (None, None, 0) if self._staged is None else self._staged.blocks

    def stage(self, transfer: Transfer, block_column: str, publish: Publish | None) -> Rows:
        """Have the tasks send their rows, and `publish` copy them; without it, return them."""
        self._staged = self._staging.stage(
            self._rows, transfer, block_column, publish, self._fitting
        )
        if self._note is not None:
            self._note(self._staged.altered)
        return iter(()) if publish else self._staged.read()


class Staging:
    """The staged rows of one batch. Runs on the driver.

    They are kept until the batch is committed: if its transaction has to be tried again, its rows
    are not computed again. So `on_data` must do the same each time.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._staged: list[Staged] = []
        self._next = 0

    def begin(self) -> None:
        """Note that a batch is written from its beginning."""
        self._next = 0

    def stage(
        self,
        rows: ExecutorRows,
        transfer: Transfer,
        block_column: str,
        publish: Publish | None,
        fitting: Fitting | None = None,
    ) -> Staged:
        """Stage rows, unless an earlier try has, and publish them meanwhile."""
        ordinal, self._next = self._next, self._next + 1
        if ordinal < len(self._staged):
            staged = self._staged[ordinal]
            if publish is not None:
                publish(staged.read())
            return staged
        with rows.relay(self._port) as relay:
            publisher = None if publish is None else _Publisher(relay, publish)
            sender = RowSender(relay.entrance, transfer, block_column, fitting)
            try:
                receipts = rows.run(sender, RECEIPT).to_pylist()
            except BaseException:
                if publisher is not None:
                    publisher.end()
                raise
            counted = [receipt for receipt in receipts if receipt["rows"]]
            attempts = [receipt["attempt"] for receipt in counted]
            error, published = (None, set()) if publisher is None else publisher.finish(attempts)
            staged = _staged(relay.take(attempts), counted, receipts)
        self._staged.append(staged)
        if error is not None:
            raise error
        if published - set(attempts):
            raise TryAgain("an attempt was copied that Spark does not count")
        return staged

    def clear(self) -> None:
        """Delete what was staged for the batch that was committed, or given up."""
        staged, self._staged, self._next = self._staged, [], 0
        for frame in staged:
            for file in frame.files:
                file.close()


class _Publisher:
    """Copies what attempts have sent, in a thread of its own, while the Spark job runs.

    The connection is not used meanwhile: the caller waits for the job.
    """

    def __init__(self, relay: Relay, publish: Publish) -> None:
        self._relay = relay
        self._published: set[int] = set()
        self._counted: set[int] | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(publish,), daemon=True)
        self._thread.start()

    def finish(self, counted: Sequence[int]) -> tuple[BaseException | None, set[int]]:
        """Publish the rest; return what went wrong, and which attempts were published."""
        self._counted = set(counted)
        self.end()
        return self._error, self._published

    def end(self) -> None:
        """Stop when the relay is empty; by itself, after a job that has failed."""
        self._relay.end()
        self._thread.join()

    def _run(self, publish: Publish) -> None:
        try:
            publish(self._rows())
        except BaseException as error:  # noqa: BLE001 - raised again where it can be handled
            self._error = error

    def _rows(self) -> Rows:
        for attempt, file in self._relay.arriving():
            if self._counted is None or attempt in self._counted:
                self._published.add(attempt)
                yield from sent_pieces(file)
        if self._counted is None:
            raise InterruptedError("the Spark job has failed")


def _staged(
    files: list[IO[bytes]], counted: Sequence[dict[str, Any]], receipts: Sequence[dict[str, Any]]
) -> Staged:
    altered = Tally()
    for receipt in receipts:
        altered.add(Tally.load(receipt[_ALTERED]))
    known = [receipt for receipt in counted if receipt["lowest"] is not None]
    return Staged(
        files,
        sum(receipt["rows"] for receipt in counted),
        (
            min((receipt["lowest"] for receipt in known), default=None),
            max((receipt["highest"] for receipt in known), default=None),
            sum(receipt["nulls"] for receipt in counted),
        ),
        altered,
    )
