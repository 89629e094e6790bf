"""Plans as Spark itself keeps them: made, looked at and bound to rows, through Py4J.

A plan is captured over leaves that have columns and no rows, and that Spark takes for streams: so
Spark refuses every action on what is made of them. Bound, the same plan stands over the rows of a
batch. What is called here is there from Spark 4.0 to 4.3. Runs on the driver; no Spark job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as Classic
from pyspark.sql.types import IntegerType, StructField, StructType

_ROW_BY_ROW = {
    "Filter", "Generate", "PipeOperator", "Project", "Repartition", "RepartitionByExpression",
    "ResolvedHint", "Sort", "SubqueryAlias", "View",
}  # fmt: skip
_KEPT_SIDE = {  # of a join: where the batch may stand, so that each row is made of one of its rows
    "CROSS": (0, 1), "INNER": (0, 1), "LEFT ANTI": (0,), "LEFT OUTER": (0,), "LEFT SEMI": (0,),
    "RIGHT OUTER": (1,),
}  # fmt: skip


@lru_cache(maxsize=32)
def jvm_class(jvm: Any, name: str) -> Any:
    """Return a class of the JVM; to look for it is a question by itself."""
    return getattr(jvm, name)


@lru_cache(maxsize=16)
def jvm_object(jvm: Any, name: str) -> Any:
    """Return an object of Scala."""
    return getattr(jvm_class(jvm, f"{name}$"), "MODULE$")


def activate(session: SparkSession) -> None:
    """Make a session the one that user code finds active in this thread."""
    inner: Any = session
    SparkSession._activeSession = session
    jvm_class(inner._jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(
        inner._jsparkSession
    )


def rowless(session: SparkSession, schema: StructType) -> tuple[DataFrame, int]:
    """Return a DataFrame that refuses actions, and the number by which its leaf is known."""
    inner: Any = session._jsparkSession
    jvm: Any = session._jvm
    rows = inner.sparkContext().emptyRDD(jvm_object(jvm, "scala.reflect.ClassTag").Any())
    frame = inner.internalCreateDataFrame(rows, inner.parseDataType(schema.json()), True)
    return Classic(frame, session), int(rows.id())


def of_rows(session: SparkSession, rows: Any, schema: StructType) -> DataFrame:
    """Return a DataFrame of an RDD of tuples, which Spark itself turns into columns."""
    inner: Any = session
    known = inner._jvm.SerDeUtil.toJavaArray(rows._to_java_object_rdd())
    frame = inner._jsparkSession.applySchemaToPythonRDD(known.rdd(), schema.json())
    return Classic(frame, session)


def analyzed(frame: Any) -> Any:
    """Return the plan of a DataFrame; None of anything else."""
    inner = type(frame).__module__.startswith("pyspark.sql.classic")
    return frame._jdf.queryExecution().analyzed() if inner else None


@dataclass(frozen=True, slots=True)
class Node:
    """A plan, taken apart as far down as it stands over rows of a batch.

    A leaf that is to be replaced by the rows of an output names it as its `source`. What is not
    `of_batch` stands over other tables, and stays as it is. `hidden` is a further column of leaves.
    """

    plan: Any
    children: tuple[Node, ...] = ()
    source: str | None = None
    of_batch: bool = True
    hidden: Any = None

    @property
    def leaves(self) -> list[Node]:
        """The leaves that stand over rows of a batch."""
        if self.source is not None:
            return [self]
        return [leaf for child in self.children for leaf in child.leaves]

    @property
    def sources(self) -> frozenset[str]:
        """The outputs that it stands over."""
        return frozenset(leaf.source for leaf in self.leaves if leaf.source is not None)


def taken_apart(session: SparkSession, plan: Any, leaves: Mapping[int, str]) -> Node:
    """Take a captured plan apart; `leaves` are the outputs by the numbers of `rowless`."""
    if not plan.isStreaming():
        return Node(plan, of_batch=False)
    children = tuple(taken_apart(session, child, leaves) for child in items(plan.children()))
    name = plan.getClass().getSimpleName()
    if name == "LogicalRDD" and plan.rdd().id() in leaves:
        return Node(plan, source=leaves[plan.rdd().id()])
    if name == "CTERelationRef":  # what it refers to stands elsewhere in the plan
        return Node(_with(session, plan, isStreaming=False))
    return Node(plan, children)


def is_bindable(node: Node) -> bool:
    """Tell whether nothing of it would be a stream still if its leaves were replaced."""
    queries = items(node.plan.subqueriesAll())
    return _has_no_stream(node) and not any(query.isStreaming() for query in queries)


def _has_no_stream(node: Node) -> bool:
    if node.children:
        return all(map(_has_no_stream, node.children))
    return node.source is not None or not node.plan.isStreaming()


def is_random(plan: Any) -> bool:
    """Tell whether a plan has expressions whose values are drawn, or depend on where rows lie."""
    return any(not expression.deterministic() for expression in items(plan.expressions())) or any(
        map(is_random, items(plan.children()))
    )


def mixes_rows(node: Node) -> str | None:
    """Return the operator that makes a row of several rows of the batch; None if there is none."""
    if node.source is not None:
        return None
    if not node.of_batch:
        return "rows of another table"
    name = str(node.plan.getClass().getSimpleName())
    sides = [place for place, child in enumerate(node.children) if child.of_batch]
    kept: Sequence[int] = (0,) if name in _ROW_BY_ROW else ()
    if name == "Join":
        kind = str(node.plan.joinType().sql())
        name, kept = f"{name} {kind}", _KEPT_SIDE.get(kind, ())
    if len(sides) != 1 or sides[0] not in kept:
        return name
    if node.plan.subqueries().nonEmpty():
        return f"{name} with a subquery"
    for expression in items(node.plan.expressions()):
        if not expression.deterministic():
            return f"{name} with {expression.sql()}"
    return mixes_rows(node.children[sides[0]])


def with_hidden(session: SparkSession, node: Node, column: Any) -> Node:
    """Return a plan that mixes no rows with a further column, from its leaf to its top."""
    if node.source is not None:
        return replace(node, hidden=column)
    plan = node.plan
    if plan.getClass().getSimpleName() == "Project":
        plan = _with(session, plan, projectList=_and(plan.projectList(), column))
    children = [
        with_hidden(session, child, column) if child.of_batch else child for child in node.children
    ]
    return Node(plan, tuple(children))


def hidden_column(session: SparkSession, name: str) -> Any:
    """Return a new column of integers, for `with_hidden`."""
    frame, _ = rowless(session, StructType([StructField(name, IntegerType(), False)]))
    return analyzed(frame).output().head()


def used(session: SparkSession, node: Node) -> tuple[int, ...] | None:
    """Return which columns of its only leaf a plan uses, by their places; None if it may be all.

    Spark's optimizer says so: nothing reads what it has left out.
    """
    (leaf,) = node.leaves
    inner: Any = session
    rows, schema = leaf.plan.rdd(), leaf.plan.schema()
    empty = Classic(inner._jsparkSession.internalCreateDataFrame(rows, schema, False), session)
    above = bound(session, node, {str(leaf.source): empty})._jdf.queryExecution().optimizedPlan()
    ways = list(_ways(above, rows.id()))
    if len(ways) != 1:
        return None
    *ways, last = ways[0]
    wanted = set[int]()
    for plan in reversed(ways):
        wanted |= {attribute.exprId().id() for attribute in items(plan.references().toSeq())}
        name = plan.getClass().getSimpleName()
        if name == "Project":
            columns = enumerate(items(last.output()))
            return tuple(place for place, attribute in columns if attribute.exprId().id() in wanted)
        if name != "Filter":
            break
    return None


def _ways(plan: Any, rows: int) -> Iterator[list[Any]]:
    """Yield the plans from the top down to each leaf over these rows."""
    if plan.getClass().getSimpleName() == "LogicalRDD" and plan.rdd().id() == rows:
        yield [plan]
    for child in items(plan.children()):
        for way in _ways(child, rows):
            yield [plan, *way]


def bound(
    session: SparkSession,
    node: Node,
    rows: Mapping[str, DataFrame],
    places: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> DataFrame:
    """Return what a plan is over the rows of a batch: a DataFrame of each of its sources.

    Their columns are those that the leaves had, and the hidden one behind them. Of a source with
    `places` they are those at these alone: others, which the plan does not use, are null.
    """
    inner: Any = session
    plans = {name: (analyzed(rows[name]), places.get(name)) for name in node.sources}
    plan = _bound(session, node, plans)
    make = jvm_object(inner._jvm, "org.apache.spark.sql.classic.Dataset").ofRows
    return Classic(make(inner._jsparkSession, plan), session)


def _bound(
    session: SparkSession, node: Node, rows: Mapping[str, tuple[Any, Sequence[int] | None]]
) -> Any:
    if node.source is not None:
        columns = node.plan.output()
        if node.hidden is not None:
            columns = _and(columns, node.hidden)
        return _renamed(session, *rows[node.source], columns)
    if not node.children:
        return node.plan
    return node.plan.withNewChildren(
        _seq(session, [_bound(session, child, rows) for child in node.children])
    )


def _renamed(session: Any, plan: Any, places: Sequence[int] | None, columns: Any) -> Any:
    """Return a plan whose columns Spark takes for others, which have the same types."""
    if plan.getClass().getSimpleName() == "LocalRelation":
        return _with(session, plan, output=columns)
    none, empty = jvm_object(session._jvm, "scala.None"), _seq(session, [])
    alias = jvm_class(session._jvm, "org.apache.spark.sql.catalyst.expressions.Alias")
    literal = jvm_object(session._jvm, "org.apache.spark.sql.catalyst.expressions.Literal")
    wanted, there = items(columns), items(plan.output())
    known = dict(zip(range(len(wanted)) if places is None else places, there, strict=True))
    aliases = [
        alias(
            known[place] if place in known else literal.create(None, to.dataType()),
            to.name(), to.exprId(), empty, none, empty,
        )
        for place, to in enumerate(wanted)
    ]  # fmt: skip
    project = jvm_class(session._jvm, "org.apache.spark.sql.catalyst.plans.logical.Project")
    return project(_seq(session, aliases), plan)


def _with(session: Any, plan: Any, **changed: Any) -> Any:
    """Return a plan with other values of some of its fields."""
    gateway = session.sparkContext._gateway
    fields = gateway.new_array(gateway.jvm.java.lang.Object, plan.productArity())
    for place in range(len(fields)):
        name = plan.productElementName(place)
        fields[place] = changed[name] if name in changed else plan.productElement(place)
    return plan.makeCopy(fields)


def _and(columns: Any, column: Any) -> Any:
    return getattr(columns, "$colon$plus")(column)


def _seq(session: Any, items: Sequence[Any]) -> Any:
    sequence = jvm_object(session._jvm, "scala.collection.immutable.Nil")
    for item in reversed(items):
        sequence = getattr(sequence, "$colon$colon")(item)
    return sequence


def items(seq: Any) -> list[Any]:
    """Return the items of a sequence of Scala."""
    return [seq.apply(place) for place in range(seq.size())]
