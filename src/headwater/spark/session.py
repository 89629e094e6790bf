"""A Spark session that suits small batches, for programs that did not bring one.

Near the head of a chain a batch is one block, and Spark's defaults are made for hours of work: 200
shuffle partitions alone turn 0.1 s into more than a second. The settings below were chosen by
measuring such batches; they are put only on sessions that are made here. A session that exists is
the user's and is used as it is.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from headwater.errors import SparkStartError
from headwater.spark.archive import Archive
from headwater.spark.jvm import JvmProcess, find_java

logger = logging.getLogger("headwater.spark")

_LOGGING = Path(__file__).with_name("log4j2.properties")
_GIB = 1 << 30

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
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms128m -Xmn32m",
}
"""For streams whose rows never enter the JVM: it schedules tasks, and needs little for that."""

making = threading.RLock()
"""Is held while a session is made here: half of one must not be taken for a session."""


def local_session(app: str = "headwater", **conf: object) -> SparkSession:
    """Return the session that is active, unchanged, or make one for this machine.

    Called on the driver. `conf` holds Spark's own settings, which win over those of this module:
    `local_session(**{"spark.master": "local[8]"})`. If a session is active, `conf` is not applied.

    Raises:
        JavaMissingError: there is no session yet, and no Java to make one with.
        SparkStartError: Spark does not start.
    """
    with making:
        active = active_session()
        if active is not None:
            return active
        with _own_interrupt_handler():
            make_context(app, _texts(conf))
            return SparkSession.builder.getOrCreate()


def make_context(
    app: str,
    conf: dict[str, str],
    on_process: Callable[[JvmProcess], None] = lambda process: None,
) -> SparkContext:
    """Start Spark on this machine; `on_process` is told of the Java process once it runs.

    Called on the driver, in any thread, under the lock `making`.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = settings_of(app, conf)
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return context_in(None, settings)
    archive = Archive.find()
    command = None if archive is None else archive.command(settings)
    if archive is not None and command is not None:
        process = JvmProcess(settings, command)
        on_process(process)
        try:
            return context_in(process, settings)
        except SparkStartError as error:
            if process.was_ended:
                raise
            logger.warning("spark.archive is not usable and removed: %s", error)
            archive.forget()
    find_java()
    process = JvmProcess(settings)
    on_process(process)
    return context_in(process, settings)


def settings_of(app: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of a session that is made here; those of `conf` win."""
    settings = {**SETTINGS, "spark.app.name": app, "spark.driver.memory": _driver_memory(), **conf}
    if settings["spark.master"].startswith("local"):
        settings.setdefault("spark.python.daemon.module", "headwater.spark.daemon")
    options = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOGGING} {options}"
    return settings


def context_in(process: JvmProcess | None, settings: Mapping[str, str]) -> SparkContext:
    """Make a context in a Java process; None for the one that Spark is connected to already."""
    gateway = None if process is None else process.connect()
    return SparkContext(conf=SparkConf().setAll(list(settings.items())), gateway=gateway)


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Put back a handler of SIGINT that the program has set: Spark replaces it with its own.

    A stream that starts its session in the middle of a run would end in a trace otherwise. Python's
    default handler is left to Spark, which cancels its jobs first.
    """
    before = signal.getsignal(signal.SIGINT)
    yield
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and callable(before) and before is not signal.default_int_handler:
        signal.signal(signal.SIGINT, before)


def active_session() -> SparkSession | None:
    """Return the session that exists in this process, Headwater's or the user's.

    One that is being made in another thread is waited for.
    """
    with making:
        active = SparkSession.getActiveSession()
        if active is None and SparkContext._active_spark_context is not None:
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
