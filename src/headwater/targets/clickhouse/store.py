"""`Store`, which callbacks write with: it inserts, queries, and takes rows back.

Runs on the driver; rows of a Spark DataFrame of final blocks are inserted by the executors. What a
batch inserts counts once its cursor is stored; until then a restart removes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes import TableSchema
from headwater.targets.clickhouse.catalog import Catalog
from headwater.targets.clickhouse.layout import Table
from headwater.targets.clickhouse.state import Lease
from headwater.targets.clickhouse.transfer import (
    Attempts,
    Transfer,
    Writer,
    insert_distributed,
    pieces_of,
    plan_transfer,
)
from headwater.targets.clickhouse.undo import Undo
from headwater.targets.clickhouse.versioned import (
    Versioned,
    declared_log,
    schema_of,
    staged_frames,
)
from headwater.targets.contract import Scope
from headwater.targets.frames import bounded_tables, executor_rows, to_arrow
from headwater.targets.values import Altered, Tally

Params = Mapping[str, object]


@dataclass(slots=True)
class Inserts:
    """Numbers inserts: gives each a token that is never used twice.

    A generation is a random text. A new one begins whenever rows may have been taken back,
    because the server would drop rows that come again under a token that it knows.
    """

    lease: Lease
    attempts: Attempts
    piece_rows: int
    altered: Altered
    generation: str = ""
    count: int = 0

    def begin(self) -> None:
        """Use tokens of a new generation from here on."""
        self.generation, self.count = secrets.token_hex(8), 0

    def writer(self, transfer: Transfer, token: str) -> Writer:
        """Return what tasks insert with."""
        condition = self.lease.condition
        return Writer(self.lease.client, transfer, self.attempts, condition, token, self.piece_rows)

    def token(self) -> str:
        """Return a token that was never used before."""
        self.count += 1
        return f"{self.lease.stream_id}/{self.generation}/{self.count}"


class Store:
    """Given to `on_data`, `on_start` and `on_rollback`. `scope` is None outside of batches."""

    def __init__(
        self, inserts: Inserts, catalog: Catalog, undo: Undo, scope: Scope | None = None
    ) -> None:
        self._inserts = inserts
        self._client = inserts.lease.client
        self._catalog = catalog
        self._undo = undo
        self._scope = scope

    def insert(self, table: str, frame: Any) -> None:
        """Add rows. Columns that the frame lacks have the table's default.

        The sign of a Collapsing table, the version of a Replacing one and the stream's column are
        filled in.
        """
        name = self._catalog.parse(table)
        final = self._scope is not None and not self._scope.hot
        far = executor_rows(frame) if final else None
        if far is None:
            frame = to_arrow(frame)
        schema = frame.schema if far is None else far.schema
        layout = self._catalog.prepare(name, schema)
        version = self._catalog.next_version(layout)
        scope = self._scope if self._catalog.is_managed(name) else None
        inserts, altered = self._inserts, self._inserts.altered
        stream_id = inserts.lease.id_in(name)
        transfer = plan_transfer(schema, layout, stream_id, scope, version, altered.policy)
        token, limit = inserts.token(), inserts.piece_rows
        if far is not None and layout.deduplicates:
            altered.note(str(name), insert_distributed(far, inserts.writer(transfer, token)))
            return
        tally, target = Tally(), transfer.target(inserts.lease.condition)
        batches = (batch for rows in bounded_tables(frame, limit) for batch in rows.to_batches())
        pieces = pieces_of(batches, transfer, limit, self._client.compression, tally)
        for place, (body, _) in enumerate(pieces):
            known = f"{token}/{place}" if layout.deduplicates else None
            self._client.insert_body(target, body, known)
        altered.note(str(name), tally)

    def declare(self, table: Table) -> None:
        """Add a table to those that the target undoes: for what is built on this, in `on_start`."""
        self._catalog.declare(table)

    @property
    def final(self) -> int | None:
        """Up to which block the batch is final; None if a fork may undo all of it."""
        return None if self._scope is None or self._scope.hot else self._scope.block

    def keyed(self, table: str) -> TableSchema | None:
        """Return what changes may name in a table whose engine keeps the newest of each key."""
        layout = self._catalog.described(self._catalog.parse(table))
        return None if layout is None else schema_of(layout)

    def change(self, table: str, folded: pa.Table) -> None:
        """Apply folded changes to a table that `keyed` knows; a fork puts its rows back.

        Changes of hot blocks are applied block by block, those of final blocks together.
        """
        layout = self._catalog.described(self._catalog.parse(table))
        assert layout is not None, "asked for its columns"
        assert self._scope is not None, "changes come with a batch"
        versioned = Versioned(self._inserts.lease, layout)
        declared = declared_log(layout.name)
        self.declare(declared)
        log = self._catalog.admitted(versioned.log)
        if log is None or not {*layout.columns} - {*layout.marks} <= log.columns.keys():
            versioned.create_log()
            self._catalog.forget()
        zones = {self._scope.block: (folded, self._scope.after)}
        if self._scope.hot:
            blocks = folded["block_number"]
            numbers = sorted(pc.unique(blocks).to_pylist())
            zones = {
                number: (folded.filter(pc.equal(blocks, number)), number - 1) for number in numbers
            }
        for block, (rows, after) in zones.items():
            version = versioned.next_version()
            for frame in staged_frames(rows, block, version):
                self.insert(declared.name, frame)
            versioned.apply(block, after, version)

    def query(self, sql: str, params: Params | None = None) -> pa.Table:
        """Return the rows of a query; parameters are `{name:Type}`."""
        return self._client.query(sql, params)

    def command(self, sql: str, params: Params | None = None) -> None:
        """Run a statement, such as CREATE TABLE; it is run again if the connection is lost.

        That this writer may still change the stream is asked right before, not inside of it.
        """
        self._inserts.lease.check()
        self._client.run(sql, params)
        self._catalog.forget()

    def remove_all_rows(
        self, *, tables: Sequence[str], where: str, params: Params | None = None
    ) -> dict[str, int]:
        """Take back the rows that meet a condition, by the way of each table's engine.

        Returns how many there were in each table. Repeating it changes nothing.
        """
        names = {table: self._catalog.parse(table) for table in tables}
        layouts = {table: self._catalog.existing(name) for table, name in names.items()}
        removed = {
            table: self._undo.remove(layout, where, params or {})
            for table, layout in layouts.items()
        }
        self._catalog.forget_versions()
        return removed
