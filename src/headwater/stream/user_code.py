"""Failures of user code, told in terms of the user's own program.

A transform, `on_data` or another callback may raise anything. The loop's own frames say nothing to
its author: a failure is shown from the author's first frame on, with the stream, the blocks and the
outputs that it was about, and where it ran. The exception itself stays what it was, so a program
that catches `KeyError` still does. Runs on the driver.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pyspark.errors import PySparkException

from headwater.core import Batch, Span
from headwater.core.callbacks import Callback, NamedCallback
from headwater.errors import HeadwaterError

_CALLS = (Callback.__call__.__code__, NamedCallback.__call__.__code__)
_TRACE = "Traceback (most recent call last):"
_WORKER_FRAME = re.compile(r'  File "[^"]*[/\\](?:pyspark|headwater)[/\\].*\n(?:    .*\n)*')
_LONGEST = 4000  # characters of a trace that executors sent


@contextmanager
def placed(stage: str, stream_id: str, batches: Sequence[Batch[Any]]) -> Iterator[None]:
    """Note on an error, once, which stream and blocks it was about, and where it ran."""
    try:
        yield
    except Exception as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(_place(error, stage, stream_id, batches))
        raise


def _place(error: Exception, stage: str, stream_id: str, batches: Sequence[Batch[Any]]) -> str:
    on_executor = isinstance(error, PySparkException) and _TRACE in str(error)
    place = [f"stream {stream_id!r}"]
    if batches:
        place.append(f"blocks {_first(batches[0])}..{batches[-1].headers[-1].number}")
        outputs = getattr(batches[0].data, "data", None)
        if outputs:
            place.append(f"outputs {', '.join(map(str, outputs))}")
    return f"{stage}: {', '.join(place)}, on {'an executor' if on_executor else 'the driver'}"


def _first(batch: Batch[Any]) -> int:
    """Return the first block of a batch; of a span the last header alone is known."""
    if isinstance(batch.data, Span):
        return batch.data.block_range.from_block
    first = batch.headers[0].number
    ctx = getattr(batch.data, "ctx", None)
    count = len(batch.headers) if ctx is None else ctx.batch.blocks_count
    return min(first, batch.headers[-1].number - count + 1)


def from_user_frame(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the first frame of user code on; None if it is not of it."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in _CALLS and frame.tb_next is not None:
            return frame.tb_next
        frame = frame.tb_next
    return None


def headline(error: BaseException) -> str:
    """Return an error in one line: a coded one says what it is, another one its type, too."""
    text = str(error) if isinstance(error, HeadwaterError) else _last_line(error)
    lines = [" ".join(text.split("\n", 1)[0].split()), *getattr(error, "__notes__", ())]
    return "; ".join(line for line in lines if line)


def failure_text(error: BaseException) -> str:
    """Return what a person is shown of a failure: the user's frames, if it is of user code."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, HeadwaterError):
        return f"{error}{notes}"
    sent = _sent_trace(str(error)) if isinstance(error, PySparkException) else None
    if sent is not None:
        return f"{sent}{notes}"
    frames = from_user_frame(error) or error.__traceback__
    shown = "".join(traceback.format_tb(frames))
    return f"{_TRACE}\n{shown}{_last_line(error)}{notes}"


def _last_line(error: BaseException) -> str:
    """Return the type and the message; of an error of Spark's, the message alone begins."""
    if isinstance(error, PySparkException):
        sent = _sent_trace(str(error))
        text = sent.rstrip().rsplit("\n", 1)[-1] if sent else str(error).split("\n", 1)[0]
        return text if sent else f"{type(error).__name__}: {text}"
    return "".join(traceback.format_exception_only(type(error), error)).split("\n", 1)[0]


def _sent_trace(text: str) -> str | None:
    """Return the traceback that an executor sent, from the user's first frame on."""
    _, found, trace = text.partition(_TRACE)
    if not found:
        return None
    trace = re.split(r"\n\s*(?:\tat |Driver stacktrace|JVM stacktrace)", trace, maxsplit=1)[0]
    own = _WORKER_FRAME.sub("", trace.lstrip("\n")).rstrip()
    return f"{_TRACE}\n{own}"[:_LONGEST]


def quiet_spark_queries() -> None:
    """Keep away the JSON line that Spark logs of a wrong column: the error says the same.

    A level that the program has set stays.
    """
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger = PySparkLogger.getLogger(name)
        if not logger.level:
            logger.setLevel("CRITICAL")
