"""Logging in one call: `setup_logging()` for a program that has set up none of its own.

Headwater logs under `headwater.stream` (batches, forks, stops), `headwater.portal` (retries,
stalls), `headwater.spark`, `headwater.effects` (the outbox) and `headwater.dashboard`. A message is
an event and its values, `batch.committed id=usdc to=19#0xab… blocks=1`, so that a person can read
it and a machine can take it apart. Nothing is configured unless this is called.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import TextIO

_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+$")
_PAIR = re.compile(r"(\w+)=(\S*)")
_STANDARD = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message; event and values where it has any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        message = record.getMessage()
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        event, _, values = message.partition(" ")
        if _EVENT.match(event):
            document["event"] = event
            document.update(
                (key, value) for key, value in _PAIR.findall(values) if key not in document
            )
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: a program may replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # it never changes here
        """Standard error."""
        return sys.stderr


def setup_logging(
    level: int | str = logging.INFO, *, json_lines: bool = False, out: TextIO | None = None
) -> None:
    """Send what Headwater logs to standard error, in lines for people or as JSON.

    Calling it again replaces what an earlier call has set up. Loggers of other libraries are left
    as they are, but for py4j, which logs every lost connection of a Spark that ends.
    """
    handler = _ToStandardError() if out is None else logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter() if json_lines else logging.Formatter(_STANDARD))
    handler.set_name("headwater")
    logger = logging.getLogger("headwater")
    for one in [handler for handler in logger.handlers if handler.get_name() == "headwater"]:
        logger.removeHandler(one)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    quiet_py4j()


def quiet_py4j() -> None:
    """Keep py4j's own log lines away, unless the program has set a level for them."""
    logger = logging.getLogger("py4j")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
