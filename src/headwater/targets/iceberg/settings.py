"""Declarations of Iceberg tables, settings of the target, and how a catalog is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.address import Secret
from headwater.errors import InvalidOptionError, LakePathError
from headwater.targets.lake.target import LakeSettings

NAMESPACE = "default"
_NAME = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*")
_TRANSFORM = re.compile(r"\s*(?:(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)|([^(),]+?))\s*")
_PIECES = re.compile(r",(?![^(]*\))")
_SIZED = ("bucket", "truncate")
_TIMES = {"year": "year", "month": "month", "day": "day", "hour": "hour"}
_TIMES |= {f"{one}s": one for one in _TIMES}


@dataclass(frozen=True, slots=True)
class Partition:
    """One field of a partition: a column, what is made of it, and a width where there is one."""

    column: str
    transform: str = "identity"
    width: int = 0

    @property
    def name(self) -> str:
        """The name of the field, as Spark gives it."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table that a stream writes. Made by `table`."""

    name: str
    key: tuple[str, ...] = ()
    partition_by: tuple[Partition, ...] = ()
    order_by: tuple[str, ...] = ()
    evolve: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


def table(
    name: str,
    *,
    key: Sequence[str] = (),
    partition_by: str = "",
    order_by: Sequence[str] = (),
    evolve: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Declare a table that a stream writes. One that exists keeps its partitions and its order.

    Args:
        name: `name`, or `namespace.name`.
        key: columns that tell rows apart, for `tx.upsert` and `tx.delete`.
        partition_by: as in SQL: `"day(timestamp)"`, `"truncate(100000, block_number)"`,
            `"bucket(16, token), year(timestamp)"`, `"chain"`.
        order_by: columns by which the rows of each file are sorted.
        evolve: a frame with a new column adds it to the table, one with a wider type widens the
            column. Otherwise such a frame is refused.
        properties: table properties of a table that the target creates.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOptionError("a table is named `name` or `namespace.name`", got=repr(name))
    if isinstance(key, str) or isinstance(order_by, str):
        raise InvalidOptionError("key and order_by are lists of columns", table=name)
    partitions = tuple(_partition(one) for one in _PIECES.split(partition_by) if one.strip())
    return Table(name, tuple(key), partitions, tuple(order_by), evolve, dict(properties or {}))


def _partition(text: str) -> Partition:
    found = _TRANSFORM.fullmatch(text)
    if found is not None:
        name, width, column, plain = found.groups()
        if plain is not None:
            return Partition(plain)
        name = name.lower()
        if name in _SIZED and width and int(width) > 0:
            return Partition(column, name, int(width))
        if name in _TIMES and not width:
            return Partition(column, _TIMES[name])
    raise InvalidOptionError(
        "partition_by takes columns, year(c), month(c), day(c), hour(c), bucket(n, c) and "
        "truncate(n, c)",
        got=text.strip(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSettings(LakeSettings):
    """Where the state is kept, and how much is kept and rewritten.

    Args:
        id: the stream's id, if it is to be another than that of the stream.
        namespace: of tables that are named without one, and of the stream's state.
        maintain_every: after so many commits, snapshots that no rollback needs expire and small
            files are compacted; 0 leaves that to `headwater maintain`.
        final_snapshots: snapshots of final blocks that stay for time travel, beside those that a
            rollback needs.
        small_file_bytes: files below are compacted, once there are `compact_files` of them.
        compact_files: how many small files of a partition are worth a rewrite.
        compact_bytes: at most so much is rewritten between two batches.
        rewrite_bytes: `upsert` and `delete` rewrite at most so much for one batch.
        grace_s: files that nothing names are deleted once they are so old: a reader that has begun
            may still need them.
    """

    namespace: str = NAMESPACE
    final_snapshots: int = 50
    grace_s: float = 86_400.0

    def __post_init__(self) -> None:
        LakeSettings.__post_init__(self)
        if not _NAME.fullmatch(self.namespace):
            raise InvalidOptionError("not the name of a namespace", got=repr(self.namespace))
        if self.final_snapshots < 0 or self.grace_s < 0:
            raise InvalidOptionError("final_snapshots, grace_s: 0 or more")


@dataclass(frozen=True, slots=True)
class CatalogName:
    """How a catalog is opened: its name, and its properties, which may hold credentials."""

    name: str
    properties: Secret[dict[str, str]]
    shown: str

    @classmethod
    def of(cls, given: str | Path | Mapping[str, str]) -> CatalogName:
        """Understand what a user gives: a directory, a configured name, or properties.

        A directory holds everything: the tables, and a catalog in SQLite, `catalog.db`.
        """
        if isinstance(given, Mapping):
            properties = {str(key): str(value) for key, value in given.items()}
            name = properties.pop("name", "headwater")
            return cls(name, Secret(properties), f"{properties.get('type', 'catalog')} {name}")
        text = str(given).strip()
        if not text:
            raise LakePathError("a catalog or a directory is needed", got=repr(text))
        if isinstance(given, str) and _is_configured(text):
            return cls(text, Secret({}), text)
        if "://" in text and not text.startswith("file://"):
            raise LakePathError(
                "a catalog in SQLite needs a local directory; give properties instead: "
                "{'type': 'sql', 'uri': 'sqlite:////dir/catalog.db', 'warehouse': 's3://…'}",
                scheme=text.partition("://")[0],
            )
        path = Path(text.removeprefix("file://")).absolute()
        properties = {
            "type": "sql",
            "uri": _catalog_file(path),
            "warehouse": f"file://{path}",
        }
        return cls("headwater", Secret(properties), str(path))

    def open(self, *, create: bool = True) -> Any:
        """Load the catalog. A directory is made, unless `create` says no: then it must be there.

        Raises:
            LakePathError: it cannot be loaded.
        """
        from pyiceberg.catalog import load_catalog

        properties = self.properties.reveal()
        warehouse = properties.get("warehouse", "")
        if properties.get("type") == "sql" and warehouse.startswith("file://"):
            directory = Path(warehouse.removeprefix("file://"))
            if create:
                directory.mkdir(parents=True, exist_ok=True)
            elif properties["uri"] == _catalog_file(directory) and not _has_catalog(directory):
                raise LakePathError(
                    "no Iceberg catalog and no Delta table is there", path=self.shown
                )
        try:
            try:
                return load_catalog(self.name, **properties)
            except Exception:
                if properties.get("type") != "sql":
                    raise
                return load_catalog(self.name, **properties)  # another start has made its tables
        except Exception as error:  # noqa: BLE001 - of drivers, networks and pyiceberg itself
            raise LakePathError(
                "the catalog cannot be loaded", catalog=self.shown, reason=type(error).__name__
            ) from None


def create_namespace(catalog: Any, namespace: str) -> None:
    """Create a namespace if it is not there; another stream may do so at the same moment."""
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception:
        if not catalog.namespace_exists(namespace):
            raise


def _catalog_file(directory: Path) -> str:
    return f"sqlite:///{directory / 'catalog.db'}?timeout=60"  # seconds, while others write


def _has_catalog(directory: Path) -> bool:
    return (directory / "catalog.db").is_file()


def _is_configured(name: str) -> bool:
    from pyiceberg.utils.config import Config

    return Config().get_catalog_config(name) is not None
