"""The client of one dataset of one portal: questions about it, and its blocks.

HTTP goes in, the four answers of `headwater.core` come out. The client keeps no position: the
caller's cursor is the only one, so a client can be thrown away and made anew at any time. It is
not for several threads at once; each executor builds its own.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from headwater.core import (
    DEFAULT_CAP,
    Answer,
    BlockCursor,
    BlockRange,
    Blocks,
    Head,
    RangeEnd,
    RangeSpec,
    clip_ranges,
)
from headwater.core.ranges import At
from headwater.core.retry import RetryPolicy
from headwater.errors import (
    AnswerTooLargeError,
    BlockLinkError,
    BlockOrderError,
    HeadwaterError,
    InvalidOptionError,
    MalformedAnswerError,
    MalformedLineError,
    MissingBlocksError,
    PortalHttpError,
    TimestampError,
    TransportError,
)
from headwater.portal.outage import (
    Clock,
    Notice,
    NoticeKind,
    Observer,
    SystemClock,
    log_notice,
    read_body,
)
from headwater.portal.reading import Conditions, Reading, StreamQuery
from headwater.portal.sources import (
    Address,
    Sources,
    SourcesTransport,
    open_transport,
    sources_of,
)
from headwater.portal.transport import Request, Timeouts, Transport
from headwater.portal.wire import (
    Dataset,
    read_block_at,
    read_dataset,
    read_head_answer,
    read_missing,
)

__all__ = ["PortalClient", "StreamQuery"]

QUESTION_ATTEMPTS = 10
FROM_AHEAD_S = 24 * 3600  # how far in the future a range may begin: `now()` of any zone, and clocks
_UNFIT = (
    AnswerTooLargeError,
    BlockLinkError,
    BlockOrderError,
    MalformedAnswerError,
    MalformedLineError,
)
TO_AHEAD_S = 60  # how far in the future one may end: what comes until then is not known yet


class PortalClient:
    """Asks a portal, and asks again when that helps.

    `dataset` saves an executor the metadata request if the driver already has the answer. An
    `on_notice` observer is called in the reading thread and must not raise. While finality is
    unknown, what lies more than `rollback_cap` blocks below the latest block is past every fork.
    `headers` asks for nothing but headers of blocks: where the portal finds no block by time, it is
    found with them. `sources` are what a list hides behind a transport: another one is read where
    one sends blocks that do not fit.
    """

    def __init__(
        self,
        portal: str | Transport,
        *,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        on_notice: Observer = log_notice,
        max_bytes: int = 10 * 1024 * 1024,
        poll_interval_s: float = 0.25,
        timeouts: Timeouts | None = None,
        dataset: Dataset | None = None,
        rollback_cap: int = DEFAULT_CAP,
        headers: StreamQuery | None = None,
        sources: SourcesTransport | None = None,
    ) -> None:
        if max_bytes < 1:
            raise InvalidOptionError("max_bytes must be at least 1", got=max_bytes)
        if not poll_interval_s > 0:
            raise InvalidOptionError("poll_interval_s must be above 0", got=poll_interval_s)
        transport = open_transport(portal, timeouts) if isinstance(portal, str) else portal
        self._conditions = Conditions(
            transport=transport,
            retry=retry or RetryPolicy(),
            clock=clock or SystemClock(),
            random=(rng or random.Random()).random,
            notify=on_notice,
            max_bytes=max_bytes,
            poll_interval_s=poll_interval_s,
            rollback_cap=rollback_cap,
        )
        self._dataset = dataset
        self._metadata_tried = dataset is not None
        self._blocks_at: dict[int, int] = {}
        self._finality_told = False
        self._finds_times: bool | None = None  # until it is known
        self._headers = headers
        self._sources = sources or sources_of(transport)

    def __enter__(self) -> PortalClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connections; what is asked afterwards makes new ones."""
        self._conditions.transport.close()

    def rest(self) -> None:
        """Release the connections of what is stale; of a list another source is asked next."""
        if self._sources is not None:
            self._sources.pass_over("it is behind our blocks, or contradicts a final one")
        self.close()

    def best_first(self, address: Address) -> Address:
        """Return the address for executors: of a list, with the sources that work first."""
        if self._sources is None or not isinstance(address, Sources):
            return address
        return self._sources.best_first(address)

    def trust(self, final: BlockCursor | None) -> None:
        """Note our newest final block: sources of a list that hold another one are not read."""
        if self._sources is not None:
            self._sources.trust(final)

    # --- questions --------------------------------------------------------------------------------

    def metadata(self, *, attempts: int = QUESTION_ATTEMPTS) -> Dataset:
        """Return what the portal says of the dataset; asked once."""
        if self._dataset is None:
            self._dataset = self._ask_metadata(attempts)
        return self._dataset

    def _ask_metadata(self, attempts: int) -> Dataset:
        return read_dataset(self._question("metadata?expand[]=metadata", attempts))

    def head(self, *, attempts: int | None = QUESTION_ATTEMPTS) -> BlockCursor | None:
        """Return the newest block, or None if the dataset has none yet."""
        return read_head_answer(self._question("head", attempts))

    def finalized_head(self, *, attempts: int | None = QUESTION_ATTEMPTS) -> BlockCursor | None:
        """Return the newest final block, or None if there is none yet.

        A portal that answers 404 reports no finality: None as well, so a stream reads near the
        head. With `attempts=None` an outage is waited out, as a running stream has to.
        """
        try:
            return read_head_answer(self._question("finalized-head", attempts))
        except PortalHttpError as error:
            _refuse_unless_missing(error)
        if not self._finality_told:
            self._finality_told = True
            self.tell(NoticeKind.NO_FINALITY, "the portal has no finalized-head: reading near")
        return None

    def block_at(self, timestamp: int) -> int | None:
        """Return the number of the first block at or after a time in seconds since 1970 UTC.

        None if there is no block that late yet. A block that was found is not asked for again. A
        service that finds no block by time is asked for the times of a few blocks.

        Raises:
            TimestampError: there are no times, or the block lies below those that the portal has.
        """
        if timestamp not in self._blocks_at:
            number = self._ask_block_at(timestamp)
            if number is None:
                return None
            self._blocks_at[timestamp] = number
        return self._blocks_at[timestamp]

    def _ask_block_at(self, timestamp: int) -> int | None:
        answer = None
        if self._finds_times is not False:
            answer = self._by_route(timestamp)
            if self._finds_times is None:  # 404 says that none is that late, or that it knows none
                first = timestamp > 0 and answer is None and self._by_route(0)  # all are later
                self._finds_times = bool(first) or answer is not None
        if not self._finds_times:
            return self._search_block_at(timestamp)
        return read_block_at(answer) if answer and answer.strip() else None

    def _by_route(self, timestamp: int) -> bytes | None:
        """Return what the portal says of a time; None where it answers 404."""
        try:
            return self._question(f"timestamps/{timestamp}/block")
        except PortalHttpError as error:
            _refuse_unless_missing(error)
            return None

    def _search_block_at(self, timestamp: int) -> int | None:
        """Find the first block at or after a time by the headers of blocks, halving what is left.

        For a service without such a route. It asks for a block per step, 64 at most.
        """
        if self._headers is None:
            raise TimestampError("the portal finds no block by time", time=_date(timestamp))
        head = self.head()
        if head is None or self._time_at(head.number) < timestamp:
            return None
        low, high = self.oldest_block(), head.number
        if low > 0 and self._time_at(low) > timestamp:
            raise TimestampError(
                "the block of that time lies below the first one that the portal has",
                time=_date(timestamp),
                oldest=low,
            )
        while low < high:
            middle = (low + high) // 2
            if self._time_at(middle) < timestamp:
                low = middle + 1
            else:
                high = middle
        return high

    def _time_at(self, number: int) -> int:
        """Return the time of the first block at or above a number that the head has reached."""
        assert self._headers is not None, "without them nothing is searched"
        answers = self.read(self._headers, BlockRange(number), attempts=QUESTION_ATTEMPTS)
        with closing(answers):
            first = next(answers)
        timestamp = first.headers[0].timestamp if isinstance(first, Blocks) else None
        if timestamp is None:
            raise TimestampError("the portal says no time of a block", block=number)
        return timestamp

    def resolve_range(self, spec: RangeSpec, *, finalized: bool = False) -> BlockRange:
        """Turn a range as the user wrote it into numbers, with as few questions as it needs.

        Called on the driver when a stream starts. "latest" moves, so a repetition may resolve to a
        later block; a stored cursor outranks the result. A time after the head means the next
        block: a range from `datetime.now()` begins with it, one up to `datetime.now()` ends before
        it.

        Raises:
            TimestampError: a time lies in the future, or the portal finds no block by time.
        """
        head = None
        if spec.needs_head:
            head = read_head_answer(self._question("finalized-head" if finalized else "head"))
        blocks_at = {
            instant: self._first_from(instant, FROM_AHEAD_S if bound is spec.start else TO_AHEAD_S)
            for bound in (spec.start, spec.end)
            if isinstance(bound, At)
            for instant in (bound.timestamp,)
        }
        return spec.resolve(head=0 if head is None else head.number, blocks_at=blocks_at)

    def _first_from(self, timestamp: int, ahead_s: int) -> int:
        """Return the first block at or after a time; the next one, if there is none that late.

        The head is asked for before the time is looked up again, so that a block which comes
        meanwhile is not skipped.
        """
        number = self.block_at(timestamp)
        if number is not None:
            return number
        now = int(self._conditions.clock.now())
        if timestamp > now + ahead_s:
            raise TimestampError(
                "the time lies in the future", time=_date(timestamp), now=_date(now)
            )
        head = self.head()
        number = self.block_at(timestamp)
        if number is None:
            number = 0 if head is None else head.number + 1
            self.tell(NoticeKind.NEXT_BLOCK, "no block is that late yet", first_block=number)
        return number

    def _question(self, route: str, attempts: int | None = QUESTION_ATTEMPTS) -> bytes:
        """Ask until there is an answer, or the attempts are used up."""
        conditions = self._conditions
        outage = conditions.outage(route, conditions.retry.attempts or attempts)
        while True:
            try:
                with closing(conditions.transport.send(Request("GET", route))) as response:
                    body = read_body(response)
            except TransportError as error:
                outage.broke(error)
                continue
            if response.status in (200, 204):
                outage.arrived()
                return body
            outage.refused(response.status, response.headers, body)

    def oldest_block(self) -> int:
        """Return the first block that the dataset has now; 0 if its metadata cannot be had.

        Asked each time: a real-time service keeps a window of blocks, which moves on.
        """
        try:
            return self._ask_metadata(QUESTION_ATTEMPTS).start_block
        except HeadwaterError as error:
            self._tell_of_metadata(error)
            return 0

    # --- blocks -----------------------------------------------------------------------------------

    def read(
        self,
        query: StreamQuery,
        block_range: BlockRange,
        after: BlockCursor | None = None,
        *,
        finalized: bool = False,
        max_bytes: int | None = None,
        attempts: int | None = None,
    ) -> Generator[Answer, None, None]:
        """Read what follows the cursor `after` in a range. Runs on the driver, or on an executor.

        Yields `Blocks`, at least one block each; `AtHead` when there is nothing new (when the
        caller comes back, at least `poll_interval_s` passes between two requests); `Fork`, which
        ends the reading: resolve it and read again; `RangeEnd`, which ends it too. Outages are
        waited out and reported as notices, for ever unless the policy or `attempts` bounds them.

        Reading again from the same cursor gives the same blocks again, unless the chain has forked.
        Closing the iterator early closes the connection. At most `max_bytes` (those of
        the client, if not given) and one line are held.

        Raises:
            MissingBlocksError: the portal does not have the next block any more.
            PortalHttpError: a status that a retry cannot mend.
            PortalUnreachableError: the attempts that the policy permits are used up.
            MalformedLineError, BlockOrderError, BlockLinkError: the portal sent something else than
                the blocks that follow; the good ones before it have been yielded.
            MalformedAnswerError: a fork that names no blocks.
        """
        left = clip_ranges((block_range,), after)
        if not left:
            yield RangeEnd(Head())
            return
        dataset = self._dataset_if_known(finalized=finalized)
        if dataset is not None and left[0].from_block < dataset.start_block:
            self.check_missing(left[0].from_block, after)
        conditions = self._conditions
        if max_bytes is not None:
            conditions = replace(conditions, max_bytes=max_bytes)
        outage = conditions.outage(
            "finalized-stream" if finalized else "stream", conditions.retry.attempts or attempts
        )
        reading = Reading(conditions, query, left[0], after, outage, finalized=finalized)
        while True:
            try:
                yield from reading.answers()
            except PortalHttpError as error:
                said = read_missing(str(error.facts["portal_says"]))
                if said is None or said.to_block is None or reading.next_block not in said:
                    raise
                raise _missing(reading.next_block, said.to_block + 1, after) from error
            except _UNFIT as error:
                if self._sources is None or not self._sources.distrust(error):
                    raise
            else:
                return

    def check_missing(self, first: int, after: BlockCursor | None = None) -> None:
        """Raise `MissingBlocksError` if the portal's oldest block lies above a first one."""
        oldest = self.oldest_block()
        if oldest > first:
            raise _missing(first, oldest, after)

    def _dataset_if_known(self, *, finalized: bool) -> Dataset | None:
        """Return the metadata, asked for at the first reading; reading goes on without it."""
        if self._metadata_tried:
            return self._dataset
        try:
            dataset = self.metadata()
        except HeadwaterError as error:
            self._metadata_tried = not error.retryable
            self._tell_of_metadata(error)
            return None
        self._metadata_tried = True
        if not dataset.real_time and not finalized:
            self.tell(
                NoticeKind.NOT_REAL_TIME,
                "the dataset does not follow the head of its chain",
                dataset=dataset.name,
            )
        return dataset

    def _tell_of_metadata(self, error: HeadwaterError) -> None:
        self.tell(NoticeKind.METADATA_UNAVAILABLE, "reading without metadata", reason=str(error))

    def tell(self, kind: NoticeKind, message: str, **facts: object) -> None:
        """Tell the operator what was decided on the way."""
        self._conditions.notify(Notice(kind, message, facts))


def _date(timestamp: int) -> str:
    """Write a time as people do, in UTC; one that no calendar has stays a number."""
    try:
        return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp} s since 1970"


def _missing(first: int, oldest: int, after: BlockCursor | None) -> MissingBlocksError:
    return MissingBlocksError(
        "the portal does not have the next blocks any more",
        missing=BlockRange(first, oldest - 1),
        oldest=oldest,
        cursor=after,
    )


def _refuse_unless_missing(error: PortalHttpError) -> None:
    """Raise what is not a 404."""
    if error.facts["status"] != 404:
        raise error
