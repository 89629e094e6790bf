"""Changes into tables with a history: `history_target("postgresql://…", tables=["transfer"])`."""

from headwater.targets.sql.change_log.target import HistoryTarget, history_target

__all__ = ["HistoryTarget", "history_target"]
