"""`headwater verify`: compares tables with the portal, by reading the blocks once more."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.cli.run import read_pipelines
from headwater.cli.target_options import StateSchema, StateTable, Target, console, say
from headwater.core import BlockRange, RangeSpec
from headwater.core.ranges import Latest
from headwater.decode.evm.events import UnionOutput
from headwater.errors import HeadwaterError, PipelineFileError, VerifyError
from headwater.portal import HttpTransport, PortalClient
from headwater.stream import PortalStream
from headwater.stream.stream import pipe_to_iterator
from headwater.targets.admin import Admin, StreamStatus, find_stream, open_admin
from headwater.targets.compare import COUNT, BlockFinding, compare_blocks, shared_columns
from headwater.targets.frames import to_arrow

PIECE_ROWS, PIECE_BLOCKS = 100_000, 20_000  # that are compared at once
SAMPLE_BLOCKS = 200
NEVER_FAR = 2**62  # the driver reads all blocks itself, in bounded pieces
SHOWN = 50
DIFFERENT, NOT_COMPARED = 1, 2


def verify(
    target: Target,
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, readable=True, help="The pipeline file."),
    ],
    stream_id: Annotated[
        str | None, typer.Option("--id", help="Which stream, if the file defines several.")
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table", help="Only this one; TABLE=OUTPUT if their names differ. May be repeated."
        ),
    ] = None,
    first: Annotated[int | None, typer.Option("--from", min=0, help="The first block.")] = None,
    last: Annotated[int | None, typer.Option("--to", min=0, help="The last block.")] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help=f"So many spots of {SAMPLE_BLOCKS} blocks, not all."),
    ] = None,
    final: Annotated[
        bool, typer.Option("--final", help="Only final blocks, which no fork changes meanwhile.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    state_schema: StateSchema = None,
    state_table: StateTable = "sync",
) -> None:
    """Compare a stream's tables with the portal: read the blocks once more, and look for holes,
    duplicates, orphans and changed values.

    The file is the one that `headwater run` runs: its outputs and transforms say which rows there
    should be, from the beginning of the range to the stored cursor. Rows are compared value by
    value, block by block. Nothing is changed or locked; while the stream runs, take --final. (A
    DuckDB file can be opened by one process at a time: stop the stream first.)

    The exit code is 0 if all is equal, 1 if something differs, 2 if it could not be compared.

        headwater verify chain.duckdb transfers.py

        headwater verify postgresql://localhost/chain transfers.py --sample 20 --final --json

        headwater verify http://localhost:8123/chain swaps.py --table uniswap.swaps=swaps
    """  # fmt: skip
    try:
        stream = _choose(file, stream_id)
        place = open_admin(target, schema=state_schema, table=state_table)
        status = find_stream(place.streams(), stream.id)
        pairs = _pairs(stream, status, tables or ())
        ranges = _ranges(stream, status, first, last, final=final)
        reports = _compare(place, stream, pairs, ranges, sample)
    except HeadwaterError as error:
        Console(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
        raise typer.Exit(NOT_COMPARED) from None
    if as_json:
        console().file.write(json.dumps([asdict(one) for one in reports]) + "\n")
    else:
        _show(reports)
    if any(one.findings for one in reports):
        raise typer.Exit(DIFFERENT)


@dataclass
class TableReport:
    """What was compared of one table, and what differs."""

    table: str
    output: str
    blocks: int = 0
    expected: int = 0
    stored: int = 0
    not_compared: list[str] = field(default_factory=list)
    findings: list[BlockFinding] = field(default_factory=list)

    def add(self, expected: pa.Table, stored: pa.Table, block_column: str) -> None:
        """Compare the rows of some blocks."""
        shared = shared_columns(expected.column_names, stored.column_names)
        if block_column.casefold() not in map(str.casefold, shared):
            raise VerifyError(
                "the output lacks the column with the number of the block",
                table=self.table, output=self.output, column=block_column,
            )  # fmt: skip
        names = {*expected.column_names, *stored.column_names} - {COUNT}
        alone = names - set(shared) - set(shared.values())
        self.not_compared = sorted({*self.not_compared, *alone})
        self.expected += expected.num_rows
        self.stored += sum(stored[COUNT].to_pylist()) if stored.num_rows else 0
        self.findings += compare_blocks(expected, stored, block_column)


# --- what is compared -----------------------------------------------------------------------------


def _choose(file: Path, stream_id: str | None) -> PortalStream:
    defined = [stream for stream, _ in read_pipelines(file)]
    streams = {stream.id: stream for stream in defined if isinstance(stream, PortalStream)}
    if stream_id is None and len(streams) == 1:
        return next(iter(streams.values()))
    if stream_id not in streams:
        raise PipelineFileError("which stream is meant: give --id", defined=", ".join(streams))
    return streams[stream_id]


def _pairs(
    stream: PortalStream, status: StreamStatus, given: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the tables to compare, each with its output."""
    known = {one.name: one for one in status.tables}
    if given:
        pairs = [(table, output or table) for table, _, output in (_cut(one) for one in given)]
    else:
        pairs = [(one, one) for one in stream.outputs if one in known]
    if not pairs:
        raise VerifyError(
            "no table has the name of an output", tables=", ".join(known),
            outputs=", ".join(stream.outputs),
        )  # fmt: skip
    for table, _ in pairs:
        if table in known and known[table].shared and not known[table].own_rows:
            raise VerifyError("other streams write this table, too", table=table)
    return pairs


def _cut(text: str) -> tuple[str, str, str]:
    return text.partition("=")


def _ranges(
    stream: PortalStream, status: StreamStatus, first: int | None, last: int | None, *, final: bool
) -> dict[str, list[BlockRange]]:
    """Return the blocks of each output that the stream has committed and that are asked for."""
    reached = status.state.finalized if final else status.state.cursor
    if reached is None:
        raise VerifyError("nothing is committed yet", stream=stream.id, final=final)
    highest = reached.number if last is None else min(last, reached.number)
    asked = BlockRange(first or 0, highest)
    found: dict[str, list[BlockRange]] = {}
    transport = HttpTransport(stream.portal, stream.reading.timeouts)
    with PortalClient(transport, retry=stream.reading.retry) as client:
        for name, output in stream.outputs.items():
            found[name] = []
            for spec in output.ranges:
                if isinstance(spec.start, Latest):
                    if first is None:
                        raise VerifyError("the range began at the head: give --from", output=name)
                    spec = replace(spec, start=first)
                whole = client.resolve_range(spec)
                begin = max(whole.from_block, asked.from_block)
                end = highest if whole.to_block is None else min(whole.to_block, highest)
                if begin <= end:
                    found[name].append(BlockRange(begin, end))
    if not any(found.values()):
        raise VerifyError("no output has blocks there", asked=asked, cursor=reached)
    return found


def _spots(ranges: Sequence[BlockRange], sample: int | None) -> list[BlockRange]:
    """Return the blocks to compare: all, or one spot at random in each of so many equal parts."""
    first = min(one.from_block for one in ranges)
    last = max(one.to_block or 0 for one in ranges)
    if sample is None or sample * SAMPLE_BLOCKS >= last - first + 1:
        return [BlockRange(first, last)]
    part = (last - first + 1) // sample
    begins = (first + at * part + random.randint(0, part - SAMPLE_BLOCKS) for at in range(sample))
    return [BlockRange(one, one + SAMPLE_BLOCKS - 1) for one in begins]


# --- comparing ------------------------------------------------------------------------------------


def _compare(
    place: Admin,
    stream: PortalStream,
    pairs: Sequence[tuple[str, str]],
    ranges: Mapping[str, Sequence[BlockRange]],
    sample: int | None,
) -> list[TableReport]:
    reports = [TableReport(table, output) for table, output in pairs]
    for spot in _spots([one for several in ranges.values() for one in several], sample):
        for blocks, data in _pieces(stream, ranges, spot):
            for report in reports:
                stored, block = place.read_blocks(
                    stream.id, report.table, blocks.from_block, blocks.to_block or 0
                )
                expected = data.get(report.output)
                if expected is None and data:
                    raise VerifyError(
                        "the stream makes no such output", output=report.output,
                        made=", ".join(data),
                    )  # fmt: skip
                if expected is None:
                    expected = stored.drop_columns([COUNT]).slice(0, 0)
                report.blocks += (blocks.to_block or 0) - blocks.from_block + 1
                report.add(expected, stored, block)
    return reports


def _pieces(
    stream: PortalStream, ranges: Mapping[str, Sequence[BlockRange]], spot: BlockRange
) -> Iterator[tuple[BlockRange, dict[str, pa.Table]]]:
    """Read a spot as the stream would; yield contiguous blocks, and the rows of each output."""
    narrowed = _narrow(stream, ranges, spot)
    begin, last = spot.from_block, spot.to_block or 0
    held: list[Mapping[str, pa.Table]] = []
    rows = 0
    if narrowed is not None:
        for batch in pipe_to_iterator(narrowed, None, lambda previous: None):
            tables = {name: to_arrow(frame) for name, frame in batch.data.items()}
            held.append(tables)
            rows += sum(one.num_rows for one in tables.values())
            reached = batch.ctx.stream.state.current.number
            if reached < last and (rows >= PIECE_ROWS or reached - begin >= PIECE_BLOCKS):
                yield BlockRange(begin, reached), _together(held)
                begin, held, rows = reached + 1, [], 0
    yield BlockRange(begin, last), _together(held)


def _narrow(
    stream: PortalStream, ranges: Mapping[str, Sequence[BlockRange]], spot: BlockRange
) -> PortalStream | None:
    """Return the stream of these blocks alone, without its outbox; None if it has none there.

    An output without blocks there stays, as transforms may ask for it: it has no ranges.
    """
    first, last = spot.from_block, spot.to_block or 0
    outputs: dict[str, Any] = {}
    for name, output in stream.outputs.items():
        cut = [
            RangeSpec(max(one.from_block, first), min(one.to_block or last, last))
            for one in ranges[name]
            if one.from_block <= last and (one.to_block or last) >= first
        ]
        outputs[name] = _with_ranges(output, tuple(cut))
    if not any(one.ranges for one in outputs.values()):
        return None
    reading = replace(stream.reading, far=NEVER_FAR)
    return replace(
        stream, outputs=outputs, reading=reading, extensions=(), undo_buffer=0,
        on_config_change="ignore",
    )  # fmt: skip


def _with_ranges(output: Any, ranges: tuple[RangeSpec, ...]) -> Any:
    """Return an output of these blocks; a union of events has the range of its parts."""
    if isinstance(output, UnionOutput):
        return replace(output, parts=tuple(_with_ranges(one, ranges) for one in output.parts))
    return replace(output, ranges=ranges)


def _together(held: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    if not held:
        return {}
    return {name: pa.concat_tables([one[name] for one in held]) for name in held[0]}


# --- showing --------------------------------------------------------------------------------------


def _show(reports: Sequence[TableReport]) -> None:
    table = Table("table", "block", "expected", "stored", "holes", "duplicates", "orphans",
                  "changed", "columns")  # fmt: skip
    findings = [(report.table, one) for report in reports for one in report.findings]
    for name, one in findings[:SHOWN]:
        cells = (name, one.block, one.expected, one.stored, one.holes, one.duplicates, one.orphans,
                 one.changed, ", ".join(one.columns))  # fmt: skip
        table.add_row(*(Text(str(cell)) for cell in cells))
    if findings:
        console().print(table)
    if len(findings) > SHOWN:
        say(f"and {len(findings) - SHOWN} more blocks; --json lists all")
    for report in reports:
        if report.not_compared:
            say(f"{report.table}: on one side only: {', '.join(report.not_compared)}")
        compared = f"{report.stored:,} rows in {report.blocks:,} blocks"
        if report.findings:
            say(f"{report.table}: {len(report.findings):,} blocks differ, of {compared}", "red")
        else:
            say(f"{report.table}: equal, {compared}", "green")
