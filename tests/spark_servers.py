"""Clusters and Spark Connect servers of tests, started on this machine."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from pyspark.find_spark_home import _find_spark_home

from headwater.spark.entrance import LOOPBACK
from headwater.spark.jvm import find_java
from headwater.testing.servers.process import ServerProcess

_CONNECT = "org.apache.spark.sql.connect.service"


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 1, cores: int = 2) -> Iterator[str]:
    """Run a cluster while the block runs; yield the address of its master.

    Each worker has so many cores, 2 GB for executors and, on Linux, an address of its own: Spark
    starts no copy of a slow task at the same one. Logs and work go to `folder`.
    """
    find_java()
    with ExitStack() as stack:
        line = _daemon(
            stack, folder, LOOPBACK, r"Starting Spark master at (\S+)", "deploy.master.Master",
            "--host", LOOPBACK, "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        for number in range(workers):
            host = f"127.0.0.{number + 1}" if sys.platform == "linux" else LOOPBACK
            _daemon(
                stack, folder, host, r"Successfully registered with master (\S+)",
                "deploy.worker.Worker", "--host", host, "--webui-port", "0",
                "--cores", str(cores), "--memory", "2g",
                "--work-dir", str(folder / f"worker-{number}"), line,
            )  # fmt: skip
        yield line


@contextmanager
def spark_connect_server(
    folder: Path, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a Spark Connect server while the block runs; yield its address, `sc://…`.

    With a `spark_cluster` as its master it has executors of its own. Needs the packages of
    `pyspark[connect]`. Logs and tables go to `folder`.
    """
    find_java()
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": (folder / "tables").as_uri(),
        **(settings or {}),
    }
    with ExitStack() as stack:
        place = _daemon(
            stack, folder, LOOPBACK, r"Spark Connect server started at: (\S+)",
            "deploy.SparkSubmit", "--master", master, "--class", f"{_CONNECT}.SparkConnectServer",
            *(word for name, value in given.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        )  # fmt: skip
        yield f"sc://{place}"


def _daemon(stack: ExitStack, folder: Path, host: str, said: str, kind: str, *args: str) -> str:
    """Start a part of the cluster, wait until it says that it is ready; return what it said."""
    place = Path(mkdtemp(prefix=f"{kind.rpartition('.')[2]}-", dir=folder))
    home = _find_spark_home()  # that of the drivers, too
    process = ServerProcess(
        [str(Path(home, "bin", "spark-class")), f"org.apache.spark.{kind}", *args],
        place,
        {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": host,
            "SPARK_LOG_DIR": str(folder),
            "PYSPARK_PYTHON": sys.executable,
        },
    )
    stack.callback(process.stop)
    stack.callback(_kill_group, process.pid)  # with the executors of a worker
    while True:
        running = process.is_running
        printed = (place / "log").read_text(errors="replace")
        if found := re.search(rf"{said}\n", printed):
            return found[1]
        if not running:
            raise AssertionError(printed)
        time.sleep(0.05)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):  # a test has killed it
        os.killpg(pid, signal.SIGKILL)
