"""The base of all coded errors, one base per kind, and the registry that keeps codes unique."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

_SHOWN = 160  # characters of a value that was given
REGISTRY: dict[str, type[HeadwaterError]] = {}


class HeadwaterError(Exception):
    """Base of all coded errors; never raised itself.

    Errors declare `code` and `fix` in the class statement; a base, which is there to be caught,
    declares neither. `facts` are the values that a reader needs; they are shown after the message.
    """

    code: ClassVar[str]
    fix: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, code: str | None = None, fix: str = "", retryable: bool = False
    ) -> None:
        """Register the class under its code; refuse a code that is taken."""
        super().__init_subclass__()
        if code is None:
            return
        if code in REGISTRY:
            raise TypeError(f"error code {code} is taken by {REGISTRY[code].__name__}")
        cls.code, cls.fix, cls.retryable = code, fix, retryable
        REGISTRY[code] = cls

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={_short(key, value)}" for key, value in self.facts.items())
        return f"[{self.code}] {self.message}{f' ({shown})' if shown else ''}. Fix: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _short(key: str, value: object) -> str:
    """Return a fact as text; of what a user gave, which may be a whole table, its beginning."""
    text = str(value)
    return text if key != "got" or len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@contextmanager
def coded_line_first() -> Iterator[None]:
    """Let the text of a coded error begin with its code where Spark shows it.

    Used in Python processes of Spark's, which end with an error; Spark shows a user the traceback
    of such a process, and our frames, or the cause, would stand before what went wrong and what to
    do. A message says what its cause was.
    """
    try:
        yield
    except HeadwaterError as error:
        if not _is_of_spark():
            raise
        sys.tracebacklimit = 0
        raise error from None


def _is_of_spark() -> bool:
    """Tell whether this process is one of Spark's: a worker, or the reader of a streaming query."""
    started = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    workers = ("pyspark.worker", "pyspark.sql.worker")
    return started.startswith("pyspark.sql.") or any(one in sys.modules for one in workers)


def _rebuild(cls: type[HeadwaterError], message: str, facts: dict[str, object]) -> HeadwaterError:
    return cls(message, **facts)


class ConfigError(HeadwaterError):
    """E0: configuration that cannot work; raised before anything is read or changed."""


class ForkError(HeadwaterError):
    """E1: the chain and the stored state cannot be reconciled."""


class TargetError(HeadwaterError):
    """E20 ClickHouse, E21 PostgreSQL, E23 Parquet, E25 DuckDB, E26 lakes: a target cannot do it."""


class PortalError(HeadwaterError):
    """E3: transport, status codes, malformed or contradictory answers."""


class DecodeError(HeadwaterError):
    """E4: signatures, layouts, contents of blocks."""


class SparkError(HeadwaterError):
    """E5: Java, sessions, column types, the data source."""


class ChangeError(HeadwaterError):
    """E6: operations on rows."""


class EffectError(HeadwaterError):
    """E7: messages and their delivery."""
