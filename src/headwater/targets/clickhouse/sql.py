"""Names and statements: every identifier is quoted in one place, so any name works.

Statements are templates whose gaps `<name>` are filled with quoted names. Values travel as
parameters (`{n:UInt64}`), which the server reads itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwater.errors import ClickHouseTableNameError

_PART = re.compile(r'`((?:[^`\\]|\\.)+)`|"((?:[^"\\]|\\.)+)"|([^`".]+)')
DELETED = {  # settings: the answer comes when rows are gone, and conditions are not asked later
    "lightweight_deletes_sync": "2",
    "mutations_sync": "2",
    "mutations_execute_subqueries_on_initiator": "1",
}
_GAP = re.compile(r"<(\w+)>")
_ESCAPES = str.maketrans({"\\": "\\\\", "`": "\\`", "'": "\\'"})


class Fragment(str):
    """SQL text that is already complete; anything else that fills a gap is quoted."""

    __slots__ = ()


def quote(identifier: str) -> str:
    """Return an identifier in backticks."""
    return f"`{identifier.translate(_ESCAPES)}`"


def literal(text: str) -> Fragment:
    """Return a text in single quotes."""
    return Fragment(f"'{text.translate(_ESCAPES)}'")


def columns(names: Iterable[str]) -> Fragment:
    """Return quoted names, separated by commas."""
    return Fragment(", ".join(map(quote, names)))


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table in a database; written into a statement it is quoted."""

    database: str
    name: str

    @classmethod
    def parse(cls, text: str, database: str) -> TableName:
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
        return cls(parts[0] if len(parts) == 2 else database, parts[-1])

    def suffixed(self, suffix: str) -> TableName:
        """Return the name of something that belongs to this table."""
        return TableName(self.database, self.name + suffix)

    def __str__(self) -> str:
        return f"{quote(self.database)}.{quote(self.name)}"


def compose(template: str, **parts: TableName | Sequence[str] | str) -> Fragment:
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


def _write(part: TableName | Sequence[str] | str) -> str:
    if isinstance(part, Fragment):
        return part
    if isinstance(part, TableName):
        return str(part)
    return quote(part) if isinstance(part, str) else columns(part)
