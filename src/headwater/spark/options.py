"""The options of `format("headwater")`: one list for reading, for changelogs and for modules.

Names are written as Spark's own, in camelCase; `from_block` and `FROMBLOCK` are read as
`fromBlock`. `docs/spark.md` has the list as a table, which `scripts/check_docs.py` makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from headwater.core import RangeSpec, parse_ranges
from headwater.core.ranges import At
from headwater.errors import SourceOptionError


class Use(StrEnum):
    """What a set of options is for."""

    READ = "read"
    CHANGELOG = "readStream"
    MODULE = "readStream of a module"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `beside` names the options of which one must be given with it."""

    name: str
    uses: tuple[Use, ...]
    meaning: str
    beside: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


_BLOCKS = (Use.READ, Use.CHANGELOG)
_STREAMS = (Use.CHANGELOG, Use.MODULE)
_ALL = (Use.READ, Use.CHANGELOG, Use.MODULE)

OPTIONS = (
    Option("portal", _BLOCKS, "the address of the dataset, without credentials"),
    Option(
        "portalEnv",
        _BLOCKS,
        "instead, for an address with a user, a password or a key: the environment variable that "
        "holds it, on the driver's machine, set before Spark starts; the address stands in no "
        "option, plan or event log",
    ),
    Option(
        "portalUrl",
        _BLOCKS,
        "the same as `portal` by a name whose value Spark hides in plans by itself",
    ),
    Option(
        "event",
        _BLOCKS,
        "Solidity text, JSON ABI entry or built-in name (`erc20.Transfer`): one row per log, "
        "decoded",
    ),
    Option("call", _BLOCKS, "instead of `event`, a function, likewise: one row per call, decoded"),
    Option(
        "table",
        _BLOCKS,
        "instead of `event`, a raw table of any network: `bitcoin.outputs`, `tron.logs` "
        "([schema](schema.md))",
    ),
    Option(
        "query",
        _BLOCKS,
        "instead of `event`, the JSON body of a request without its range: one row per block, with "
        "its line and its time in whole seconds; of any type, also those that have no tables here "
        "(`fuel`, `hyperliquidReplicaCmds`)",
    ),
    Option("contracts", _BLOCKS, "addresses, separated by commas", ("event", "call")),
    Option(
        "params",
        (*_BLOCKS, Use.MODULE),
        'JSON: values of indexed parameters to keep, `{"to": ["0x…"]}`; of a module, its '
        "parameters by module",
        ("event", "package"),
    ),
    Option(
        "source",
        _BLOCKS,
        "`transactions`: calls from outside; `traces`: all, with what they returned",
        ("call",),
    ),
    Option(
        "decimals",
        _BLOCKS,
        "parameters or columns to deliver as decimals, separated by commas",
        ("event", "call", "table"),
    ),
    Option(
        "onError",
        _BLOCKS,
        "`raise` or `skip`, for logs and calls that have the signature but not the content",
        ("event", "call"),
    ),
    Option("fields", _BLOCKS, "columns, separated by commas; else the usual ones", ("table",)),
    Option(
        "filters",
        _BLOCKS,
        'JSON, as in [queries](queries.md): `{"script_pub_key_address": ["bc1q…"]}`',
        ("table",),
    ),
    Option(
        "fromBlock",
        _ALL,
        "the first block: a number, a date or time, `latest`, `earliest`; without it, the first "
        "one there is. A changelog decides it once, and its checkpoint keeps it; of a module, a "
        "number",
        also=("startingBlock",),
    ),
    Option(
        "startingTimestamp", _BLOCKS, "instead of `fromBlock`: a date or time, and nothing else"
    ),
    Option(
        "toBlock",
        _ALL,
        "the last block, included: a number; a time, which is not included; `latest`, `+N`; "
        "without it, the finalized head, and a changelog goes on. Of a changelog, a number or a "
        "time; of a module, a number",
        also=("endingBlock",),
    ),
    Option("endingTimestamp", _BLOCKS, "instead of `toBlock`: a date or time, and nothing else"),
    Option(
        "failOnDataLoss",
        (Use.CHANGELOG,),
        "`false`: blocks that the portal no longer has are left out, with a warning; `true`, the "
        "default: they are E3010",
    ),
    Option(
        "partitions",
        _BLOCKS,
        "how many tasks; else chosen from the measured size. It bounds the requests in flight",
    ),
    Option(
        "journal",
        _STREAMS,
        "a folder for hot blocks, on the driver's machine or in a store (`s3://…`, `hdfs://…`, "
        "what fsspec reaches). One for each source of each query",
    ),
    Option(
        "finalOnly",
        (Use.CHANGELOG,),
        "`true` instead of a journal: only final blocks, later, and no deletes",
    ),
    Option(
        "maxBlocksPerTrigger",
        _STREAMS,
        "how many blocks a micro-batch holds at most",
    ),
    Option(
        "maxBytesPerTrigger",
        _STREAMS,
        "how many bytes of block lines, about; a block that is larger is a micro-batch by itself",
    ),
    Option(
        "far",
        (Use.CHANGELOG,),
        "how many blocks behind the finalized head executors read in parallel (1000)",
    ),
    Option("package", (Use.MODULE,), "a Substreams package (.spkg): its path or its address"),
    Option(
        "endpoint",
        (Use.MODULE,),
        "where the module runs; credentials are those of the driver's environment",
    ),
    Option("module", (Use.MODULE,), "its name, as in `substreams_stream`"),
    Option("network", (Use.MODULE,), "as in `substreams_stream`"),
    Option("output", (Use.MODULE,), "which table, of a module that has several"),
    Option(
        "target",
        (Use.WRITE,),
        "where rows go, without credentials: `postgresql://…`, `http://…` (ClickHouse), the path "
        "of a DuckDB file, the folder of a lake",
        also=("path",),
    ),
    Option(
        "targetEnv",
        (Use.WRITE,),
        "instead, for an address with a password: the environment variable that holds it, on the "
        "driver's machine",
    ),
    Option(
        "targetUrl",
        (Use.WRITE,),
        "the same as `target` by a name whose value Spark hides in plans by itself",
    ),
    Option(
        "targetFormat", (Use.WRITE,), "`iceberg` or `delta`, of a folder that does not exist yet"
    ),
    Option("dbtable", (Use.WRITE,), "the table that is written", also=("table",)),
    Option(
        "keys",
        (Use.WRITE,),
        "columns that tell rows apart, separated by commas: rows are upserted, and deleted where "
        "`_change_type` says so; without it, rows are added",
    ),
    Option(
        "id",
        (Use.WRITE,),
        "under which the target stores which micro-batches it holds; never rename it (`dbtable`)",
    ),
    Option(
        "staging",
        (Use.WRITE,),
        "a folder that driver and executors reach, for rows between tasks and commit; else they "
        "travel in Spark's messages, 64 MB of a task at most",
    ),
)

_SPARKS = {"checkpointlocation", "queryname", "outputmode"}  # of a query, which a writer sees, too

_OF_OTHERS = {  # what they are called elsewhere
    "startingoffsets": "startingBlock",
    "startingversion": "startingBlock",
    "endingoffsets": "endingBlock",
    "endingversion": "endingBlock",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "maxoffsetspertrigger": "maxBlocksPerTrigger",
    "maxfilespertrigger": "maxBlocksPerTrigger",
    "minpartitions": "partitions",
    "numpartitions": "partitions",
    "checkpointlocation": "journal",
    "checkpoint": "journal",
    "url": "portal",
    "path": "portal",
    "address": "contracts",
    "columns": "fields",
    "subscribe": "event",
    "missingblocks": "failOnDataLoss",
}
_TABLE = ": Spark keeps no options of tables for Python: CREATE TEMPORARY VIEW … USING headwater"


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _named(name: str) -> list[Option]:
    """Return the options that have a name: `table` is read by one and written by another."""
    plain = _plain(name)
    return [option for option in OPTIONS if plain in map(_plain, (option.name, *option.also))]


class Options(Mapping[str, str]):
    """What a user gave, by the names of `OPTIONS`.

    Raises:
        SourceOptionError: an option is unknown, is given twice, or lacks what it goes with.
    """

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        self._given: dict[str, str] = {}
        for name, value in given.items():
            if use is Use.WRITE and _plain(name) in _SPARKS:
                continue
            option = next((option for option in _named(name) if use in option.uses), None)
            if option is None:
                raise SourceOptionError(f"unknown option {name!r} of {use}{_suggest(name, use)}")
            if option.name in self._given:
                raise SourceOptionError(f"the option {option.name} is given by two names")
            self._given[option.name] = str(value)
        for name in self._given:
            beside = next(option.beside for option in OPTIONS if option.name == name)
            if beside and not self.keys() & set(beside):
                raise SourceOptionError(f"the option {name} goes with {' or '.join(beside)}")

    def __getitem__(self, name: str) -> str:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def choose(self, *names: str) -> str:
        """Return which one of several options is given.

        Raises:
            SourceOptionError: none is, or more than one.
        """
        chosen = [name for name in names if self.get(name)]
        if len(chosen) != 1:
            raise SourceOptionError(f"give one of {', '.join(chosen or names)}")
        return chosen[0]

    def count(self, name: str) -> int | None:
        """Return an option that is a number, 1 or more; None if it is not given."""
        text = self.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and int(text) >= 1):
            raise SourceOptionError(f"{name} must be a number, 1 or more", got=text)
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        text = self.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise SourceOptionError(f"{name} must be true or false", got=text)
        return text == "true"

    def words(self, name: str) -> list[str] | None:
        """Return an option that is a list, separated by commas; None if it is not given."""
        text = self.get(name)
        if text is None:
            return None
        return [part.strip() for part in text.split(",") if part.strip()]

    def document(self, name: str) -> dict[str, Any]:
        """Return an option that is a JSON object; an empty one if it is not given."""
        try:
            value = json.loads(self.get(name, "{}"))
        except ValueError as error:
            raise SourceOptionError(f"{name} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise SourceOptionError(f"{name} must be a JSON object")
        return value

    def range(self) -> RangeSpec:
        """Return the blocks that `fromBlock` and `toBlock`, or their times, say."""
        start = self._bound("fromBlock", "startingTimestamp")
        end = self._bound("toBlock", "endingTimestamp")
        first = None if start is not None and start.lower() == "earliest" else start
        return parse_ranges((first, end))[0]

    def _bound(self, block: str, time: str) -> str | None:
        if time not in self:
            return self.get(block)
        chosen = self.choose(block, time)
        if not isinstance(parse_ranges(self[time])[0].start, At):
            raise SourceOptionError(
                f"{time} is a date or time, such as 2026-01-31 or 2026-01-31T12:00:00Z",
                got=self[time],
            )
        return self[chosen]


def _suggest(name: str, use: Use) -> str:
    """Name the option that was meant, if one looks like it."""
    plain = _plain(name)
    if plain == "provider":  # what CREATE TABLE … USING hands over besides
        return _TABLE
    for near in _named(name):
        return f": it goes with {' and '.join(near.uses)}"
    known = {
        _plain(each): each
        for option in OPTIONS
        if use in option.uses
        for each in (option.name, *option.also)
    }
    meant = _OF_OTHERS.get(plain, "")
    if _plain(meant) in known:
        return f": did you mean {meant}?"
    close = get_close_matches(plain, known, n=1, cutoff=0.6)
    return f": did you mean {known[close[0]]}?" if close else ""


def option_table() -> str:
    """Return the table of all options, for docs/spark.md."""
    rows = [f"| option | {' | '.join(Use)} | meaning |", "|---|:-:|:-:|:-:|:-:|---|"]
    for option in OPTIONS:
        marks = " | ".join("✓" if use in option.uses else "" for use in Use)
        names = ", ".join(f"`{name}`" for name in (option.name, *option.also))
        goes = ", ".join(f"`{name}`" for name in option.beside)
        meaning = option.meaning + (f" (with {goes})" if goes else "")
        rows.append(f"| {names} | {marks} | {meaning} |")
    return "\n".join(rows)
