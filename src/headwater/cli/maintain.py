"""`headwater maintain`: keeps lake tables small: old snapshots, small files, files nobody names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.target_options import say
from headwater.errors import InvalidOptionError
from headwater.targets.extras import import_extra

if TYPE_CHECKING:
    from headwater.targets.iceberg import IcebergSettings

PROPERTIES = "HEADWATER_CATALOG"
_HOUR = 3600.0


def maintain(
    catalog: Annotated[
        str,
        typer.Argument(help="The directory of an Iceberg catalog, or a name that pyiceberg knows."),
    ] = "",
    stream_id: Annotated[
        str | None, typer.Option("--id", help="Only the tables of this stream.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            envvar=PROPERTIES,
            help="name=value of the catalog, instead of a directory; may be repeated. In the "
            f"variable {PROPERTIES} they are separated by spaces.",
        ),
    ] = None,
    grace_hours: Annotated[
        float, typer.Option(help="Files that nothing names are deleted once they are so old.")
    ] = 24.0,
    final_snapshots: Annotated[
        int | None, typer.Option(help="Snapshots of final blocks that stay for time travel.")
    ] = None,
) -> None:
    """Expire snapshots, compact small files and delete files that nothing names.

    Nothing that a fork may go back to is touched. Streams may run meanwhile; they do most of it by
    themselves, a little between batches.

    Example:

        headwater maintain ./lake

        headwater maintain --property type=rest --property uri=http://catalog:8181
    """
    given: str | dict[str, str] = catalog
    if properties:
        given = dict(_pair(one) for one in properties)
    elif not catalog:
        raise InvalidOptionError("name a directory, a catalog, or its properties")
    settings: IcebergSettings = import_extra("iceberg", "IcebergSettings")()
    settings = replace(settings, grace_s=grace_hours * _HOUR)
    if final_snapshots is not None:
        settings = replace(settings, final_snapshots=final_snapshots)
    work = import_extra("iceberg", "maintain_catalog", ".admin")
    done = work(given, stream_id=stream_id, settings=settings)
    for name, counts in done.items():
        say(
            f"{name}: {counts.get('expired', 0)} snapshots expired, {counts.get('compacted', 0)} "
            f"files compacted, {counts.get('swept', 0)} files deleted"
        )
    if not done:
        say("No tables of a stream are here.")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise InvalidOptionError("--property takes name=value")
    return name, value
