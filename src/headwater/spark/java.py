"""Java, found before Spark looks for it.

Without this, a missing Java is a shell script's complaint and a traceback about a port. The same
places are searched in the same order as by Spark's launcher: JAVA_HOME, then the PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import JavaMissingError

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
