"""Server processes of tests, which end with the process that started them, however that one ends.

Beside each server stands a guard: a small process that waits until its parent is gone, then ends
the server and removes its folder. So kill -9 of a test run leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

_CHANCE = SystemRandom()
_GUARD = """
import os, shutil, signal, sys, time
parent, server, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
while os.getppid() == parent:
    time.sleep(0.2)
try:
    os.kill(server, signal.SIGQUIT)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        time.sleep(0.02)
        os.kill(server, 0)
    os.kill(server, signal.SIGKILL)
except ProcessLookupError:
    pass
shutil.rmtree(folder, ignore_errors=True)
"""


class ServerProcess:
    """One server that runs in `folder`, and its guard. Its output goes to the file `log` there.

    `user` is a user and a group to run as; None runs it as we are.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        user: tuple[int, int] | None = None,
    ) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as output:
            self._server = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **run_as(user),
            )
        watched = [str(os.getpid()), str(self.pid), str(folder)]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, *watched],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return int(self._server.pid)

    @property
    def is_running(self) -> bool:
        """Tell whether the server has not ended yet."""
        return self._server.poll() is None

    def output(self) -> str:
        """Return the end of what the server has said."""
        return self._log.read_text(errors="replace")[-2000:]

    def stop(self, *signals: signal.Signals) -> None:
        """End the server with the first of some signals that it obeys; then end the guard."""
        for number in (*signals, signal.SIGKILL):
            if not self.is_running:
                break
            self._server.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(10)
        self._guard.kill()
        self._guard.wait()


def run_as(user: tuple[int, int] | None) -> dict[str, Any]:
    """Return the options of `subprocess` that run a program as a user and group; None: as we."""
    return {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on now.

    It is none of those that the system gives to connections: one could take it before the server
    does, or while a server is down that is to come back at the same address.
    """
    while True:
        port = _CHANCE.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def remove(folder: Path) -> None:
    """Remove the folder of a server that has ended."""
    shutil.rmtree(folder, ignore_errors=True)
