"""A real ClickHouse for tests: started in a temporary folder, stopped and removed afterwards.

    from headwater.testing.servers.clickhouse import clickhouse_server

    with clickhouse_server() as url:
        ...                     # point clickhouse_target at url

The engine comes from the wheel `chdb-core` (26.7 or newer), whose library can listen like a server:
HTTP on 127.0.0.1, one user without a password, no replication. Set `HEADWATER_CLICKHOUSE_URL` to
use a server of your own instead; tests create databases on it and drop them.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from headwater.testing.servers.process import ServerProcess, free_port, remove

VARIABLE = "HEADWATER_CLICKHOUSE_URL"
_START_S = 120.0
_CONFIG = """<clickhouse>
  <listen_host>127.0.0.1</listen_host>
  <http_port>{port}</http_port>
  <remote_servers><default><shard><replica>
    <host>127.0.0.1</host><port>9000</port>
  </replica></shard></default></remote_servers>
  <database_atomic_delay_before_drop_table_sec>0</database_atomic_delay_before_drop_table_sec>
  <log-level>error</log-level>
  <logger><console>1</console></logger>
</clickhouse>
"""
# The library is loaded by itself: the package around it would import far more than is needed.
_SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
import _chdb
_chdb.query(
    "SYSTEM START LISTEN HTTP; SELECT sleepEachRow(1) FROM system.numbers FORMAT Null "
    "SETTINGS max_block_size = 1, max_threads = 1", "TabSeparated", path=sys.argv[2])
"""


@contextmanager
def clickhouse_server() -> Iterator[str]:
    """Run a server and yield its address; or yield that of `HEADWATER_CLICKHOUSE_URL`."""
    url = os.environ.get(VARIABLE)
    if url:
        yield url
        return
    server = ClickHouseServer()
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


class ClickHouseServer:
    """A server that can be killed and started again on the same data, at the same address."""

    def __init__(self) -> None:
        spec = find_spec("chdb")
        folders = (spec.submodule_search_locations or []) if spec else []
        library = next(
            (path for folder in folders for path in Path(folder).glob("_chdb*.so")), None
        )
        if library is None:
            raise RuntimeError(
                f"no ClickHouse on this machine: pip install 'chdb-core>=26.7', or set {VARIABLE}"
            )
        self._library = library.parent
        self._folder = Path(tempfile.mkdtemp(prefix="headwater-clickhouse-"))
        self._port = free_port()
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The id of its process; 0 while it does not run."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start, and wait until it answers."""
        home = self._folder / "home" / ".clickhouse-local"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.xml").write_text(_CONFIG.format(port=self._port))
        command = [sys.executable, "-c", _SERVE, str(self._library), str(self._folder / "data")]
        environment = {**os.environ, "HOME": str(home.parent), "TZ": "UTC"}
        process = self._process = ServerProcess(command, self._folder, environment)
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if not process.is_running or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"ClickHouse did not start: {process.output()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(signal.SIGKILL)

    def remove(self) -> None:
        """End it, and remove its data."""
        self.kill()
        remove(self._folder)

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/ping", timeout=5) as answer:
            return bool(answer.status == 200)
        return False
