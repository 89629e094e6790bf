"""The aggregates of a target: their tables and columns, and that each batch adds to them.

Their rows are merged like changes, under the table's undo log, whatever its form. `verify` sums up
once more, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import one_array
from headwater.changes.numbers import canonical
from headwater.changes.values import one_spelling, text_column
from headwater.core.rooms import Policy, Room
from headwater.errors import AggregateError, VerifyError
from headwater.targets.compare import KeyFinding, compare_keys
from headwater.targets.contract import Scope
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.sql.aggregates import (
    Aggregate,
    Plan,
    check_column,
    compute_delta,
    delta_schema,
    plan_aggregates,
    reduce_delta,
)
from headwater.targets.sql.changes import GIVEN, SET, UPSERT, Shape, Steps, TableChanges
from headwater.targets.sql.dialect import Dialect
from headwater.targets.sql.layout import Table
from headwater.targets.text import QualifiedName
from headwater.targets.values import TEXTS, Fitting, Tally, no_row_left_out

_FREE = Room()


class Aggregates:
    """The aggregates of one target. Runs on the driver, inside the transaction of each batch."""

    def __init__(self, aggregates: Iterable[Aggregate], declared: Iterable[Table]) -> None:
        self.plans = plan_aggregates(aggregates)
        self._declared = {table.name.folded for table in declared}

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self.plans)

    @property
    def sources(self) -> set[str]:
        """The outputs that they sum up."""
        return {part.source for plan in self.plans for part in plan.parts}

    def tables(self, dialect: Dialect, change_log: str | None = None) -> list[Table]:
        """Return the tables that the user has not declared; what they hold is found out later."""
        tables = [
            dialect.declare(
                Table(QualifiedName.parse(plan.table), plan.key, False, change_log=change_log)
            )
            for plan in self.plans
        ]
        return [table for table in tables if table.name.folded not in self._declared]

    def write(self, tx: Any, data: Mapping[str, Any], scope: Scope) -> None:
        """Add what a batch contributes; what a hot block changes is captured before."""
        merger = tx.store.merger
        for plan in self.plans:
            columns = find_columns(plan, data)
            long, wide = merger.sum_types
            types = dict.fromkeys(columns.wide, wide) | dict.fromkeys(columns.long, long)
            layout = tx.prepare(plan.table, columns.schema, plan.key, types)
            delta = compute_delta(plan, data, columns.numeric)
            if delta.num_rows:
                shape = _with_integers(merger.shape(plan.table, layout), columns)
                changes = delta_changes(plan, delta, shape, columns, scope.block)
                changes = tx.fitted_changes(changes, layout)
                floor = scope.block - 1 if scope.hot else scope.block
                merger.apply([[changes]], {plan.table: layout}, floor)


class Recomputed:
    """An aggregate summed up once more, by `verify`; `add` is given all blocks, piece by piece.

    It holds one row per key. Values are compared as texts, numbers in their one spelling: a
    database may keep them in a type of its own.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._held = delta_schema(plan).empty_table()
        self._numeric: Mapping[str, bool] = {}

    @property
    def keys(self) -> int:
        """How many rows the table should have."""
        return int(self._held.num_rows)

    def add(self, data: Mapping[str, Any]) -> None:
        """Add what some blocks contribute."""
        self._numeric = find_columns(self.plan, data).numeric
        delta = compute_delta(self.plan, data, self._numeric)
        self._held = reduce_delta(self.plan, pa.concat_tables([self._held, delta]), self._numeric)

    def compare(
        self, stored: pa.Table, rooms: Mapping[str, Room], policy: Policy
    ) -> list[KeyFinding]:
        """Return the keys whose rows differ from what is stored.

        `rooms` and `policy` say what became of texts that the table cannot hold.
        """
        names = {name.casefold(): name for name in stored.column_names}
        wanted: dict[str, pa.Array] = {}
        actual: dict[str, pa.Array] = {}
        places = [(name, f"k{at}") for at, name in enumerate(self.plan.key)]
        places += [(name, f"v{at}") for at, name in enumerate(self.plan.operations)]
        lacking = [name for name, _ in places if name.casefold() not in names]
        if lacking:
            raise VerifyError(
                "the table lacks columns of the aggregate", table=self.plan.table, columns=lacking
            )
        for name, place in places:
            column = stored[names[name.casefold()]]
            texts = text_column(column, name), one_array(self._held[place])
            if self._numeric.get(name) or _is_stored_number(column.type):
                texts = canonical(texts[0]), canonical(texts[1])
            actual[name], wanted[name] = texts
        places_of = {name: rooms[names[name.casefold()]] for name in wanted
                     if rooms.get(names[name.casefold()], _FREE).form in TEXTS}  # fmt: skip
        recomputed = pa.table(wanted)
        fitting = Fitting.plan(recomputed.schema, places_of, no_row_left_out(policy), VerifyError)
        return compare_keys(fitting.apply(recomputed, Tally()), pa.table(actual), self.plan.key)


def _is_stored_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def delta_changes(
    plan: Plan, delta: pa.Table, shape: Shape, columns: Columns, block: int
) -> TableChanges:
    """Return a delta as changes: every row an upsert of its key, in the table's one spelling."""
    for at, name in enumerate(plan.key):
        spelt = one_spelling(one_array(delta[f"k{at}"]), shape.columns[name].kind, name)
        delta = delta.set_column(at, f"k{at}", spelt)
    delta = reduce_delta(plan, delta, columns.numeric)
    size = delta.num_rows
    frame: dict[str, pa.Array] = {
        "place": pa.array(range(size), pa.int64()),
        "block": pa.repeat(pa.scalar(block, pa.int64()), size),
        "kind": pa.repeat(UPSERT, size),
    }
    for at, name in enumerate(shape.key):
        frame[f"key_{at}"] = one_array(delta[f"k{plan.key.index(name)}"])
    numbers = {name: index for index, name in enumerate(shape.columns)}
    steps: Steps = {}
    for at, (name, operation) in enumerate(plan.operations.items()):
        step = SET if operation == "last" else operation
        values = one_spelling(one_array(delta[f"v{at}"]), shape.columns[name].kind, name)
        frame[f"{step}_{numbers[name]}"] = values
        steps[name] = frozenset({step})
        if operation == "last":
            frame[f"{GIVEN}_{numbers[name]}"] = pc.is_valid(one_array(delta[f"o{at}"]))
            steps[name] = frozenset({SET, GIVEN})
    return TableChanges(shape, pa.table(frame), frozenset({UPSERT}), steps, frozenset())


def _with_integers(shape: Shape, columns: Columns) -> Shape:
    """Return a table with the columns that hold integers, though their type could hold more."""
    changed = {
        name: replace(column, kind="integer")
        for name, column in shape.columns.items()
        if name in columns.long and column.kind == "decimal"
    }
    return replace(shape, columns={**shape.columns, **changed})


_TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.null())


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of an aggregate's table.

    `schema` has their Arrow types, numbers of any length as text; `wide` are those numbers, `long`
    the sums of integers that are at most 64 bits long; `numeric` says which columns are computed
    with as numbers.
    """

    schema: pa.Schema
    wide: frozenset[str]
    long: frozenset[str]
    numeric: Mapping[str, bool]


def find_columns(plan: Plan, data: Mapping[str, Any]) -> Columns:
    """Return the columns of a table, as the outputs of a batch call for them.

    Raises:
        AggregateError: an output or a column is missing, or has a type that cannot be summed up.
    """
    schemas = {part.source: _schema(part.source, data) for part in plan.parts}
    fields: dict[str, pa.Field] = {}
    wide, long, numeric = set[str](), set[str](), dict[str, bool]()
    first = plan.parts[0]
    for name in plan.key:
        source = check_column(schemas[first.source], first, first.keys[name])
        fields[name] = source.with_name(name).with_nullable(False)
    for part in plan.parts:
        for measure in part.measures:
            if isinstance(measure.source, int):
                kind = pa.int64()
            else:
                kind = check_column(schemas[part.source], part, measure.source).type
            numeric[measure.column] = measure.operation != "last" and _is_number(kind)
            if measure.operation != "last" and not numeric[measure.column]:
                _refuse(part.table, measure.column, measure.operation, kind)
            if numeric[measure.column] and _is_wide(kind):
                wide.add(measure.column)
            elif measure.operation == "add" and isinstance(measure.source, str):
                if pa.types.is_integer(kind):
                    long.add(measure.column)
                else:
                    kind = pa.decimal128(38, kind.scale)
            fields.setdefault(measure.column, pa.field(measure.column, kind))
    for name in wide | long:
        fields[name] = pa.field(name, pa.string())
    return Columns(
        pa.schema(list(fields.values())), frozenset(wide), frozenset(long - wide), numeric
    )


def _schema(source: str, data: Mapping[str, Any]) -> pa.Schema:
    if source not in data:
        raise AggregateError(
            "there is no such output", output=source, known=", ".join(data) or "none"
        )
    frame = data[source]
    rows = executor_rows(frame)
    return to_arrow(frame).schema if rows is None else rows.schema


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or kind in _TEXTS)


def _is_wide(kind: pa.DataType) -> bool:
    """Tell whether numbers of a type may have more digits than a database's own integers."""
    whole = pa.types.is_decimal(kind) and kind.scale == 0
    return bool(kind in _TEXTS or whole)


def _refuse(table: str, column: str, operation: str, kind: pa.DataType) -> None:
    """Refuse a sum of what is no number, and an extreme of what has no order, or is not exact."""
    ordered = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if operation == "add" or not ordered:
        raise AggregateError(
            "values of this type cannot be summed up exactly",
            table=table,
            column=column,
            operation=operation,
            type=kind,
        )
