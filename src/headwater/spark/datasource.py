"""The data source "headwater": final blocks as a DataFrame, read in parallel.

    spark.read.format("headwater").options(
        portal="https://portal.sqd.dev/datasets/ethereum-mainnet",
        event="erc20.Transfer", contracts="0xa0b8…", fromBlock="2024-01-01",
    ).load()

Everything is decided once, when `load` is called: the range, so that two actions see the same
blocks; the cuts, so that the portal is not measured for every action. Filters of the DataFrame are
applied by Spark after reading; say with `contracts`, `params` and `filters` what to fetch. The
options are those of `headwater.spark.options`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from headwater.core import BlockRange, Density, block_count
from headwater.core.spans import BYTES_PER_SECOND
from headwater.decode import Output, evm, named_table
from headwater.decode.columns.malformed import OnError
from headwater.errors import InvalidRangeError, NotFinalError, SourceOptionError
from headwater.portal import Address, PortalClient, RetryPolicy, probe, source_address
from headwater.query import Query, check_limits
from headwater.spark.frames import spark_schema
from headwater.spark.options import Options, Use
from headwater.spark.parts import PartReader, PartsReader, RawRows, RowMaker, plan_parts, table_rows

_log = logging.getLogger(__name__)
LARGE = 1 << 30  # bytes of block lines
IMPATIENT = RetryPolicy(attempts=6)  # 13 s while loading: an address may just be wrong
PATIENT = RetryPolicy(attempts=30)  # 8 minutes in a task, which has work to lose


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """A reading with everything decided. Pickled into Spark's plan by `DefaultSource`."""

    parts: tuple[BlockRange, ...]
    part_reader: PartReader

    @property
    def schema(self) -> StructType:
        """The columns."""
        return spark_schema(self.part_reader.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return Spark's reader. Called on the driver whenever a scan is planned."""
        check_schema(schema, self.schema)
        return PartsReader(self.part_reader, self.parts)


def check_schema(given: StructType, own: StructType) -> None:
    """Compare the columns that Spark was given with those of a source.

    Raises:
        SourceOptionError: the user gave a schema, and it is another one.
    """
    if given != own:
        raise SourceOptionError(
            "the columns follow from the options; leave .schema(…) out", columns=own.simpleString()
        )


def load_source(options: Mapping[str, str]) -> LoadedSource:
    """Check the options, ask the portal what they resolve to, and cut the range.

    Runs in a Python process on the driver's machine, once per `load()`. No job has started yet.

    Raises:
        SourceOptionError: an option is missing, unknown or contradicts another.
        NotFinalError: the range is not final to its end.
        HeadwaterError: an option is malformed, or the portal cannot be asked.
    """
    chosen = Options(options, Use.READ)
    address = choose_address(chosen)
    row_maker, query = choose_rows(chosen)
    partitions = chosen.count("partitions")
    spec = chosen.range()
    reader = PartReader(address, query, row_maker, dataset=None, retry=IMPATIENT)
    with reader.client(headers=query.headers_only()) as client:
        dataset = client.metadata()
        block_range = _final_range(client, client.resolve_range(spec, finalized=True))
        cores = os.cpu_count() or 1
        measured = []
        if min(block_count(block_range), partitions or 2) > 1:
            measured = probe(client, query, block_range)
            tell_cost(measured, cores)
        parts = plan_parts(
            client, query, block_range, partitions=partitions, cores=cores, densities=measured
        )
    return LoadedSource(tuple(parts), replace(reader, dataset=dataset, retry=PATIENT))


def tell_cost(measured: Sequence[Density], cores: int) -> None:
    """Say once, before anything is read, what a large reading will cost."""
    size = sum(density.total for density in measured)
    if size < LARGE:
        return
    _log.warning(
        "blocks %s: about %.1f GB of block lines are read, some %d minutes on %d cores; filters "
        "of the DataFrame apply after that: contracts, params and filters say what to fetch",
        BlockRange(measured[0].blocks.from_block, measured[-1].blocks.to_block),
        size / 1e9,
        max(1, round(size / (BYTES_PER_SECOND * cores) / 60)),
        cores,
    )


def register(spark: SparkSession) -> None:
    """Make `format("headwater")` known to a session. May be repeated.

    Spark finds the source by itself where the package is installed; this is for sessions that
    cannot look, such as those that got it by `--py-files`.
    """
    from pyspark_headwater import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def choose_address(options: Options) -> Address:
    """Return the portal's address, and warn where Spark could show its credentials."""
    chosen = options.choose("portal", "portalEnv", "portalUrl")
    if chosen == "portalEnv":
        name = options[chosen]
        if not os.environ.get(name):
            raise SourceOptionError(
                "the environment that Spark was started with lacks the variable", portalEnv=name
            )
        return source_address(os.environ[name])
    address = source_address(options[chosen])
    if address.has_secrets:
        _log.warning(
            "the portal's address has credentials, and Spark may show options in plans, event logs "
            "and SQL texts: put the address into an environment variable and name it by portalEnv"
        )
    return address


def choose_rows(options: Options) -> tuple[RowMaker, Query | RawQuery]:
    """Return what makes the rows that the options ask for, and what to ask the portal for."""
    kind = options.choose("event", "call", "table", "query")
    if kind == "query":
        return RawRows(), parse_raw_query(options["query"])
    decimals = options.words("decimals") or ()
    if kind == "table":
        table = named_table(
            options["table"].strip(),
            fields=options.words("fields"),
            filters=options.document("filters"),
            decimals=decimals,
        )
        return table_rows(table), table.query
    text = options[kind].strip()
    definition = options.document(kind) if text.startswith("{") else text
    contracts = options.words("contracts")
    on_error: OnError = options.get("onError", "raise")  # type: ignore[assignment]  # checked there
    output: Output
    if kind == "call":
        source = options.get("source", "transactions")
        output = evm.calls(
            definition,
            contracts=contracts,
            source=source,  # type: ignore[arg-type]  # checked there
            decimals=decimals,
            on_error=on_error,
        )
    else:
        params = options.document("params")
        output = evm.events(
            definition, contracts=contracts, params=params, decimals=decimals, on_error=on_error
        )
    return table_rows(output), output.query


def _final_range(client: PortalClient, block_range: BlockRange) -> BlockRange:
    """Return the range with an end that is final."""
    head = client.finalized_head()
    if head is None:
        raise NotFinalError("the dataset has no final block yet")
    end = head.number if block_range.to_block is None else block_range.to_block
    if end > head.number or block_range.from_block > head.number:
        raise NotFinalError(
            "the range is not final to its end", range=block_range, finalized_head=head.number
        )
    if end < block_range.from_block:
        raise InvalidRangeError("the range is empty", range=block_range)
    return BlockRange(block_range.from_block, end)


_POSITION = ("fromBlock", "toBlock", "parentBlockHash")
_USUAL = ("number", "hash", "parentHash", "timestamp")
_LINKS = {
    "solana": ("number", "hash", "parentNumber", "parentHash", "timestamp"),
    "fuel": ("number", "hash"),  # its blocks have neither a parent's hash nor a timestamp
}
_NOT_FILTERS = ("type", "fields", "includeAllBlocks")


@dataclass(frozen=True, slots=True)
class RawQuery:
    """The body of a portal request without its range. A `StreamQuery`; pickles."""

    document: Mapping[str, Any]

    @property
    def include_all_blocks(self) -> bool:
        """Whether every block is asked for."""
        return bool(self.document.get("includeAllBlocks"))

    def headers_only(self) -> RawQuery:
        """Return the query for the headers of blocks alone, which no filter chose."""
        kept = {key: value for key, value in self.document.items() if key in _NOT_FILTERS}
        block = self.document["fields"]["block"]
        return RawQuery({**kept, "fields": {"block": block}})

    def body(
        self, from_block: int, to_block: int | None = None, parent_block_hash: str | None = None
    ) -> bytes:
        """Return the body of a stream request.

        Raises:
            QueryLimitError: it is larger than a portal accepts.
        """
        blocks = BlockRange(from_block, to_block)  # which refuses a range that is none
        ends = (blocks.from_block, blocks.to_block, parent_block_hash)
        position = dict(zip(_POSITION, ends, strict=True))
        sent = {key: value for key, value in position.items() if value is not None}
        body = json.dumps({**self.document, **sent}, separators=(",", ":")).encode()
        check_limits(body, self._filters())
        return body

    def _filters(self) -> int:
        return sum(
            len(value)
            for key, value in self.document.items()
            if key not in _NOT_FILTERS and isinstance(value, list)
        )


def parse_raw_query(text: str) -> RawQuery:
    """Understand the option `query`. Called on the driver, before anything is sent.

    Raises:
        SourceOptionError: it is no JSON object, has no type, or has a range of its own.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SourceOptionError(f"query is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise SourceOptionError("query must be a JSON object with a 'type', such as \"evm\"")
    for key in _POSITION:
        if key in document:
            raise SourceOptionError(
                f"query has its own {key}; the range is given by fromBlock and toBlock"
            )
    fields = document.get("fields", {})
    block = fields.get("block", {}) if isinstance(fields, dict) else None
    if not isinstance(block, dict):
        raise SourceOptionError("fields of a query must map entities to fields")
    links = dict.fromkeys(_LINKS.get(document["type"], _USUAL), True)
    return RawQuery({**document, "fields": {**fields, "block": {**block, **links}}})
