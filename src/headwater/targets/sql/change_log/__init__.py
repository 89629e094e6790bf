"""Changes into tables, under a change log: `history_target("changes.duckdb", tables=[…])`."""

from headwater.targets.sql.change_log.target import HistoryTarget, history_target

__all__ = ["HistoryTarget", "history_target"]
