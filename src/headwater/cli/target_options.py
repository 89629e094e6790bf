"""Arguments and output that commands share: targets, tables of rows, questions, extras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.errors import MissingExtraError

Target = Annotated[
    str,
    typer.Argument(
        envvar="HEADWATER_TARGET",
        show_envvar=True,
        help="postgresql://user@host/name, http://user:password@host:8123/name (ClickHouse), or "
        "the path of a DuckDB file, or the folder of a lake (Iceberg, Delta, Parquet).",
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


def takes(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of dataclasses; it is handed one of each, by its class's name.

    So commands that take the same options share one place that declares and reads them.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = {one: get_type_hints(one, include_extras=True) for one in groups}

        @wraps(command)
        def call(**given: Any) -> None:
            made = {
                one.__name__.lower(): one(
                    **{each.name: given.pop(each.name) for each in fields(one)}
                )
                for one in groups
            }
            command(**made, **given)

        names = {one.__name__.lower() for one in groups}
        own = get_type_hints(command, include_extras=True)
        parameters = [
            Parameter(
                each.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if each.default is MISSING else each.default,
                annotation=hints[one][each.name],
            )
            for one in groups
            for each in fields(one)
        ]
        parameters += [
            each.replace(kind=Parameter.KEYWORD_ONLY, annotation=own[each.name])
            for each in signature(command).parameters.values()
            if each.name not in names
        ]
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def console() -> Console:
    """Return the terminal as it is now: as wide as it is, or as `COLUMNS` says."""
    return Console(soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """Print a line as it is: names of tables may look like markup."""
    console().print(Text(text, style=style))


def show_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows as a table, without columns that no row fills.

    Where the table is wider than the terminal, each row becomes a line of its facts that wraps: no
    name or number is cut.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    told = [
        place for place in range(len(names))
        if not place or any(row[place] not in ("", "-") for row in cells)
    ]  # fmt: skip
    table = Table(*(names[place] for place in told), box=SIMPLE_HEAD, pad_edge=False)
    for row in cells:
        table.add_row(*(Text(row[place]) for place in told))
    screen = console()
    whole = screen.options.update(max_width=1 << 16)
    if screen.measure(table, options=whole).maximum <= screen.width:
        screen.print(table)
        return
    for row in cells:
        filled = [place for place in told[1:] if row[place] not in ("", "-")]
        facts = [f"{names[place]} {row[place]}" for place in filled]
        screen.print(Text(f"{row[0]}: " + "; ".join(facts), overflow="fold"), soft_wrap=False)


def confirm(lines: list[str], *, yes: bool) -> None:
    """Say what is going to happen, and ask; without consent the command ends here."""
    for line in lines:
        say(line)
    if not yes:
        typer.confirm("Go on?", abort=True)


def substreams_module(name: str) -> Any:
    """Return a module of `headwater.substreams`.

    Raises:
        MissingExtraError: what it needs is not installed.
    """
    try:
        return import_module(f"headwater.substreams.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise MissingExtraError(
            "this needs protobuf: pip install 'headwater[substreams]'"
        ) from None
