"""Coded errors that went through a Spark worker: text on the way, errors again at the driver.

A task's exception reaches the driver as the text of a traceback inside an exception of Spark's. The
text of our errors starts with their code, so they can be found in it and raised as what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from headwater.errors import REGISTRY, HeadwaterError

_CODED = re.compile(r"\[(E\d{4})\] (.+?)\. Fix: ", re.DOTALL)


def coded_error(text: str) -> HeadwaterError | None:
    """Return the last of our errors that a traceback tells of, if it tells of any."""
    for code, message in reversed(_CODED.findall(text)):
        if code in REGISTRY:
            return REGISTRY[code](message)
    return None


@contextmanager
def coded_failures() -> Iterator[None]:
    """Raise failures of tasks as the coded errors they were; others stay Spark's."""
    try:
        yield
    except PySparkException as error:
        found = coded_error(str(error))
        if found is None:
            raise
        raise found from error
