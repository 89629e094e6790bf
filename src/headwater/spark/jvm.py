"""The Java process that a local session runs in: found, started, connected to, ended.

Spark's own way to start it hides the process until it is up. A stream that ends before that must be
able to end it, so it is started here, by Spark's own script. Runs on the driver.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from headwater.errors import JavaMissingError, SparkStartError

MINIMUM = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PATIENCE_S = 30
_LOOK_S = 0.02
_INCUBATOR = "^WARNING: Using incubator modules: jdk.incubator.vector$"
_environment = Lock()


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can use."""

    executable: Path
    version: int


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark would start. Called on the driver before a session is made.

    `environment` stands in for that of the process.

    Raises:
        JavaMissingError: there is none, it does not run, or it is older than 17.
    """
    variables = os.environ if environment is None else environment
    executable, place = _locate(variables)
    version = _ask_version(executable, place)
    if version < MINIMUM:
        raise JavaMissingError(
            f"Spark needs Java {MINIMUM} or newer, and {place} is older", version=version
        )
    return Java(executable, version)


def _locate(variables: Mapping[str, str]) -> tuple[Path, str]:
    home = variables.get("JAVA_HOME")
    if home:
        return Path(home, "bin", "java"), f"JAVA_HOME ({home})"
    found = shutil.which("java", path=variables.get("PATH", ""))
    if found is None:
        raise JavaMissingError("Spark needs Java, and there is none on the PATH")
    return Path(found), f"java on the PATH ({found})"


def _ask_version(executable: Path, place: str) -> int:
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissingError(f"{place} cannot be run: {type(error).__name__}") from error
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        raise JavaMissingError(f"{place} is not a Java runtime", exit_code=answer.returncode)
    return int(found[1])


class JvmProcess:
    """A Java process with Spark in it. `end` may be called in any thread, at any time.

    `command` starts it; without one, Spark's own script does.
    """

    def __init__(self, settings: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        home = _find_spark_home()
        if command is None:
            command = [*_quiet(), str(Path(home, "bin", "spark-submit"))]
            for key, value in settings.items():
                command += ["--conf", f"{key}={value}"]
        self._folder = Path(tempfile.mkdtemp())
        environment = {
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # Arrow's own keeps what workers have freed
            **os.environ,
            "SPARK_HOME": home,
            "PYTHONHASHSEED": "0",
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._folder / "connection"),
        }
        self.was_ended = False
        self._listens = False
        self._guard = Lock()
        # Its input is a pipe: the process ends when this one does, however that one ends. It is
        # in a group of its own, so that Ctrl-C does not reach it, and `end` reaches all of it.
        self.process = subprocess.Popen(
            [*command, "pyspark-shell"],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def connect(self) -> Any:
        """Wait until Spark listens, and return the gateway to it.

        Raises:
            SparkStartError: the process has ended.
        """
        file = self._folder / "connection"
        try:
            while not file.is_file():
                if self.was_ended or self.process.poll() is not None:
                    self.close_input()
                    raise SparkStartError(
                        "the Java process of Spark has ended before it was ready",
                        exit_code=self.process.returncode,
                    )
                time.sleep(_LOOK_S)
            said = file.read_bytes()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        with self._guard:
            if self.was_ended:
                raise SparkStartError("the Java process of Spark was ended before it was ready")
            self._listens = True
        port, size = struct.unpack_from("!ii", said)
        gateway = _connect(port, said[8 : 8 + size].decode())
        gateway.proc = self.process
        return gateway

    def end(self) -> None:
        """Ask the process to end, whatever it does at the moment. May be repeated."""
        self.was_ended = True
        self.close_input()
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def end_before_it_listens(self) -> bool:
        """End the process unless Python talks to it already; tell whether it was ended."""
        with self._guard:
            if self._listens:
                return False
            self.end()
        return True

    def close_input(self) -> None:
        """Let the process end by itself, after what it has to do at its end."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def wait(self) -> None:
        """Wait for the end that was asked for."""
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def cut_wait(thread: int) -> bool:
    """Have the answer fail that a thread waits for, if a JVM is to give it; tell whether it waits.

    The connection is cut, which is that thread's alone. The JVM goes on, and so do other threads.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not ClientServerConnection.send_command.__code__:
        frame = frame.f_back
    if frame is None:
        return False
    with suppress(OSError, AttributeError):  # it is closed this moment
        frame.f_locals["self"].socket.shutdown(socket.SHUT_RDWR)
    return True


def _quiet() -> list[str]:
    """Return what runs Spark's script without the warning that Java prints of a module it adds.

    Java has no option against it. The script replaces the shell, so the process stays the same.
    """
    if shutil.which("bash") is None or shutil.which("grep") is None:
        return []
    hand_on = f"grep --line-buffered --invert-match '{_INCUBATOR}' >&2"
    return ["bash", "-c", f'exec "$@" 2> >(exec {hand_on})', "spark"]


def _connect(port: int, secret: str) -> Any:
    """Let Spark connect to a process that runs: it takes port and secret from the environment."""
    names = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    with _environment:
        os.environ.update(names)
        try:
            return launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name in names:
                os.environ.pop(name, None)
