"""The aggregates of a target: which tables they need, and that each batch adds to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from headwater.targets.sql.aggregates.declaration import Aggregate, plan_aggregates
from headwater.targets.sql.dialect import Dialect
from headwater.targets.sql.settings import Table, table


class Aggregates(ABC):
    """The aggregates of one target. Runs on the driver, inside the transaction of each batch."""

    def __init__(self, aggregates: Iterable[Aggregate], declared: Iterable[Table]) -> None:
        self._plans = plan_aggregates(aggregates)
        self._declared = {one.name.folded for one in declared}

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._plans)

    def tables(self, dialect: Dialect[Any]) -> list[Table]:
        """Return the tables that the user has not declared; what they hold is found out later."""
        made = [
            dialect.declare(table(one.table, key=one.key, append_only=False)) for one in self._plans
        ]
        return [one for one in made if one.name.folded not in self._declared]

    @abstractmethod
    def write(self, tx: Any, data: Mapping[str, Any], block: int) -> None:
        """Add what a batch contributes."""
