"""The folder of a journal: on this machine, or where pyarrow or fsspec reaches (S3, HDFS, …).

A file is written once and whole: after `create` returns, a crash of the process or of the machine
does not lose it, and no other process has taken over the folder. Used by the driver's process
alone.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO
from urllib.parse import unquote, urlsplit

from pyarrow import ArrowInvalid, fs

from headwater.errors import JournalInUseError, JournalStorageError, SourceOptionError

LOCK = "lock"
CLAIMS, MARK = "claims", ".epoch-"
_NATIVE = {"s3": "s3", "s3a": "s3", "s3n": "s3", "hdfs": "hdfs", "viewfs": "viewfs", "gs": "gs"}
WAIT_S = 15.0  # for the process of a query that has just been stopped


def open_folder(address: str) -> Folder:
    """Return the folder of a journal; `open_files` says of which name, and what it refuses."""
    files, path = open_files(address)
    if isinstance(files, fs.LocalFileSystem):
        return LocalFolder(Path(path))
    return RemoteFolder(files, path)


def open_files(address: str) -> tuple[fs.FileSystem, str]:
    """Return where a folder of this name is: a path, a file: address, or an address for fsspec.

    Raises:
        SourceOptionError: it has credentials, or needs a driver that is not installed.
    """
    parts = urlsplit(address)
    scheme = parts.scheme
    if len(scheme) < 2:  # none, or a drive letter
        return fs.LocalFileSystem(), address
    if scheme == "file":
        return fs.LocalFileSystem(), unquote(parts.path)
    if parts.username or parts.password:
        raise SourceOptionError(
            "the folder's address has credentials: leave them to the environment", scheme=scheme
        )
    try:
        if scheme in _NATIVE:
            files, path = fs.FileSystem.from_uri(address.replace(scheme, _NATIVE[scheme], 1))
            return files, path
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        store, path = url_to_fs(address)
        return fs.PyFileSystem(fs.FSSpecHandler(store)), path
    except (ImportError, ValueError, OSError, ArrowInvalid) as error:
        raise SourceOptionError(
            f"a folder at {scheme}: cannot be opened: {error}",
            fix_with="name a local folder, or install what reaches this one (fsspec's driver)",
        ) from error


class LocalFolder:
    """A folder on this machine; one process at a time. All files are small."""

    def __init__(self, path: Path, *, wait_s: float = WAIT_S) -> None:
        self._path = path
        self._wait_s = wait_s
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Make the folder, lock it, and remove what a crash has left half written.

        Raises:
            JournalInUseError: another process holds it, also after a while.
            JournalStorageError: it cannot be made.
        """
        with _storing("opened"):
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
        return sorted(path.name for path in self._path.iterdir() if path.name != LOCK)

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
            JournalStorageError: it cannot be written.
        """
        half = self._path / f"{name}.tmp"
        with _storing("written"), half.open("wb") as file:
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
    """A folder of a store that pyarrow or fsspec reaches. The process that opened it last owns it.

    Stores have no locks, and not all can refuse to replace a file. So each process that opens the
    folder begins an epoch by a file of its own (a claim), and its files are named by it. After each
    file that it writes it looks for a later claim, and ends if there is one, before an offset
    covers the file. What such a process wrote last is known by its epoch: a file whose name comes
    after one of a later epoch does not count.
    """

    def __init__(self, files: fs.FileSystem, path: str) -> None:
        self._files = files
        self._path = path.rstrip("/")
        self._epoch = 0
        self._token = token_hex(8)
        self._held: dict[str, int] = {}  # the epochs of the files that count, by name

    def open(self) -> None:
        """Claim the folder, list it, and remove what does not count.

        Raises:
            JournalInUseError: another process claims it at this moment.
            JournalStorageError: it cannot be reached.
        """
        with _storing("opened"):
            self._files.create_dir(f"{self._path}/{CLAIMS}", recursive=True)
        before = self._claims()
        self._epoch = max((epoch for epoch, _ in before), default=0) + 1
        self._put(_claim(self._epoch, self._token), b"")
        self._check()
        for claim in before[:-1]:  # the last one stays, for a process that has not looked yet
            self._delete(_claim(*claim))
        parts = (name.rpartition(MARK) for name in self._list(""))
        files = sorted((name, int(epoch)) for name, mark, epoch in parts if mark)
        self._held = _counted(files)
        for name, epoch in files:
            if self._held.get(name) != epoch:
                self._delete(f"{name}{MARK}{epoch}")

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def names(self) -> list[str]:
        """Return the names of the files, in order."""
        return sorted(self._held)

    def read(self, name: str) -> bytes | None:
        """Return a file; None if there is none."""
        if name not in self._held:
            return None
        path = f"{self._path}/{name}{MARK}{self._held[name]}"
        try:
            with _storing("read"), self._files.open_input_stream(path) as stream:
                return bytes(stream.readall())
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> None:
        """Write a file; a store keeps it when it is closed.

        Raises:
            JournalInUseError: the name is taken, or another process has claimed the folder.
            JournalStorageError: it cannot be written.
        """
        if name in self._held:
            raise JournalInUseError("another process writes the journal", file=name)
        self._put(f"{name}{MARK}{self._epoch}", data)
        self._check()
        self._held[name] = self._epoch

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if there is none."""
        epoch = self._held.pop(name, None)
        if epoch is not None:
            self._delete(f"{name}{MARK}{epoch}")

    def _check(self) -> None:
        """Look whether another process has claimed the folder, in this epoch or a later one."""
        own = self._epoch, self._token
        others = [claim for claim in self._claims() if claim != own and claim[0] >= self._epoch]
        if others:
            raise JournalInUseError("another process has taken over the journal", epoch=others[-1])

    def _claims(self) -> list[tuple[int, str]]:
        parts = (name.partition("-") for name in self._list(CLAIMS))
        return sorted((int(epoch), token) for epoch, _, token in parts if epoch.isdecimal())

    def _list(self, folder: str) -> list[str]:
        chosen = fs.FileSelector(f"{self._path}/{folder}".rstrip("/"), allow_not_found=True)
        with _storing("listed"):
            infos = self._files.get_file_info(chosen)
        return [info.base_name for info in infos if info.type == fs.FileType.File]

    def _put(self, name: str, data: bytes) -> None:
        with _storing("written"), self._files.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(data)

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError), _storing("removed from"):
            self._files.delete_file(f"{self._path}/{name}")


Folder = LocalFolder | RemoteFolder


def _claim(epoch: int, token: str) -> str:
    return f"{CLAIMS}/{epoch}-{token}"


def _counted(files: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the files that count, by name, with their epochs; `files` is in order of names.

    Files with numbers as names are written in their order, so what comes after one of a later epoch
    was written by a process that had lost the folder. Of others the latest counts.
    """
    counted: dict[str, int] = {}
    newest = 0
    for name, epoch in files:
        if not name[0].isdecimal():
            counted[name] = epoch
        elif epoch >= newest:
            counted[name] = newest = epoch
    return counted


@contextmanager
def _storing(what: str) -> Iterator[None]:
    """Name what a store refuses."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalStorageError(f"the journal cannot be {what}", reason=error) from error
