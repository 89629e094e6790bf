"""The command line: `headwater <command>`, one small module per command.

An error that Headwater raises on purpose is shown as its text, without a traceback: the text says
what happened and what to do.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headwater import __version__
from headwater.cli.cursor import app as cursor
from headwater.cli.cursor import rewind
from headwater.cli.dashboard import dashboard
from headwater.cli.demo import demo as show_demo
from headwater.cli.doctor import doctor
from headwater.cli.init import init
from headwater.cli.maintain import maintain
from headwater.cli.outbox import app as outbox
from headwater.cli.run import run
from headwater.cli.setup import setup
from headwater.cli.simulate import simulate
from headwater.cli.sink import app as sink
from headwater.cli.status import status
from headwater.cli.verify import verify
from headwater.errors import HeadwaterError

app = typer.Typer(
    name="headwater",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Blockchain data in Apache Spark that stays correct when the chain reorganizes."""


app.command("demo")(show_demo)
app.command()(init)
app.command()(run)
app.command()(dashboard)
app.command()(simulate)
app.add_typer(outbox, name="outbox")
app.command()(setup)
app.add_typer(sink, name="sink")
app.add_typer(cursor, name="cursor")
app.command()(rewind)
app.command()(verify)
app.command()(status)
app.command()(maintain)
app.command()(doctor)


def main() -> None:
    """Run the command line; exit with 1 and a short message on a coded error."""
    try:
        app()
    except HeadwaterError as error:
        Console(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
        raise SystemExit(1) from None
