"""Aggregates in DuckDB: what a merge changes is kept in the table's undo log before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headwater.targets.duckdb.merge import Lent, coded, give_back, lend, merge, shape_of
from headwater.targets.duckdb.tx import Tx
from headwater.targets.sql.aggregates.columns import find_columns
from headwater.targets.sql.aggregates.deltas import compute_delta
from headwater.targets.sql.aggregates.frames import stage_delta
from headwater.targets.sql.aggregates.writer import Aggregates
from headwater.targets.sql.text import Fragment, compose, quote


class DuckDBAggregates(Aggregates):
    """The aggregates of one target. Runs on the driver, inside the transaction of each batch."""

    def write(self, tx: Tx, data: Mapping[str, Any], block: int) -> None:
        """Add what a batch contributes."""
        for plan in self._plans:
            columns = find_columns(plan, data)
            types = dict.fromkeys(columns.wide, "BIGNUM") | dict.fromkeys(columns.long, "HUGEINT")
            layout = tx.prepare(plan.table, columns.schema, plan.key, types)
            delta = compute_delta(plan, data, columns.numeric)
            shape = shape_of(plan.table, layout)
            if delta.num_rows:
                staged = stage_delta(plan, delta, shape, columns, block)
                with coded():
                    kept = layout.stored if tx.keeps(layout) else ()
                    lent = lend(tx.session, staged, layout.name, 0, kept)
                    if kept:
                        tx.keep(layout, _met(lent, kept), _new(lent))
                    merge(tx.session, [lent])
                    give_back(tx.session, [lent])


def _met(lent: Lent, kept: Iterable[str]) -> Fragment:
    """Return the rows of the table that changes meet."""
    values = ", ".join(f"{lent.image(one)} AS {quote(one)}" for one in kept)
    return _rows(lent, values, "s.here IS NOT NULL")


def _new(lent: Lent) -> Fragment:
    """Return the keys of the rows that are about to be made."""
    key = lent.staged.shape.key
    values = ", ".join(f"s.k{at} AS {quote(one)}" for at, one in enumerate(key))
    return _rows(lent, values, "s.here IS NULL")


def _rows(lent: Lent, values: str, which: str) -> Fragment:
    return compose(
        "(SELECT {values} FROM {stage} AS s WHERE {which})",
        values=Fragment(values),
        stage=lent.source,
        which=Fragment(which),
    )
