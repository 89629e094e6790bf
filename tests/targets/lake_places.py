"""Places for lake targets in tests: buckets of an S3 server on this machine."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from socket import create_connection
from tempfile import mkdtemp
from urllib.parse import urlsplit

from deltalake import DeltaTable
from pyarrow import fs
from pyiceberg.table import Table as IcebergTable

from headwater.targets.delta import DeltaSettings
from headwater.targets.delta.target import DeltaAdmin
from headwater.targets.iceberg import IcebergSettings, Table
from headwater.targets.iceberg.snapshots import TableChange, live_files
from headwater.targets.iceberg.stream_table import StreamTable
from headwater.targets.iceberg.target import IcebergAdmin
from headwater.targets.lake.paths import Place
from headwater.testing.servers.process import ServerProcess, free_port
from tests.shared import HANG_S, starting

ACCESS_KEY, SECRET_KEY = "an-access-key-id", "a-secret-of-tests-0123456789"
_numbers = count()


@dataclass(frozen=True)
class Bucket:
    """A place in an empty bucket of the S3 server, and how it is reached."""

    uri: str
    options: dict[str, str]


@cache
def s3_server() -> str:
    """Start moto's server once; return its address.

    It has a process of its own: delta-rs waits for answers without letting other threads of Python
    run.
    """
    with starting("the S3 server"):
        return started("-m", "moto.server", "-H", "127.0.0.1", "-p")


def started(*command_of_python: str) -> str:
    """Start a server whose last argument is its port; return its address."""
    port = free_port()
    folder = Path(mkdtemp(prefix="headwater-s3-"))
    command = [sys.executable, *command_of_python, str(port)]
    server = ServerProcess(command, folder, dict(os.environ))
    atexit.register(server.stop)
    deadline = time.monotonic() + HANG_S
    while True:
        with suppress(OSError), create_connection(("127.0.0.1", port), 1):
            return f"http://127.0.0.1:{port}"
        if not server.is_running or time.monotonic() > deadline:
            raise RuntimeError(server.output())
        time.sleep(0.05)


def delta_options(place: Bucket) -> dict[str, str]:
    """Return how delta-rs reaches a bucket."""
    return {
        "AWS_ENDPOINT_URL": place.options["s3.endpoint"],
        "AWS_REGION": place.options["s3.region"],
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ALLOW_HTTP": "true",
    }


def bucket(server: str | None = None) -> Bucket:
    """Make a new bucket of a server; None: of moto's."""
    options = {
        "s3.endpoint": server or s3_server(),
        "s3.region": "us-east-1",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
    }
    name = f"bucket-{next(_numbers)}"
    maker = fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region="us-east-1",
        scheme="http",
        endpoint_override=urlsplit(options["s3.endpoint"]).netloc,
        allow_bucket_creation=True,
    )
    maker.create_dir(name)
    return Bucket(f"s3://{name}/lake", options)


class AnotherEngine(TableChange):
    """Commits under names as Spark gives them, and with locations as Hadoop spells them."""

    def _new_path(self, name: str) -> str:
        path = super()._new_path(name)
        return path.replace("file:///", "file:/")


def rewrite_as_spark(stored: IcebergTable) -> None:
    """Do what Spark's `rewrite_data_files` does: one file for all, under the engine's own names."""
    held = StreamTable(Table.of(stored.name()[-1]), stored)
    old = [file for file, _ in live_files(stored)]
    plan = held.plan(held.columns, f"00000-1-spark-{time.time_ns()}")
    new = [held.data_file(one)[1] for one in plan.write(held.read(old).to_batches())]
    for one in new:
        one[1] = one.file_path.replace("file:///", "file:/")
    change = AnotherEngine(stored)
    says = {"headwater.stream-id": "spark", "headwater.epoch": "0"}  # for the names alone
    change.add(new, old, says, same_rows=True)
    snapshot = change._updates[-2].snapshot
    for key in says:
        del snapshot.summary._additional_properties[key]
    change.commit()


def optimize(uri: str, options: Mapping[str, str] | None = None) -> None:
    """Compact all files of a Delta table and write a checkpoint, as any engine may."""
    found = DeltaTable(uri, storage_options=dict(options) if options else None)
    found.optimize.compact()
    found.create_checkpoint()


def maintain_catalog(
    given: str | Path | Mapping[str, str],
    *,
    stream_id: str | None = None,
    settings: IcebergSettings | None = None,
) -> dict[str, dict[str, int]]:
    """Do what `headwater maintain` does with an Iceberg catalog."""
    return IcebergAdmin(given).maintain(stream_id, settings or IcebergSettings())


def maintain_folder(
    place: Place, *, stream_id: str | None = None, settings: DeltaSettings | None = None
) -> dict[str, dict[str, int]]:
    """Do what `headwater maintain` does with a folder of Delta tables."""
    return DeltaAdmin(place).maintain(stream_id, settings or DeltaSettings())
