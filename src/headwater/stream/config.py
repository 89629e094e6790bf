"""Compares the stream's definition with the one that its rows were made by, once, before a run.

A stream resumes at its cursor, whatever its outputs ask for by then. If they ask for something else
than before, a table would hold the answers to two different questions, with the seam nowhere to be
seen. So what each output asks for is stored beside the cursor, as hashes, and compared.

Part of it are the network, the query and the columns. Ranges are not: they may be extended. Nor are
the portal's address, options, transforms or targets. Beside the hashes stands the first block of
each output, so that one which is raised later leaves no hole in silence.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from headwater.core import BlockCursor, BlockRange, PipeState
from headwater.decode import Output
from headwater.errors import (
    ConfigChangedError,
    InvalidOptionError,
    SkippedBlocksError,
    StoredStateError,
)
from headwater.stream.factory_index import parts_of, scope_of
from headwater.targets.contract import Delivery, Target

OnConfigChange = Literal["error", "warn", "ignore"]
CONFIG_VERSION = 1
logger = logging.getLogger("headwater.stream")


@dataclass(frozen=True, slots=True)
class Config:
    """What a stream asks for: a hash per output, and the block that it begins with."""

    outputs: Mapping[str, str]
    firsts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Mapping[str, Output]) -> Config:
        """Return what these outputs ask for."""
        return cls({name: _fingerprint(output) for name, output in outputs.items()})

    @classmethod
    def load(cls, text: str) -> Config:
        """Read a stored one."""
        match json.loads(text):
            case {"version": int(version), "outputs": dict(outputs), **rest} if (
                version <= CONFIG_VERSION
            ):
                firsts: Any = rest.get("firsts", {})  # earlier versions did not store them
                return cls(outputs, firsts)
        raise StoredStateError("the stored configuration cannot be read", got=text[:80])

    def dump(self) -> str:
        """Return the text to store."""
        outputs = dict(sorted(self.outputs.items()))
        text = {"version": CONFIG_VERSION, "outputs": outputs}
        if self.firsts:
            text["firsts"] = dict(sorted(self.firsts.items()))
        return json.dumps(text)

    def differences(self, before: Config) -> dict[str, str]:
        """Return the names of outputs that are not as before, by what became of them."""
        was, now = before.outputs, self.outputs
        found = {
            "changed": [name for name in now if name in was and now[name] != was[name]],
            "added": [name for name in now if name not in was],
            "removed": [name for name in was if name not in now],
        }
        return {what: ", ".join(sorted(names)) for what, names in found.items() if names}


def check_option(given: object) -> OnConfigChange:
    """Return what to do about a change; refuse anything unknown."""
    for one in get_args(OnConfigChange):
        if given == one:
            return one  # type: ignore[no-any-return]
    raise InvalidOptionError("on_config_change is 'error', 'warn' or 'ignore'", got=repr(given))


def compare_config(
    target: Target[Delivery],
    state: PipeState,
    now: Config,
    stream_id: str,
    how: OnConfigChange,
) -> None:
    """Compare with what is stored, and store what is new. Called after `recover`.

    The first run stores it; so does one on a stream that has committed nothing yet.

    Raises:
        ConfigChangedError: the outputs ask for something else, and `on_config_change` is "error".
    """
    keeps = target.capabilities.config
    if keeps is None:
        return
    stored = keeps.stored_config()
    text = stored.read()
    differences = {}
    if text is not None and state.cursor is not None:
        before = Config.load(text)
        differences, now = now.differences(before), replace(now, firsts=before.firsts)
    if differences and how == "error":
        raise ConfigChangedError(
            "the stream's outputs are not those that its tables were filled with",
            stream=stream_id,
            **differences,
        )
    if differences and how == "warn":
        shown = " ".join(f"{what}={names}" for what, names in differences.items())
        logger.warning("config.changed id=%s at=%s %s", stream_id, state.cursor, shown)
    if text != now.dump():
        stored.write(now.dump())


def compare_firsts(
    target: Target[Delivery], cursor: BlockCursor | None, firsts: Mapping[str, int], stream_id: str
) -> None:
    """Compare the first block of each output with the stored one; store what is new or lower.

    Called once the ranges are resolved, after `compare_config`. An output whose blocks are all
    behind the cursor, or that began above it before too, misses nothing.

    Raises:
        SkippedBlocksError: an output was raised over blocks that it would never be given.
    """
    keeps = target.capabilities.config
    if keeps is None:
        return
    stored = keeps.stored_config()
    before = Config.load(stored.read() or Config({}).dump())
    for name, first in firsts.items():
        if cursor is None or name not in before.firsts:
            continue
        due = max(cursor.number + 1, before.firsts[name])
        if first > due:
            raise SkippedBlocksError(
                "an output begins above the block that it would be given next",
                stream=stream_id,
                output=name,
                cursor=cursor,
                first=first,
                skipped=BlockRange(due, first - 1),
            )
    known = before.firsts if cursor is not None else {}
    kept = {name: min(first, known.get(name, first)) for name, first in firsts.items()}
    if kept != before.firsts:
        stored.write(replace(before, firsts=kept).dump())


def _fingerprint(output: Output) -> str:
    """Hash what an output asks for and how it reads the answer; nothing of where and how fast."""
    columns = [[field.name, str(field.type)] for field in output.schema]
    scopes = [scope_of(part) for part in parts_of(output)]
    children = _one_or_all([None if one is None else one.factory.key for one in scopes])
    on_error = _one_or_all([getattr(part, "on_error", None) for part in parts_of(output)])
    parts = [output.query.query_hash, columns, on_error, children]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _one_or_all(values: list[str | None]) -> str | list[str | None] | None:
    """Return what a union has for each of its events, or the one value of another output."""
    return values if len(values) > 1 and any(values) else values[0]
