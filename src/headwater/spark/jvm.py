"""The Java process that a local session runs in: found, started, connected to, ended.

Spark's own way to start it hides the process until it is up. A stream that ends before that must be
able to end it, so it is started here: by Spark's own script, or from an archive of Spark's classes,
which is made once per machine. Most of what a JVM does when Spark starts is to find, check and lay
out classes. Java can keep the outcome in a file (class-data sharing): Spark is up in half the time,
for 6 instead of 9 CPU seconds. The file belongs to one Java and one set of jars; its folder is
named after both, in the user's cache folder. It is made by a process of its own of the lowest
priority, after a run that started Spark has ended. HEADWATER_SPARK_ARCHIVE=off keeps it from being
made or used. Runs on the driver.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyspark
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import functions

from headwater.errors import JavaMissingError, SparkStartError

logger = logging.getLogger("headwater.spark")

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
    java = shutil.which("java", path=variables.get("PATH", ""))
    if java is None:
        raise JavaMissingError("Spark needs Java, and there is none on the PATH")
    return Path(java), f"java on the PATH ({java})"


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
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        raise JavaMissingError(f"{place} is not a Java runtime", exit_code=answer.returncode)
    return int(match[1])


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


# --- an archive of Spark's classes ----------------------------------------------------------------


SWITCH = "HEADWATER_SPARK_ARCHIVE"
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_CHANGES_COMMAND = (
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_ENV_SH", "SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH",
    "SPARK_PREPEND_CLASSES", "SPARK_DAEMON_JAVA_OPTS", "PYSPARK_SUBMIT_ARGS", "JDK_JAVA_OPTIONS",
)  # fmt: skip
_CHANGE_COMMAND_TOO = (
    "spark.driver.extraClassPath", "spark.driver.extraLibraryPath",
    "spark.driver.defaultJavaOptions", "spark.submit.deployMode",
)  # fmt: skip
_QUIET_SHARING = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
_MAKING_S = 300.0
_USES = "transforms"  # what is done while it is made: more is another archive


@dataclass(frozen=True, slots=True)
class Archive:
    """Where the archive of one Java and one Spark lies, whether it was made or not."""

    java: Path
    home: Path
    folder: Path

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Archive | None:
        """Return the place for the Java and the Spark of this process.

        None where Spark is set up in a way of its own, so that only its own script can start it.
        """
        home = Path(_find_spark_home())
        own = any(environment.get(name) for name in _CHANGES_COMMAND) or (home / "conf").exists()
        if own or environment.get(SWITCH) == "off":
            return None
        try:
            java = _locate(environment)[0].resolve(strict=True)
        except (JavaMissingError, OSError):
            return None
        cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/"), ".cache")
        return cls(java, home, Path(cache, "headwater", f"spark-{_key(java, home)}"))

    @property
    def classes(self) -> Path:
        """The archive itself."""
        return self.folder / "classes.jsa"

    @property
    def exists(self) -> bool:
        """Whether it was made."""
        return self.classes.is_file() and self._kept.is_file()

    def command(self, settings: Mapping[str, str]) -> list[str] | None:
        """Return the command that starts Spark from the archive; None if it cannot be used."""
        if any(name in settings for name in _CHANGE_COMMAND_TOO):
            return None
        try:
            kept = json.loads(self._kept.read_text())
            whole = self.classes.stat().st_size == kept["bytes"]
        except (OSError, ValueError):
            return None
        if not whole:
            return None
        flags = [f"-XX:SharedArchiveFile={self.classes}", *_QUIET_SHARING]
        return self._start(kept["options"], flags, settings)

    def forget(self) -> None:
        """Remove an archive from which Spark did not start; the next run that can makes another."""
        for file in (self._kept, self.classes):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def make(self) -> bool:
        """Start Spark once, use it a little, and keep its classes. False if it is being made.

        Runs in a process of its own; concurrent ones exclude each other. What it makes appears
        whole, or not at all.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            self._remove_parts()
            try:
                if not self.exists:
                    self._make()
            finally:
                self._remove_parts()
        return True

    def _remove_parts(self) -> None:
        """Remove what makings have left that were stopped. Called under the lock."""
        for part in self.folder.glob("classes.[0-9]*"):
            part.unlink(missing_ok=True)

    @property
    def _kept(self) -> Path:
        return self.folder / "start.json"

    def _make(self) -> None:
        from headwater.spark.local_start import context_in
        from headwater.spark.session import NARROW, settings_of, warm_up

        options = self._ask_options()
        settings = settings_of("headwater archive", {**NARROW, "spark.master": "local[1]"})
        part = self.folder / f"classes.{os.getpid()}"
        flags = [f"-XX:ArchiveClassesAtExit={part}", *_QUIET_SHARING]
        process = JvmProcess(settings, self._start(options, flags, settings))
        try:
            context = context_in(process, settings)
            context.parallelize([0, 1], 2).map(int).collect()
            session = pyspark.sql.SparkSession(context)
            warm_up(session)
            _transform(session)
            context.stop()
            process.close_input()
            process.process.wait(_MAKING_S)
            self._kept.write_text(json.dumps({"options": options, "bytes": part.stat().st_size}))
            part.replace(self.classes)
        finally:
            process.end()
            process.wait()  # Java writes the part when it ends, however it ends

    def _ask_options(self) -> list[str]:
        """Return the options with which Spark's own script starts Java on this machine."""
        asked = subprocess.run(
            [str(self.home / "bin" / "spark-submit"), "--version"],
            env={**os.environ, "SPARK_PRINT_LAUNCH_COMMAND": "1", "SPARK_CONNECT_MODE": "0"},
            capture_output=True,
            text=True,
            check=True,
            timeout=_MAKING_S,
        )
        _, _, rest = asked.stderr.partition("Spark Command: ")
        words = rest.partition(f" {_MAIN} ")[0].split(" ")
        assert words[1] == "-cp", "the class path is given first"
        return [
            word
            for word in words[3:]
            if not word.startswith(("-Xmx", "--add-modules=jdk.incubator"))
        ]

    def _start(
        self, options: Sequence[str], flags: Sequence[str], settings: Mapping[str, str]
    ) -> list[str]:
        jars = sorted(str(jar) for jar in (self.home / "jars").glob("*.jar"))
        command = [str(self.java), "-cp", os.pathsep.join(jars), *flags, *options]
        command.append(f"-Xmx{settings['spark.driver.memory']}")
        command += [*shlex.split(settings.get("spark.driver.extraJavaOptions", "")), _MAIN]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        return command


def _transform(session: pyspark.sql.SparkSession) -> None:
    """Do what a stream with a transform does: capture a plan, keep rows, and compute on them."""
    from headwater.spark.executors import DataFrameRows
    from headwater.spark.plans import TransformPlan

    rows = pa.table({"n": pa.array([1, 2], pa.int64()), "s": ["a", "b"]})
    known = session.createDataFrame([("a", 1)], "s string, known int")

    def transform(data: Mapping[str, Any]) -> dict[str, Any]:
        texts = data["rows"].where("n > 0").selectExpr("upper(s) s", "cast(n as string) n")
        return {"rows": texts.join(functions.broadcast(known), "s", "left")}

    plan = TransformPlan(transform, {"rows": rows.schema}, lambda: session)
    kept = session.createDataFrame(rows).persist(StorageLevel.DISK_ONLY)
    for frame in plan.apply({"rows": kept}).values():
        DataFrameRows(frame).run(_nothing, pa.schema([]))
    kept.unpersist()


def _nothing(batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
    yield from ()


def make_later() -> None:
    """Have the archive made by a process of its own, unless it exists. Never raises.

    Called on the driver when a run has ended that started Spark by its own script.
    """
    try:
        archive = Archive.find()
        if archive is None or archive.exists:
            return
        logger.info("spark.archive is made in the background folder=%s", archive.folder)
        subprocess.Popen(
            [sys.executable, "-c", "from headwater.spark.jvm import main; main()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        logger.info("spark.archive cannot be made: %s", error)


def _key(java: Path, home: Path) -> str:
    """Return a name for one Java and one set of jars."""
    release = java.parents[1] / "release"
    facts = [
        _USES,
        str(java),
        str(java.stat().st_size),
        release.read_text() if release.is_file() else "",
        pyspark.__version__,
        str(home),
        *sorted(f"{jar.name} {jar.stat().st_size}" for jar in (home / "jars").glob("*.jar")),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def main() -> int:
    """Make the archive, at the lowest priority."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # it cleans up
    with suppress(OSError):
        os.nice(19)
    archive = Archive.find()
    return 0 if archive is not None and archive.make() else 1
