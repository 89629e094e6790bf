"""The names of PostgreSQL's tables, and what statements are made with.

Names are taken literally: `Transfers` and `transfers` are two tables.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

from headwater.errors import InvalidOptionError
from headwater.targets.sql.text import Fragment as Fragment
from headwater.targets.sql.text import QualifiedName
from headwater.targets.sql.text import columns as columns
from headwater.targets.sql.text import compose as compose
from headwater.targets.sql.text import equal as equal
from headwater.targets.sql.text import literal as literal
from headwater.targets.sql.text import quote as quote

DEFAULT_SCHEMA = "public"
LONGEST = 63  # bytes of an identifier; PostgreSQL cuts off the rest without a word


def fitted(name: str, prefix: str = "", suffix: str = "") -> str:
    """Return prefix, name and suffix as one identifier; a name that is too long is told apart."""
    whole = prefix + name + suffix
    if len(whole.encode()) <= LONGEST:
        return whole
    digest = "_" + hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    room = LONGEST - len((prefix + digest + suffix).encode())
    return prefix + name.encode()[:room].decode(errors="ignore") + digest + suffix


class TableName(QualifiedName):
    """A table in a schema."""

    __slots__ = ()
    default_schema: ClassVar[str] = DEFAULT_SCHEMA

    @classmethod
    def check(cls, part: str) -> None:
        """Refuse a name that PostgreSQL would cut off."""
        if len(part.encode()) > LONGEST or "\0" in part:
            raise InvalidOptionError(f"a name has at most {LONGEST} bytes", got=repr(part))

    def suffixed(self, suffix: str) -> TableName:
        """Return the name of a table that belongs to this one."""
        return TableName(self.schema, fitted(self.name, suffix=suffix))
