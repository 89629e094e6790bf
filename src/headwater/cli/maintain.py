"""`headwater maintain`: keeps lake tables small: old snapshots, small files, files nobody names."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from headwater.cli.target_options import say
from headwater.errors import InvalidOptionError, LakePathError
from headwater.targets.extras import import_extra
from headwater.targets.lake.admin import kind_of_lake
from headwater.targets.lake.paths import Place
from headwater.targets.lake.settings import DeltaSettings, IcebergSettings, ParquetSettings

PROPERTIES = "HEADWATER_CATALOG"
_HOUR = 3600.0


def maintain(
    catalog: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="The directory of an Iceberg catalog, a name that pyiceberg knows, or the folder "
            "of Delta tables or Parquet files.",
        ),
    ] = "",
    stream_id: Annotated[
        str | None, typer.Option("--id", help="Only the tables of this stream.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            envvar=PROPERTIES,
            help="name=value of the catalog, instead of a directory, or of the object store that "
            f"holds Delta tables; may be repeated. In the variable {PROPERTIES} they are separated "
            "by spaces.",
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

        headwater maintain s3://chain/delta --property s3.region=eu-central-1
    """
    given = dict(_pair(one) for one in properties or ())
    kind = _kind(catalog, given)
    settings: Any
    where: Any
    if kind == "delta":
        settings, where = DeltaSettings(retention_hours=grace_hours), Place.of(catalog, given)
    elif kind == "parquet":
        settings, where = ParquetSettings(), Place.of(catalog, given)
    else:
        settings, where = IcebergSettings(grace_s=grace_hours * _HOUR), given or catalog
        if final_snapshots is not None:
            settings = replace(settings, final_snapshots=final_snapshots)
    done = import_extra(kind, "ADMIN", ".target")(where).maintain(stream_id, settings)
    for name, counts in done.items():
        say(f"{name}: " + ", ".join(f"{counts.get(one, 0)} {_DONE[one]}" for one in counts))
    if not done:
        say("No tables of a stream are here.")


_DONE = {"expired": "snapshots expired", "compacted": "files compacted", "swept": "files deleted"}


def _kind(path: str, properties: dict[str, str]) -> str:
    """Return what lies at a path: a folder of Delta tables or of Parquet files, else Iceberg."""
    if not path:
        if not properties:
            raise InvalidOptionError("name a directory, a catalog, or its properties")
        return "iceberg"
    try:
        return kind_of_lake(Place.of(path, properties))
    except LakePathError:
        return "iceberg"  # a name that pyiceberg knows, or an error of its own


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise InvalidOptionError("--property takes name=value")
    return name, value
