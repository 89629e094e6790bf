"""The data source "headwater": final blocks as a DataFrame, read in parallel.

    spark.read.format("headwater").options(
        portal="https://portal.sqd.dev/datasets/ethereum-mainnet",
        event="erc20.Transfer", contracts="0xa0b8…", from_block="2024-01-01",
    ).load()

    option      meaning
    portal      the address of the dataset, without credentials
    portal_env  for one with user:password@ or a key: the environment variable that holds it, on the
                driver, set before Spark starts
    portal_url  the same as portal by a name whose value Spark hides in plans
    from_block  number, date or "latest"; without it, the first block
    to_block    likewise, or "+N"; inclusive; without it, the finalized head
    event       Solidity text, JSON ABI entry or built-in name: one row per log, decoded
    call        instead of event: a function, likewise: one row per call, decoded
    source      of calls: "transactions" (those from outside), or "traces" (all, with what they
                returned)
    contracts   addresses of the event or the function, separated by commas
    params      JSON: values of indexed parameters to keep, {"to": ["0x…"]}
    decimals    parameters or columns to deliver as decimals, separated by commas
    on_error    "raise" or "skip", for logs and calls that have the signature but not the content
    table       instead of event: a raw table of any network, "bitcoin.outputs", "tron.logs"
    fields      its columns, separated by commas; without it, the usual ones
    filters     JSON: its filters, {"script_pub_key_address": ["bc1q…"]}
    query       instead of event: the JSON body of a request, without its range: one row per block,
                with columns number, hash, parent_hash, timestamp, line
    partitions  how many tasks; without it, chosen from the measured size and this machine's cores

Everything is decided once, when `load` is called: the range, so that two actions see the same
blocks; the cuts, so that the portal is not measured for every action. Filters of the DataFrame are
applied by Spark after reading; say with `contracts`, `params` and `filters` what to fetch.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from headwater.address import HttpAddress
from headwater.core import BlockRange, parse_ranges
from headwater.decode import Output, evm, named_table
from headwater.decode.columns.malformed import OnError
from headwater.errors import InvalidRangeError, NotFinalError, SourceOptionError
from headwater.portal import PortalClient, RetryPolicy, portal_address
from headwater.query import Query, check_limits
from headwater.spark.frames import spark_schema
from headwater.spark.partitions import plan_parts
from headwater.spark.parts import PartReader, PartsReader, RawRows, RowMaker, TableRows

_log = logging.getLogger(__name__)
OPTIONS = (
    "portal",
    "portal_env",
    "portal_url",
    "from_block",
    "to_block",
    "event",
    "call",
    "source",
    "contracts",
    "params",
    "decimals",
    "on_error",
    "table",
    "fields",
    "filters",
    "query",
    "partitions",
)

_ADDRESSES = ("portal", "portal_url", "portal_env")
_KINDS = ("event", "call", "table", "query")
_GOES_WITH = {
    "contracts": ("event", "call"),
    "params": ("event",),
    "source": ("call",),
    "on_error": ("event", "call"),
    "decimals": ("event", "call", "table"),
    "fields": ("table",),
    "filters": ("table",),
}
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
        """Return Spark's reader. Called on the driver whenever a scan is planned.

        Raises:
            SourceOptionError: the user gave a schema, and it is another one.
        """
        if schema != self.schema:
            raise SourceOptionError(
                "the columns follow from the options; leave .schema(…) out",
                columns=self.schema.simpleString(),
            )
        return PartsReader(self.part_reader, self.parts)


def load_source(options: Mapping[str, str]) -> LoadedSource:
    """Check the options, ask the portal what they resolve to, and cut the range.

    Runs in a Python process on the driver's machine, once per `load()`. No job has started yet.

    Raises:
        SourceOptionError: an option is missing, unknown or contradicts another.
        NotFinalError: the range is not final to its end.
        HeadwaterError: an option is malformed, or the portal cannot be asked.
    """
    given = {key.lower(): value for key, value in options.items()}
    check_options(given, OPTIONS)
    address = choose_address(given)
    row_maker, query = choose_rows(given)
    partitions = parse_count(given, "partitions")
    specs = parse_ranges((given.get("from_block"), given.get("to_block")))
    reader = PartReader(address, query, row_maker, dataset=None, retry=IMPATIENT)
    with reader.client(headers=query.headers_only()) as client:
        dataset = client.metadata()
        block_range = _final_range(client, client.resolve_range(specs[0], finalized=True))
        cores = os.cpu_count() or 1
        parts = plan_parts(client, query, block_range, partitions=partitions, cores=cores)
    return LoadedSource(tuple(parts), replace(reader, dataset=dataset, retry=PATIENT))


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


def check_options(given: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse options that are unknown, missing, or go with others. Names are in lower case.

    Raises:
        SourceOptionError: one is.
    """
    for name in sorted(set(given) - set(known)):
        raise SourceOptionError(f"unknown option {name!r}")
    addresses = [name for name in _ADDRESSES if given.get(name)]
    if not addresses:
        raise SourceOptionError("the option portal is missing")
    if len(addresses) > 1:
        raise SourceOptionError(f"give either {' or '.join(addresses)}")
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise SourceOptionError("give either event or call or table or query")
    for name, owners in _GOES_WITH.items():
        if name in given and kinds[0] not in owners:
            raise SourceOptionError(
                f"the option {name} goes with {' or '.join(owners)}, not with {kinds[0]}"
            )


def choose_address(given: Mapping[str, str]) -> HttpAddress:
    """Return the portal's address, and warn where Spark could show its credentials."""
    name = given.get("portal_env")
    if name:
        if not os.environ.get(name):
            raise SourceOptionError(
                "the environment that Spark was started with lacks the variable", portal_env=name
            )
        return portal_address(os.environ[name])
    address = portal_address(given.get("portal") or given["portal_url"])
    if address.has_secrets:
        _log.warning(
            "the portal's address has credentials, and Spark may show options in plans, event logs "
            "and SQL texts: put the address into an environment variable and name it by portal_env"
        )
    return address


def choose_rows(given: Mapping[str, str]) -> tuple[RowMaker, Query | RawQuery]:
    """Return what makes the rows that the options ask for, and what to ask the portal for."""
    if "query" in given:
        return RawRows(), parse_raw_query(given["query"])
    if "table" in given:
        table = named_table(
            given["table"].strip(),
            fields=_split(given.get("fields")),
            filters=_parse_json("filters", given.get("filters", "{}")),
            decimals=_split(given.get("decimals")) or (),
        )
        return TableRows("table", table, (BlockRange(0),)), table.query
    kind = "call" if "call" in given else "event"
    text = given[kind].strip()
    definition = _parse_json(kind, text) if text.startswith("{") else text
    contracts = _split(given.get("contracts"))
    decimals = _split(given.get("decimals")) or ()
    on_error: OnError = given.get("on_error", "raise")  # type: ignore[assignment]  # checked there
    output: Output
    if kind == "call":
        source = given.get("source", "transactions")
        output = evm.calls(
            definition,
            contracts=contracts,
            source=source,  # type: ignore[arg-type]  # checked there
            decimals=decimals,
            on_error=on_error,
        )
    else:
        params = _parse_json("params", given.get("params", "{}"))
        output = evm.events(
            definition, contracts=contracts, params=params, decimals=decimals, on_error=on_error
        )
    return TableRows(kind, output, (BlockRange(0),)), output.query


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _parse_json(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SourceOptionError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise SourceOptionError(f"{name} must be a JSON object")
    return value


def parse_count(given: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number, 1 or more; None if it is not given."""
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise SourceOptionError(f"{name} must be a number, 1 or more", got=text)
    return int(text)


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
        blocks = BlockRange(from_block, to_block)
        position = dict(
            zip(_POSITION, (blocks.from_block, blocks.to_block, parent_block_hash), strict=True)
        )
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
                f"query has its own {key}; the range is given by from_block and to_block"
            )
    fields = document.get("fields", {})
    block = fields.get("block", {}) if isinstance(fields, dict) else None
    if not isinstance(block, dict):
        raise SourceOptionError("fields of a query must map entities to fields")
    links = dict.fromkeys(_LINKS.get(document["type"], _USUAL), True)
    return RawQuery({**document, "fields": {**fields, "block": {**block, **links}}})
