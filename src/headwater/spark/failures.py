"""Failures of Spark's tasks, as the coded errors that they were.

A task's exception reaches the driver as the text of a traceback inside an exception of Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from headwater.errors import (
    REGISTRY,
    ExecutorPythonError,
    HeadwaterError,
    WorkerLostError,
    WorkerSilentError,
)

_CODED = re.compile(r"\[(E\d{4})\] (.+?)\. Fix: ", re.DOTALL)
_FACTS = re.compile(r"(.*?) \(([a-z]\w*=.*)\)", re.DOTALL)
_NEXT_FACT = re.compile(r", (?=[a-z]\w*=)")
_OTHER_PYTHON = re.compile(
    r"No module named '?(?:google|headwater|pyspark|pyarrow|numpy|msgspec|Crypto|urllib3|psycopg)\b"
    r"[\w.']*|PYTHON_VERSION_MISMATCH.*"
)
_WORKER_SILENT = "Python worker failed to connect back"
_WORKER_LOST = "Python worker exited unexpectedly"
_TASK_FAILED = "Job aborted due to stage failure"


def coded_error(text: str) -> HeadwaterError | None:
    """Return the last of our errors that a traceback tells of, if it tells of any.

    A task's exception reaches the driver as the text of a traceback inside an exception of Spark's.
    The text of our errors starts with their code, so they can be found in it.
    """
    for code, message in reversed(_CODED.findall(text)):
        if code in REGISTRY:
            return _with_facts(REGISTRY[code], message)
    return None


def _with_facts(kind: type[HeadwaterError], text: str) -> HeadwaterError:
    """Return an error with the facts that its text ends with; numbers and None are such again."""
    shown = _FACTS.fullmatch(text)
    if shown is None:
        return kind(text)
    error = kind(shown[1])
    for fact in _NEXT_FACT.split(shown[2]):
        name, value = fact.split("=", 1)
        is_number = value.isdecimal() and str(int(value)) == value
        error.facts[name] = int(value) if is_number else None if value == "None" else value
    return error


def known_failure(text: str) -> HeadwaterError | None:
    """Return what a failure that Spark tells of is, if it is one of ours, or one of its workers."""
    found = coded_error(text)
    if found is None and (wrong := _OTHER_PYTHON.search(text)):
        found = ExecutorPythonError("executors run another Python", said=wrong[0])
    if found is None and _WORKER_SILENT in text:
        found = WorkerSilentError("Spark has waited for a Python process that was starting")
    if found is None and _WORKER_LOST in text and _TASK_FAILED not in text:
        found = WorkerLostError("a Python worker was lost while Spark planned a scan")
    return found


@contextmanager
def coded_failures() -> Iterator[None]:
    """Raise failures of tasks as the coded errors they were; so a lost planner, a wrong Python.

    Others stay Spark's.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = known_failure(str(error))
        if found is None:
            raise
        raise found from error
