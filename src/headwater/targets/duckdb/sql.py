"""The names of DuckDB's tables, and what statements are made with."""

from __future__ import annotations

from typing import ClassVar

from headwater.targets.sql.text import Fragment as Fragment
from headwater.targets.sql.text import QualifiedName
from headwater.targets.sql.text import columns as columns
from headwater.targets.sql.text import compose as compose
from headwater.targets.sql.text import equal as equal
from headwater.targets.sql.text import literal as literal
from headwater.targets.sql.text import quote as quote

DEFAULT_SCHEMA = "main"


class TableName(QualifiedName):
    """A table in a schema. DuckDB compares names without regard to case, and so does `folded`."""

    __slots__ = ()
    default_schema: ClassVar[str] = DEFAULT_SCHEMA

    @property
    def folded(self) -> tuple[str, str]:
        """What two spellings of one table have in common."""
        return self.schema.lower(), self.name.lower()
