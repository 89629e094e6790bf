"""Compares the stream's definition with the one that its rows were made by, once, before a run.

A stream resumes at its cursor, whatever its outputs ask for by then. If they ask for something else
than before, a table would hold the answers to two different questions, with the seam nowhere to be
seen. So what each output asks for is stored beside the cursor, as hashes, and compared.

Part of it are the network, the query, the columns, and the version that the user gives an output.
Ranges are not: they may be extended. Nor are the portal's address, options, transforms or targets.
Behind its hash stands from where on rows of a factory's children count, unless that is "log", which
is all that releases up to 0.2 knew: what they have stored is another definition than the default.
Beside the hashes stands the first block of each output, so that one which is raised later leaves no
hole in silence; and which rows it asks for, whatever their columns, so that
`on_config_change="evolve"` knows what was added (`stream/evolve.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headwater.core import BlockCursor, BlockRange, PipeState
from headwater.core.codec import dump_cursor, load_cursor
from headwater.decode import Factory, Output
from headwater.decode.columns.field_columns import known_columns
from headwater.decode.columns.malformed import said_of
from headwater.errors import (
    ConfigChangedError,
    EvolveError,
    InvalidOptionError,
    SkippedBlocksError,
    StoredStateError,
)
from headwater.stream.factory_index import parts_of, scope_of
from headwater.targets.contract import Delivery, StoredConfig, Target, branches

OnConfigChange = Literal["error", "warn", "ignore", "evolve"]
CONFIG_VERSION = 2
_WITHOUT_RENAMING = 1  # which earlier releases read, too
_PARTS = ("firsts", "rows", "columns")
logger = logging.getLogger("headwater.stream")


@dataclass(frozen=True, slots=True)
class Filling:
    """A backfill of some outputs that is under way: their hashes, and the last block it filled.

    No cursor: it has begun. `must_end`: an earlier definition cannot go on, since rows of it may be
    missing. `tables` are those that may be written, where the target asks for it.
    """

    outputs: Mapping[str, str]
    cursor: BlockCursor | None = None
    must_end: bool = False
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """What a stream asks for: a hash per output, and the block that it begins with.

    `rows` are hashes of which rows are asked for, and `columns` the types of their columns. What an
    earlier version stored has neither. `filling` and `renaming` (new names to old ones) are what
    `stream/evolve.py` has begun.
    """

    outputs: Mapping[str, str]
    firsts: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    filling: Filling | None = None
    renaming: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Mapping[str, Output], versions: Mapping[str, str] | None = None) -> Config:
        """Return what these outputs ask for. `versions` are the user's own, of some of them."""
        marks = {name: f"@{version}" for name, version in (versions or {}).items()}
        return cls(
            {
                name: _fingerprint(output) + _since_mark(output) + marks.get(name, "")
                for name, output in outputs.items()
            },
            rows={name: _rows_fingerprint(output) for name, output in outputs.items()},
            columns={
                name: {field.name: str(field.type) for field in known_columns(output.schema)}
                for name, output in outputs.items()
            },
        )

    @classmethod
    def load(cls, text: str) -> Config:
        """Read a stored one."""
        match json.loads(text):
            case {"version": int(version), "outputs": dict(outputs), **rest} if (
                version <= CONFIG_VERSION
            ):
                more: Any = rest  # earlier versions stored less
                filling = None
                if "filling" in more:
                    begun = more["filling"]
                    at = begun["cursor"]
                    cursor = None if at is None else load_cursor(json.dumps(at))
                    must_end, tables = begun.get("must_end", False), begun.get("tables", ())
                    filling = Filling(begun["outputs"], cursor, must_end, tuple(tables))
                firsts, rows, columns = (more.get(name, {}) for name in _PARTS)
                return cls(outputs, firsts, rows, columns, filling, more.get("renaming", {}))
        raise StoredStateError("the stored configuration cannot be read", got=text[:80])

    def dump(self) -> str:
        """Return the text to store."""
        text: dict[str, Any] = {
            "version": CONFIG_VERSION if self.renaming else _WITHOUT_RENAMING,
            "outputs": dict(sorted(self.outputs.items())),
        }
        for name in _PARTS:
            if part := getattr(self, name):
                text[name] = dict(sorted(part.items()))
        if self.filling is not None:
            at = self.filling.cursor
            cursor = None if at is None else json.loads(dump_cursor(at))
            outputs = dict(sorted(self.filling.outputs.items()))
            text["filling"] = {"outputs": outputs, "cursor": cursor}
            if self.filling.must_end:
                text["filling"]["must_end"] = True
            if self.filling.tables:
                text["filling"]["tables"] = list(self.filling.tables)
        if self.renaming:
            text["renaming"] = dict(sorted(self.renaming.items()))
        return json.dumps(text)

    def version(self, name: str) -> str:
        """Return the version that the user has given what transforms make of an output."""
        return self.outputs[name].partition("@")[2]

    def since(self, name: str) -> str:
        """Return from where on rows of children count in an output, of each event in turn."""
        return self.outputs[name].partition("@")[0].partition("/")[2] or "log"

    def counts_from(self, before: Config) -> dict[str, str]:
        """Return what was and is `since`, of outputs that differ in it."""
        sinces = {name: (before.since(name), self.since(name)) for name in self._in_both(before)}
        return {name: f"{was} -> {now}" for name, (was, now) in sinces.items() if was != now}

    def _in_both(self, before: Config) -> list[str]:
        return [name for name in self.outputs if name in before.outputs]

    def differences(self, before: Config) -> dict[str, str]:
        """Return the names of outputs that are not as before, by what became of them."""
        was, now = before.outputs, self.outputs
        changed = {
            "changed": [name for name in self._in_both(before) if now[name] != was[name]],
            "added": [name for name in now if name not in was],
            "removed": [name for name in was if name not in now],
        }
        return {what: ", ".join(sorted(names)) for what, names in changed.items() if names}


def check_choice(name: str, given: object, known: Sequence[str]) -> Any:
    """Return what an option says; refuse anything unknown."""
    for choice in known:
        if given == choice:
            return choice
    *most, last = (f'"{choice}"' for choice in known)
    raise InvalidOptionError(f"{name} is {', '.join(most)} or {last}", got=repr(given))


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
        EvolveError: an earlier run has begun to fill or to rename some of them, which has to be
            done first.
    """
    for stored, reached in _stored(target, state):
        _compare_config(stored, reached, now, stream_id, how)


def _stored(target: Target[Delivery], state: PipeState) -> Iterator[tuple[StoredConfig, PipeState]]:
    """Yield where each target keeps the definition, and how far it is."""
    for branch, reached in branches(target, state):
        if branch.capabilities.config is not None:
            yield branch.capabilities.config.stored_config(), reached


def _compare_config(
    stored: StoredConfig, state: PipeState, now: Config, stream_id: str, how: OnConfigChange
) -> None:
    text = stored.read()
    differences: dict[str, str] = {}
    moved: dict[str, str] = {}
    if text is not None and state.cursor is not None:
        before = Config.load(text)
        differences, moved = now.differences(before), now.counts_from(before)
        now = replace(now, firsts=before.firsts, filling=before.filling)
        if before.renaming:
            raise EvolveError(
                "tables are half renamed; run with on_config_change='evolve' and the new names "
                "until they are",
                stream=stream_id,
                renamed=", ".join(f"{old}={new}" for new, old in before.renaming.items()),
            )
    if now.filling is not None and (differences or now.filling.must_end):
        raise EvolveError(
            "outputs are half filled; run with on_config_change='evolve' until they are",
            stream=stream_id,
            outputs=", ".join(sorted(now.filling.outputs)),
            filled_to=now.filling.cursor,
        )
    if moved and how not in ("warn", "ignore"):
        raise ConfigChangedError(
            "rows of a factory's children were counted from another point than `since` says now, "
            "and a table would hold both; evm.factory(since=…) of what was goes on as before, and "
            "on_config_change='evolve' replaces the rows",
            stream=stream_id,
            **differences,
            since=", ".join(f"{name}: {change}" for name, change in moved.items()),
        )
    if differences and how not in ("warn", "ignore"):
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
    target: Target[Delivery],
    state: PipeState,
    firsts: Mapping[str, int],
    stream_id: str,
    *,
    unknown: int | None = None,
) -> None:
    """Compare the first block of each output with the stored one; store what is new or lower.

    Called once the ranges are resolved, after `compare_config`. An output whose blocks are all
    final and behind the cursor, or that began above it before too, misses nothing. `unknown` is the
    first block of outputs of which none is stored; without it, they are new.

    Raises:
        SkippedBlocksError: an output was raised over blocks that it would never be given.
    """
    for stored, reached in _stored(target, state):
        before = Config.load(stored.read() or Config({}).dump())
        known = before.firsts if reached.cursor is not None else {}
        for name, first in firsts.items():
            was = known.get(name, unknown)
            if reached.cursor is not None and was is not None:
                check_first(name, reached, first, was, stream_id)
        kept = {name: min(first, known.get(name, first)) for name, first in firsts.items()}
        if kept != before.firsts:
            stored.write(replace(before, firsts=kept).dump())


def knows_firsts(target: Target[Delivery], state: PipeState, names: Collection[str]) -> bool:
    """Tell whether each target holds the first block of each of these outputs."""
    texts = [stored.read() for stored, _ in _stored(target, state)]
    known = [text is not None and Config.load(text).firsts.keys() >= {*names} for text in texts]
    return all(known) and len(known) == len(branches(target, state))


def check_first(name: str, state: PipeState, first: int, was: int, stream_id: str) -> None:
    """Refuse a first block above the one that an output would be given next.

    Or given again, after a fork: blocks that can be undone are not there for good.

    Raises:
        SkippedBlocksError: it is above.
    """
    due = max(state.undo_floor + 1, was)
    if first > due:
        raise SkippedBlocksError(
            "an output begins above the block that it would be given next, or again after a fork",
            stream=stream_id,
            output=name,
            cursor=state.cursor,
            first=first,
            skipped=BlockRange(due, first - 1),
        )


def _fingerprint(output: Output) -> str:
    """Hash what an output asks for and how it reads the answer; nothing of where and how fast."""
    columns = [[field.name, str(field.type)] for field in known_columns(output.schema)]
    scopes = [scope_of(part) for part in parts_of(output)]
    children = _one_or_all([None if scope is None else scope.factory.key for scope in scopes])
    on_error = _one_or_all([said_of(getattr(part, "on_error", None)) for part in parts_of(output)])
    parts = [output.query.query_hash, columns, on_error, children]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _since_mark(output: Output) -> str:
    """Return from where on rows of children count; nothing where that is behind the log."""
    scopes = [scope_of(part) for part in parts_of(output)]
    begins = [since for scope in scopes if scope is not None for since in _sinces(scope.factory)]
    return "/" + ",".join(begins) if set(begins) - {"log"} else ""


def _sinces(factory: Factory | None) -> list[str]:
    """Return `since` of a factory and of those above it."""
    return [] if factory is None else [factory.since, *_sinces(factory.parent)]


def _rows_fingerprint(output: Output) -> str:
    """Hash which rows an output asks for, whatever their columns: not what comes along.

    Nor from where on rows of children count: `Config.since` tells that.
    """
    query = output.query
    conditions = sorted(
        json.dumps([row_filter.family, row_filter.canonical().conditions])
        for row_filter in query.filters
    )
    scopes = [scope_of(part) for part in parts_of(output)]
    children = [
        None if scope is None else scope.factory.counting_from("log").key for scope in scopes
    ]
    on_error = [said_of(getattr(part, "on_error", None)) for part in parts_of(output)]
    parts = [query.network.type, query.include_all_blocks, conditions, on_error, children]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _one_or_all(values: list[str | None]) -> str | list[str | None] | None:
    """Return what a union has for each of its events, or the one value of another output."""
    return values if len(values) > 1 and any(values) else values[0]
