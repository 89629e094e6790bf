"""`substreams_stream`: a stream of the outputs of one module of a Substreams package.

    stream = substreams_stream(id="usdc", endpoint="https://…:443", package="usdc.spkg")
    stream.pipe_to(history_target("postgresql://…", tables=["transfers"]))

The same kind of stream as `portal_stream`: the same loop, targets, transforms and handle. Needs the
extra `substreams` (grpcio, protobuf).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater import core
from headwater.changes import TableSchema
from headwater.core import (
    DEFAULT_CAP,
    Batch,
    BlockCursor,
    BlockRange,
    Flush,
    ForkResolution,
    PipeState,
)
from headwater.decode import Decoded
from headwater.errors import (
    ForkCursorMissingError,
    InvalidOptionError,
    MissingExtraError,
    PackageError,
    UndoDepthError,
)
from headwater.pipeline import Committed, Discarded, Event, Raw, RolledBack, Settled
from headwater.portal import NoticeKind
from headwater.spark.startup import SparkOfRun
from headwater.stream.assemble import Decoder, Planned, size_of
from headwater.stream.config import (
    Config,
    OnConfigChange,
    check_choice,
    check_first,
    compare_config,
    compare_firsts,
)
from headwater.stream.context import QueryInfo
from headwater.stream.extensions import Extension
from headwater.stream.run import Opening, Run
from headwater.stream.stream import Stream, check_stream

try:
    from headwater.substreams.client import Dialling, Order, SubstreamsClient, pause_s
    from headwater.substreams.cursors import CursorLog
    from headwater.substreams.endpoint import Credentials, Endpoint
    from headwater.substreams.messages import Message, OutputDecoder, Outputs, Progress
    from headwater.substreams.outputs import Piece, ahead_of, decode_pieces, decoder_of
    from headwater.substreams.package import Package
    from headwater.substreams.source import SubstreamsSource
    from headwater.substreams.spans import FAR_BYTES, OutputSpan, has_executors
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("grpc", "google"):
        raise
    raise MissingExtraError(
        "substreams_stream needs the packages grpcio and protobuf: "
        "pip install 'headwater[substreams]'"
    ) from error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnMessage = Callable[[Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstreamsStream(Stream):
    """A stream of one module's outputs. Made by `substreams_stream`.

    `first` is where it begins without a stored cursor, `stop` the block before which it ends; 0
    follows the head. `on_message` is told of every message, in the loop's thread.
    """

    endpoint: Endpoint
    package: Package
    module: str
    order: Order
    decoder: OutputDecoder
    first: int
    stop: int = 0
    credentials: Credentials = Credentials()  # noqa: RUF009 - immutable
    dialling: Dialling = Dialling()  # noqa: RUF009 - immutable
    on_message: OnMessage | None = None
    far_bytes: int = 0  # of final blocks that arrived, from which executors decode them; 0: never
    far_always: bool = False  # or only if there are transforms, which then run there too

    @property
    def address(self) -> str:
        """The endpoint's address."""
        return str(self.endpoint)

    @property
    def is_single(self) -> bool:
        """Whether the module's output is one table."""
        return len(self.decoder.schemas) == 1

    @property
    def far(self) -> int:
        """From how many bytes on executors decode; 0 if the driver does."""
        return self.far_bytes if self.far_always or self.steps else 0

    @property
    def fingerprint(self) -> str:
        """What the rows are made of: the module's hash, where it can be computed."""
        try:
            return self.package.module_hash(self.module)
        except PackageError:
            return sha256(self.package.data).hexdigest()[:40]

    @contextmanager
    def _opened(self, opening: Opening) -> Iterator[SubstreamsRun]:
        final_only = self.order.final_only or opening.finalized
        client = SubstreamsClient(
            self.endpoint,
            replace(self.order, final_only=final_only),
            credentials=self.credentials,
            dialling=self.dialling,
            clock=opening.runtime.clock,
            on_notice=opening.runtime.tell,
        )
        run = SubstreamsRun(self, client, replace(opening, finalized=final_only))
        with ExitStack() as stack:
            stack.callback(client.close)
            stack.callback(run.stop)
            yield run


class SubstreamsRun(Run):
    """What a stream of a module is while it runs."""

    def __init__(
        self,
        stream: SubstreamsStream,
        client: SubstreamsClient,
        opening: Opening,
    ) -> None:
        super().__init__(stream, opening)
        self._module = stream
        self._client = client
        self._pauses = 0  # in a row
        self._log = CursorLog()
        self._keeps = opening.target.capabilities.side_tables is not None
        self._messages = SubstreamsSource(
            client,
            self._log,
            start=stream.first,
            stop=stream.stop,
            on_message=self._hear,
            check=self._interrupt.check_if_idle,
            decode=None if stream.far else stream.decoder.decode,
            prepare=None if stream.steps else opening.target.capabilities.prepare_rows,
        )

    def abort(self) -> None:
        """Break off the session. Called from another thread."""
        self._messages.abort()

    def _notes(self) -> Sequence[Extension]:
        return (self._log,)

    def open(self, state: PipeState) -> None:
        """Compare what the module is with what the stored rows were made of, and begin.

        Raises:
            ConfigChangedError: the package, the module or its parameters are others.
        """
        stream = self._module
        now = Config({stream.module: stream.fingerprint})
        compare_config(self._target, state, now, stream.id, stream.on_config_change)
        first = max(stream.first, 0)
        compare_firsts(self._target, state, {stream.module: first}, stream.id, unknown=0)
        if self._target.capabilities.config is None and state.cursor is not None:
            check_first(stream.module, state, first, 0, stream.id)
        self._extensions.start(state)
        decoder = ModuleDecoder(stream, self._spark, shared=self._shared)
        self._begin(state, self._messages, decoder, first)

    def on_event(self, event: Event) -> None:
        """Tell the log, where the target does not keep its table, how far the stream is."""
        super().on_event(event)
        if isinstance(event, Committed | RolledBack):
            self._pauses = 0
        if not self._keeps and isinstance(event, Committed | Settled | Discarded):
            self._log.advanced(event.state)

    def pause(self) -> None:
        """Wait for an endpoint that lacks the block that is stored, longer each time, visibly."""
        self._pauses += 1
        pause = pause_s(self._pauses, self._client.random)
        self._client.tell(
            NoticeKind.RETRYING,
            f"the endpoint has another block than the one that is stored; asking again in "
            f"{pause:.1f} s",
            "OTHER_BLOCK",
            failures=self._pauses,
            pause_s=round(pause, 3),
        )
        self._clock.sleep(pause)

    def resolve_fork(
        self, state: PipeState, previous_blocks: Sequence[BlockCursor], *, patient: bool
    ) -> tuple[ForkResolution, PipeState]:
        """Go below a block that the endpoint does not have.

        Raises:
            UndoDepthError: out of patience, and it cannot be undone.
        """
        try:
            return super().resolve_fork(state, previous_blocks, patient=patient)
        except ForkCursorMissingError:
            raise UndoDepthError(
                "the endpoint has another block than the one that is stored, and that one cannot "
                "be undone",
                endpoint=", ".join(map(str, previous_blocks)),
                stored=state.cursor,
                finalized=state.finalized,
            ) from None

    def stop(self) -> None:
        """End the session, then everything else."""
        self._messages.close()
        super().stop()

    def _hear(self, message: Message) -> None:
        """Show what the endpoint is doing while no block arrives."""
        if isinstance(message, Outputs):
            self._record.activity = None
        elif isinstance(message, Progress) and self._record.facts is None:
            self._record.activity = (
                f"the endpoint has processed {message.processed_blocks} blocks, "
                f"{message.running_jobs} jobs are running"
            )
        if self._module.on_message is not None:
            self._module.on_message(message)


class ModuleDecoder(Decoder):
    """Makes tables of a module's outputs, which are the lines of their blocks."""

    def __init__(self, stream: SubstreamsStream, spark: SparkOfRun, *, shared: bool) -> None:
        self._address = stream.address
        self._decoder = stream.decoder
        self._spark = spark
        self._far = stream.far
        self._keep = shared or not stream.flush.backfill.at_once
        last = stream.stop - 1 if stream.stop else None
        self.ranges = (BlockRange(max(0, stream.first), last),)

    def plan(self, batch: Batch[Raw]) -> Planned | None:
        """Return how executors decode a batch that is large enough for that."""
        pieces = _pieces(batch)
        near = not self._far or batch.state.is_hot or size_of(batch) < self._far
        if near or not self._spark.is_ready():
            return None
        span = OutputSpan(self._spark, self._decoder, [piece.output for piece in pieces])
        return Planned(span, len(pieces), self._keep)

    def decode(self, batch: Batch[Raw]) -> Decoded:
        """Return the tables of every output for the blocks of a batch."""
        return Decoded(dict(decode_pieces(_pieces(batch), self._decoder)), {}, {})

    def ahead(self, batch: Batch[Raw]) -> Any:
        """Return what the target has prepared of a batch while it arrived."""
        return ahead_of(_pieces(batch))

    def asked(self, number: int) -> QueryInfo:
        """Return where the block came from."""
        return QueryInfo(self._address, "", b"")


def _pieces(batch: Batch[Raw]) -> Sequence[Piece]:
    assert not isinstance(batch.data, core.Span), "only portals have spans"
    return batch.data


def substreams_stream(
    *,
    id: str,
    package: str | Path | bytes | Package,
    endpoint: str = "",
    module: str | None = None,
    params: Mapping[str, str] | None = None,
    network: str = "",
    start: int | None = None,
    stop: int | str | None = None,
    final_blocks_only: bool = False,
    production_mode: bool = True,
    decoder: OutputDecoder | None = None,
    tables: Sequence[TableSchema] = (),
    spark: SparkSession | None = None,
    flush: Flush | None = None,
    flush_backfill: Flush | None = None,
    undo_buffer: int = 0,
    rollback_cap: int = DEFAULT_CAP,
    on_config_change: OnConfigChange = "error",
    credentials: Credentials | None = None,
    dialling: Dialling | None = None,
    on_message: OnMessage | None = None,
    on_executors: bool | None = None,
) -> SubstreamsStream:
    """Define a stream of the outputs of a module.

    Args:
        id: the key of all stored state; never rename it.
        package: a .spkg: its path, its address, or its bytes.
        endpoint: `host:port` and `https://…` speak TLS, `http://…` plaintext, over which no
            credential is sent. Without one, SUBSTREAMS_ENDPOINTS_CONFIG_<NETWORK> names it.
        module: the map module to read; left out, the one that the package names.
        params: parameters by module.
        network: which network's settings of the package apply; left out, the package's own.
        start: the first block, the module's initial one if left out; below 0, so many blocks
            before the head. Once a cursor is stored, the stream goes on after that; a start that
            was raised over blocks which are not there, or may be undone, is refused.
        stop: the block before which to end, as everywhere in Substreams; "+N" counts from `start`;
            left out, the head is followed.
        final_blocks_only: read final blocks alone: nothing is ever undone.
        production_mode: let the endpoint process history in parallel.
        decoder: what turns outputs into tables, if not what fits the module's type.
        tables: of DatabaseChanges modules: the declared tables, whose empty values are null where
            a column is not text.
        spark: your session, used as it is; without one a local session is made when needed.
        flush: when to commit hot blocks; left out, as they arrive.
        flush_backfill: the same for final blocks.
        undo_buffer: how many of the newest blocks to hold back.
        rollback_cap: how many committed blocks above the finalized one can be undone, at most.
        on_config_change: what to do if the module is another than the stored rows were made by.
        credentials: what sessions are opened with, and more headers: `Credentials.read(…)` of
            `headwater.substreams.endpoint`; left out, the key in SUBSTREAMS_API_KEY, or else the
            token in SUBSTREAMS_API_TOKEN.
        dialling: idle time, retries, receive limit, certificates, version.
        on_message: is told of every message of the endpoint, in the loop's thread.
        on_executors: whether Spark's executors decode and fold history, in which case the driver
            only receives it. Left out, they do if the stream has transforms and your session has
            executors beside the driver's process.

    Raises:
        StreamIdError: the id is missing or blank.
        SubstreamsEndpointError: the endpoint cannot be understood, or none is known.
        PackageError, ModuleChoiceError: the package cannot be used, or has no such module.
        InvalidOptionError: an option cannot work.
    """
    rules = check_stream(id, flush, flush_backfill, undo_buffer, rollback_cap)
    raw = Package.read(package)
    resolved = raw.resolve(network, params)
    chosen = resolved.choose(module)
    address = Endpoint.parse(endpoint, resolved.network)
    first = resolved.initial_block(chosen) if start is None else start
    if type(first) is not int:
        raise InvalidOptionError("start is a block number", got=repr(start))
    return SubstreamsStream(
        id=id,
        endpoint=address,
        package=resolved,
        module=chosen,
        order=Order(
            chosen,
            raw.data,
            resolved.modules_bytes,
            dict(params or {}),
            network,
            production=production_mode,
            final_only=final_blocks_only,
        ),
        decoder=decoder or decoder_of(resolved.types, resolved.output_type(chosen), tables),
        first=first,
        stop=_stop_block(first, stop),
        credentials=Credentials.read() if credentials is None else credentials,
        dialling=dialling or Dialling(),
        on_message=on_message,
        far_bytes=FAR_BYTES if _wants_executors(on_executors, spark) else 0,
        far_always=bool(on_executors),
        spark=spark,
        flush=rules,
        undo_buffer=undo_buffer,
        rollback_cap=rollback_cap,
        on_config_change=check_choice(
            "on_config_change", on_config_change, ("error", "warn", "ignore")
        ),
    )


def _wants_executors(given: object, spark: SparkSession | None) -> bool:
    if given is not None and not isinstance(given, bool):
        raise InvalidOptionError("on_executors is True, False or None", got=repr(given))
    return has_executors(spark) if given is None else given


def _stop_block(start: int, stop: int | str | None) -> int:
    """Return the number before which to end; 0 without an end."""
    if stop is None or stop == 0:
        return 0
    if isinstance(stop, str) and stop.startswith("+") and stop[1:].isdecimal() and start >= 0:
        stop = start + int(stop[1:])
    if type(stop) is not int or stop <= max(start, 0):
        raise InvalidOptionError(
            'stop is a block number above start, or "+N"', got=repr(stop), start=start
        )
    return stop
