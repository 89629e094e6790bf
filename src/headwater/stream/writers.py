"""Rows that the writers of `format("headwater")` have staged, into a target.

Three kinds of rows are told apart by their columns and the option `keys`:

    our changelog, no keys   inserts become batches of blocks, deletes a rollback
    keys                     upserts, and deletes where `_change_type` says so: feeds of Delta and
                             Iceberg, results of Spark's own, our changelog by `_row_id`
    others                   rows are added

Rows of the last two kinds have no blocks. There a micro-batch counts as one, which is final.
Which micro-batches a target holds is known as with `foreach_batch`, by the same log. Runs in the
Python process in which Spark commits, on the driver's machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockHeader
from headwater.errors import MicroBatchTargetError, SourceOptionError
from headwater.spark.streaming.changelog_rows import CHANGE_COLUMNS, block_hash, number_column
from headwater.spark.streaming.writer import WritePlan
from headwater.stream.micro_batches import MicroBatch, foreach_batch
from headwater.targets import (
    clickhouse_target,
    delta_target,
    duckdb_target,
    iceberg_target,
    postgres_target,
    table,
)
from headwater.targets.admin import kind_of
from headwater.targets.contract import Delivery, Target
from headwater.targets.frames import to_arrow

CHANGE_TYPE = "_change_type"
VERSIONS = ("_commit_version", "_change_ordinal")  # ours and Delta's, Iceberg's
_FEEDS = (*CHANGE_COLUMNS.names, "_change_ordinal", "_commit_snapshot_id")
_STAYS = ("insert", "update_postimage", "update_after")
_GOES = ("delete", "update_preimage", "update_before")
_FOLDERS: dict[str, Callable[..., Target[Delivery]]] = {
    "iceberg": iceberg_target,
    "delta": delta_target,
}
_SINGLE = "write"  # stands for the query of a DataFrame that is written once


def write_rows(plan: WritePlan, rows: pa.Table, query: str, batch_id: int | None) -> None:
    """Write a micro-batch, unless it is held; without a number, what comes next.

    Raises:
        SourceOptionError: options or columns do not fit together.
        MicroBatchTargetError: the target cannot take such rows.
        HeadwaterError: whatever `foreach_batch` raises.
    """
    in_blocks = not plan.keys and set(CHANGE_COLUMNS.names) <= set(rows.column_names)
    if not plan.keys and not in_blocks and CHANGE_TYPE in rows.column_names:
        raise SourceOptionError("rows with _change_type need the option keys: what they are of")
    if in_blocks and batch_id is None:
        raise SourceOptionError(
            "a stored changelog is written by keys, such as _row_id, or collapsed before; blocks "
            "come and go in a query"
        )
    target = open_target(plan, in_blocks=in_blocks)
    with closing(foreach_batch(target, id=plan.id, output=plan.table)) as writing:
        query, batch_id = query or _SINGLE, writing.next_id() if batch_id is None else batch_id
        form = _in_blocks if in_blocks else _numbered
        writing.write(form(rows, batch_id, query), _no_spark)


def open_target(plan: WritePlan, *, in_blocks: bool) -> Target[Delivery]:
    """Return the target that a writer's options name.

    Raises:
        MicroBatchTargetError: it repairs tables by block numbers, and the rows have none.
    """
    kind = plan.format or kind_of(plan.address)
    on_data = partial(_apply, plan) if plan.keys else None
    if kind in ("postgres", "duckdb"):
        make = postgres_target if kind == "postgres" else duckdb_target
        declared = table(plan.table) if in_blocks else table(plan.table, untracked=True)
        if plan.keys:
            declared = table(plan.table, key=plan.keys, untracked=True)
        return make(plan.address, tables=[declared], on_data=on_data)
    if kind in _FOLDERS:
        declared = table(plan.table, key=plan.keys) if plan.keys else table(plan.table)
        return _FOLDERS[kind](plan.address, tables=[declared], on_data=on_data)
    if kind == "clickhouse" and in_blocks:
        return clickhouse_target(plan.address, tables=[plan.table])
    raise MicroBatchTargetError(
        "PostgreSQL, DuckDB, Iceberg and Delta take any rows, ClickHouse a changelog of blocks",
        target=kind,
    )


def _in_blocks(rows: pa.Table, batch_id: int, query: str) -> MicroBatch:
    """Return what a micro-batch of our changelog holds."""
    came = rows.filter(pc.greater(rows["_sign"], 0))
    if not came.num_rows:
        return MicroBatch(batch_id, query, rows, rows.num_rows)
    numbers = came[number_column(rows.column_names)]
    ends = pc.min_max(numbers).as_py()
    at = pc.index(numbers, ends["max"]).as_py()
    last = BlockHeader(ends["max"], block_hash(came["_row_id"][at].as_py()))
    known = rows["_finalized"]
    is_final = (
        came.num_rows == rows.num_rows
        and not known.null_count
        and bool(ends["max"] <= pc.min(known).as_py())
    )
    return MicroBatch(batch_id, query, rows, rows.num_rows, ends["min"], last, is_final)


def _numbered(rows: pa.Table, batch_id: int, query: str) -> MicroBatch:
    """Return a micro-batch that counts as one block."""
    last = BlockHeader(batch_id, f"{query}-{batch_id}")
    return MicroBatch(
        batch_id, query, rows, rows.num_rows, batch_id, last, is_final=True, is_numbered=True
    )


def _apply(plan: WritePlan, tx: Any, data: Any) -> None:
    """Write rows by key. Called by the target, in the transaction of the micro-batch."""
    gone, kept = fold(to_arrow(data[plan.table]), plan.keys)
    if gone.num_rows:
        tx.delete(plan.table, gone, key=list(plan.keys))
    if kept.num_rows:
        tx.upsert(plan.table, kept, key=list(plan.keys))


def fold(rows: pa.Table, keys: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """Return the keys that a micro-batch deletes, and the rows that it leaves: one for each key.

    Of several changes to a key the last one counts, by version; within a version a row that is
    there comes after one that goes.

    Raises:
        SourceOptionError: a change has an unknown type, or a key changes twice without an order.
    """
    own = [name for name in rows.column_names if name in keys or name not in _FEEDS]
    if CHANGE_TYPE not in rows.column_names:
        return rows.select(keys).slice(0, 0), rows
    types = pc.ascii_lower(rows[CHANGE_TYPE])
    stays, goes = (pc.is_in(types, pa.array(names)) for names in (_STAYS, _GOES))
    strange = types.filter(pc.invert(pc.or_(stays, goes)))
    if len(strange):
        raise SourceOptionError("_change_type is insert, delete or update", got=strange[0].as_py())
    versions = [rows[name] for name in VERSIONS if name in rows.column_names]
    version = versions[0] if versions else pa.repeat(0, rows.num_rows)
    order = pa.table({"version": version, "stays": stays})
    by = [("version", "ascending"), ("stays", "ascending")]
    sorted_by = pc.sort_indices(order, sort_keys=by)
    rows, stays = rows.take(sorted_by), stays.take(sorted_by)
    placed = rows.select(keys).append_column("#", pa.array(range(rows.num_rows), pa.int64()))
    groups = placed.group_by(list(keys)).aggregate([("#", "max"), ("#", "count")])
    if not versions and pc.any(pc.greater(groups["#_count"], 1)).as_py():
        raise SourceOptionError(
            "a key changes twice in a micro-batch, and no _commit_version says in which order",
            keys=", ".join(keys),
        )
    last = pc.sort_indices(groups["#_max"])
    places = groups["#_max"].take(last)
    rows, stays = rows.take(places), stays.take(places)
    return rows.filter(pc.invert(stays)).select(keys), rows.filter(stays).select(own)


def _no_spark() -> NoReturn:
    raise MicroBatchTargetError("the target asks for Spark, which this process has not")
