"""Aggregates in DuckDB: what a merge changes is kept in the table's undo log before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.targets.aggregates.columns import find_columns
from headwater.targets.aggregates.deltas import compute_delta
from headwater.targets.aggregates.staging import stage_delta
from headwater.targets.duckdb.merge import coded, give_back, lend, merge, read_shape
from headwater.targets.duckdb.sql import Fragment, compose, quote
from headwater.targets.duckdb.tx import Tx
from headwater.targets.relational.aggregates import Aggregates


class DuckDBAggregates(Aggregates):
    """The aggregates of one target. Runs on the driver, inside the transaction of each batch."""

    def write(self, tx: Tx, data: Mapping[str, Any], block: int) -> None:
        """Add what a batch contributes."""
        for plan in self._plans:
            columns = find_columns(plan, data)
            types = dict.fromkeys(columns.wide, "BIGNUM") | dict.fromkeys(columns.long, "HUGEINT")
            layout = tx.prepare(plan.table, columns.schema, plan.key, types)
            delta = compute_delta(plan, data, columns.numeric)
            shape = read_shape(tx.session, plan.table, layout.name)
            assert shape is not None, "it was just prepared"
            if delta.num_rows:
                staged = stage_delta(plan, delta, shape, columns, block)
                with coded():
                    lent = [lend(tx.session, staged, layout.name, 0)]
                    keys = ", ".join(f"k{at} AS {quote(one)}" for at, one in enumerate(shape.key))
                    rows = compose(
                        "(SELECT {keys} FROM {stage})", keys=Fragment(keys), stage=lent[0].source
                    )
                    tx.keep(layout, rows)
                    merge(tx.session, lent)
                    give_back(tx.session, lent)
