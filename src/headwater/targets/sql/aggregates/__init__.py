"""Tables that sum up an output and stay exact through forks: `aggregate("balances", …)`."""

from headwater.targets.sql.aggregates.declaration import Aggregate, aggregate

__all__ = ["Aggregate", "aggregate"]
