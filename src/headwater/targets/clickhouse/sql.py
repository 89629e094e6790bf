"""Names and statements: every identifier is quoted in one place, so any name works.

Statements are templates whose gaps `<name>` are filled with quoted names. Values travel as
parameters (`{n:UInt64}`), which the server reads itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headwater.errors import ClickHouseTableNameError
from headwater.targets.text import Fragment, Part, QualifiedName

_PART = re.compile(r'`((?:[^`\\]|\\.)+)`|"((?:[^"\\]|\\.)+)"|([^`".]+)')
DELETED = {  # settings: the answer comes when rows are gone, and conditions are not asked later
    "lightweight_deletes_sync": "2",
    "mutations_sync": "2",
    "mutations_execute_subqueries_on_initiator": "1",
}
_GAP = re.compile(r"<(\w+)>")
_ESCAPES = str.maketrans({"\\": "\\\\", "`": "\\`", "'": "\\'"})


def quote(identifier: str) -> str:
    """Return an identifier in backticks."""
    return f"`{identifier.translate(_ESCAPES)}`"


def literal(text: str) -> Fragment:
    """Return a text in single quotes."""
    return Fragment(f"'{text.translate(_ESCAPES)}'")


def columns(names: Iterable[str]) -> Fragment:
    """Return quoted names, separated by commas."""
    return Fragment(", ".join(map(quote, names)))


class TableName(QualifiedName):
    """A table in a database; written into a statement it is quoted."""

    __slots__ = ()

    @property
    def database(self) -> str:
        """The database that holds the table."""
        return self.schema

    @property
    def quoted(self) -> str:
        """The name as it stands in a statement."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def params(self) -> dict[str, str]:
        """The name as parameters `database` and `name` of a question to system tables."""
        return {"database": self.schema, "name": self.name}

    def __str__(self) -> str:
        return self.quoted


def parse_name(text: str, database: str) -> TableName:
    """Read `name` or `database.name`; parts in backticks or double quotes are literal."""
    parts: list[str] = []
    end = 0
    while match := _PART.match(text, end):
        quoted = match[1] or match[2]
        parts.append(re.sub(r"\\(.)", r"\1", quoted) if quoted else match[3])
        end = match.end() + 1
        if text[match.end() : end] != ".":
            break
    if end != len(text) + 1 or not 1 <= len(parts) <= 2:
        raise ClickHouseTableNameError("not a name of a table", got=repr(text))
    return TableName(parts[0] if len(parts) == 2 else database, parts[-1])


def compose(template: str, **parts: Part) -> Fragment:
    """Fill the gaps of a statement: names are quoted, fragments stay as they are."""
    return Fragment(_GAP.sub(lambda gap: _write(parts[gap[1]]), template))


def into(table: str, kinds: Mapping[str, str], condition: str) -> str:
    """Return what follows INSERT INTO where the rows that are sent must meet a condition."""
    return compose(
        "<table> (<names>) SELECT <names> FROM input(<structure>) WHERE <condition>",
        table=Fragment(table),
        names=columns(kinds),
        structure=literal(", ".join(f"{quote(name)} {kind}" for name, kind in kinds.items())),
        condition=Fragment(condition),
    )


def _write(part: Part) -> str:
    if isinstance(part, Fragment):
        return part
    if isinstance(part, QualifiedName):
        return part.quoted
    return quote(part) if isinstance(part, str) else columns(part)
