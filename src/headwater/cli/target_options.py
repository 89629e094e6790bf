"""How `cursor`, `setup` and `outbox` name a target: its address, and where its state is kept."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

Target = Annotated[
    str,
    typer.Argument(
        envvar="HEADWATER_TARGET",
        show_envvar=True,
        help="postgresql://user@host/name, http://user:password@host:8123/name (ClickHouse), or "
        "the path of a DuckDB file.",
    ),
]
StateSchema = Annotated[
    str | None,
    typer.Option(
        "--state-schema", help="Schema of the state (ClickHouse: its database), if not the default."
    ),
]
StateTable = Annotated[str, typer.Option("--state-table", help="Table of the state.")]
StreamId = Annotated[str, typer.Option("--id", help="The stream's id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def console() -> Console:
    """Return the terminal as it is now: as wide as it is, or as `COLUMNS` says."""
    return Console(soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """Print a line as it is: names of tables may look like markup."""
    console().print(Text(text, style=style))


def confirm(lines: list[str], *, yes: bool) -> None:
    """Say what is going to happen, and ask; without consent the command ends here."""
    for line in lines:
        say(line)
    if not yes:
        typer.confirm("Go on?", abort=True)
