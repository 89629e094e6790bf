"""A Spark session that suits small batches, for programs that did not bring one.

Near the head of a chain a batch is one block, and Spark's defaults are made for hours of work: 200
shuffle partitions alone turn 0.1 s into more than a second. The settings below were chosen by
measuring such batches; they are put only on sessions that are made here. A session that exists is
the user's and is used as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headwater.errors import JavaMissingError

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
}


def local_session(app: str = "headwater", **conf: object) -> SparkSession:
    """Return the session that is active, unchanged, or make one for this machine.

    Called on the driver. `conf` holds Spark's own settings, which win over those of this module:
    `local_session(**{"spark.master": "local[8]"})`. If a session is active, `conf` is not applied.

    Raises:
        JavaMissingError: there is no session yet, and no Java to make one with.
    """
    active = active_session()
    if active is not None:
        return active
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**SETTINGS, "spark.driver.memory": _driver_memory(), **_texts(conf)}
    options = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOGGING} {options}"
    builder = SparkSession.builder.appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _own_interrupt_handler():
        return builder.getOrCreate()


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
    """Return the session that exists in this process, Headwater's or the user's."""
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        active = SparkSession.builder.getOrCreate()  # without settings: the default one, unchanged
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


MINIMUM = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can use."""

    executable: Path
    version: int


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark would start. Called on the driver before a session is made.

    `environment` stands in for `os.environ`.

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
