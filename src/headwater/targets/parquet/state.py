"""The stored state of a stream beside its Parquet files, and the one writer that may change it.

Each change is a new file, `_headwater/<stream>/<epoch>-<change>-<writer>.json`; the newest counts,
and the older ones are removed. A writer begins a new epoch when it recovers. From then on an
earlier one finds the newer epoch when it looks, before it publishes and after it has written a
state, and changes nothing that counts: so object stores need neither a rename nor a lock. On a
local disk a lock refuses the second writer at once. Where a file shows before its writing has ended
(HDFS, SFTP), a crash leaves half a state: then the one before it counts. Runs on the driver.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa

from headwater.core import PipeState
from headwater.core.codec import dump_state, load_state
from headwater.errors import LakeForeignWriteError, ParquetWriterError, StoredStateError
from headwater.targets.lake.paths import Place, sync_directory
from headwater.targets.lake.table import Announce

FOLDER = "_headwater"
AT_ONCE = 8  # files that are published
_NAME = re.compile(r"(\d{6,})-(\d{12,})-([0-9a-f]+)\.json")
_TEMPORARY = re.compile(r"\.\d{6,}-\d{12,}-[0-9a-f]+\.json\.[0-9a-f]+\.tmp")
_LOOKS = 3  # at a state that is replaced at the same moment
logger = logging.getLogger("headwater.targets.parquet")


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of a stream: its state, what its files cover, their columns, its definition.

    `coverage` is the first block, by table, that no file covers yet. A table is written down there
    before its first file is published. `pending` is as in `StoredStream`. `newest` is the last
    block of each table's newest file: a folder without that file is an older copy.
    """

    state: PipeState = PipeState()  # noqa: RUF009 - immutable
    coverage: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    config: str | None = None
    pending: str = ""
    newest: Mapping[str, int] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return it as JSON, which anybody can read but for the columns."""
        return json.dumps(
            {
                **({"pending": self.pending} if self.pending else {}),
                "state": json.loads(dump_state(self.state)),
                "coverage": dict(sorted(self.coverage.items())),
                "newest": dict(sorted(self.newest.items())),
                "schemas": {
                    name: base64.b64encode(schema.serialize()).decode()
                    for name, schema in sorted(self.schemas.items())
                },
                "config": self.config,
            },
            indent=1,
        )

    @classmethod
    def from_text(cls, text: str) -> Stored:
        """Read what `to_text` wrote."""
        try:
            stored = json.loads(text)
            schemas = {
                name: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
                for name, encoded in stored["schemas"].items()
            }
            coverage = {str(name): int(first) for name, first in stored["coverage"].items()}
            newest = {str(name): int(last) for name, last in stored.get("newest", {}).items()}
            config, pending = stored.get("config"), str(stored.get("pending", ""))
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowInvalid) as error:
            raise StoredStateError("the state file is malformed", got=text[:80]) from error
        state = load_state(json.dumps(stored["state"]))
        return cls(state, coverage, schemas, config, pending, newest)


class _Version(NamedTuple):
    """The parts of a state file's name."""

    epoch: int
    change: int
    writer: str

    @property
    def name(self) -> str:
        return f"{self.epoch:06d}-{self.change:012d}-{self.writer}.json"


def _version_of(name: str) -> _Version | None:
    match = _NAME.fullmatch(name)
    return None if match is None else _Version(int(match[1]), int(match[2]), match[3])


class Folder:
    """The directory of a target: its files, changed in steps that are whole or not at all."""

    def __init__(self, place: Place, announce: Announce = lambda step: None) -> None:
        self.place = place
        self.announce = announce

    def names(self, folder: str) -> list[str]:
        """Return the names of all files below a folder, relative to it."""
        return [file.name[len(folder) + 1 :] for file in self.place.files(folder)]

    def put(self, name: str, content: bytes) -> None:
        """Write a file in one step."""
        self.announce(f"put {name}")
        self.place.replace(name, content)

    def publish(self, staged: Mapping[str, str]) -> None:
        """Give staged files their names, each in one step, several at once.

        Local files are synced and renamed. An object store has no rename: it copies, and what was
        staged is deleted.
        """
        place = self.place
        step = self._rename if place.is_local else self._copy
        with ThreadPoolExecutor(AT_ONCE) as threads:
            under_way = []
            for source, name in staged.items():
                self.announce(f"publish {name}")
                under_way.append(threads.submit(step, source, name))
        for future in under_way:
            future.result()
        if place.is_local:
            for folder in {Path(place.path_of(name)).parent for name in staged.values()}:
                sync_directory(folder)

    def _rename(self, staged: str, name: str) -> None:
        path = Path(self.place.path_of(staged))
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.rename(self.place.path_of(name))

    def _copy(self, staged: str, name: str) -> None:
        place = self.place
        place.filesystem.copy_file(place.path_of(staged), place.path_of(name))
        place.delete(staged)

    def delete(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""
        self.announce(f"delete {name}")
        self.place.delete(name)


class StateFiles:
    """The state files of one stream."""

    def __init__(self, folder: Folder, stream_id: str) -> None:
        self._folder = folder
        self._id = stream_id
        self.path = f"{FOLDER}/{_folder_of(stream_id)}"
        self._version: _Version | None = None
        self._lock: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch of this writer; 0 of one that only looks."""
        return 0 if self._version is None else self._version.epoch

    def newest_epoch(self) -> int:
        """Return the newest epoch that has begun; 0 if none has."""
        return max((version.epoch for version in self._versions()), default=0)

    def claim(self) -> tuple[Stored, bool]:
        """Begin an epoch, and return what is stored, with whether anything was.

        Raises:
            ParquetWriterError: another process writes this stream, or begins to at this moment.
        """
        self._hold()
        versions = self._versions()
        stored = self._read(versions)
        epoch = versions[-1].epoch + 1 if versions else 1
        self._write(_Version(epoch, 0, secrets.token_hex(8)), stored or Stored())
        present = self._versions()
        if [version for version in present if version.epoch >= epoch] != [self._version]:
            raise ParquetWriterError("another writer begins at this moment", stream=self._id)
        newest = self._read([version for version in present if version.epoch < epoch])
        if newest is not None and newest != stored:  # what it stored before it saw this epoch
            stored = newest
            self._write(_Version(epoch, 1, secrets.token_hex(8)), stored)
        self._clean()
        return stored or Stored(), stored is not None

    def read(self) -> Stored | None:
        """Return what is stored, without claiming it; None if nothing is."""
        for _ in range(_LOOKS - 1):
            with suppress(ParquetWriterError):
                return self._read(self._versions())
        return self._read(self._versions())

    def _read(self, versions: Sequence[_Version]) -> Stored | None:
        """Return the newest of some states that is whole."""
        for version in reversed(versions):
            content = self._folder.place.read(f"{self.path}/{version.name}")
            if content is None:
                raise ParquetWriterError("another writer begins at this moment", stream=self._id)
            if _is_whole(content):
                return Stored.from_text(content.decode())
            logger.warning("state.half id=%s file=%s", self._id, version.name)
        if versions:
            raise StoredStateError("no state file of the stream is whole", folder=self.path)
        return None

    def save(self, stored: Stored) -> None:
        """Store what counts from now on: the commit point."""
        assert self._version is not None, "a writer claims a stream before it stores anything"
        self._write(self._version._replace(change=self._version.change + 1), stored)
        self.check()
        self._clean()

    def check(self) -> None:
        """Refuse to go on if another writer has taken over."""
        assert self._version is not None, "a writer claims a stream before it stores anything"
        versions = self._versions()
        if versions and versions[-1].epoch > self._version.epoch:
            raise ParquetWriterError(
                "another process has taken over this stream", stream=self._id, folder=self.path
            )

    def release(self) -> None:
        """Let another process write the stream."""
        lock, self._lock, self._version = self._lock, None, None
        if lock is not None:
            os.close(lock)

    def _write(self, version: _Version, stored: Stored) -> None:
        self._folder.put(f"{self.path}/{version.name}", stored.to_text().encode())
        self._version = version

    def _versions(self) -> list[_Version]:
        versions = map(_version_of, self._folder.names(self.path))
        return sorted(version for version in versions if version is not None)

    def _clean(self) -> None:
        """Remove what this state has replaced, and what a crash has left half written.

        A later writer may have begun since the last look: what it has written stays.
        """
        assert self._version is not None, "called by a writer"
        for name in self._folder.names(self.path):
            version = _version_of(name)
            old = _TEMPORARY.fullmatch(name) if version is None else version < self._version
            if old:
                self._folder.delete(f"{self.path}/{name}")

    def _hold(self) -> None:
        """Take the lock of a local place; the system releases it when the process ends."""
        place = self._folder.place
        if not place.is_local or self._lock is not None:
            return
        path = Path(place.path_of(f"{self.path}/lock"))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ParquetWriterError(
                "another process writes this stream", stream=self._id, folder=str(path.parent)
            ) from None
        self._lock = handle


def read_stored(place: Place, stream_id: str) -> Stored | None:
    """Return what is stored of a stream, without claiming it; None if nothing is."""
    return StateFiles(Folder(place), stream_id).read()


def check_owners(place: Place, stream_id: str, tables: Collection[str]) -> None:
    """Refuse tables that another stream of the same folder has written down as its own.

    A stream writes a table down, then looks: of two that do so at once, one sees the other.

    Raises:
        LakeForeignWriteError: two streams claim a table; no file of it may be judged by either.
    """
    for folder in place.under(FOLDER).folders() if tables else ():
        other = unquote(folder)
        stored = None if other == stream_id else read_stored(place, other)
        shared = sorted(set(tables) & set(stored.coverage)) if stored is not None else ()
        if shared:
            raise LakeForeignWriteError(
                "another stream writes files of the same table in this folder",
                tables=", ".join(shared), stream=stream_id, other=other,
            )  # fmt: skip


def _folder_of(stream_id: str) -> str:
    """Return the name of a stream's folder; `.` and `..` would be other folders."""
    return quote(stream_id, safe="").replace(".", "%2E" if set(stream_id) <= {"."} else ".")


def _is_whole(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
