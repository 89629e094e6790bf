"""`headwater schema`: which tables a pipeline file fills, with their columns, before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.run import read_pipelines
from headwater.cli.target_options import console, say, show_rows
from headwater.stream import PortalStream


def schema(
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, readable=True, help="The pipeline file."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
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
        console().file.write(json.dumps(outputs) + "\n")
        return
    for output in outputs:
        say(f"{output['stream']}: {output['output']}")
        show_rows(
            ("column", "type"),
            [(column["name"], column["type"]) for column in output["columns"]],
        )
