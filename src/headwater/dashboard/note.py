"""A note beside a file that one process holds: where that process shows its streams.

DuckDB lets one process open a file, so `headwater status chain.duckdb` asks the process that has
it. A stream that runs into the file leaves the note once it holds the file, if its process serves a
dashboard; it goes when the process ends. One of a process that was killed is not believed.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from headwater.dashboard.server import open_dashboards

logger = logging.getLogger("headwater.dashboard")

SUFFIX = ".headwater.json"
_written: set[Path] = set()


def leave_note(file: Path) -> None:
    """Say beside a file where its streams are shown. Called by a stream that holds the file."""
    shown = open_dashboards()
    note = _beside(file)
    if not shown or note in _written:
        return
    text = json.dumps({"pid": os.getpid(), "address": f"{shown[0].host}:{shown[0].port}"})
    new = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(note)
    except OSError as error:  # a folder where only the file may be written
        logger.info("dashboard.no_note file=%s reason=%s", note, error.strerror)
        return
    _written.add(note)
    atexit.register(_remove, note)


def read_note(file: Path) -> str | None:
    """Return the address of the dashboard of the process that holds a file; None if unknown."""
    try:
        note = json.loads(_beside(file).read_text(encoding="utf-8"))
        os.kill(int(note["pid"]), 0)
        return str(note["address"])
    except PermissionError:  # it lives, and is another user's
        return str(note["address"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _beside(file: Path) -> Path:
    file = file.resolve()
    return file.with_name(file.name + SUFFIX)


def _remove(note: Path) -> None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(note.read_text(encoding="utf-8"))["pid"] == os.getpid():
            note.unlink()
