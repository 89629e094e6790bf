"""What a user declares: which rows of an output count for which row of a table, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headwater.errors import AggregateError

Operation = Literal["add", "min", "max", "last"]
Columns = Mapping[str, str] | Sequence[str]
ORDER = ("block_number", "log_index")


@dataclass(frozen=True, slots=True)
class Measure:
    """One column: how it is computed, and from which column of the output, or from a constant."""

    column: str
    operation: Operation
    source: str | int
    negative: bool = False


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What the rows of one output contribute to a table. Made by `aggregate`."""

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
    given = _columns(keys)
    if not table or not source or not given or isinstance(order, str):
        raise AggregateError(
            "an aggregate needs a table, an output and key columns", table=table, source=source
        )
    measures = [
        *(Measure(name, "add", one) for name, one in _columns(add).items()),
        *(Measure(name, "add", one, negative=True) for name, one in _columns(sub).items()),
        *(Measure(name, "min", one) for name, one in _columns(min).items()),
        *(Measure(name, "max", one) for name, one in _columns(max).items()),
        *(Measure(name, "last", one) for name, one in _columns(last).items()),
    ]
    for one in measures:
        constant = isinstance(one.source, int) and not isinstance(one.source, bool)
        if not isinstance(one.source, str) and not (constant and one.operation == "add"):
            raise AggregateError(
                "a column's name is needed; only sums take integers",
                table=table,
                column=one.column,
                got=repr(one.source),
            )
    keyed = {name: str(one) for name, one in given.items()}
    return Aggregate(table, source, keyed, tuple(measures), tuple(order))


@dataclass(frozen=True, slots=True)
class Plan:
    """All that contributes to one table: its key, and the operation of each other column."""

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
    for given in aggregates:
        tables.setdefault(given.table, []).append(given)
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
            twice = [one.column for one in part.measures]
            for one in part.measures:
                known = operations.setdefault(one.column, one.operation)
                if known != one.operation or one.column in key or twice.count(one.column) > 1:
                    raise AggregateError(
                        "a column is one thing: part of the key, a sum, a minimum, …",
                        table=table,
                        column=one.column,
                    )
        plans.append(Plan(table, key, operations, tuple(parts)))
    return plans


def _columns(given: Mapping[str, str | int] | Columns) -> dict[str, str | int]:
    if isinstance(given, str):
        raise AggregateError("columns are a list or a mapping", got=repr(given))
    return dict(given) if isinstance(given, Mapping) else {name: name for name in given}
