"""A Spark session that suits small batches, for programs that did not bring one.

Near the head of a chain a batch is one block, and Spark's defaults are made for hours of work: 200
shuffle partitions alone turn 0.1 s into more than a second. The settings below were chosen by
measuring such batches; they are put only on sessions that are made here. A session that exists is
the user's and is used as it is; `ship` brings Headwater to its executors.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import signal
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

import headwater
import pyspark_headwater
from headwater.errors import InvalidOptionError
from headwater.spark.local_start import LocalStart, active_context, making
from headwater.spark.versions import is_connect

_LOGGING = Path(__file__).with_name("log4j2.properties")
_GIB = 1 << 30
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

SETTINGS = {
    "spark.master": "local[*,4]",  # a failed task is tried again, which plain local[*] does not do
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark sets it for functions over DataFrames: so tasks without one share their Python processes
    "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
    # what Spark hides in plans and event logs: options that hold an address, URLs with credentials
    "spark.sql.redaction.options.regex": "(?i)url|portal",
    "spark.redaction.string.regex": r"(?i)https?://[^\s/?'\"]*@[^\s'\",)\]]*"
    r"|https?://[^\s?'\",)\]]*[?][^\s'\",)\]]*",
}

NARROW = {
    "spark.driver.memory": "1g",
    _JAVA_OPTIONS: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms128m -Xmn32m",
}
"""For streams whose rows never enter the JVM: it schedules tasks, and needs little for that."""

_FEW_CORES = 4
_SMALL = "-XX:+UseSerialGC -Xmn64m"  # threads that collect, and a heap that grows, need more cores
_LATER = (  # the compiler that optimizes begins ten times later: few methods are worth its work
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC ?")
_JAVA_VARIABLES = (
    "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_LAUNCHER_OPTS",
    "SPARK_SUBMIT_OPTS",
)  # fmt: skip


def local_session(app: str = "headwater", **conf: object) -> SparkSession:
    """Return the session that is active, unchanged, or make one for this machine.

    Called on the driver. `conf` holds Spark's own settings, which win over those of this module:
    `local_session(**{"spark.master": "local[8]"})`. If a session is active, `conf` is not applied.

    Raises:
        JavaMissingError: there is no session yet, and no Java to make one with.
        SparkStartError: Spark does not start.
    """
    if (active := active_session()) is not None:
        return active
    ended = Event()
    start = LocalStart.join(ended, settings_of(app, _texts(conf)), workers=False)
    if start is not None:
        try:
            ended.wait()
            start.take()
        finally:
            start.leave(ended)
        on_main = current_thread() is main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _cancel_jobs)
    return active_session() or local_session(app, **conf)


def settings_of(app: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of a session that is made here; those of `conf` win."""
    settings = {**SETTINGS, "spark.app.name": app, "spark.driver.memory": _driver_memory(), **conf}
    if settings["spark.master"].startswith("local"):
        settings.setdefault("spark.python.daemon.module", "headwater.spark.daemon")
    options = conf.get(_JAVA_OPTIONS) or _java_options(os.cpu_count() or 1)
    if any(_COLLECTOR.search(os.environ.get(name, "")) for name in _JAVA_VARIABLES):
        options = _COLLECTOR.sub("", options)  # Java does not start if it is told of two
    settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_LOGGING} {options}"
    return settings


def _java_options(cores: int) -> str:
    """Return options of a JVM that works for minutes, and beside Python workers."""
    return f"{_SMALL} {_LATER}" if cores <= _FEW_CORES else _LATER


def _cancel_jobs(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C like a Spark that was started in the main thread: end its jobs first."""
    try:
        context = SparkContext._active_spark_context
        if context is not None:
            context.cancelAllJobs()
    finally:
        raise KeyboardInterrupt


def active_session() -> SparkSession | None:
    """Return the session that exists in this process, Headwater's or the user's.

    One that is being made in another thread is waited for.
    """
    with making:
        active = SparkSession.getActiveSession()
        if active is None and active_context() is not None:
            active = SparkSession.builder.getOrCreate()  # without settings: as it is
        return active


def warm_up(spark: SparkSession) -> None:
    """Run one tiny batch through Arrow, a plan and back.

    The first batch of a session takes seconds: classes are loaded and code is made. Called on the
    driver before the head is read; has no other effect, so it may be repeated.
    """
    rows = pa.table({"number": pa.array([1, 2], pa.int64()), "hash": ["0x1", "0x2"]})
    data = spark.createDataFrame(rows)
    data.where("number > 1").select("hash").toArrow()
    data.groupBy("hash").count().toArrow()


def _texts(conf: dict[str, object]) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in conf.items()
    }


def _driver_memory() -> str:
    """Take a quarter of the machine, from 1 to 8 GiB: the rest is for Python and the databases."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(8, max(1, total // 4 // _GIB))}g"


# --- Headwater for executors whose Python does not have it ----------------------------------------


_PACKAGES = (headwater, pyspark_headwater)
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # so that the same files make the same zip


def ship(spark: Any) -> None:
    """Give the executors of a session this version of Headwater. May be repeated.

    Called on the driver, before the first stream or data source of the session. `spark` may be a
    session of Spark Connect: its server and its executors get the package then. An installed
    Headwater of an executor comes second; that of a server of Spark Connect comes first. The
    package is pure Python, so a zip of it will do. Libraries that it uses have to be there: a task
    that misses one ends with E5014, which names it.

    Raises:
        InvalidOptionError: `spark` is no session.
    """
    if not is_connect(spark) and not hasattr(spark, "sparkContext"):
        raise InvalidOptionError("ship takes the Spark session", got=type(spark).__name__)
    path = str(_archive())
    if is_connect(spark):
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)


def write_archive(folder: Path) -> Path:
    """Write the package into a folder, as a zip that Python can import from; return its path.

    The name says the version and the content: a session that was given one before knows it again.
    """
    contents = sorted(_files())
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in contents)).hexdigest()
    path = folder / f"headwater-{headwater.__version__}-{digest[:12]}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents:
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), data, zipfile.ZIP_DEFLATED)
    return path


@cache
def _archive() -> Path:
    """Return the zip of this process, made once: Spark fetches it for as long as it runs."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-ship-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not at the end of a process that was forked from it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return write_archive(folder)


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the packages, with the names that they have in the zip."""
    for package in _PACKAGES:
        root = Path(package.__file__ or "").parent
        for file in root.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root.parent).as_posix(), file.read_bytes()
