"""The command line: `headwater <command>`, one small module per command.

An error that Headwater raises on purpose is shown as its text, without a traceback: the text says
what happened and what to do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from headwater import __version__
from headwater.errors import HeadwaterError

# name: module and what it holds, in the order of --help
COMMANDS = {
    "demo": ("demo", "demo"),
    "init": ("init", "init"),
    "run": ("run", "run"),
    "dashboard": ("status", "dashboard"),
    "simulate": ("simulate", "simulate"),
    "outbox": ("cursor", "outbox"),
    "setup": ("setup", "setup"),
    "sink": ("sink", "app"),
    "cursor": ("cursor", "app"),
    "rewind": ("cursor", "rewind"),
    "verify": ("verify", "verify"),
    "status": ("status", "status"),
    "schema": ("verify", "schema"),
    "maintain": ("setup", "maintain"),
    "doctor": ("doctor", "doctor"),
}


def _typer() -> typer.Typer:
    return typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )


class Commands(TyperGroup):
    """Imports a command when it is asked for: each takes libraries that the others do without."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, for `--help`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or a group of them."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(import_module(f"headwater.cli.{module}"), name)
        app = _typer()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=cmd_name)
            return typer.main.get_group(app).commands[cmd_name]
        app.command(cmd_name)(command)
        return typer.main.get_command(app)


app = typer.Typer(
    name="headwater",
    cls=Commands,
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


def main() -> None:
    """Run the command line; exit with 1 and a short message on a coded error."""
    try:
        app()
    except HeadwaterError as error:
        Console(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
        raise SystemExit(1) from None
