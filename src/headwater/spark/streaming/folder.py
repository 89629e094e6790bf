"""The folder of a journal: on this machine, or anywhere that fsspec reaches (S3, HDFS, …).

A file is written once and whole: after `create` returns, a crash of the process or of the machine
does not lose it. Used by the driver's process alone.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit

from headwater.errors import JournalInUseError, SourceOptionError

LOCK = "lock"
WAIT_S = 15.0  # for the process of a query that has just been stopped


class Folder(Protocol):
    """Files by name. All of them are small."""

    def open(self) -> None:
        """Make the folder if there is none, and keep other processes out where that can be done."""
        ...

    def close(self) -> None:
        """Let other processes in."""
        ...

    def names(self) -> list[str]:
        """Return the names of the files, in order."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a file; None if there is none."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Write a file that is not there yet, and make sure that it stays."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if there is none."""
        ...


def open_folder(address: str) -> Folder:
    """Return the folder of this name: a path, a file: address, or an address for fsspec.

    Raises:
        SourceOptionError: it needs fsspec or one of its drivers, which is not installed.
    """
    scheme = urlsplit(address).scheme
    if len(scheme) < 2:  # none, or a drive letter
        return LocalFolder(Path(address))
    if scheme == "file":
        return LocalFolder(Path(unquote(urlsplit(address).path)))
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        files, path = url_to_fs(address)
    except ImportError as error:
        raise SourceOptionError(
            f"a journal at {scheme}: needs a package: {error}", fix_with="pip install fsspec"
        ) from error
    return RemoteFolder(files, path)


class LocalFolder:
    """A folder on this machine; one process at a time."""

    def __init__(self, path: Path, *, wait_s: float = WAIT_S) -> None:
        self._path = path
        self._wait_s = wait_s
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Make the folder, lock it, and remove what a crash has left half written.

        Raises:
            JournalInUseError: another process holds it, also after a while.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        lock = (self._path / LOCK).open("ab")
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                lock.close()
                raise JournalInUseError("the journal is in use", journal=self._path) from None
            break
        self._lock = lock
        for half in self._path.glob("*.tmp"):
            half.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def names(self) -> list[str]:
        """Return the names of the files, in order."""
        return sorted(one.name for one in self._path.iterdir() if one.name != LOCK)

    def read(self, name: str) -> bytes | None:
        """Return a file; None if there is none."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> None:
        """Write a file beside its name, sync it, name it, sync the folder.

        Raises:
            JournalInUseError: the name is taken.
        """
        half = self._path / f"{name}.tmp"
        with half.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(half, self._path / name)
        except FileExistsError:
            raise JournalInUseError("another process writes the journal", file=name) from None
        finally:
            half.unlink()
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if there is none."""
        (self._path / name).unlink(missing_ok=True)


class RemoteFolder:
    """A folder of a file system that fsspec knows.

    No lock is taken there: two processes on one journal meet when both create the same file.
    """

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path.rstrip("/")

    def open(self) -> None:
        """Make the folder."""
        self._files.makedirs(self._path, exist_ok=True)

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def names(self) -> list[str]:
        """Return the names of the files, in order; what was listed before is not believed."""
        self._files.invalidate_cache(self._path)
        try:
            found = self._files.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        names = (str(one).rstrip("/").rpartition("/")[2] for one in found)
        return sorted(one for one in names if one and not one.endswith(".tmp"))

    def read(self, name: str) -> bytes | None:
        """Return a file; None if there is none."""
        try:
            found: bytes = self._files.cat_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return None
        return found

    def create(self, name: str, data: bytes) -> None:
        """Write a file that is not there yet; a store of objects keeps it when the call returns.

        Raises:
            JournalInUseError: the name is taken.
        """
        try:
            self._files.pipe_file(f"{self._path}/{name}", data, mode="create")
        except FileExistsError:
            raise JournalInUseError("another process writes the journal", file=name) from None

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if there is none."""
        try:
            self._files.rm_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return
