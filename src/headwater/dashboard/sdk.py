"""The JSON answers of the Pipes SDK's metrics server, so that its own page can show our streams.

Names and nesting are the SDK's (reference/pipes-sdk.md, section 2); values are ours.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from headwater.metrics import BatchFacts, Counts


class Shown(Protocol):
    """A stream as the page asks for it: the record of one that runs here, or of another process."""

    id: str
    portal: str

    @property
    def status(self) -> str:
        """Whether it runs, and how."""
        ...

    @property
    def facts(self) -> BatchFacts | None:
        """The rows of its last batch."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return where the stream stands, and its recent past."""

    def preview(self, rows: int = 5) -> dict[str, list[dict[str, Any]]]:
        """Return rows of the last batch, by output."""

    def profiles(self) -> list[tuple[float, dict[Any, float]]]:
        """Return the seconds per stage of the last commits."""


def stats(streams: Mapping[str, Shown]) -> dict[str, Any]:
    """Return what `/stats` answers."""
    from headwater import __version__

    return {
        "sdk": {"version": __version__},
        "runtime": {"name": "python", "version": platform.python_version()},
        "entrypoint": sys.argv[0] if sys.argv else "",
        "usage": {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024},
        "pipes": [_pipe(one) for one in streams.values()],
    }


def _pipe(record: Shown) -> dict[str, Any]:
    shown = record.snapshot()
    cursor = shown["cursor"] or {"number": 0}
    return {
        "id": record.id,
        "dataset": None,
        "portal": {"url": record.portal, "query": {}},
        "progress": {
            "from": shown["from_block"] or 0,
            "current": cursor["number"],
            "to": shown["to_block"] or 0,
            "percent": shown["percent"] or 0,
            "etaSeconds": shown["eta_seconds"] or 0,
        },
        "speed": {"blocksPerSecond": shown["blocks_per_second"], "bytesPerSecond": 0},
    }


def profiler(record: Shown | None, since: str) -> dict[str, Any]:
    """Return what `/profiler` answers: the stages of the last batches, in milliseconds."""
    after = _moment(since)
    profiles = [] if record is None else [p for at, p in record.profiles() if at >= after]
    return {"enabled": True, "profiles": [_tree(stages) for stages in profiles]}


def _tree(stages: Mapping[Any, float]) -> dict[str, Any]:
    children, offset = [], 0.0
    for name, seconds in stages.items():
        spent = 1000 * seconds
        children.append({"name": name, "totalTime": spent, "startOffset": offset, "children": []})
        offset += spent
    return {"name": "batch", "totalTime": offset, "startOffset": 0, "children": children}


def preview(record: Shown | None) -> dict[str, Any]:
    """Return what `/preview/transformation` answers: the last rows near the head."""
    facts = None if record is None else record.facts
    if record is None or facts is None:
        return {}
    counts = facts.counts() or Counts()
    children = [
        {"name": name, "data": json.dumps(rows, default=str), "children": []}
        for name, rows in record.preview(1).items()
    ]
    return {
        "transformation": {"name": "batch", "data": None, "children": children},
        "batch": {
            "from": facts.last.number - facts.blocks + 1,
            "to": facts.last.number,
            "blocksCount": facts.blocks,
            "bytesSize": counts.bytes,
        },
    }


def _moment(text: str) -> float:
    """Read a date as JavaScript writes it; anything else is the beginning of time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
