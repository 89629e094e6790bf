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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.types import StructType

from headwater.core import BlockRange, RangeSpec, SpanLimits
from headwater.core.messages import HOT_BLOCKS, HOT_BYTES
from headwater.core.ranges import Latest, Plus
from headwater.decode.columns.field_columns import known_columns
from headwater.errors import SourceOptionError
from headwater.portal import Address, Dataset, PortalClient, Sources, open_transport
from headwater.query import Query
from headwater.spark.datasource import (
    IMPATIENT,
    PATIENT,
    RawQuery,
    choose_address,
    choose_rows,
)
from headwater.spark.frames import spark_schema
from headwater.spark.options import Options, Use
from headwater.spark.parts import Part, PartReader, RowMaker
from headwater.spark.streaming.changelog_rows import InsertRows, changelog_schema
from headwater.spark.streaming.folder import open_folder
from headwater.spark.streaming.journal import Journal, segment_rows
from headwater.spark.streaming.upstream import Changelog, Limits, PortalUpstream, remaining

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader

    from headwater.stream.changelog import Follower
    from headwater.stream.module_changelog import LoadedModule

Follow = Callable[["LoadedStream | LoadedModule"], "Follower"]  # this folder knows no loop

FAR = 1000
FIRST_SPAN = 2000
SPAN_BLOCKS, SPAN_BYTES = 500_000, 256 << 20
LEAST_SPARK = (4, 2)
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
    if schema != loaded.schema:
        raise SourceOptionError(
            "the columns follow from the options; leave .schema(…) out",
            columns=loaded.schema.simpleString(),
        )
    found = tuple(int(one) for one in pyspark.__version__.split(".")[:2])
    if found < LEAST_SPARK:
        raise SourceOptionError(
            "a changelog needs Spark 4.2 or newer: before, a Python source is not told where a "
            "micro-batch begins",
            found=pyspark.__version__,
        )
    from headwater.spark.streaming.reader import ChangelogReader

    return ChangelogReader(loaded, follow)


def load_stream(options: Mapping[str, str]) -> LoadedStream:
    """Check the options. Nothing is asked of the portal: what moves is decided when it begins.

    Runs in a Python process on the driver's machine, once per `load()`.

    Raises:
        SourceOptionError: an option is missing, unknown or contradicts another.
        HeadwaterError: an option is malformed.
    """
    given = Options(options, Use.CHANGELOG)
    final_only = given.flag("finalOnly", default=False)
    journal = given.get("journal")
    if final_only == bool(journal):
        raise SourceOptionError(
            "a stream takes either a journal, in which hot blocks are kept, or finalOnly=true"
        )
    row_maker, query = choose_rows(given)
    blocks = given.count("maxBlocksPerTrigger")
    size = given.count("maxBytesPerTrigger")
    limits = Limits(
        SpanLimits(blocks or SPAN_BLOCKS, size or SPAN_BYTES, seconds=1e9),
        hot_blocks=min(blocks or HOT_BLOCKS, HOT_BLOCKS),
        hot_bytes=min(size or HOT_BYTES, HOT_BYTES),
        first_span=min(blocks or FIRST_SPAN, FIRST_SPAN),
        far=given.count("far") or FAR,
        partitions=given.count("partitions"),
        may_lose=not given.flag("failOnDataLoss", default=True),
    )
    spec = given.range()
    if isinstance(spec.end, Plus | Latest):
        raise SourceOptionError("toBlock of a stream is a number or a date: a restart keeps it")
    address, network = choose_address(given), None
    if isinstance(address, Sources):
        with PortalClient(open_transport(address), retry=IMPATIENT) as client:
            network = client.metadata()
    return LoadedStream(address, query, row_maker, spec, journal, limits, network)
