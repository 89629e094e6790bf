"""How the tests start JVMs and Spark's Python: cheaply, with what was compiled before.

    python -m tests.jvm

makes two things, once per environment; `make test` runs it beside the first tests:

- An archive of the classes that a small use of everything loads. A JVM with Spark in it takes 5.7
  CPU seconds to start with the archive and 11 without, and a run starts ten to twenty. Without an
  archive, or with one of other jars, Java goes on as it always does: so does a JVM that starts
  while the archive is being made.
- A home of Spark whose Python is the installed package. In Spark's own home it is a zip file, from
  which every Python process that Spark starts compiles pyspark anew: half a CPU second each. The
  suite starts hundreds: four kinds for each session, and one for each streaming query.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

# JVMs live for seconds or minutes here: a compiler that optimizes for hours, and threads that
# collect garbage beside two busy cores, cost more than they save.
CHEAP = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
VARIABLES = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")

_MAKE = """
import sys, tempfile
from pyspark import SparkContext
from headwater.spark import local_session, register
from headwater.testing import simulated_portal
session = local_session("archive", **{"spark.master": "local[2,4]"})
register(session)
with tempfile.TemporaryDirectory() as folder, simulated_portal(seed=1, blocks=60) as portal:
    options = {"portal": portal.url, "event": "erc20.Transfer"}
    rows = session.read.format("headwater").options(**options).load()
    rows.mapInArrow(lambda batches: batches, rows.schema).persist().count()
    rows.join(rows.groupBy("address").count(), "address").orderBy("log_index").toArrow()
    rows.write.parquet(f"{folder}/rows")
    session.read.parquet(f"{folder}/rows").where("log_index > 1").collect()
    stream = session.readStream.format("headwater").options(**options, journal=f"{folder}/journal")
    query = (stream.load().groupBy("address").count().writeStream.outputMode("update")
             .option("checkpointLocation", f"{folder}/checkpoint")
             .foreachBatch(lambda batch, number: batch.collect()).start())
    query.processAllAvailable()
    query.stop()
    process = SparkContext._gateway.proc
    session.stop()
    process.stdin.close()
    process.wait()
"""


def spark_home() -> Path:
    """Return where the home of Spark for the tests lies, made or not."""
    return Path(sys.prefix, "cache", f"spark-home-{version('pyspark')}")


def make_spark_home() -> None:
    """Link what Spark's scripts and its JVM look for; what is to be a zip is a folder with links.

    Python does not ask which of them a part of its path is, and takes bytecode from a folder.
    """
    part = spark_home().with_suffix(f".{os.getpid()}")
    installed = _installed("pyspark")
    lib = part / "python" / "lib"
    lib.mkdir(parents=True)
    for name in ("bin", "sbin", "jars"):
        (part / name).symlink_to(installed / name)
    for zipped in (installed / "python" / "lib").glob("*.zip"):
        package = _installed(zipped.name.removesuffix(".zip").partition("-")[0])
        (lib / zipped.name).mkdir()
        (lib / zipped.name / package.name).symlink_to(package)
    try:
        part.rename(spark_home())
    except OSError:  # another process was first
        shutil.rmtree(part)


def _installed(package: str) -> Path:
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def archive() -> Path | None:
    """Return where the archive of this Java and this Spark lies, made or not; None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "/nonexistent")
    if not java.exists() or " " in sys.prefix:  # Spark's script cuts options at spaces
        return None
    made_of = f"{java.resolve()} {spark_home()} {version('pyspark')} {CHEAP} {_MAKE}"
    key = hashlib.sha256(made_of.encode()).hexdigest()
    return Path(sys.prefix, "cache", f"spark-classes-{key[:12]}.jsa")


def set_options() -> None:
    """Have every JVM that the tests start take these options; what is set already stays.

    Spark's Python is that of the tests, also where a test starts Spark in a process of its own.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if spark_home().exists():
        os.environ.setdefault("SPARK_HOME", str(spark_home()))
    classes = archive()
    shared = f" -XX:SharedArchiveFile={classes} {QUIET}" if classes else ""
    for variable in VARIABLES:
        # the launcher of Spark's script lives for a moment, and has other classes
        os.environ.setdefault(variable, CHEAP + (shared if "LAUNCHER" not in variable else ""))


def main() -> None:
    """Make both, unless they are there."""
    if not spark_home().exists():
        make_spark_home()
    classes = archive()
    if classes is None or classes.exists():
        return
    classes.parent.mkdir(exist_ok=True)
    part = classes.with_suffix(f".{os.getpid()}")
    options = f"{CHEAP} -XX:ArchiveClassesAtExit={part} {QUIET}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": CHEAP,
        "SPARK_SUBMIT_OPTS": options,
    }
    try:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _MAKE],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        )
        part.replace(classes)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or "")[-2000:]
        sys.stderr.write(f"JVMs start without an archive of Spark's classes: {error}\n{said}\n")
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
