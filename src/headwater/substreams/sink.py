"""The target of a module's outputs in `headwater sink`.

A module of DatabaseChanges goes into tables that exist: under the change log (PostgreSQL, DuckDB),
or as inserts and versions of rows (ClickHouse). Any other module goes into the tables of its
relational mapping.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes import TableSchema, check, fold
from headwater.changes.model import codes_of
from headwater.decode.columns.bytes_text import BytesEncoding
from headwater.errors import InsertOnlyError, UnknownTableError
from headwater.substreams.cursor_text import final_block
from headwater.substreams.mapping import BLOCK_NUMBER, RelationalMapping
from headwater.substreams.messages import OutputDecoder
from headwater.substreams.outputs import CHANGES, decoder_of
from headwater.substreams.package import Package
from headwater.substreams.relational import Constraint, relational_target
from headwater.substreams.sink_database import CURSORS, HISTORY, SinkDsn, user_tables
from headwater.targets.contract import Delivery, Target
from headwater.targets.frames import to_arrow
from headwater.targets.side_rows import PREFIX


def sink_target(
    dsn: SinkDsn,
    package: Package,
    module: str,
    *,
    history_table: str = HISTORY,
    cursors_table: str = CURSORS,
    bytes_encoding: BytesEncoding = "raw",
    without: Collection[Constraint] = (),
) -> tuple[Target[Delivery], OutputDecoder]:
    """Return where the outputs of a module go, and what decodes them.

    `package` is resolved, and the stream's id is the module's hash: so a database of the SQL sink
    is taken over, and can be handed back.
    """
    message = package.output_type(module)
    if not package.puts_out_changes(module):
        mapping = RelationalMapping(package.types, message, bytes_encoding)
        schema = dsn.schema if dsn.kind == "postgres" else None
        return relational_target(dsn.address, mapping, schema=schema, without=without), mapping
    if dsn.kind == "clickhouse":
        return insert_target(dsn.address), decoder_of(package.types, message)
    from headwater.targets import history_target

    tables = user_tables(dsn, (history_table, cursors_table))
    names = [f"{dsn.schema}.{table.name}" if dsn.schema else table.name for table in tables]
    decoder: Any = decoder_of(package.types, message, tables)
    if dsn.schema:
        decoder = replace(decoder, schema=dsn.schema)
    settings: Any = None
    if dsn.schema:
        from headwater.targets.postgres import PostgresSettings

        settings = PostgresSettings(schema=dsn.schema)
    target = history_target(
        dsn.address if dsn.kind == "postgres" else Path(dsn.address),
        tables=names,
        history_table=history_table,
        cursors_table=cursors_table,
        settings=settings,
        shared_with_sink=final_block,
    )
    return target, decoder


# --- ClickHouse: inserts, and versions of rows ----------------------------------------------------


def insert_target(address: str) -> Target[Delivery]:
    """Write DatabaseChanges to tables of ClickHouse that exist.

    Tables of ReplacingMergeTree(version, is_deleted) whose ORDER BY is their key take all
    operations, as `Store.change` says; the others take inserts.

    A table that is written gets a column `_block_number_`, by which a fork takes rows back; other
    tables are left alone. Two inserts of one key are two rows: nothing depends on what happens to
    be committed together.
    """
    from headwater.targets import clickhouse_target

    writer = _Inserts()
    return clickhouse_target(address, tables=[], on_start=writer.prepare, on_data=writer.insert)


class _Inserts:
    """The callbacks of the target: tables either take inserts or are `_keyed`."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[str, ...]] = {}
        self._keyed: dict[str, TableSchema | None] = {}
        self._lacking: set[str] = set()  # tables without a column of the block

    def prepare(self, store: Any) -> None:
        """Look at the tables; nothing is changed yet."""
        tables = store.query(
            "SELECT table, groupArrayIf(name, is_in_primary_key) AS key, "  # noqa: S608 - ours
            f"has(groupArray(name), '{BLOCK_NUMBER}') AS marked FROM system.columns "
            "WHERE database = currentDatabase() AND table <> 'sync' "
            f"AND NOT startsWith(table, 'sync__') AND NOT startsWith(table, '{PREFIX}') "
            f"AND table <> '{CURSORS}' AND table IN (SELECT name FROM system.tables WHERE "
            "database = currentDatabase() AND engine LIKE '%MergeTree') GROUP BY table"
        ).to_pylist()
        for row in tables:
            name = _text(row["table"])
            self._keys[name] = tuple(map(_text, row["key"]))
            if not row["marked"]:
                self._lacking.add(name)

    def insert(self, store: Any, data: Mapping[str, Any]) -> None:
        """Apply the changes of a batch: by versions of rows, where the engine keeps these.

        Raises:
            InsertOnlyError: a change is something else than an insert, or computes a field, and
                the table cannot do it.
            UnknownTableError: the database has no such table.
        """
        from headwater.targets.clickhouse import Table
        from headwater.targets.clickhouse.versioned import refuse_computed

        changes = to_arrow(data[CHANGES])
        names = pc.unique(changes["table"]).to_pylist()
        for name in [name for name in names if name in self._keys and name not in self._keyed]:
            schema = store.keyed(name)  # a key with the block has a row for each insert
            self._keyed[name] = None if schema and BLOCK_NUMBER in schema.key else schema
        schemas = [keyed for name in names if (keyed := self._keyed.get(name)) is not None]
        mine = pc.is_in(
            changes["table"], pa.array([schema.name for schema in schemas], pa.string())
        )
        folded = fold(check(changes.filter(mine), schemas), finalized=store.final)
        refuse_computed(folded)
        inserts = wide_inserts(changes.filter(pc.invert(mine)), self._keys)
        for schema in schemas:
            store.change(schema.name, folded.filter(pc.equal(folded["table"], schema.name)))
        for name, rows in inserts.items():
            if name in self._lacking:
                store.command(
                    f"ALTER TABLE `{name}` ADD COLUMN IF NOT EXISTS `{BLOCK_NUMBER}` UInt64"
                )
                self._lacking.discard(name)
            store.declare(Table(name, block_column=BLOCK_NUMBER))
            store.insert(name, rows)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def wide_inserts(changes: pa.Table, keys: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
    """Return inserts as rows of their tables: a column per key and field, and the block's number.

    Raises:
        InsertOnlyError: a change is something else than an insert.
        UnknownTableError: a change names a table that is not there.
    """
    from headwater.targets.clickhouse.versioned import pivot

    _refuse_others(changes)
    tables: dict[str, pa.Table] = {}
    codes, names = codes_of(changes["table"].combine_chunks())
    for code, name in enumerate(names.to_pylist()):
        if name not in keys:
            raise UnknownTableError(
                "the database has no such table", table=name, known=", ".join(keys) or "none"
            )
        mine = changes.take(pa.array(np.flatnonzero(codes == code))).combine_chunks()
        columns = pivot(mine["pk"].combine_chunks(), mine.num_rows, keys[name])
        columns |= pivot(mine["fields"].combine_chunks(), mine.num_rows, ())
        columns[BLOCK_NUMBER] = mine["block_number"].combine_chunks()
        tables[name] = pa.table(columns)
    return tables


def _refuse_others(changes: pa.Table) -> None:
    other = pc.not_equal(changes["operation"], "insert")
    if pc.any(other, min_count=0).as_py():
        row = changes.filter(other).slice(0, 1).to_pylist()[0]
        raise InsertOnlyError(
            "a change is no insert",
            table=row["table"],
            operation=row["operation"],
            block=row["block_number"],
        )
