"""The outputs of a Substreams module as a changelog: `format("headwater")` with `package`.

    spark.readStream.format("headwater").options(
        package="usdc.spkg", endpoint="https://…:443", module="map_transfers",
        journal="/var/lib/pipelines/usdc/journal",
    ).load()

All blocks pass the driver and the journal, history too: the endpoint works it out in parallel, not
Spark. What reading resumes with, the endpoint's cursor, is kept in the journal with the rows. The
options are those of `headwater.spark.options`; `package` is the one that says it is a module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.core import BlockCursor, Blocks, PipeState, SpanLimits
from headwater.core.messages import HOT_BLOCKS, HOT_BYTES
from headwater.errors import SourceOptionError
from headwater.spark.frames import loose_schema, spark_schema
from headwater.spark.options import Options, Use
from headwater.spark.parts import Receipt, RowMaker
from headwater.spark.streaming.changelog_rows import changelog_schema
from headwater.spark.streaming.folder import open_folder
from headwater.spark.streaming.journal import Journal
from headwater.spark.streaming.source import Changelog, Limits, Upstream
from headwater.stream.substreams import SubstreamsStream, substreams_stream
from headwater.substreams.client import SubstreamsClient
from headwater.substreams.cursors import CursorLog
from headwater.substreams.messages import OutputDecoder, SessionInit
from headwater.substreams.outputs import decode_pieces
from headwater.substreams.source import SubstreamsSource


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A changelog of a module, as its options say it. Pickled into the plan."""

    options: tuple[tuple[str, str], ...]
    columns: pa.Schema
    limits: Limits

    @property
    def schema(self) -> StructType:
        """The columns of the changelog."""
        return spark_schema(changelog_schema(self.columns))

    def first_block(self) -> int:
        """Return the block that the changelog begins with."""
        return _define(Options(dict(self.options), Use.MODULE)).first

    def changelog(self) -> Changelog:
        """Return what is followed. Called in one process per source of a query."""
        options = Options(dict(self.options), Use.MODULE)
        stream = _define(options)
        output = _choose_output(stream.decoder, options.get("output"))
        log = CursorLog()
        client = SubstreamsClient(
            stream.endpoint, stream.order, credentials=stream.credentials, dialling=stream.dialling
        )
        text = f"{stream.fingerprint} {output}\n{self.columns}"
        return Changelog(
            ModuleUpstream(client, log, stream.first),
            ModuleRows(stream.decoder, output),
            Journal(open_folder(options["journal"]), hashlib.sha256(text.encode()).hexdigest()),
            self.limits,
            stream.stop - 1 if stream.stop else None,
        )


def load_module(options: Mapping[str, str]) -> LoadedModule:
    """Check the options, and read the package. Runs on the driver's machine, once per `load()`.

    Raises:
        SourceOptionError: an option is missing, unknown or malformed.
        HeadwaterError: the package cannot be used, or has no such module.
    """
    parsed = Options(options, Use.MODULE)
    if not parsed.get("journal"):
        raise SourceOptionError("the changelog of a module needs the option journal")
    stream = _define(parsed)
    output = _choose_output(stream.decoder, parsed.get("output"))
    blocks = parsed.count("maxBlocksPerTrigger")
    size = parsed.count("maxBytesPerTrigger")
    limits = Limits(
        SpanLimits(blocks or HOT_BLOCKS, size or HOT_BYTES, seconds=1e9),
        hot_blocks=min(blocks or HOT_BLOCKS, HOT_BLOCKS),
        hot_bytes=min(size or HOT_BYTES, HOT_BYTES),
        first_span=1,
        far=1,
    )
    columns = loose_schema(stream.decoder.schemas[output])
    return LoadedModule(tuple(sorted(parsed.items())), columns, limits)


@dataclass(frozen=True, slots=True)
class ModuleRows(RowMaker):
    """Makes the rows of outputs. On the driver alone."""

    decoder: OutputDecoder
    output: str

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return loose_schema(self.decoder.schemas[self.output])

    def rows(self, blocks: Blocks, receipt: Receipt) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these blocks, in order."""
        decoded = decode_pieces(blocks.lines, self.decoder)
        yield from decoded[self.output].cast(self.schema).to_batches()


class ModuleUpstream(Upstream):
    """A Substreams endpoint as where a changelog comes from."""

    def __init__(self, client: SubstreamsClient, log: CursorLog, first: int) -> None:
        self._client = client
        self._log = log
        self._first = first
        self._source: SubstreamsSource | None = None

    def newest(self, *, final: bool) -> BlockCursor | None:
        """Ask for the number of the newest block: the first message of a session tells it."""
        reading = self._client.read(cursor="", start=self._first, stop=0)
        try:
            for message in reading:
                if isinstance(message, SessionInit) and message.chain_head:
                    return BlockCursor(message.chain_head)
                break
        finally:
            reading.abort()
        raise SourceOptionError("the endpoint does not tell its newest block: give to_block")

    def open(self, first: int, last: int | None, *, final: bool) -> SubstreamsSource:
        """Return what reads a range."""
        self.rest()
        stop = 0 if last is None else last + 1
        self._source = SubstreamsSource(self._client, self._log, start=first, stop=stop)
        return self._source

    def mark(self, last: BlockCursor) -> str | None:
        """Return the endpoint's cursor of a block."""
        return self._log.cursor_of(last) or None

    def resume(self, marks: Iterable[tuple[BlockCursor, str]]) -> None:
        """Take the endpoint's cursors from the journal."""
        for block, cursor in marks:
            self._log.note(block, cursor)

    def written(self, state: PipeState) -> None:
        """Forget cursors that nothing resumes with."""
        self._log.advanced(state)

    def rest(self) -> None:
        """End the session."""
        if self._source is not None:
            self._source.close()

    def close(self) -> None:
        """End the session and the connection."""
        self.rest()
        self._client.close()


def _define(given: Options) -> SubstreamsStream:
    """Return the module that the options name."""
    params = given.document("params")
    last = _number(given, "toBlock")
    stream = substreams_stream(
        id="changelog",
        package=given["package"],
        endpoint=given.get("endpoint", ""),
        module=given.get("module"),
        params={str(key): str(value) for key, value in params.items()},
        network=given.get("network", ""),
        start=_number(given, "fromBlock"),
        stop=None if last is None else last + 1,
    )
    if stream.first < 0:
        raise SourceOptionError("fromBlock of a module's changelog is a number, 0 or more")
    return stream


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise SourceOptionError(f"{name} of a module's changelog is a block number", got=text)
    return int(text)


def _choose_output(decoder: OutputDecoder, name: str | None) -> str:
    names = list(decoder.schemas)
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        raise SourceOptionError(
            "the module has several outputs: name one by the option output"
            if name is None
            else f"the module has no output {name!r}",
            outputs=", ".join(names),
        )
    return name
