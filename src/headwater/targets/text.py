"""Names and statements: every identifier is quoted in one place, so any name works.

A table may be called `select`, `My Table` or `a.b`; a column may contain a quote. Statements are
templates whose gaps are filled with quoted names, never with values: values are parameters (`$1`),
except where a database takes none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from headwater.errors import InvalidOptionError

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


@dataclass(frozen=True, slots=True, order=True)
class QualifiedName:
    """A table in a schema. Each database has its own kind, with its own default schema.

    As a user writes it, before the database is known, the schema may be empty.
    """

    schema: str
    name: str
    default_schema: ClassVar[str] = ""
    ignores_case: ClassVar[bool] = False  # as the database does, also in names of columns

    @classmethod
    def parse(cls, text: str) -> Self:
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
            cls.check(part)
        return cls(parts[0] if len(parts) == 2 else cls.default_schema, parts[-1])

    @classmethod
    def check(cls, part: str) -> None:
        """Refuse what the database cannot use as a name."""

    @property
    def folded(self) -> tuple[str, str]:
        """What two spellings of one table have in common."""
        if self.ignores_case:
            return self.schema.lower(), self.name.lower()
        return self.schema, self.name

    @classmethod
    def of(cls, name: QualifiedName) -> Self:
        """Return the name of the same table in this database; refuse one that it cannot use."""
        cls.check(name.schema)
        cls.check(name.name)
        return cls(name.schema or cls.default_schema, name.name)

    @classmethod
    def fitted(cls, name: str, prefix: str = "", suffix: str = "") -> str:
        """Return prefix, name and suffix as one identifier that the database can use."""
        return prefix + name + suffix

    def suffixed(self, suffix: str) -> Self:
        """Return the name of a table that belongs to this one."""
        return type(self)(self.schema, self.fitted(self.name, suffix=suffix))

    def beside(self, name: str) -> Self:
        """Return the name of another table in the same schema."""
        return type(self)(self.schema, name)

    @property
    def snapshots(self) -> Self:
        """The table's undo log."""
        return self.suffixed("__snapshots")

    @property
    def full(self) -> str:
        """The name with its schema; parts that contain a dot or a quote are quoted."""
        parts = (self.schema, self.name)
        return ".".join(quote(part) if set('".') & set(part) else part for part in parts)

    @property
    def quoted(self) -> str:
        """The name as it stands in a statement."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    def __str__(self) -> str:
        return self.name if self.schema == self.default_schema else f"{self.schema}.{self.name}"


def columns(names: Iterable[str], prefix: str = "") -> Fragment:
    """Return quoted names, separated by commas."""
    quoted = list(map(quote, names))
    return Fragment(prefix + f", {prefix}".join(quoted) if quoted else "")


def equal(names: Iterable[str], left: str, right: str, *, nulls: bool = False) -> Fragment:
    """Return the condition that two rows agree in all of these columns."""
    operator = "IS NOT DISTINCT FROM" if nulls else "="
    return Fragment(
        " AND ".join(f"{left}.{quote(name)} {operator} {right}.{quote(name)}" for name in names)
    )


Part = QualifiedName | Sequence[str] | str  # what fills a gap of a statement


def compose(template: str, **parts: Part) -> Fragment:
    """Fill the gaps of a statement: names are quoted, fragments stay as they are."""
    texts: dict[str, str] = {}
    for name, part in parts.items():
        if isinstance(part, Fragment):
            texts[name] = part
        elif isinstance(part, QualifiedName):
            texts[name] = part.quoted
        else:
            texts[name] = quote(part) if isinstance(part, str) else columns(part)
    return Fragment(template.format_map(texts))
