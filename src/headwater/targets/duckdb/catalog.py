"""The tables of a stream in DuckDB.

Beside append-only and keyed tables, DuckDB undoes *keyless* ones: their inserted rows are kept a
second time and taken out again, as often as they were put in.
"""

from __future__ import annotations

from headwater.targets.duckdb.dialect import DUCKDB
from headwater.targets.duckdb.session import Session
from headwater.targets.sql.catalog import Catalog, Layout


class DuckDBCatalog(Catalog[Session, Layout]):
    """Knows a stream's tables."""

    dialect = DUCKDB
