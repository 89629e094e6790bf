"""How the tests start JVMs: they compile cheaply, and take Spark's classes from an archive.

    python -m tests.jvm

makes the archive, once per environment; `make test` runs it first. A JVM with Spark in it takes 4.5
CPU seconds to start with the archive and 8 without, and the suite starts some forty. Without an
archive, or with one of other jars, Java goes on as it always does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

# JVMs live for seconds or minutes here: a compiler that optimizes for hours, and threads that
# collect garbage beside two busy cores, cost more than they save.
CHEAP = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
VARIABLES = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")

_MAKE = """
import sys
from pyspark import SparkContext
from headwater.spark import local_session, warm_up
session = local_session("archive", **{"spark.master": "local[2,4]"})
session.range(100).where("id > 5").groupBy("id").count().toArrow()
warm_up(session)
process = SparkContext._gateway.proc
session.stop()
process.stdin.close()
process.wait()
"""


def archive() -> Path | None:
    """Return where the archive of this Java and this Spark lies, made or not; None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "/nonexistent")
    if not java.exists():
        return None
    key = hashlib.sha256(f"{java.resolve()} {version('pyspark')} {CHEAP}".encode()).hexdigest()
    return Path(sys.prefix, "cache", f"spark-classes-{key[:12]}.jsa")


def set_options() -> None:
    """Have every JVM that the tests start take these options; what is set already stays."""
    classes = archive()
    shared = f" -XX:SharedArchiveFile={classes} {QUIET}" if classes and classes.exists() else ""
    for variable in VARIABLES:
        # the launcher of Spark's script lives for a moment, and has other classes
        os.environ.setdefault(variable, CHEAP + (shared if "LAUNCHER" not in variable else ""))


def main() -> None:
    """Make the archive, unless it is there."""
    classes = archive()
    if classes is None or classes.exists():
        return
    classes.parent.mkdir(exist_ok=True)
    part = classes.with_suffix(f".{os.getpid()}")
    options = f"{CHEAP} -XX:ArchiveClassesAtExit={part} {QUIET}"
    environment = {**os.environ, "SPARK_LAUNCHER_OPTS": CHEAP, "SPARK_SUBMIT_OPTS": options}
    made = subprocess.run(
        [sys.executable, "-c", _MAKE],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode or not part.exists():
        sys.exit(f"no archive of Spark's classes was made:\n{made.stderr[-2000:]}")
    part.replace(classes)


if __name__ == "__main__":
    main()
