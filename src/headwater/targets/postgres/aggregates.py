"""Aggregates in PostgreSQL: triggers keep what a merge changes, as with any other write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headwater.targets.postgres.layout import Layout
from headwater.targets.postgres.merge import coded, lend, merge, shape_of
from headwater.targets.postgres.tx import Tx
from headwater.targets.sql.aggregates.columns import Columns, find_columns
from headwater.targets.sql.aggregates.declaration import Aggregate
from headwater.targets.sql.aggregates.deltas import compute_delta
from headwater.targets.sql.aggregates.frames import stage_delta
from headwater.targets.sql.aggregates.writer import Aggregates
from headwater.targets.sql.merge.shape import Shape
from headwater.targets.sql.settings import Table


class PostgresAggregates(Aggregates):
    """The aggregates of one target. Runs on the driver, inside the transaction of each batch."""

    def __init__(self, aggregates: Iterable[Aggregate], declared: Iterable[Table]) -> None:
        super().__init__(aggregates, declared)
        self._shapes: dict[str, tuple[Layout, Shape]] = {}

    def write(self, tx: Tx, data: Mapping[str, Any], block: int) -> None:
        """Add what a batch contributes."""
        for plan in self._plans:
            columns = find_columns(plan, data)
            types = dict.fromkeys(columns.wide | columns.long, "numeric")
            layout = tx.prepare(plan.table, columns.schema, plan.key, types)
            delta = compute_delta(plan, data, columns.numeric)
            if delta.num_rows:
                shape = self._shape(tx, plan.table, layout, columns)
                staged = stage_delta(plan, delta, shape, columns, block)
                with coded(()):
                    merge(tx.session, [lend(tx, staged, layout)])

    def _shape(self, tx: Tx, table: str, layout: Layout, columns: Columns) -> Shape:
        known, shape = self._shapes.get(table, (None, None))
        if shape is None or known is not layout:
            shape = with_integers(shape_of(table, layout), columns)
            self._shapes[table] = (layout, shape)
        return shape


def with_integers(shape: Shape, columns: Columns) -> Shape:
    """Return a table with the columns that hold integers, though their type could hold more."""
    changed = {
        name: replace(one, kind="integer")
        for name, one in shape.columns.items()
        if name in columns.long and one.kind == "decimal"
    }
    return replace(shape, columns={**shape.columns, **changed})
