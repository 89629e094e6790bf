"""Changes to rows of a table whose engine keeps the newest version of each key.

The table is of `ReplacingMergeTree(version, is_deleted)`, and its ORDER BY is the key of the
changes. Beside it stands a log, `<table>__before`, whose rows are of one of four kinds:

    staged   what a block does to a row        sealed   the images of a block are complete
    image    the row as the block found it     void     what stands above a block was undone

A block is staged, imaged and sealed before the table is touched, and what is written follows from
the log alone. Undo writes the oldest images above the safe block as newer versions, voids what it
undid, and removes it from the log: a crash at any statement leaves what the next start undoes in
the same way. Merges of the table lose nothing that undo needs. Runs on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes import TableSchema
from headwater.changes.model import ANONYMOUS, Codes, codes_of, column
from headwater.errors import (
    ClickHouseTableError,
    DuplicateInsertError,
    InsertOnlyError,
    RewindError,
)
from headwater.targets.clickhouse.client import every_row
from headwater.targets.clickhouse.layout import Family, Layout, Table, read_layout
from headwater.targets.clickhouse.sql import TableName, columns, compose, quote
from headwater.targets.clickhouse.state import Lease
from headwater.targets.clickhouse.types import bare
from headwater.targets.text import Fragment

SUFFIX = "__before"
BLOCK, AFTER, VERSION, KIND, WHEN, WHOLE, DELETED, NAMED = _OWN = (
    "headwater_block",
    "headwater_after",
    "headwater_version",
    "headwater_kind",
    "headwater_when",
    "headwater_whole",
    "headwater_deleted",
    "headwater_set",
)
_TYPES = ("Int64", "Int64", "Int64", "Int8", "Int8", "UInt8", "UInt8", "Array(String)")
_KINDS = {
    kind: Fragment(str(code)) for code, kind in enumerate(("staged", "image", "sealed", "void"))
}
IF_ABSENT, IF_PRESENT, ALWAYS, MUST_BE_ABSENT, NOTHING = range(5)
_INTEGER = re.compile(r"U?Int\d+")
_KEYS = re.compile(r"(?:U?Int\d+|String)")
_VERSIONS = re.compile(r"U?Int(?:32|64)")
_BETWEEN = "\x1f"
_NONE = ""


def schema_of(layout: Layout) -> TableSchema | None:
    """Return what changes may name in a table; None if its engine keeps no versions of keys.

    Nor are replicated tables taken: the log beside them is on one server.
    """
    key, kinds = layout.sorting_key, layout.columns
    if layout.is_replicated:
        return None
    if layout.family is not Family.REPLACING or not _VERSIONS.fullmatch(kinds[layout.version]):
        return None
    if not key or not all(_KEYS.fullmatch(bare(kinds.get(name, ""))) for name in key):
        return None
    shown: dict[str, Any] = {
        name: "integer" if _INTEGER.fullmatch(bare(kinds[name])) else "text"
        for name in layout.values
    }
    return TableSchema(layout.name.name, key=key, columns=shown)


def declared_log(name: TableName) -> Table:
    """Return the log of a table, as the target is to undo it."""
    return Table(name.suffixed(SUFFIX).quoted, block_column=BLOCK, live_view=False)


def is_log(layout: Layout) -> bool:
    """Tell whether a table is the log of another."""
    return layout.name.name.endswith(SUFFIX) and set(_OWN) <= layout.columns.keys()


class Versioned:
    """A table that changes are applied to, with its log."""

    def __init__(self, lease: Lease, layout: Layout) -> None:
        self._client = lease.client
        self._lease = lease
        self.layout = layout
        self.log = layout.name.suffixed(SUFFIX)
        self._rows = layout.values
        self._parts: dict[str, Any] = {
            "table": layout.name,
            "log": self.log,
            "key": columns(layout.sorting_key),
            "rows": columns(self._rows),
            "version": layout.version,
            "deleted": layout.deleted,
            "of_block": BLOCK,
            "of_after": AFTER,
            "of_version": VERSION,
            "kind": KIND,
            "when": WHEN,
            "is_deleted": DELETED,
            **_KINDS,
        }

    @classmethod
    def of_log(cls, lease: Lease, log: Layout) -> Versioned | None:
        """Return the table of a log; None if it is gone, or this is no log."""
        if not is_log(log):
            return None
        name = TableName(log.name.database, log.name.name.removesuffix(SUFFIX))
        layout = read_layout(lease.client, name, None)
        if layout is None:
            return None
        if layout.family is not Family.REPLACING:
            raise ClickHouseTableError(
                "the engine of a table with a log was changed", table=name, log=log.name
            )
        known = {*log.columns, *layout.marks}
        kinds = {name: kind for name, kind in layout.columns.items() if name in known}
        return cls(lease, replace(layout, columns=kinds))

    def create_log(self) -> None:
        """Create the log, or give it the columns that the table has got."""
        defaults = {
            row["name"]: f" DEFAULT {row['value']}"
            for row in self._client.rows(
                "SELECT name, default_expression AS value FROM system.columns WHERE "
                "database = {database:String} AND table = {name:String} "
                "AND default_kind = 'DEFAULT'",
                self.layout.name.params,
            )
        }
        kinds = {name: self.layout.columns[name] + defaults.get(name, "") for name in self._rows}
        lines = [f"{quote(name)} {kind}" for name, kind in kinds.items()]
        own = [f"{name} {kind}" for name, kind in zip(_OWN, _TYPES, strict=True)]
        self._lease.check()
        self._client.run(
            f"CREATE TABLE IF NOT EXISTS {self.log} ({', '.join(own + lines)}) "
            f"ENGINE = MergeTree ORDER BY ({BLOCK}, {VERSION})"
        )
        added = ", ".join(f"ADD COLUMN IF NOT EXISTS {line}" for line in lines)
        self._client.run(f"ALTER TABLE {self.log} {added}")

    def next_version(self) -> int:
        """Return a version that is higher than all that the table and its log have seen."""
        rows = self._rows_of(
            "SELECT greatest((SELECT toInt64(max(<version>)) FROM <table>), "
            "(SELECT max(<of_version>) FROM <log>)) + 1 AS n"
        )
        return int(rows[0]["n"])

    def apply(self, block: int, after: int, version: int) -> None:
        """Do what was staged with a version; `after`: the block whose images these are.

        Raises:
            DuplicateInsertError: an insert meets a row.
        """
        params: dict[str, Any] = {"block": block, "after": after, "version": version}
        self._run(
            "INSERT INTO <log> (<of_block>, <of_after>, <of_version>, <kind>, <rows>) "
            "SELECT {block:Int64}, {after:Int64}, {version:Int64}, <image>, <rows> "
            "FROM <table> FINAL WHERE (<key>) IN (SELECT <key> FROM <log> "
            "WHERE <of_version> = {version:Int64} AND <kind> = <staged>) AND <condition>",
            params,
        )
        self._refuse_duplicates(params)
        self._run(
            "INSERT INTO <log> (<of_block>, <of_after>, <of_version>, <kind>) "
            "SELECT {block:Int64}, {after:Int64}, {version:Int64}, <sealed> WHERE <condition>",
            params,
        )
        self._run(
            "INSERT INTO <table> (<rows>, <version>, <deleted>) "
            "SELECT <values>, {version:Int64}, now.<is_deleted> FROM (SELECT * FROM <log> "
            "WHERE <of_version> = {version:Int64} AND <kind> = <staged>) AS now "
            "LEFT JOIN (SELECT <rows>, toUInt8(1) AS headwater_is FROM <log> "
            "WHERE <of_version> = {version:Int64} AND <kind> = <image> LIMIT 1 BY <key>) AS past "
            "USING (<key>) WHERE (now.<when> IN (<always>) OR now.<when> = past.headwater_is) "
            "AND <condition>",
            params | {f"c{at}": name for at, name in enumerate(self._rows)},
            values=Fragment(", ".join(map(self._value, range(len(self._rows)), self._rows))),
            always=Fragment(f"{ALWAYS}, {MUST_BE_ABSENT}"),
        )

    def _value(self, at: int, name: str) -> str:
        """Return what a column of a row is after what was staged."""
        template = "if(now.<whole> OR NOT past.headwater_is OR has(now.<set>, <own>), "
        template += "now.<name>, past.<name>)"
        if name in self.layout.sorting_key:
            template = "now.<name>"
        own = Fragment(f"{{c{at}:String}}")
        return compose(template, name=name, own=own, whole=WHOLE, set=NAMED)

    def _refuse_duplicates(self, params: dict[str, Any]) -> None:
        duplicates = self._rows_of(
            "SELECT toString(tuple(<key>)) AS headwater_key FROM <log> "
            "WHERE <of_version> = {version:Int64} AND <kind> = <staged> AND <when> >= <at_least> "
            "AND (<key>) IN (SELECT <key> FROM <log> "
            "WHERE <of_version> = {version:Int64} AND <kind> = <image>) LIMIT 1",
            params,
            at_least=Fragment(str(MUST_BE_ABSENT)),
        )
        if duplicates:
            raise DuplicateInsertError(
                "a row is inserted while it is there",
                table=self.layout.name,
                key=duplicates[0]["headwater_key"],
                block=params["block"],
            )

    def check_reach(self, number: int) -> None:
        """Refuse an undo into the middle of final blocks that were applied together.

        Raises:
            RewindError: there are images of the blocks before them and after them alone.
        """
        rows = self._rows_of(
            "SELECT <of_after> AS low, <of_block> AS high FROM <log> WHERE <kind> = <sealed> "
            "AND <of_block> > {number:Int64} AND <of_after> < {number:Int64} LIMIT 1",
            {"number": number},
        )
        if rows:
            raise RewindError(
                "changes of final blocks were applied together: go back to the one or the other",
                table=self.layout.name,
                wanted=number,
                possible=f"{rows[0]['low']}, {rows[0]['high']}",
            )

    def restore(self, number: int) -> int:
        """Put rows back to what they were after a block; return how many. The log keeps its rows.

        Raises:
            RewindError: the log does not say what they were.
        """
        self.check_reach(number)
        undone = compose(
            "SELECT <rows>, <kind> FROM <log> WHERE <kind> IN (<staged>, <image>) "
            "AND <of_version> IN (SELECT <of_version> FROM <log> WHERE <kind> = <sealed> "
            "AND <of_block> > {number:Int64} "
            "AND NOT arrayExists(one -> one.1 < <of_block> AND one.2 > <of_version>, "
            "(SELECT groupArray((<of_block>, <of_version>)) FROM <log> WHERE <kind> = <void>))) "
            "ORDER BY <of_version>, <kind> DESC LIMIT 1 BY <key>",
            **self._parts,
        )
        params = {"number": number}
        rows = int(self._rows_of("SELECT count() AS n FROM (<of>)", params, of=undone)[0]["n"])
        if rows:
            params["version"] = self.next_version()
            self._run(
                "INSERT INTO <table> (<rows>, <version>, <deleted>) "
                "SELECT <rows>, {version:Int64}, <kind> = <staged> FROM (<of>) WHERE <condition>",
                params,
                of=undone,
            )
            self._run(
                "INSERT INTO <log> (<of_block>, <of_version>, <kind>) "
                "SELECT {number:Int64}, {version:Int64}, <void> WHERE <condition>",
                params,
            )
        return rows

    def _rows_of(
        self, sql: str, params: dict[str, Any] | None = None, **parts: Any
    ) -> list[dict[str, Any]]:
        return self._client.rows(sql, params, **self._parts, **parts)

    def _run(self, sql: str, params: dict[str, Any], **parts: Any) -> None:
        self._lease.run(sql, params, settings=every_row(), **self._parts, **parts)


# --- folded changes as rows of the log ------------------------------------------------------------


def refuse_computed(folded: pa.Table) -> None:
    """Refuse changes whose result depends on what a row holds, before anything is written.

    Raises:
        InsertOnlyError: a field is added to, raised, lowered or filled.
    """
    fields = column(folded, "fields")
    computed = pc.not_equal(fields.flatten().field(2), "set")
    if pc.any(computed, min_count=0).as_py():
        row = pc.list_parent_indices(fields).filter(computed)[0].as_py()
        entry = fields.flatten().filter(computed)[0].as_py()
        raise InsertOnlyError(
            "a field is computed from the one that is stored",
            table=folded["table"][row].as_py(),
            column=entry["name"],
            operation=entry["operation"],
            block=folded["block_number"][row].as_py(),
        )


def staged_frames(folded: pa.Table, block: int, version: int) -> Iterator[pa.Table]:
    """Yield what changes of one table and one block do, as rows of the log."""
    operations = column(folded, "operation")
    fields, fresh = _names(folded, "fields"), _names(folded, "fresh")
    is_upsert, alike = pc.equal(operations, "upsert"), pc.equal(fields, fresh)
    apart = pc.and_(is_upsert, pc.invert(alike))
    for chosen, source, when, whole, deleted in (
        (pc.equal(operations, "insert"), "fresh", MUST_BE_ABSENT, 0, 0),
        (pc.equal(operations, "update"), "fields", IF_PRESENT, 0, 0),
        (pc.and_(is_upsert, alike), "fields", ALWAYS, 0, 0),
        (apart, "fields", IF_PRESENT, 0, 0),
        (apart, "fresh", IF_ABSENT, 0, 0),
        (pc.equal(operations, "replace"), "fresh", ALWAYS, 1, 0),
        (pc.equal(operations, "delete"), _NONE, IF_PRESENT, 0, 1),
        (pc.equal(operations, "transient"), _NONE, NOTHING, 0, 0),
    ):
        marks = {BLOCK: block, VERSION: version, KIND: 0, WHEN: when, WHOLE: whole}
        for rows in _alike(folded.filter(chosen), source):
            entries = column(rows, source) if source else None
            frame = pivot(column(rows, "pk"), rows.num_rows, ())
            if entries is not None:
                frame |= pivot(entries, rows.num_rows, ())
            for name, value in (marks | {DELETED: deleted}).items():
                frame[name] = pa.array(np.full(rows.num_rows, value, np.int64))
            frame[NAMED] = _name_lists(entries, rows.num_rows)
            yield pa.table(frame)


def _names(folded: pa.Table, source: str) -> pa.Array:
    """Return the names that each row sets, as one text."""
    lists = _name_lists(column(folded, source), folded.num_rows)
    return pc.binary_join(lists, _BETWEEN)


def _name_lists(lists: pa.Array | None, rows: int) -> pa.Array:
    """Return the names of each row; none for a row that has no entries."""
    kind = pa.list_(pa.string())
    if lists is None:
        return pa.array([[]], kind).take(pa.array(np.zeros(rows, np.int64)))
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(_lengths(lists), out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), lists.flatten().field(0)).cast(kind)


def _lengths(lists: pa.Array) -> Codes:
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)


def _alike(rows: pa.Table, source: str) -> Iterator[pa.Table]:
    """Split rows into those that set the same columns."""
    if not rows.num_rows or not source:
        yield from [rows] if rows.num_rows else []
        return
    codes, names = codes_of(_names(rows, source))
    for code in range(len(names)):
        yield rows.take(pa.array(np.flatnonzero(codes == code))).combine_chunks()


def pivot(lists: pa.Array, rows: int, key: Sequence[str]) -> dict[str, pa.Array]:
    """Return a column per name; a key that has no name is that of the table's one key column."""
    entries = lists.flatten()
    owners = np.repeat(np.arange(rows), _lengths(lists))
    codes, names = codes_of(entries.field(0))
    columns: dict[str, pa.Array] = {}
    for code, name in enumerate(names.to_pylist()):
        if name == ANONYMOUS:
            if len(key) != 1:
                raise InsertOnlyError(
                    "a key without a name is for a table with one key column", key=", ".join(key)
                )
            name = key[0]
        places = np.flatnonzero(codes == code)
        source = np.full(rows, -1, np.int64)
        source[owners[places]] = places
        columns[name] = entries.field(1).take(pa.array(source, mask=source < 0))
    return columns
