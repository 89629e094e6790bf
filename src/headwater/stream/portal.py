"""`portal_stream`: a stream of one or more outputs from one dataset of an SQD portal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from headwater.address import HttpAddress
from headwater.core import DEFAULT_CAP, Flush, PipeState, RangeSpec, SpanLimits
from headwater.core.callbacks import Callback
from headwater.decode import Output
from headwater.decode.evm.events import UnionOutput
from headwater.errors import InvalidOptionError, NetworkError, NotFinalError
from headwater.portal import (
    Address,
    DriverPermits,
    LimitedTransport,
    PortalBudget,
    PortalClient,
    PortalLimits,
    RetryPolicy,
    Timeouts,
    open_transport,
    source_address,
    sources_of,
)
from headwater.spark.frames import Frame
from headwater.spark.session import local_session
from headwater.stream.config import OnConfigChange, check_choice
from headwater.stream.extensions import OnMissing
from headwater.stream.portal_run import PortalRun, StoppableTransport
from headwater.stream.run import Opening
from headwater.stream.stream import Stream, check_stream
from headwater.targets.frames import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAR = 1000  # blocks behind the finalized head at which executors take over


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Options of `portal_stream` that say how blocks are read; checked when the stream is made.

    `retry` and `timeouts` count on the driver and, pickled, on executors.
    """

    far: int = FAR
    first_span: int | None = None
    spans: SpanLimits = SpanLimits()  # noqa: RUF009 - immutable
    poll_interval_s: float = 0.25
    max_bytes: int = 10 * 1024 * 1024
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009 - immutable
    timeouts: Timeouts = Timeouts()  # noqa: RUF009 - immutable
    limits: PortalLimits = PortalLimits()  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        for name in ("far", "first_span", "max_bytes"):
            value = getattr(self, name)
            if name == "first_span" and value is None:
                continue
            if type(value) is not int or value < 1:
                raise InvalidOptionError(f"{name} is a whole number from 1", got=repr(value))
        seconds = self.poll_interval_s
        if type(seconds) not in (int, float) or not seconds > 0:
            raise InvalidOptionError("poll_interval_s is a number above 0", got=repr(seconds))
        for name, kind, said in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise InvalidOptionError(f"{name} {said} {kind.__name__}(…)", got=repr(value))


_KINDS = (
    ("retry", RetryPolicy, "is a"),
    ("timeouts", Timeouts, "are"),
    ("spans", SpanLimits, "are"),
    ("limits", PortalLimits, "are"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortalStream(Stream):
    """A stream of one or more outputs from one dataset. Made by `portal_stream`."""

    portal: Address
    outputs: Mapping[str, Output]
    reading: ReadingOptions = ReadingOptions()
    renamed: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    missing_blocks: OnMissing = "error"

    @property
    def address(self) -> str:
        """The address of the portal, or of all sources, without credentials."""
        return str(self.portal)

    @property
    def is_single(self) -> bool:
        """Whether there is one output."""
        return len(self.outputs) == 1

    @property
    def _known_outputs(self) -> Collection[str] | None:
        return None if self.steps else self.outputs

    def preview(self, blocks: int = 5) -> Frame | dict[str, Frame]:
        """Return the rows of the newest blocks, as they are now, and write nothing.

        They have gone through the transforms. A frame is shown by notebooks and has the methods of
        a DataFrame; several outputs are several frames, by name. Spark starts if a transform or a
        method of the frame needs it.

        Raises:
            InvalidOptionError: `blocks` is not a number above 0.
            NotFinalError: the dataset has no block yet.
        """
        if type(blocks) is not int or blocks < 1:
            raise InvalidOptionError("preview takes a number of blocks, 1 or more", got=blocks)
        transport = open_transport(self.portal, self.reading.timeouts)
        with PortalClient(transport, retry=self.reading.retry) as client:
            head = client.head()
        if head is None:
            raise NotFinalError("the dataset has no block yet")
        newest = RangeSpec(max(0, head.number - blocks + 1), head.number)
        outputs = {name: with_ranges(output, (newest,)) for name, output in self.outputs.items()}
        tables: dict[str, list[pa.Table]] = {}
        forked = Callback("on_fork", lambda previous_blocks: None, "previous_blocks")
        for batch in replace(self, outputs=outputs)._read(PipeState(), forked):
            for name, frame in batch.data.items():
                tables.setdefault(name, []).append(to_arrow(frame))
        frames = {
            name: Frame(pa.concat_tables(parts), lambda: self.spark or local_session())
            for name, parts in tables.items()
        }
        return next(iter(frames.values())) if len(frames) == 1 else frames

    @contextmanager
    def _opened(self, opening: Opening) -> Iterator[PortalRun]:
        with ExitStack() as stack:
            reading = self.reading
            runtime = opening.runtime
            source = open_transport(self.portal, reading.timeouts, notify=runtime.tell)
            sources = sources_of(source)
            if sources is not None:
                opening.record.reads_from(sources.states)
            check, tell = runtime.stop.check_if_idle, opening.record.asked
            transport = StoppableTransport(source, check, tell)
            budget = PortalBudget(reading.limits)
            clock = runtime.clock
            client = stack.enter_context(
                PortalClient(
                    LimitedTransport(transport, DriverPermits(budget, clock.sleep)),
                    retry=reading.retry,
                    clock=clock,
                    max_bytes=reading.max_bytes,
                    poll_interval_s=reading.poll_interval_s,
                    rollback_cap=self.rollback_cap,
                    on_notice=runtime.tell,
                    headers=next(iter(self.outputs.values())).query.headers_only(),
                    sources=sources,
                )
            )
            run = PortalRun(self, client, opening, budget, abort=transport.abort)
            stack.callback(run.stop)
            yield run


def portal_stream(
    *,
    id: str,
    portal: str | Address | Sequence[str | HttpAddress],
    outputs: Mapping[str, Output],
    spark: SparkSession | None = None,
    flush: Flush | None = None,
    flush_backfill: Flush | None = None,
    undo_buffer: int = 0,
    rollback_cap: int = DEFAULT_CAP,
    on_config_change: OnConfigChange = "error",
    renamed: Mapping[str, str] | None = None,
    versions: Mapping[str, int | str] | None = None,
    missing_blocks: OnMissing = "error",
    far: int = FAR,
    first_span: int | None = None,
    spans: SpanLimits | None = None,
    poll_interval_s: float = 0.25,
    max_bytes: int = 10 * 1024 * 1024,
    retry: RetryPolicy | None = None,
    timeouts: Timeouts | None = None,
    limits: PortalLimits | None = None,
) -> PortalStream:
    """Define a stream.

    Args:
        id: the key of all stored state; never rename it.
        portal: the address of a dataset, or `rpc+` and that of a node (docs/nodes.md); or an
            ordered list of them, of which the first that works is read: `["https://…", "rpc+…"]`,
            or `Sources([…], lag_s=…)`. No text of the stream shows their credentials.
        outputs: the tables to fill, by name; all are fetched together.
        spark: your session, used as it is; without one a local session is made when needed.
        flush: when to commit hot blocks: `Flush(blocks=…, rows=…, seconds=…)`, whichever comes
            first; left out, each block at once. What waits is dropped by a fork or a stop.
        flush_backfill: the same for final blocks; left out, each span at once.
        undo_buffer: how many of the newest blocks to hold back until they are deeper or final: a
            fork among them never reaches the target.
        rollback_cap: how many committed blocks above the finalized one a fork can be undone to,
            at most; also while the portal reports no finality at all. The state and its undo data
            grow with it. A deeper fork lands on the finalized block, or ends the stream if that is
            unknown. Choose it by the deepest reorganization of the network.
        on_config_change: what to do if the outputs ask for something else than what the stored
            rows were made of: "error", "warn", "ignore", or "evolve", which fills outputs and
            columns that were added, and then goes on.
        renamed: outputs that have a new name, for "evolve": `{"new": "old"}`.
        versions: your own marks of what transforms make of an output: `{"transfers": 2}`. Another
            one is a change of the definition; with "evolve" the rows are made again.
        missing_blocks: what to do where the portal does not have the next blocks any more, as a
            real-time service that keeps a window: "error", or "skip", which leaves them out, counts
            them beside the state, and undoes hot blocks before them that nobody can confirm.
        far: how many blocks behind the finalized head executors take over.
        first_span: how many blocks executors read first; left out, as many as a slow machine reads
            in the time of a span. Later spans follow from how that went.
        spans: how large later spans may get: `SpanLimits(blocks=…, bytes=…, rows=…, seconds=…)`;
            all but the blocks are estimates.
        poll_interval_s: how often the head is asked for.
        max_bytes: of block lines that are held at once.
        retry: pauses and attempts after a request failed, on the driver and on executors.
        timeouts: how long to wait for a connection, for headers, for the next part of a body; on
            the driver and on executors.
        limits: what may be asked of the portal at once, by the driver and all executors together:
            `PortalLimits(requests=…, bytes_per_second=…)`; left out, one request for each core.

    Raises:
        StreamIdError: the id is missing or blank.
        PortalUrlError: the portal's address is none.
        InvalidOptionError: outputs is not a mapping of names to outputs, or an option cannot work.
        NetworkError: the outputs ask for several networks.
    """
    rules = check_stream(id, flush, flush_backfill, undo_buffer, rollback_cap)
    if not isinstance(outputs, Mapping) or not outputs:
        raise InvalidOptionError(
            'outputs maps names to outputs: {"transfers": evm.events(…)}', got=repr(outputs)
        )
    for name, output in outputs.items():
        if not isinstance(name, str) or not name or not hasattr(output, "query"):
            raise InvalidOptionError("not an output", name=name, got=repr(output))
    _check_names(renamed, outputs, 'renamed maps new names to old: {"new": "old"}', (str,))
    _check_names(versions, outputs, 'versions maps outputs to marks: {"transfers": 2}', (int, str))
    networks = sorted({output.query.network.type for output in outputs.values()})
    if len(networks) > 1:
        raise NetworkError("one stream reads one network", got=", ".join(networks))
    return PortalStream(
        id=id,
        portal=source_address(portal),
        outputs=dict(outputs),
        spark=spark,
        reading=ReadingOptions(
            far=far,
            first_span=first_span,
            spans=SpanLimits() if spans is None else spans,
            poll_interval_s=poll_interval_s,
            max_bytes=max_bytes,
            retry=RetryPolicy() if retry is None else retry,
            timeouts=Timeouts() if timeouts is None else timeouts,
            limits=PortalLimits() if limits is None else limits,
        ),
        flush=rules,
        rollback_cap=rollback_cap,
        undo_buffer=undo_buffer,
        on_config_change=check_choice(
            "on_config_change", on_config_change, get_args(OnConfigChange)
        ),
        renamed=dict(renamed or {}),
        versions={name: str(version) for name, version in (versions or {}).items()},
        missing_blocks=check_choice("missing_blocks", missing_blocks, get_args(OnMissing)),
    )


def with_ranges(output: Any, ranges: tuple[RangeSpec, ...]) -> Any:
    """Return an output of these blocks; a union of events has the range of its parts."""
    if isinstance(output, UnionOutput):
        return replace(output, parts=tuple(with_ranges(part, ranges) for part in output.parts))
    return replace(output, ranges=ranges)


def _check_names(
    given: Mapping[str, object] | None,
    outputs: Mapping[str, Output],
    said: str,
    kinds: tuple[type, ...],
) -> None:
    """Refuse an option that is no mapping of outputs to values of these kinds."""
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(
        isinstance(value, kinds) for value in given.values()
    ):
        raise InvalidOptionError(said, got=repr(given))
    unknown = sorted(set(given) - set(outputs))
    if unknown:
        raise InvalidOptionError(said, no_output=", ".join(map(repr, unknown)))
