"""Aggregates in DuckDB: what a merge changes is kept in the table's undo log before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headwater.targets.aggregates.columns import find_columns
from headwater.targets.aggregates.declaration import Aggregate, plan_aggregates
from headwater.targets.aggregates.deltas import compute_delta
from headwater.targets.aggregates.staging import stage_delta
from headwater.targets.duckdb.merge import coded, give_back, lend, merge, read_shape
from headwater.targets.duckdb.settings import Table
from headwater.targets.duckdb.sql import Fragment, TableName, compose, quote
from headwater.targets.duckdb.tx import Tx


class DuckDBAggregates:
    """The aggregates of one target. Runs on the driver, inside the transaction of each batch."""

    def __init__(self, aggregates: Iterable[Aggregate], declared: Iterable[Table]) -> None:
        self._plans = plan_aggregates(aggregates)
        self._declared = {one.name.folded for one in declared}

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._plans)

    def tables(self) -> list[Table]:
        """Return the tables that nobody has declared; what they hold is found out later."""
        names = {one.table: TableName.parse(one.table) for one in self._plans}
        return [
            Table(names[one.table], one.key, append_only=False)
            for one in self._plans
            if names[one.table].folded not in self._declared
        ]

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
