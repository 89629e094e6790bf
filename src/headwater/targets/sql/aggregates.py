"""Tables that sum up an output: how they are declared, and what a batch contributes to each.

Executors reduce their partitions, the driver reduces what comes back, by the same code: a delta has
the same form before and after, so that reducing deltas gives a delta. Columns are text: the key as
`k0`, …, values as `v0`, …, and for `last` the place of the row in the order as `o0`, …
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import (
    FIELD_OPERATIONS,
    Codes,
    codes_of,
    combine,
    one_array,
    sorted_by,
)
from headwater.changes.numbers import canonical, opposites, reduce_numbers
from headwater.changes.values import text_column
from headwater.errors import AggregateError
from headwater.targets.frames import executor_rows, to_arrow

Operation = Literal["add", "min", "max", "last"]
Columns = Mapping[str, str] | Sequence[str]
ORDER = ("block_number", "log_index")
_WIDTH = 20  # digits of a 64-bit integer


@dataclass(frozen=True, slots=True)
class Measure:
    """One column: how it is computed, and from which column of the output, or from a constant."""

    column: str
    operation: Operation
    source: str | int
    negative: bool = False


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The contribution of one output to a table: its keys and measures. Made by `aggregate`."""

    table: str
    source: str
    keys: Mapping[str, str]
    measures: tuple[Measure, ...]
    order: tuple[str, ...]


def aggregate(
    table: str,
    *,
    source: str,
    keys: Columns,
    add: Mapping[str, str | int] | Sequence[str] = (),
    sub: Mapping[str, str | int] | Sequence[str] = (),
    min: Columns = (),
    max: Columns = (),
    last: Columns = (),
    order: Sequence[str] = ORDER,
) -> Aggregate:
    """Declare a table with one row per key that sums up the rows of an output.

    Each of the following takes columns of the output, or maps columns of the table to them. Several
    aggregates may have the same table: what they contribute is added up.

    Args:
        table: `name` or `schema.name`; created if it is missing.
        source: the output, after all transforms.
        keys: the primary key of the table. Its values must not be null.
        add: sums; a number instead of a column counts rows: `{"transfers": 1}`.
        sub: the same with the opposite sign: `keys={"owner": "from"}, sub={"amount": "value"}`.
        min: the smallest number or time.
        max: the largest.
        last: the value of the newest row, null or not.
        order: the integer columns that tell which row is the newest.

    Nulls are left out of sums, minima and maxima; where there is nothing else, the result is null.
    """
    key_columns = _columns(keys)
    if not table or not source or not key_columns or isinstance(order, str):
        raise AggregateError(
            "an aggregate needs a table, an output and key columns", table=table, source=source
        )
    measures = [
        *(Measure(name, "add", source) for name, source in _columns(add).items()),
        *(Measure(name, "add", source, negative=True) for name, source in _columns(sub).items()),
        *(Measure(name, "min", source) for name, source in _columns(min).items()),
        *(Measure(name, "max", source) for name, source in _columns(max).items()),
        *(Measure(name, "last", source) for name, source in _columns(last).items()),
    ]
    for measure in measures:
        constant = isinstance(measure.source, int) and not isinstance(measure.source, bool)
        if not isinstance(measure.source, str) and not (constant and measure.operation == "add"):
            raise AggregateError(
                "a column's name is needed; only sums take integers",
                table=table,
                column=measure.column,
                got=repr(measure.source),
            )
    keyed = {name: str(source) for name, source in key_columns.items()}
    return Aggregate(table, source, keyed, tuple(measures), tuple(order))


@dataclass(frozen=True, slots=True)
class Plan:
    """The aggregates of one table: its key, and the operation of each other column."""

    table: str
    key: tuple[str, ...]
    operations: Mapping[str, Operation]
    parts: tuple[Aggregate, ...]


def plan_aggregates(aggregates: Iterable[Aggregate]) -> list[Plan]:
    """Put together what contributes to the same table.

    Raises:
        AggregateError: two contributions contradict each other.
    """
    tables: dict[str, list[Aggregate]] = {}
    for part in aggregates:
        tables.setdefault(part.table, []).append(part)
    plans = []
    for table, parts in tables.items():
        key, operations = tuple(parts[0].keys), dict[str, Operation]()
        for part in parts:
            if set(part.keys) != set(key):
                raise AggregateError(
                    "aggregates of one table need the same key",
                    table=table,
                    keys=[list(key), list(part.keys)],
                )
            twice = [measure.column for measure in part.measures]
            for measure in part.measures:
                known = operations.setdefault(measure.column, measure.operation)
                if (
                    known != measure.operation
                    or measure.column in key
                    or twice.count(measure.column) > 1
                ):
                    raise AggregateError(
                        "a column is one thing: part of the key, a sum, a minimum, …",
                        table=table,
                        column=measure.column,
                    )
        plans.append(Plan(table, key, operations, tuple(parts)))
    return plans


def _columns(columns: Mapping[str, str | int] | Columns) -> dict[str, str | int]:
    if isinstance(columns, str):
        raise AggregateError("columns are a list or a mapping", got=repr(columns))
    return dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}


# --- what a batch contributes ---------------------------------------------------------------------


def compute_delta(plan: Plan, data: Mapping[str, Any], numeric: Mapping[str, bool]) -> pa.Table:
    """Return what the frames of a batch contribute. Called on the driver; runs Spark if it must.

    `numeric` tells which columns hold numbers; others are compared as they are written.
    """
    deltas = []
    for rank, part in enumerate(plan.parts):
        reducer = Reducer(plan, part, rank, numeric)
        frame = data[part.source]
        rows = executor_rows(frame)
        if rows is None:
            deltas.append(reducer.contribution(to_arrow(frame)))
        else:
            deltas.append(rows.run(reducer, delta_schema(plan)))
    return reduce_delta(plan, pa.concat_tables(deltas), numeric)


def delta_schema(plan: Plan) -> pa.Schema:
    """Return the columns of a delta."""
    names = [f"k{at}" for at in range(len(plan.key))]
    for at, operation in enumerate(plan.operations.values()):
        names += [f"v{at}", f"o{at}"] if operation == "last" else [f"v{at}"]
    return pa.schema([(name, pa.string()) for name in names])


@dataclass(frozen=True, slots=True)
class Reducer:
    """Sums up an output's rows for one aggregate. It can be pickled, and runs on executors too."""

    plan: Plan
    part: Aggregate
    rank: int
    numeric: Mapping[str, bool]

    def __call__(self, batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Reduce a part; the memory of the keys that it holds is enough."""
        reduced = delta_schema(self.plan).empty_table()
        for batch in batches:
            rows = self.contribution(pa.Table.from_batches([batch]))
            reduced = reduce_delta(self.plan, pa.concat_tables([reduced, rows]), self.numeric)
        yield from reduced.to_batches()

    def contribution(self, frame: pa.Table) -> pa.Table:
        """Return what each row contributes, not reduced yet."""
        part, rows = self.part, frame.num_rows
        columns: list[pa.Array] = []
        for name in self.plan.key:
            texts = text_column(self._column(frame, part.keys[name]), name)
            if texts.null_count:
                raise AggregateError(
                    "a key is null; leave such rows out before", table=part.table, column=name
                )
            columns.append(texts)
        measures = {measure.column: measure for measure in part.measures}
        place: pa.Array | None = None
        for name, operation in self.plan.operations.items():
            measure = measures.get(name)
            nothing = pa.nulls(rows, pa.string())
            columns.append(nothing if measure is None else self._values(frame, measure))
            if operation == "last":
                if measure is not None and place is None:
                    place = self._place(frame)
                columns.append(nothing if measure is None or place is None else place)
        return pa.Table.from_arrays(columns, schema=delta_schema(self.plan))

    def _values(self, frame: pa.Table, measure: Measure) -> pa.Array:
        if isinstance(measure.source, int):
            number = -measure.source if measure.negative else measure.source
            return pa.repeat(str(number), frame.num_rows)
        values = text_column(self._column(frame, measure.source), measure.source)
        if measure.negative:
            return opposites(values)
        return values

    def _place(self, frame: pa.Table) -> pa.Array:
        """Return where each row stands in the order, as text that sorts like it."""
        parts = []
        for name in self.part.order:
            values = self._column(frame, name)
            if not pa.types.is_integer(values.type) or values.null_count:
                raise AggregateError(
                    "the order needs columns of integers without nulls",
                    table=self.part.table,
                    column=name,
                    type=values.type,
                )
            parts.append(pc.ascii_lpad(values.cast(pa.string()), _WIDTH, "0"))
        parts.append(pa.repeat(f"{self.rank:04d}", frame.num_rows))
        return pc.binary_join_element_wise(*parts, "")

    def _column(self, frame: pa.Table, name: str) -> pa.Array:
        check_column(frame.schema, self.part, name)
        return one_array(frame[name])


def check_column(schema: pa.Schema, part: Aggregate, name: str) -> pa.Field:
    """Return a column of an output; refuse one that it lacks, with those that it has."""
    if name not in schema.names:
        raise AggregateError(
            "the output has no such column",
            table=part.table,
            output=part.source,
            column=name,
            known=", ".join(schema.names),
        )
    return schema.field(name)


def reduce_delta(plan: Plan, delta: pa.Table, numeric: Mapping[str, bool]) -> pa.Table:
    """Return a delta with one row per key."""
    if not delta.num_rows:
        return delta
    keys = [one_array(delta[f"k{at}"]) for at in range(len(plan.key))]
    codes = codes_of(keys[0])[0]
    for key in keys[1:]:
        codes = combine(codes, codes_of(key)[0])
    order = sorted_by(codes)
    new = np.append(True, codes[order][1:] != codes[order][:-1])
    groups: Codes = np.cumsum(new) - 1
    count = int(groups[-1]) + 1
    columns = [column.take(pa.array(order[new])) for column in keys]
    for at, (name, operation) in enumerate(plan.operations.items()):
        values = one_array(delta[f"v{at}"]).take(pa.array(order))
        if operation == "last":
            places = one_array(delta[f"o{at}"]).take(pa.array(order))
            newest = _extreme(places, groups, count, largest=True)
            columns += [values.take(newest), places.take(newest)]
        elif numeric[name]:
            columns.append(_reduced(values, groups, count, FIELD_OPERATIONS.index(operation)))
        else:
            extremes = _extreme(values, groups, count, largest=operation == "max")
            columns.append(values.take(extremes))
    return pa.Table.from_arrays(columns, schema=delta.schema)


def _reduced(values: pa.Array, groups: Codes, count: int, kind: int) -> pa.Array:
    """Return sum, minimum or maximum per group; null where a group has no number."""
    present = np.asarray(pc.is_valid(values))
    numbers, owners = canonical(values.filter(pa.array(present))), groups[present]
    if not len(owners):
        return pa.nulls(count, pa.string())
    begins = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    reduced = reduce_numbers(numbers, begins, np.append(begins[1:], len(owners)), kind)
    source = np.full(count, -1, np.int64)
    source[owners[begins]] = np.arange(len(begins))
    return reduced.take(pa.array(source, mask=source < 0))


def _extreme(values: pa.Array, groups: Codes, count: int, *, largest: bool) -> pa.Array:
    """Return the place of each group's largest or smallest text; null where it has none."""
    table = pa.table({"group": groups, "value": values, "place": np.arange(len(groups))})
    table = table.filter(pc.is_valid(table["value"]))
    ranked = table.sort_by([("group", "ascending"), ("value", "ascending")])
    owners = ranked["group"].to_numpy()
    if not len(owners):
        return pa.nulls(count, pa.int64())
    changes = owners[1:] != owners[:-1]
    chosen = np.flatnonzero(np.append(changes, True) if largest else np.append(True, changes))
    source = np.full(count, -1, np.int64)
    source[owners[chosen]] = ranked["place"].to_numpy()[chosen]
    return pa.array(source, mask=source < 0)
