"""How an Iceberg catalog is named and opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.address import Secret
from headwater.errors import LakePathError
from headwater.targets.lake.paths import check_spelling

_TABLES_IN_SQL = 2  # tables of which pyiceberg's catalog in a SQL database consists


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
        check_spelling(str(path))
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
        tries = 1 + _TABLES_IN_SQL * (properties.get("type") == "sql")
        while True:
            try:
                return load_catalog(self.name, **properties)
            except Exception as error:  # noqa: BLE001 - of drivers, networks and pyiceberg itself
                tries -= 1  # another start may have made a table between our look and our CREATE
                if not tries:
                    raise LakePathError(
                        "the catalog cannot be loaded",
                        catalog=self.shown,
                        reason=type(error).__name__,
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
