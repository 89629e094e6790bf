"""PostgreSQL: data, cursor and undo in one transaction; `postgres_target("postgresql://…")`."""

from headwater.targets.postgres.target import PostgresSettings, PostgresTarget, postgres_target
from headwater.targets.postgres.tx import Tx
from headwater.targets.sql.layout import Table
from headwater.targets.tables import table

__all__ = ["PostgresSettings", "PostgresTarget", "Table", "Tx", "postgres_target", "table"]
