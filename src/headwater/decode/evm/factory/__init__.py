"""Factories: contracts whose events announce other contracts. Made by `evm.factory`.

A factory is a value: made on the driver, pickled to executors, never changed. What it finds is kept
by the stream (`headwater.stream.factories`), because it must survive forks and restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.core import RangeSpec
from headwater.decode.evm.abi import Event
from headwater.decode.evm.factory.children import Children, Since
from headwater.decode.evm.topics import TopicFilters
from headwater.errors import InvalidOptionError
from headwater.query import Filter, Query

PREFIX = "factory_"


@dataclass(frozen=True, slots=True)
class Factory:
    """Contracts that announce their children with an event.

    `contracts` announce, or the children of the factory `parent`. `child` is the parameter that
    holds the new address; `fields` are the columns that rows of children get. Creations before
    `start` are not looked for.
    """

    event: Event
    child: str
    start: RangeSpec
    contracts: tuple[str, ...] | None = None
    parent: Factory | None = None
    topics: TopicFilters = ()
    columns: tuple[str, ...] = ()
    fields: tuple[pa.Field, ...] = ()

    @property
    def key(self) -> str:
        """What the children are stored under: it follows from all that defines the children."""
        above = None if self.parent is None else self.parent.key
        said = (
            (self.event.signature, [one.indexed for one in self.event.parameters], self.child),
            (sorted(self.contracts or ()), above, self.topics, self.columns, self.start),
        )
        return hashlib.sha256(repr(said).encode()).hexdigest()[:16]

    @property
    def depth(self) -> int:
        """0, or how many factories stand above this one."""
        return 0 if self.parent is None else 1 + self.parent.depth

    def none(self) -> Children:
        """Return no children of this factory."""
        return Children.none(pa.schema(self.fields))


@dataclass(frozen=True, slots=True)
class ChildScope:
    """Restricts an output to the children of a factory; `children` are those known so far.

    `address` is the column of rows that holds the contract, `condition` the portal's name of it.
    The children are None until a stream knows them.
    """

    factory: Factory
    address: str
    condition: str
    since: Since
    children: Children | None = None

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of children since their creation, with the asked columns appended.

        Raises:
            InvalidOptionError: no stream has looked for the children.
        """
        if self.children is None:
            raise InvalidOptionError("only a stream knows the children of a factory")
        return self.children.own_rows(batch, self.address, self.since)

    def with_children(self, children: Children) -> ChildScope:
        """Return the scope of these children."""
        return replace(self, children=children)

    def narrow(self, query: Query, addresses: Sequence[str]) -> Query:
        """Return the query for these addresses alone; for nothing if there are none."""
        if not addresses:
            return replace(query, filters=())
        listed = (self.condition, tuple(addresses))
        return replace(
            query,
            filters=tuple(
                Filter(one.family, (listed, *one.conditions), one.relations)
                for one in query.filters
            ),
        )


def events_scope(factory: Factory) -> ChildScope:
    """Return the scope of logs: those of a child behind the log that announces it."""
    return ChildScope(factory, "address", "address", Since.LOG)


def calls_scope(factory: Factory, source: str) -> ChildScope:
    """Return the scope of calls: of transactions, those after the one that announces the child.

    Traces are not ordered among logs, so those of the announcing transaction count whole.
    """
    if source == "transactions":
        return ChildScope(factory, "to", "to", Since.LATER)
    return ChildScope(factory, "callTo", "callTo", Since.TRANSACTION)
