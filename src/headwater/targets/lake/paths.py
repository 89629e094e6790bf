"""Where the files of a lake target are: a local directory, an S3 bucket, or any fsspec path.

`Place` is made on the driver, pickles, and is used there and on executors alike. Credentials are in
a `Secret`: no text shows them, and nothing of them is stored with the files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from headwater.address import Secret
from headwater.errors import (
    HeadwaterError,
    LakeDiskFullError,
    LakeFileGoneError,
    LakePathError,
    LakeStorageError,
)

_S3 = ("s3", "s3a", "s3n")
_S3_OPTIONS = {  # the names of pyiceberg, and what pyarrow calls them
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
    "s3.role-arn": "role_arn",
    "s3.connect-timeout": "connect_timeout",
    "s3.request-timeout": "request_timeout",
}
_ENDPOINT = "s3.endpoint"
_FULL = (  # what the system says, and SQLite of a catalog
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "database or disk is full",
)
Options = Mapping[str, str]


class FoundFile(NamedTuple):
    """A file that a place holds: its name in it, its size, and when it was written (seconds)."""

    name: str
    size: int
    written: float


@contextmanager
def coded_full_disk() -> Iterator[None]:
    """Let an error of a disk without room have a code, whichever library says it."""
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as error:
        said = [line for line in str(error).splitlines() if any(phrase in line for phrase in _FULL)]
        if not said:
            raise
        raise LakeDiskFullError("no room is left", reason=said[0].strip()[:200]) from error


@contextmanager
def coded_storage_errors() -> Iterator[None]:
    """Let an error of the storage have a code. Used where no code of the user's runs."""
    try:
        with coded_full_disk():
            yield
    except (OSError, EOFError) as error:
        raise LakePathError(
            "the storage cannot be reached, or refuses", reason=_reason(error)
        ) from error


@contextmanager
def coded_storage_failures() -> Iterator[None]:
    """Let an error of a storage that was reached before have a code, and be worth another try."""
    try:
        with coded_full_disk():
            yield
    except FileNotFoundError as error:
        raise LakeFileGoneError("a file of a table is not there", reason=_reason(error)) from error
    except (OSError, EOFError) as error:
        raise LakeStorageError("the storage fails", reason=_reason(error)) from error


def check_spelling(path: str) -> None:
    """Refuse a path that engines would take for different places.

    Raises:
        LakePathError: it holds a character that is encoded by some of them and not by others.
    """
    odd = sorted(set(path) & set("#?%"))
    if odd:
        raise LakePathError(
            "the characters # ? % name different places in different engines", found=" ".join(odd)
        )


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


@dataclass(frozen=True, slots=True)
class Place:
    """A directory. Names of files in it are relative, with `/` between their parts.

    `uri` never holds credentials. On an object store a file appears whole when its writing ends, or
    not at all; locally only what `replace` writes does.
    """

    uri: str
    options: Secret[tuple[tuple[str, str], ...]] = Secret(())  # noqa: RUF009 - immutable

    @classmethod
    def of(cls, path: str | Path, options: Options | None = None) -> Place:
        """Return the place that a user names.

        `options` are credentials and addresses: `s3.endpoint`, `s3.region`, `s3.access-key-id`,
        `s3.secret-access-key`, `s3.session-token` for S3 (left out, those of the environment or of
        the machine), and what fsspec's file system takes for any other path.

        Raises:
            LakePathError: it is no path, or it holds credentials.
        """
        text = str(path).strip()
        if not text or "\x00" in text:
            raise LakePathError("a path is needed", got=repr(text))
        parts = urlsplit(text) if "://" in text else None
        if parts is None or parts.scheme == "file":
            local = text if parts is None else unquote(parts.path)
            return cls(Path(local).absolute().as_uri())
        if parts.username or parts.password or parts.query:
            raise LakePathError(
                "credentials are given by options=, not in the path", scheme=parts.scheme
            )
        if not parts.netloc:
            raise LakePathError("the path names no bucket or host", scheme=parts.scheme)
        check_spelling(text)
        pairs = tuple(sorted((str(k), str(v)) for k, v in (options or {}).items()))
        return cls(text.rstrip("/"), Secret(pairs))

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        """Whether files are on a file system that this machine has mounted."""
        return self.uri.startswith("file://")

    @property
    def local_path(self) -> Path:
        """The directory of a local place."""
        return Path(unquote(urlsplit(self.uri).path))

    def under(self, name: str) -> Place:
        """Return a directory in this one."""
        return Place(f"{self.uri}/{name.strip('/')}", self.options)

    def uri_of(self, name: str) -> str:
        """Return the whole address of a file, as lake formats store it."""
        return f"{self.uri}/{name}"

    @property
    def filesystem(self) -> fs.FileSystem:
        """What reads and writes here; one per process and set of options."""
        return _filesystem(urlsplit(self.uri).scheme, self.options)

    def path_of(self, name: str = "") -> str:
        """Return a file's path as `filesystem` takes it."""
        parts = urlsplit(self.uri)
        path = unquote(parts.path) if self.is_local else f"{parts.netloc}{parts.path}"
        return f"{path}/{name}" if name else path

    def create(self, name: str) -> Any:
        """Open a new file for writing; it counts once it is closed. Directories are made."""
        path = self.path_of(name)
        if self.is_local:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return self.filesystem.open_output_stream(path)

    def open(self, name: str) -> Any:
        """Open a file for reading anywhere in it."""
        return self.filesystem.open_input_file(self.path_of(name))

    def read(self, name: str) -> bytes | None:
        """Return all of a small file; None if there is none."""
        try:
            with self.filesystem.open_input_stream(self.path_of(name)) as stream:
                return bytes(stream.readall())
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file in one step, so that a reader sees the old one or the new one.

        Locally: a temporary file, synced, renamed, and its directory synced. An object store does
        so by itself.
        """
        if not self.is_local:
            with self.create(name) as stream:
                stream.write(content)
            return
        path = Path(self.path_of(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)

    def is_seen(self, name: str) -> bool:
        """Tell whether a file that another process has written is there, where it may be not.

        An object store is one place for all machines: it is not asked.
        """
        return not self.is_local or Path(self.path_of(name)).exists()

    def delete(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""
        try:
            self.filesystem.delete_file(self.path_of(name))
        except FileNotFoundError:
            return

    def folders(self) -> list[str]:
        """Return the names of the directories in this one; none if it does not exist."""
        chosen = fs.FileSelector(self.path_of(), allow_not_found=True)
        entries = self.filesystem.get_file_info(chosen)
        return [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]

    def files(self, name: str = "") -> Iterator[FoundFile]:
        """Yield the files in a directory and all below it; none if it does not exist."""
        path = self.path_of(name)
        chosen = fs.FileSelector(path, allow_not_found=True, recursive=True)
        start = len(self.path_of()) + 1
        for entry in self.filesystem.get_file_info(chosen):
            if entry.type == fs.FileType.File:
                written = 0.0 if entry.mtime is None else entry.mtime.timestamp()
                path = (
                    entry.path if entry.path.startswith(self.path_of()) else entry.path.lstrip("/")
                )
                yield FoundFile(path[start:], int(entry.size or 0), written)


@dataclass(frozen=True, slots=True)
class CatalogPlace(Place):
    """A location of an Iceberg catalog, read and written as pyiceberg would, with its properties.

    It stands here and not beside the catalog so that executors, which write files of a table that
    is on a disk, need not import pyiceberg: that takes most of a second of every worker.
    """

    @property
    def is_local(self) -> bool:
        """Whether files are on a file system that this machine has mounted."""
        return urlsplit(self.uri).scheme in ("", "file")

    @property
    def filesystem(self) -> Any:
        """What reads and writes here."""
        if self.is_local:
            return _filesystem("file", Secret(()))
        scheme, host, _ = self._parts
        return _catalog_io(self.options).fs_by_scheme(scheme, host)

    def path_of(self, name: str = "") -> str:
        """Return a file's path as `filesystem` takes it."""
        local = Path(urlsplit(self.uri).path)
        path = str(local.absolute()) if self.is_local else self._parts[2]
        return f"{path}/{name}" if name else path

    @property
    def _parts(self) -> tuple[str, str, str]:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        return PyArrowFileIO.parse_location(self.uri)


@lru_cache(maxsize=16)
def _catalog_io(options: Secret[tuple[tuple[str, str], ...]]) -> Any:
    """Return what opens the file systems of a catalog, made once in a process."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO(dict(options.reveal()))


def sync_directory(path: Path) -> None:
    """Make names in a local directory last through a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@lru_cache(maxsize=16)
def _filesystem(scheme: str, options: Secret[tuple[tuple[str, str], ...]]) -> fs.FileSystem:
    revealed = dict(options.reveal())
    if scheme == "file":
        return fs.LocalFileSystem()
    if scheme in _S3:
        return _s3(revealed)
    try:
        import fsspec  # type: ignore[import-untyped]

        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme, **revealed)))
    except (ImportError, ValueError, TypeError) as error:
        reason = type(error).__name__ if revealed else str(error)
        raise LakePathError("no file system for this path", scheme=scheme, reason=reason) from None


def _s3(given: dict[str, str]) -> fs.FileSystem:
    kwargs: dict[str, Any] = {
        own: given[name] for name, own in _S3_OPTIONS.items() if given.get(name)
    }
    for name in ("connect_timeout", "request_timeout"):
        if name in kwargs:
            kwargs[name] = float(kwargs[name])
    endpoint = given.get(_ENDPOINT)
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        kwargs["endpoint_override"] = host.rstrip("/")
        kwargs["scheme"] = scheme or "https"
    return fs.S3FileSystem(**kwargs)
