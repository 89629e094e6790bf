"""Plans that need no engine: columns chosen, renamed and cast, and rows filtered, in Arrow.

Rows that enter the JVM and leave it again cost more than their decoding. Much of what transforms
say needs nothing of Spark but its meaning: such a plan is read from Spark's own analysed one, and
carried out where the rows are, on executors or on the driver. It is taken only if each of its
expressions is one of those below, whose values in Arrow are Spark's for every input; anything else
is left to Spark, whole. So what a value is never depends on who computes it.

A cast that may fail is done for the rows that are left, as Spark does it, and fails as well, with
E5032. Made on the driver; it pickles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType, _parse_datatype_json_string

from headwater.decode.columns.integers import DECIMAL, wide_integer, with_spark_metadata
from headwater.errors import TransformValueError
from headwater.spark import catalyst

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_ORDERED = (*_INTEGERS, pa.string(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))
_DIGITS = 19  # of the longest int64
_OF_TEXT = {"StartsWith": "starts_with", "EndsWith": "ends_with", "Contains": "match_substring"}
_ABOVE_LEAF = {"PipeOperator", "ResolvedHint", "SubqueryAlias", "View"}  # they change nothing


class _LeftToSpark(Exception):  # noqa: N818 - it is no error
    """A plan holds what is not known to be the same in Arrow."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A column of the leaf, a literal, or a function of such, and the type that Spark gives it.

    `text_of_integer`: its values are integers in their shortest form. `may_fail`: its rows decide.
    """

    name: str
    kind: pa.DataType
    parts: tuple[Expression, ...] = ()
    value: Any = None
    text_of_integer: bool = False
    may_fail: bool = False

    @property
    def columns(self) -> frozenset[int]:
        """The places of the columns that it is made of."""
        own = frozenset((self.value,)) if self.name == "column" else frozenset[int]()
        return own.union(*(part.columns for part in self.parts))

    def of(self, columns: Mapping[int, Any]) -> Any:
        """Return its values: an array, or the scalar of a literal."""
        if self.name == "column":
            column = columns[self.value]
            return column if column.type == self.kind else column.cast(self.kind)
        if self.name == "literal":
            return pa.scalar(self.value, self.kind)
        values = [part.of(columns) for part in self.parts]
        if self.name == "is_in":
            known = pc.is_in(values[0], value_set=self.value)
            return pc.if_else(pc.is_null(values[0]), pa.scalar(None, pa.bool_()), known)
        if self.name == "if_else":  # a condition that is null is not fulfilled
            return pc.if_else(pc.fill_null(values[0], False), *values[1:])
        if self.name == "concat":
            return pc.binary_join_element_wise(*values, "")
        if self.name != "cast":
            options = () if self.value is None else (self.value,)
            return getattr(pc, self.name)(*values, *options)
        if self.kind == DECIMAL and pa.types.is_string(values[0].type):
            digits = pc.max(pc.utf8_length(pc.utf8_ltrim(values[0], "-"))).as_py()
            if digits is not None and digits > DECIMAL.precision:  # Arrow would cut them
                raise _misfit(self.kind, f"{digits} digits")
        try:
            return pc.cast(values[0], self.kind, safe=self.kind != pa.float64())
        except pa.ArrowInvalid as error:
            raise _misfit(self.kind, str(error).partition("\n")[0]) from None


def _misfit(kind: pa.DataType, said: str) -> TransformValueError:
    return TransformValueError(
        "a value does not fit the type that a transform casts it to", type=kind, said=said
    )


@dataclass(frozen=True, slots=True)
class ArrowPlan:
    """What a plan makes of the rows of one output, in Arrow.

    The rows that fulfil all conditions are left, in their order; `columns` are made of these.
    """

    source: str
    conditions: tuple[Expression, ...]
    columns: tuple[Expression, ...]
    schema: pa.Schema

    @property
    def places(self) -> tuple[int, ...]:
        """The places of its columns, where these are columns of the leaf."""
        return tuple(column.value for column in self.columns)

    def with_column(self, place: int, field: pa.Field) -> ArrowPlan:
        """Return the plan for rows with a further column, which it hands on as its last."""
        column = Expression("column", field.type, value=place)
        return replace(self, columns=(*self.columns, column), schema=self.schema.append(field))

    def rows(self, rows: Rows) -> Rows:
        """Return what becomes of rows."""
        every = self.conditions + self.columns
        columns: dict[int, Any] = {
            place: rows.column(place)
            for place in frozenset[int]().union(*(expression.columns for expression in every))
        }
        count = rows.num_rows
        for condition in self.conditions:
            keep = condition.of(columns)
            columns = {place: column.filter(keep) for place, column in columns.items()}
            count = len(next(iter(columns.values())))
        arrays = [
            _as_field(expression.of(columns), field, count)
            for expression, field in zip(self.columns, self.schema, strict=True)
        ]
        return type(rows).from_arrays(arrays, schema=self.schema)


def _as_field(values: Any, field: pa.Field, count: int) -> Any:
    if isinstance(values, pa.Scalar):
        return pa.repeat(values, count)
    return values if values.type == field.type else values.cast(field.type)


def in_arrow(node: catalyst.Node) -> ArrowPlan | None:
    """Return a captured plan as one of Arrow; None if it is left to Spark. Runs no job."""
    try:
        source, conditions, known = _walked(node)
        columns = tuple(
            known[attribute.exprId().id()] for attribute in catalyst.items(node.plan.output())
        )
    except _LeftToSpark:
        return None
    if not columns:  # Arrow forgets how many rows there are
        return None
    struct = StructType.fromJson(json.loads(node.plan.schema().json()))
    schema = to_arrow_schema(struct, timezone="UTC")
    if any(column.kind != field.type for column, field in zip(columns, schema, strict=True)):
        return None
    return ArrowPlan(source, conditions, columns, schema)


def before_spark(session: SparkSession, node: catalyst.Node) -> ArrowPlan | None:
    """Return what can be done to the rows of a plan's only leaf before Spark has them.

    Rows that its lowest filters leave out, and columns that nothing reads, need not cross. None if
    it has several leaves. The names of the columns are their places. Runs no job.
    """
    if len(node.leaves) != 1 or (places := catalyst.used(session, node)) is None:
        return None
    (leaf,) = node.leaves
    attributes = catalyst.items(leaf.plan.output())
    try:
        columns = tuple(_leaf(attributes[place], place) for place in places)
    except _LeftToSpark:
        return None
    if not columns:
        return None
    fields = [
        pa.field(str(place), column.kind) for place, column in zip(places, columns, strict=True)
    ]
    return ArrowPlan(str(leaf.source), _first_conditions(node), columns, pa.schema(fields))


def _first_conditions(node: catalyst.Node) -> tuple[Expression, ...]:
    """Return the conditions that a plan begins with."""
    try:
        return _walked(node)[1]
    except _LeftToSpark:
        return _first_conditions(next(child for child in node.children if child.leaves))


_Walked = tuple[str, tuple[Expression, ...], dict[int, Expression]]


def _walked(node: catalyst.Node) -> _Walked:
    """Return the leaf of a plan, its conditions, and the columns of its top by Spark's numbers."""
    if node.source is not None:
        attributes = catalyst.items(node.plan.output())
        known = {
            attribute.exprId().id(): _leaf(attribute, place)
            for place, attribute in enumerate(attributes)
        }
        return node.source, (), known
    if len(node.children) != 1 or not node.children[0].of_batch:
        raise _LeftToSpark
    source, conditions, known = _walked(node.children[0])
    name = str(node.plan.getClass().getSimpleName())
    if name == "Filter":
        condition = _expression(node.plan.condition(), known)
        if condition.may_fail or not condition.columns:
            raise _LeftToSpark
        conditions = (*conditions, condition)
    elif name == "Project":
        items = catalyst.items(node.plan.projectList())
        known = {item.exprId().id(): _expression(item, known) for item in items}
    elif name not in _ABOVE_LEAF:
        raise _LeftToSpark
    return source, conditions, known


def _leaf(attribute: Any, place: int) -> Expression:
    kind, metadata = _kind(attribute), json.loads(attribute.metadata().json())
    integer = wide_integer(with_spark_metadata(pa.field("", kind), metadata))
    return Expression("column", kind, value=place, text_of_integer=integer is not None)


def _kind(expression: Any) -> pa.DataType:
    """Return the type that Spark's has in Arrow."""
    kind = _parse_datatype_json_string(expression.dataType().json())
    if "collat" in (text := kind.json()) or "void" in text or "interval" in text:
        raise _LeftToSpark
    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException:  # Arrow has no such type
        raise _LeftToSpark from None


def _expression(node: Any, known: Mapping[int, Expression]) -> Expression:
    name = str(node.getClass().getSimpleName())
    if name == "AttributeReference":
        if (column := known.get(node.exprId().id())) is None:
            raise _LeftToSpark
        return column
    if name == "Alias":
        return _expression(node.child(), known)
    kind = _kind(node)
    if name == "Literal":
        return Expression("literal", kind, value=_literal(node, kind))
    if name not in _FUNCTIONS and name not in _MAKERS:
        raise _LeftToSpark
    parts = tuple(_expression(child, known) for child in catalyst.items(node.children()))
    if name in _MAKERS:
        expression = _MAKERS[name](node, kind, parts)
    else:
        function, allows = _FUNCTIONS[name]
        expression = Expression(function, kind, parts) if allows(kind, parts) else None
    if expression is None or (expression.parts and any(part.may_fail for part in parts)):
        raise _LeftToSpark  # whether a part is computed at all would depend on the others
    return expression


def _literal(node: Any, kind: pa.DataType) -> Any:
    value = node.value()
    if value is None or kind not in (*_ORDERED, pa.bool_(), pa.float64()):
        raise _LeftToSpark
    return value.toString() if kind == pa.string() and not isinstance(value, str) else value


def _in(node: Any, kind: pa.DataType, parts: tuple[Expression, ...]) -> Expression | None:
    value, *of = parts
    if value.kind not in _ORDERED or not value.columns:
        return None
    if any(literal.name != "literal" or literal.kind != value.kind for literal in of):
        return None
    known = pa.array([literal.value for literal in of], value.kind)
    return Expression("is_in", kind, (value,), known)


def _case(node: Any, kind: pa.DataType, parts: tuple[Expression, ...]) -> Expression | None:
    if len(parts) % 2 == 0:
        return None  # without a value for all else it is null
    *parts_before, result = parts
    for condition, value in reversed(list(zip(parts_before[::2], parts_before[1::2], strict=True))):
        if not _are_values(kind, (value, result)):
            return None
        result = Expression("if_else", kind, (condition, value, result))
    return result


def _are_values(kind: pa.DataType, parts: Iterable[Expression]) -> bool:
    return kind in (*_ORDERED, pa.bool_(), pa.float64()) and all(p.kind == kind for p in parts)


def _of_text(node: Any, kind: pa.DataType, parts: tuple[Expression, ...]) -> Expression | None:
    text, pattern = parts
    if text.kind != pa.string() or pattern.name != "literal" or pattern.kind != pa.string():
        return None
    name = _OF_TEXT[node.getClass().getSimpleName()]
    return Expression(name, kind, (text,), pattern.value)


def _cast(node: Any, kind: pa.DataType, parts: tuple[Expression, ...]) -> Expression | None:
    (part,) = parts
    before, mode = part.kind, node.evalMode().toString()
    if kind == before:
        return part
    if before in _INTEGERS:
        wider = kind in _INTEGERS and kind.bit_width > before.bit_width
        roomy = pa.types.is_decimal128(kind) and kind.precision - kind.scale >= _DIGITS
        if part.name == "literal" and (wider or kind == pa.float64()):
            return Expression(
                "literal", kind, value=pa.scalar(part.value, before).cast(kind).as_py()
            )
        if wider or roomy or kind in (pa.string(), pa.float64()):
            return Expression("cast", kind, parts)
        if kind in _INTEGERS and mode == "ANSI":
            return Expression("cast", kind, parts, may_fail=True)
    if part.text_of_integer:
        if kind == pa.float64():
            return Expression("cast", kind, parts)
        if mode == "ANSI" and kind in (*_INTEGERS, DECIMAL):
            return Expression("cast", kind, parts, may_fail=True)
    return None


_Parts = tuple[Expression, ...]


def _are_ordered(kind: pa.DataType, parts: _Parts) -> bool:
    return parts[0].kind == parts[1].kind and parts[0].kind in _ORDERED


def _are_fractions(kind: pa.DataType, parts: _Parts) -> bool:
    return kind == pa.float64() and all(part.kind == kind for part in parts)


def _divides(kind: pa.DataType, parts: _Parts) -> bool:
    """Tell whether it is a division that Spark cannot refuse: by a number that is not 0."""
    return _are_fractions(kind, parts) and parts[1].name == "literal" and bool(parts[1].value)


def _are_texts(kind: pa.DataType, parts: _Parts) -> bool:
    return kind == pa.string() and len(parts) > 1 and all(part.kind == kind for part in parts)


def _is_any(kind: pa.DataType, parts: _Parts) -> bool:
    return True


_FUNCTIONS: dict[str, tuple[str, Callable[[pa.DataType, _Parts], bool]]] = {
    "Add": ("add", _are_fractions),
    "And": ("and_kleene", _is_any),
    "Coalesce": ("coalesce", _are_values),
    "Concat": ("concat", _are_texts),
    "Divide": ("divide", _divides),
    "EqualTo": ("equal", _are_ordered),
    "GreaterThan": ("greater", _are_ordered),
    "GreaterThanOrEqual": ("greater_equal", _are_ordered),
    "IsNotNull": ("is_valid", _is_any),
    "IsNull": ("is_null", _is_any),
    "Length": ("utf8_length", lambda kind, parts: bool(parts[0].kind == pa.string())),
    "LessThan": ("less", _are_ordered),
    "LessThanOrEqual": ("less_equal", _are_ordered),
    "Multiply": ("multiply", _are_fractions),
    "Not": ("invert", _is_any),
    "Or": ("or_kleene", _is_any),
    "Subtract": ("subtract", _are_fractions),
}
"""Expressions of Spark's that are one function of Arrow's, where types and parts allow it."""

_MAKERS: dict[str, Callable[..., Expression | None]] = {
    **dict.fromkeys(_OF_TEXT, _of_text),
    "CaseWhen": _case,
    "Cast": _cast,
    "If": _case,
    "In": _in,
}
"""Expressions that are more than that."""
