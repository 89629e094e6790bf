"""Names and statements: every identifier is quoted in one place, so any name works.

A table may be called `select`, `My Table` or `a.b`; a column may contain a quote. Names are taken
literally: `Transfers` and `transfers` are two tables. Statements are templates whose gaps are
filled with quoted names; values are parameters (`$1`), except where PostgreSQL takes none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.errors import InvalidOptionError

DEFAULT_SCHEMA = "public"
LONGEST = 63  # bytes of an identifier; PostgreSQL cuts off the rest without a word
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


class Fragment(str):
    """SQL text that is already complete; anything else that fills a gap is quoted."""

    __slots__ = ()


def quote(identifier: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> Fragment:
    """Return a text in single quotes."""
    return Fragment("'" + text.replace("'", "''") + "'")


def fitted(name: str, prefix: str = "", suffix: str = "") -> str:
    """Return prefix, name and suffix as one identifier; a name that is too long is told apart."""
    whole = prefix + name + suffix
    if len(whole.encode()) <= LONGEST:
        return whole
    digest = "_" + hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    room = LONGEST - len((prefix + digest + suffix).encode())
    return prefix + name.encode()[:room].decode(errors="ignore") + digest + suffix


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table in a schema."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `name`, `schema.name`, or parts in double quotes; a part is taken literally."""
        parts: list[str] = []
        end = 0
        while end < len(text) or not parts:
            match = _PART.match(text, end)
            if match is None:
                raise InvalidOptionError("not a table name: name, or schema.name", got=repr(text))
            parts.append((match[1] or "").replace('""', '"') or match[2])
            end = match.end()
            if end < len(text):
                if text[end] != "." or end + 1 == len(text):
                    raise InvalidOptionError("not a table name", got=repr(text))
                end += 1
        if len(parts) > 2:
            raise InvalidOptionError("a table name has one part or two", got=repr(text))
        for part in parts:
            if len(part.encode()) > LONGEST or "\0" in part:
                raise InvalidOptionError(f"a name has at most {LONGEST} bytes", got=repr(part))
        return cls(parts[0] if len(parts) == 2 else DEFAULT_SCHEMA, parts[-1])

    def suffixed(self, suffix: str) -> TableName:
        """Return the name of a table that belongs to this one."""
        return TableName(self.schema, fitted(self.name, suffix=suffix))

    @property
    def snapshots(self) -> TableName:
        """The table's undo log."""
        return self.suffixed("__snapshots")

    def __str__(self) -> str:
        return self.name if self.schema == DEFAULT_SCHEMA else f"{self.schema}.{self.name}"


def columns(names: Iterable[str], prefix: str = "") -> Fragment:
    """Return quoted names, separated by commas."""
    return Fragment(", ".join(prefix + quote(name) for name in names))


def equal(names: Iterable[str], left: str, right: str) -> Fragment:
    """Return the condition that two rows agree in all of these columns."""
    return Fragment(" AND ".join(f"{left}.{quote(one)} = {right}.{quote(one)}" for one in names))


def compose(template: str, **parts: TableName | Sequence[str] | str) -> Fragment:
    """Fill the gaps of a statement: names are quoted, fragments stay as they are."""
    return Fragment(template.format_map({name: _write(part) for name, part in parts.items()}))


def _write(part: TableName | Sequence[str] | str) -> str:
    if isinstance(part, Fragment):
        return part
    if isinstance(part, TableName):
        return f"{quote(part.schema)}.{quote(part.name)}"
    return quote(part) if isinstance(part, str) else columns(part)
