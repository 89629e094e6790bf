"""`headwater verify` and `headwater schema`: what a pipeline file says of tables, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from headwater.cli.run import read_pipelines
from headwater.cli.target_options import (
    AsJson,
    PipelineFile,
    Place,
    say,
    say_json,
    show_rows,
    takes,
)
from headwater.errors import HeadwaterError, PipelineFileError
from headwater.stream import PortalStream
from headwater.stream.verification import SAMPLE_BLOCKS, TableReport, Verification
from headwater.stream.verification import verify as compare
from headwater.targets.compare import BlockFinding, KeyFinding

SHOWN = 50
DIFFERENT, NOT_COMPARED, INCOMPLETE = 1, 2, 3


@takes(Place)
def verify(
    file: PipelineFile,
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
    as_json: AsJson = False,
    *,
    place: Place,
) -> None:
    """Compare a stream's tables with the portal: read the blocks once more, and look for holes,
    duplicates, orphans and changed values.

    The file is the one that `headwater run` runs: its outputs and transforms say which rows there
    should be, from the beginning of the range to the stored cursor, and its target which sums.
    Rows are compared value by value, block by block; aggregates key by key, if all blocks are read.
    Nothing is changed or locked; while the stream runs, take --final. (A DuckDB file can be opened
    by one process at a time: stop the stream first.)

    The exit code is 0 if all that the stream wrote is equal, 1 if something differs, 2 if nothing
    could be compared, and 3 if what was compared is equal, but some was not: it is named. With
    --table nothing else is looked for.

        headwater verify chain.duckdb transfers.py

        headwater verify postgresql://localhost/chain transfers.py --sample 20 --final --json

        headwater verify http://localhost:8123/chain swaps.py --table uniswap.swaps=swaps
    """  # fmt: skip
    try:
        stream, into = _choose(file, stream_id)
        verification = compare(
            stream, place.open(), target=into, tables=tables or (), first=first, last=last,
            sample=sample, final=final,
        )  # fmt: skip
    except HeadwaterError as error:
        Console(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
        raise typer.Exit(NOT_COMPARED) from None
    if as_json:
        say_json({"complete": verification.is_complete, **asdict(verification)})
    else:
        _show(verification)
    if not verification.is_equal:
        raise typer.Exit(DIFFERENT)
    if not verification.is_complete:
        raise typer.Exit(INCOMPLETE)


def _choose(file: Path, stream_id: str | None) -> tuple[PortalStream, Any]:
    """Return the stream that is meant, and its target."""
    streams = {
        stream.id: (stream, target)
        for stream, target in read_pipelines(file)
        if isinstance(stream, PortalStream)
    }
    if stream_id is None and len(streams) == 1:
        return next(iter(streams.values()))
    if stream_id not in streams:
        raise PipelineFileError("which stream is meant: give --id", defined=", ".join(streams))
    return streams[stream_id]


# --- showing --------------------------------------------------------------------------------------


def _show(verification: Verification) -> None:
    _show_findings(verification.tables)
    for report in verification.tables:
        if report.not_compared:
            say(f"{report.table}: on one side only: {', '.join(report.not_compared)}")
        compared = f"{report.stored:,} rows"
        compared += f" in {report.blocks:,} blocks" if report.blocks else ""
        if report.findings:
            what = "blocks" if report.blocks else "keys"
            say(f"{report.table}: {len(report.findings):,} {what} differ, of {compared}", "red")
        else:
            say(f"{report.table}: equal, {compared}", "green")
    for left_out in verification.left_out:
        say(f"{left_out.name}: not compared: {left_out.reason}", "yellow")


def _show_findings(reports: Sequence[TableReport]) -> None:
    findings = [(report.table, finding) for report in reports for finding in report.findings]
    blocks: list[tuple[object, ...]] = []
    keys: list[tuple[object, ...]] = []
    for name, finding in findings[:SHOWN]:
        columns = ", ".join(finding.columns)
        if isinstance(finding, BlockFinding):
            counts = (finding.expected, finding.stored, finding.holes, finding.duplicates,
                      finding.orphans, finding.changed)  # fmt: skip
            blocks.append((name, finding.block, *counts, columns))
        else:
            keys.append((name, ", ".join(finding.key.values()), _kind(finding), columns))
    if blocks:
        show_rows(("table", "block", "expected", "stored", "holes", "duplicates", "orphans",
                   "changed", "columns"), blocks)  # fmt: skip
    if keys:
        show_rows(("table", "key", "finding", "columns"), keys)
    if len(findings) > SHOWN:
        say(f"and {len(findings) - SHOWN} more; --json lists all")


def _kind(finding: KeyFinding) -> str:
    return "hole" if finding.hole else "orphan" if finding.orphan else "changed"


# --- the outputs ----------------------------------------------------------------------------------


def schema(
    file: PipelineFile,
    as_json: AsJson = False,
) -> None:
    """Show the outputs of a file's streams with their columns and types, as Arrow names them.

    Nothing is run or asked. What transforms make of an output is not known before they run.

        headwater schema transfers.py --json
    """
    outputs: list[dict[str, Any]] = [
        {
            "stream": stream.id,
            "output": name,
            "transformed": bool(stream.steps),
            "columns": [
                {"name": column.name, "type": str(column.type)} for column in output.schema
            ],
        }
        for stream, _ in read_pipelines(file)
        if isinstance(stream, PortalStream)
        for name, output in stream.outputs.items()
    ]
    if as_json:
        say_json(outputs)
        return
    for output in outputs:
        say(f"{output['stream']}: {output['output']}")
        show_rows(
            ("column", "type"),
            [(column["name"], column["type"]) for column in output["columns"]],
        )
