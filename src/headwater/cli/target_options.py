"""Arguments and output that commands share: targets, tables of rows, questions, extras."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.models import ArgumentInfo

from headwater.errors import MissingExtraError

if TYPE_CHECKING:
    from headwater.targets.admin import Admin, StreamStatus

StreamId = Annotated[str, typer.Option("--id", help="The stream's id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
PipelineFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The pipeline file.")
]
StateSchema = Annotated[
    str | None,
    typer.Option(
        "--state-schema", help="Schema of the state (ClickHouse: its database), if not the default."
    ),
]
StateTable = Annotated[str, typer.Option("--state-table", help="Table of the state.")]


@dataclass(slots=True)
class Place:
    """A database or a lake, and where the state of streams is kept in it."""

    target: Annotated[
        str,
        typer.Argument(
            envvar="HEADWATER_TARGET",
            show_envvar=True,
            help="postgresql://user@host/name, http://user:password@host:8123/name (ClickHouse), "
            "or the path of a DuckDB file, or the folder of a lake (Iceberg, Delta, Parquet).",
        ),
    ]
    state_schema: StateSchema = None
    state_table: StateTable = "sync"

    def open(self) -> Admin:
        """Return what looks at the streams there, and changes them."""
        from headwater.targets.admin import open_admin

        return open_admin(self.target, schema=self.state_schema, table=self.state_table)

    def find(self, stream_id: str) -> tuple[Admin, StreamStatus]:
        """Return the same, and the stream of this id."""
        from headwater.targets.admin import find_stream

        admin = self.open()
        return admin, find_stream(admin.streams(), stream_id)


def takes(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of dataclasses; it is handed one of each, by its class's name.

    So commands that take the same options share one place that declares and reads them. Arguments
    of a group come before those of the command, options where the command names the group.
    """
    named = {group.__name__.lower(): group for group in groups}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(**options: Any) -> None:
            for name, group in named.items():
                values = {option.name: options.pop(option.name) for option in fields(group)}
                options[name] = group(**values)
            command(**options)

        own = get_type_hints(command, include_extras=True)
        parameters: list[Parameter] = []
        for name, parameter in signature(command).parameters.items():
            if name in named:
                parameters += _parameters(named[name])
            else:
                kind = Parameter.KEYWORD_ONLY
                parameters.append(parameter.replace(kind=kind, annotation=own[name]))
        shared = {option.name for group in groups for option in fields(group)}
        parameters.sort(key=lambda option: not (option.name in shared and _is_argument(option)))
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def _parameters(group: type[Any]) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            option.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if option.default is MISSING else option.default,
            annotation=hints[option.name],
        )
        for option in fields(group)
    ]


def _is_argument(parameter: Parameter) -> bool:
    return isinstance(parameter.annotation.__metadata__[0], ArgumentInfo)


def console() -> Console:
    """Return the terminal as it is now: as wide as it is, or as `COLUMNS` says."""
    return Console(soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """Print a line as it is: names of tables may look like markup."""
    console().print(Text(text, style=style))


def say_json(document: object) -> None:
    """Print a document for machines, on one line."""
    console().file.write(json.dumps(document) + "\n")


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
