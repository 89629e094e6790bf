"""Brings Headwater to executors whose Python does not have it.

    from headwater.spark import ship

    ship(spark)

The package is pure Python, so a zip of it will do; executors put it on their path. What it is made
with is compiled and has to be there: pyarrow, numpy, msgspec, pycryptodome, urllib3, and what the
target asks for on executors. A task that misses one of them ends with E5014, which names it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import headwater
import pyspark_headwater
from headwater.errors import InvalidOptionError
from headwater.spark.versions import is_connect

_PACKAGES = (headwater, pyspark_headwater)
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # so that the same files make the same zip


def ship(spark: Any) -> None:
    """Give the executors of a session this version of Headwater. May be repeated.

    Called on the driver, before the first stream or data source of the session. `spark` may be a
    session of Spark Connect: its server and its executors get the package then. An installed
    Headwater of an executor comes second; that of a server of Spark Connect comes first.

    Raises:
        InvalidOptionError: `spark` is no session.
    """
    if not is_connect(spark) and not hasattr(spark, "sparkContext"):
        raise InvalidOptionError("ship takes the Spark session", got=type(spark).__name__)
    path = str(_archive())
    if is_connect(spark):
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)


def write_archive(folder: Path) -> Path:
    """Write the package into a folder, as a zip that Python can import from; return its path.

    The name says the version and the content: a session that was given one before knows it again.
    """
    contents = sorted(_files())
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in contents)).hexdigest()
    path = folder / f"headwater-{headwater.__version__}-{digest[:12]}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents:
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), data, zipfile.ZIP_DEFLATED)
    return path


@cache
def _archive() -> Path:
    """Return the zip of this process, made once: Spark fetches it for as long as it runs."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-ship-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not at the end of a process that was forked from it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return write_archive(folder)


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the packages, with the names that they have in the zip."""
    for package in _PACKAGES:
        root = Path(package.__file__ or "").parent
        for file in root.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root.parent).as_posix(), file.read_bytes()
