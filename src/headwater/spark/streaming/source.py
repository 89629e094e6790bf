"""What `spark.readStream.format("headwater")` loads: a changelog of the chain.

    spark.readStream.format("headwater").options(
        portal="https://portal.sqd.dev/datasets/ethereum-mainnet",
        event="erc20.Transfer", contracts="0xa0b8…", startingBlock="latest",
        journal="/var/lib/pipelines/usdc/journal",
    ).load()

The options are those of `headwater.spark.options`. The columns are those of the batch source, then
those of the changelog: `_change_type`, `_commit_version`, `_commit_timestamp`, `_sign`, `_row_id`
and `_finalized`.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headwater.core import (
    BlockCursor,
    BlockRange,
    Density,
    PipeState,
    RangeSpec,
    SpanLimits,
    block_count,
)
from headwater.core.messages import HOT_BLOCKS, HOT_BYTES
from headwater.core.ranges import Latest, Plus
from headwater.decode.columns.field_columns import known_columns
from headwater.errors import SourceOptionError, coded_line_first
from headwater.portal import (
    SAMPLES,
    Address,
    Clock,
    Dataset,
    PortalClient,
    PortalSource,
    Sources,
    StreamQuery,
    open_transport,
)
from headwater.query import Query
from headwater.spark.datasource import (
    IMPATIENT,
    PATIENT,
    RawQuery,
    check_schema,
    choose_address,
    choose_rows,
)
from headwater.spark.frames import spark_schema
from headwater.spark.options import Options, Use
from headwater.spark.parts import Part, PartReader, RowMaker, plan_parts
from headwater.spark.streaming.changelog_rows import InsertRows, changelog_schema
from headwater.spark.streaming.folder import open_folder
from headwater.spark.streaming.journal import Journal, Offset, segment_rows
from headwater.spark.versions import OURS

LEAST_SPARK = (4, 2)

if TYPE_CHECKING:
    from headwater.pipeline import Source
    from headwater.stream.changelog import Follower
    from headwater.stream.module_changelog import LoadedModule

if TYPE_CHECKING or OURS >= LEAST_SPARK:
    from pyspark.sql.streaming.datasource import (
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
else:  # a changelog is refused, the rest of the source is not
    SupportsTriggerAvailableNow = object

_log = logging.getLogger(__name__)
Follow = Callable[["LoadedStream | LoadedModule"], "Follower"]  # this folder knows no loop

FAR = 1000
FIRST_SPAN = 2000
SPAN_BLOCKS, SPAN_BYTES = 500_000, 256 << 20
FEW = 100  # blocks that are not measured before they are read
HOLD_S = 1.0  # how long a trigger at the head lasts without a block


def is_stream(options: Mapping[str, str]) -> bool:
    """Tell whether these are the options of a stream: Spark does not say so when it asks."""
    return bool({"journal", "finalonly"} & {key.lower().replace("_", "") for key in options})


@dataclass(frozen=True, slots=True)
class FinalPart:
    """Blocks that are final: an executor asks the portal for them."""

    part: Part[BlockRange]
    shift: int
    finalized: int | None


@dataclass(frozen=True, slots=True)
class JournalPart:
    """A segment of the journal, as it is: small, so it travels with the task."""

    data: bytes
    columns: pa.Schema

    def rows(self) -> pa.Table:
        """Return its rows; an earlier release may have kept columns in fewer bits."""
        return segment_rows(self.data).cast(self.columns)


ChangelogPart = FinalPart | JournalPart


@dataclass(frozen=True, slots=True)
class LoadedStream:
    """A changelog with everything decided that can be before it begins. Pickled into the plan."""

    address: Address
    query: Query | RawQuery
    row_maker: RowMaker
    spec: RangeSpec
    journal: str | None
    limits: Limits
    network: Dataset | None = None  # of a list: executors read no source of another one

    @property
    def schema(self) -> StructType:
        """The columns of the changelog."""
        return spark_schema(changelog_schema(self.row_maker.schema))

    def changelog(self) -> Changelog:
        """Return what is followed. Called in one process per source of a query."""
        client = PortalClient(open_transport(self.address, hold_s=HOLD_S))
        journal = None
        if self.journal is not None:
            journal = Journal(open_folder(self.journal), self.fingerprint)
        return Changelog(
            PortalUpstream(client, self.query, self.query.headers_only(), self.limits),
            self.row_maker,
            journal,
            self.limits,
            None if self.spec.end is None else self._blocks().to_block,
        )

    def first_block(self) -> int:
        """Ask the portal for the block that the changelog begins with."""
        with self._asking() as client:
            blocks = self._blocks(client)
            if self.limits.may_lose:
                blocks = remaining(blocks, client.oldest_block()) or blocks
            client.check_missing(blocks.from_block)
            return blocks.from_block

    def _asking(self) -> PortalClient:
        """Return a client for questions."""
        transport = open_transport(self.address)
        return PortalClient(transport, retry=IMPATIENT, headers=self.query.headers_only())

    def part_reader(self, part: FinalPart) -> PartReader:
        """Return what reads a part of final blocks, on an executor."""
        rows = InsertRows(self.row_maker, part.shift, part.finalized)
        return PartReader(self.address, self.query, rows, dataset=self.network, retry=PATIENT)

    @property
    def fingerprint(self) -> str:
        """What the rows of a journal depend on: the request and the columns."""
        text = f"{self.query.body(0).decode()}\n{known_columns(self.row_maker.schema)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _blocks(self, client: PortalClient | None = None) -> BlockRange:
        """Resolve the range; an end that is a number needs no portal."""
        if client is None:
            with self._asking() as asking:
                return self._blocks(asking)
        return client.resolve_range(self.spec, finalized=self.journal is None)


def changelog_reader(
    loaded: LoadedStream | LoadedModule, schema: StructType, follow: Follow
) -> DataSourceStreamReader:
    """Return Spark's reader. Called in the process that follows the chain, and for each scan.

    Raises:
        SourceOptionError: the user gave a schema, and it is another one; or Spark is too old.
    """
    check_schema(schema, loaded.schema)
    if OURS < LEAST_SPARK:
        raise SourceOptionError(
            "a changelog needs Spark 4.2 or newer: before, a Python source is not told where a "
            "micro-batch begins",
            found=pyspark.__version__,
        )
    return ChangelogReader(loaded, follow)


def load_stream(options: Mapping[str, str]) -> LoadedStream:
    """Check the options. Nothing is asked of the portal: what moves is decided when it begins.

    Runs in a Python process on the driver's machine, once per `load()`.

    Raises:
        SourceOptionError: an option is missing, unknown or contradicts another.
        HeadwaterError: an option is malformed.
    """
    chosen = Options(options, Use.CHANGELOG)
    final_only = chosen.flag("finalOnly", default=False)
    journal = chosen.get("journal")
    if final_only == bool(journal):
        raise SourceOptionError(
            "a stream takes either a journal, in which hot blocks are kept, or finalOnly=true"
        )
    row_maker, query = choose_rows(chosen)
    blocks = chosen.count("maxBlocksPerTrigger")
    size = chosen.count("maxBytesPerTrigger")
    limits = Limits(
        SpanLimits(blocks or SPAN_BLOCKS, size or SPAN_BYTES, seconds=1e9),
        hot_blocks=min(blocks or HOT_BLOCKS, HOT_BLOCKS),
        hot_bytes=min(size or HOT_BYTES, HOT_BYTES),
        first_span=min(blocks or FIRST_SPAN, FIRST_SPAN),
        far=chosen.count("far") or FAR,
        partitions=chosen.count("partitions"),
        may_lose=not chosen.flag("failOnDataLoss", default=True),
    )
    spec = chosen.range()
    if isinstance(spec.end, Plus | Latest):
        raise SourceOptionError("toBlock of a stream is a number or a date: a restart keeps it")
    address, network = choose_address(chosen), None
    if isinstance(address, Sources):
        with PortalClient(open_transport(address), retry=IMPATIENT) as client:
            network = client.metadata()
    return LoadedStream(address, query, row_maker, spec, journal, limits, network)


# --- where the blocks come from -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """What one micro-batch may hold: of final blocks that executors read, and of hot ones.

    `may_lose`: blocks that the portal no longer has are left out.
    """

    span: SpanLimits
    hot_blocks: int
    hot_bytes: int
    first_span: int
    far: int
    partitions: int | None = None
    may_lose: bool = False


def leave_out(blocks: Sequence[BlockRange]) -> None:
    """Say which blocks a changelog goes on without. Called again wherever they are missed again."""
    _log.warning(
        "changelog.left_out blocks=%s count=%d: the portal does not have them any more",
        ", ".join(map(str, blocks)),
        sum(map(block_count, blocks)),
    )


def remaining(blocks: BlockRange, oldest: int) -> BlockRange | None:
    """Return the blocks from the oldest one on that a portal has, and say which are left out."""
    if oldest <= blocks.from_block:
        return blocks
    last = oldest - 1 if blocks.to_block is None else min(oldest - 1, blocks.to_block)
    leave_out([BlockRange(blocks.from_block, last)])
    return None if last == blocks.to_block else BlockRange(oldest, blocks.to_block)


class Upstream(Protocol):
    """Where blocks come from: a portal, or a Substreams endpoint.

    The marks of the latter are what reading resumes with where a block's cursor is not enough; a
    class that derives from this one and has none leaves them out.
    """

    def newest(self, *, final: bool) -> BlockCursor | None:
        """Ask for the newest block of now, or the newest final one."""
        ...

    def open(self, first: int, last: int | None, *, final: bool) -> Source:
        """Return what reads a range. An earlier one is no longer used."""
        ...

    def cut(self, blocks: BlockRange, measured: Sequence[Density]) -> Sequence[BlockRange]:
        """Cut final blocks into parts for executors."""
        raise AssertionError("all blocks are in the journal")

    def mark(self, last: BlockCursor) -> str | None:
        """Return what reading resumes with after a block, if its cursor is not enough."""
        return None

    def resume(self, marks: Iterable[tuple[BlockCursor, str]]) -> None:
        """Take the marks of a journal, oldest first. Called before anything is read."""
        return

    def written(self, state: PipeState) -> None:
        """Forget what is in the journal now."""
        return

    def rest(self) -> None:
        """Let connections go until the next request."""
        ...

    def close(self) -> None:
        """Release everything."""
        self.rest()


class Changelog(NamedTuple):
    """What is followed for one source of a query. Without a journal there are only final blocks.

    `to_block` is the last block of the changelog, if any.
    """

    upstream: Upstream
    row_maker: RowMaker
    journal: Journal | None
    limits: Limits
    to_block: int | None = None


class PortalUpstream(Upstream):
    """A portal. `watch` is the query without filters."""

    def __init__(
        self,
        client: PortalClient,
        query: StreamQuery,
        watch: StreamQuery,
        limits: Limits,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._query = query
        self._watch = watch
        self._limits = limits
        self._clock = clock

    def newest(self, *, final: bool) -> BlockCursor | None:
        """Ask for the newest block of now, or the newest final one."""
        return self._client.finalized_head() if final else self._client.head()

    def open(self, first: int, last: int | None, *, final: bool) -> Source:
        """Return what reads a range."""
        limits = self._limits
        is_empty = last is not None and last < first
        return PortalSource(
            self._client,
            [] if is_empty else [(BlockRange(first, last), self._query)],
            watch=self._watch,
            far=1 if final else limits.far,
            first_span=limits.first_span,
            limits=limits.span,
            finalized=final,
            clock=self._clock,
            leave_out=leave_out if limits.may_lose else None,
        )

    def cut(self, blocks: BlockRange, measured: Sequence[Density]) -> Sequence[BlockRange]:
        """Cut final blocks into parts for executors, without those that may be lost and are.

        A query whose tasks no longer found them goes on so when it is started again.
        """
        oldest = self._client.oldest_block() if self._limits.may_lose else 0
        kept = remaining(blocks, oldest)
        if kept is None:
            return ()
        blocks, measured = kept, measured if kept == blocks else ()
        return plan_parts(
            self._client,
            self._query,
            blocks,
            partitions=self._limits.partitions,
            cores=os.cpu_count() or 1,
            samples=SAMPLES if block_count(blocks) > FEW else 0,
            densities=measured,
        )

    def rest(self) -> None:
        """Let connections go until the next request."""
        self._client.rest()


# --- Spark's reader -------------------------------------------------------------------------------


class ChangelogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a changelog: offsets as JSON in, partitions and rows out.

    Spark makes one in a Python process of its own on the driver's machine, which lives as long as
    the query runs; and one for each scan, which is pickled to executors and only reads. The former
    holds a `Follower`, by `follow`, the latter nothing.
    """

    def __init__(self, loaded: LoadedStream | LoadedModule, follow: Follow | None = None) -> None:
        self._loaded = loaded
        self._follow = follow
        self._follower: Follower | None = None

    def __reduce__(self) -> tuple[type[ChangelogReader], tuple[LoadedStream | LoadedModule]]:
        return ChangelogReader, (self._loaded,)

    @coded_line_first()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - a method of Spark's
        """Return where the changelog begins. Called for a query without a checkpoint."""
        return self._following.begin(self._loaded.first_block()).to_json()

    @coded_line_first()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - a method of Spark's
        """Note the head of now: the query ends there."""
        self._following.end_at_head()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - a method of Spark's
        """Return the limit that the options set; `Follower` keeps it, whatever Spark passes on."""
        return ReadMaxBytes(self._loaded.limits.span.bytes)

    @coded_line_first()
    def latestOffset(  # noqa: N802 - a method of Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; `start` itself if there is nothing new."""
        begins = Offset.from_json(start)
        end = self._following.next(begins)
        return start if end == begins else end.to_json()

    @coded_line_first()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - a method of Spark's
        """Return the newest block, lag and size of the journal, for `query.lastProgress`."""
        return self._following.newest()

    @coded_line_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what tasks read, also when a micro-batch is replayed."""
        parts = self._following.plan(Offset.from_json(start), Offset.from_json(end))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Called on an executor, once per attempt of the task."""
        part: ChangelogPart = partition.value
        if isinstance(part, FinalPart):
            assert isinstance(self._loaded, LoadedStream), "of modules the journal has all blocks"
            return self._loaded.part_reader(part).read(part.part)
        return iter(part.rows().to_batches())

    @coded_line_first()
    def commit(self, end: dict[str, Any]) -> None:
        """Let the journal forget what Spark will not ask for again."""
        self._following.commit(Offset.from_json(end))

    def stop(self) -> None:
        """Release the portal and the journal. Called when the query ends."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    @property
    def _following(self) -> Follower:
        if self._follower is None:
            assert self._follow is not None, "executors only read"
            self._follower = self._follow(self._loaded)
        return self._follower
