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

from headwater.core import (
    DEFAULT_CAP,
    Answer,
    BlockCursor,
    BlockRange,
    Head,
    RangeEnd,
    RangeSpec,
    clip_ranges,
)
from headwater.core.retry import RetryPolicy
from headwater.errors import (
    HeadwaterError,
    InvalidOptionError,
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
from headwater.portal.transport import HttpTransport, Request, Timeouts, Transport
from headwater.portal.wire import Dataset, read_block_at, read_dataset, read_head_answer

__all__ = ["PortalClient", "StreamQuery"]

QUESTION_ATTEMPTS = 10


class PortalClient:
    """Asks a portal, and asks again when that helps.

    `dataset` saves an executor the metadata request if the driver already has the answer. An
    `on_notice` observer is called in the reading thread and must not raise. While finality is
    unknown, what lies more than `rollback_cap` blocks below the latest block is past every fork.
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
    ) -> None:
        if max_bytes < 1:
            raise InvalidOptionError("max_bytes must be at least 1", got=max_bytes)
        if not poll_interval_s > 0:
            raise InvalidOptionError("poll_interval_s must be above 0", got=poll_interval_s)
        self._conditions = Conditions(
            transport=HttpTransport(portal, timeouts) if isinstance(portal, str) else portal,
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

    def __enter__(self) -> PortalClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connections; what is asked afterwards makes new ones."""
        self._conditions.transport.close()

    # --- questions --------------------------------------------------------------------------------

    def metadata(self, *, attempts: int = QUESTION_ATTEMPTS) -> Dataset:
        """Return what the portal says of the dataset; asked once."""
        if self._dataset is None:
            answer = self._question("metadata?expand[]=metadata", attempts)
            self._dataset = read_dataset(answer)
        return self._dataset

    def head(self) -> BlockCursor | None:
        """Return the newest block, or None if the dataset has none yet."""
        return read_head_answer(self._question("head"))

    def finalized_head(self, *, attempts: int | None = QUESTION_ATTEMPTS) -> BlockCursor | None:
        """Return the newest final block, or None if there is none yet.

        With `attempts=None` an outage is waited out, as a running stream has to.
        """
        return read_head_answer(self._question("finalized-head", attempts))

    def block_at(self, timestamp: int) -> int:
        """Return the number of the first block at or after a time in seconds since 1970 UTC."""
        try:
            return read_block_at(self._question(f"timestamps/{timestamp}/block"))
        except PortalHttpError as error:
            if error.facts["status"] != 404:
                raise
            raise TimestampError(
                "the portal has no block at or after this time",
                timestamp=timestamp,
                portal_says=error.facts["portal_says"],
            ) from error

    def resolve_range(self, spec: RangeSpec, *, finalized: bool = False) -> BlockRange:
        """Turn a range as the user wrote it into numbers, with as few questions as it needs.

        Called on the driver when a stream starts. "latest" moves, so a repetition may resolve to a
        later block; a stored cursor outranks the result.
        """
        head = None
        if spec.needs_head:
            head = self.finalized_head() if finalized else self.head()
        blocks_at = {instant: self.block_at(instant) for instant in sorted(spec.instants)}
        return spec.resolve(head=0 if head is None else head.number, blocks_at=blocks_at)

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

    def start_block(self) -> int:
        """Return the first block of the dataset; 0 if its metadata cannot be had."""
        dataset = self._dataset_if_known(finalized=True)
        return 0 if dataset is None else dataset.start_block

    # --- blocks -----------------------------------------------------------------------------------

    def read(
        self,
        query: StreamQuery,
        block_range: BlockRange,
        after: BlockCursor | None = None,
        *,
        finalized: bool = False,
        max_bytes: int | None = None,
    ) -> Generator[Answer, None, None]:
        """Read what follows the cursor `after` in a range. Runs on the driver, or on an executor.

        Yields `Blocks`, at least one block each; `AtHead` when there is nothing new (when the
        caller comes back, at least `poll_interval_s` passes between two requests); `Fork`, which
        ends the reading: resolve it and read again; `RangeEnd`, which ends it too. Outages are
        waited out and reported as notices, for ever unless the policy bounds the attempts.

        Reading again from the same cursor gives the same blocks again, unless the chain has forked.
        Closing the iterator early closes the connection. At most `max_bytes` (those of
        the client, if not given) and one line are held.

        Raises:
            PortalHttpError: a status that a retry cannot mend.
            PortalUnreachableError: the attempts that the policy permits are used up.
            MalformedLineError, BlockOrderError, BlockLinkError: the portal sent something else than
                the blocks that follow; the good ones before it have been yielded.
            MalformedAnswerError: a fork that names no blocks.
        """
        left = clip_ranges(self._clamp(block_range, finalized=finalized), after)
        if not left:
            yield RangeEnd(Head())
            return
        conditions = self._conditions
        if max_bytes is not None:
            conditions = replace(conditions, max_bytes=max_bytes)
        reading = Reading(conditions, query, left[0], after, finalized=finalized)
        yield from reading.answers()

    def _clamp(self, block_range: BlockRange, *, finalized: bool) -> tuple[BlockRange, ...]:
        """Begin no earlier than the dataset does: a portal refuses to be asked for less."""
        dataset = self._dataset_if_known(finalized=finalized)
        first = 0 if dataset is None else dataset.start_block
        if block_range.from_block >= first:
            return (block_range,)
        self._tell(
            NoticeKind.CLAMPED, "the dataset begins later", range=block_range, first_block=first
        )
        return clip_ranges((block_range,), BlockCursor(first - 1))

    def _dataset_if_known(self, *, finalized: bool) -> Dataset | None:
        """Return the metadata, asked for at the first reading; reading goes on without it."""
        if self._metadata_tried:
            return self._dataset
        try:
            dataset = self.metadata()
        except HeadwaterError as error:
            self._metadata_tried = not error.retryable
            self._tell(
                NoticeKind.METADATA_UNAVAILABLE, "reading without metadata", reason=str(error)
            )
            return None
        self._metadata_tried = True
        if not dataset.real_time and not finalized:
            self._tell(
                NoticeKind.NOT_REAL_TIME,
                "the dataset does not follow the head of its chain",
                dataset=dataset.name,
            )
        return dataset

    def _tell(self, kind: NoticeKind, message: str, **facts: object) -> None:
        self._conditions.notify(Notice(kind, message, facts))
