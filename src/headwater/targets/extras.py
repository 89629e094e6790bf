"""Imports what belongs to one database when it is first used, so that the rest works without it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headwater.errors import MissingExtraError

_PACKAGES = {
    "clickhouse": "urllib3",
    "delta": "deltalake",
    "duckdb": "duckdb",
    "iceberg": "pyiceberg",
    "postgres": "psycopg",
}


def import_extra(extra: str, name: str, module: str = "") -> Any:
    """Return a name of a target's package, or of a module in it.

    Raises:
        MissingExtraError: the extra that the package needs is not installed.
    """
    try:
        return getattr(import_module(f"headwater.targets.{extra}{module}"), name)
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(extra)
        if package is None or error.name != package:
            raise
        raise MissingExtraError(
            f"{'this' if module else name} needs the package {package}: "
            f"pip install 'headwater[{extra}]'"
        ) from error
    except ImportError as error:  # a version that lacks a part
        package = _PACKAGES.get(extra)
        if package is None or (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"this version of {package} lacks what {name} needs ({error.msg}): "
            f"pip install --upgrade 'headwater[{extra}]'"
        ) from error
