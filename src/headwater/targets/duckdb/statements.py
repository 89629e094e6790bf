"""The tables that a statement changes, read from its text before it runs.

DuckDB has no triggers, so SQL that a user writes must say what it changes, or be refused. This is a
guard against accidents. It reads words, not grammar: writes inside a `WITH` count, whatever DuckDB
calls the statement, and so do those that `EXPLAIN ANALYZE` runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import UntraceableWriteError
from headwater.targets.duckdb.dialect import DEFAULT_SCHEMA, TableName
from headwater.targets.sql.text import QualifiedName
from headwater.targets.sql.tokens import STANDARD, Token, shortened

READING = {"SELECT", "EXPLAIN", "MULTI", "RELATION"}
ALLOWED = READING | {"INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "DROP", "ALTER", "COPY"}
ALLOWED |= {"SET", "VARIABLE_SET"}
_DROPPABLE = {"TABLE", "VIEW", "INDEX", "MACRO", "FUNCTION", "SEQUENCE", "TYPE"}
_FILLERS = {"ONLY", "IF", "NOT", "EXISTS", "TABLE"}


def changed_tables(sql: str) -> list[QualifiedName]:
    """Return the tables that one statement writes, alters or drops, in the order of mention."""
    tokens = STANDARD.tokens(sql)
    words = [one.text for one in tokens]
    found: list[QualifiedName] = []
    for index, word in enumerate(words):
        start = _target(words, index, word)
        if start is not None:
            name = _name(tokens, start)
            if name is None:
                raise UntraceableWriteError(
                    "cannot tell which table this changes", sql=shortened(sql)
                )
            found.append(name)
    return found


def _target(tokens: Sequence[str], index: int, word: str) -> int | None:
    """Return where the name of the changed table begins, if this word begins a change."""
    after = [*tokens[index + 1 : index + 8], *[""] * 7]
    before = tokens[index - 1] if index else ""
    match word:
        case "INSERT" if "INTO" in after[:3] and before != "THEN":
            return index + 2 + after.index("INTO")
        case "UPDATE" if before not in ("DO", "THEN", "FOR", "ON", ".") and after[0] not in "(,)":
            return index + 1 + (after[0] == "ONLY")
        case "DELETE" if after[0] == "FROM":
            return index + 2
        case "MERGE" if after[0] == "INTO":
            return index + 2
        case "TRUNCATE" if index == 0 or before in ("ANALYZE", "EXPLAIN"):
            return _skip_fillers(tokens, index + 1)
    return _first_word_target(tokens, word, after) if index == 0 else None


def _first_word_target(tokens: Sequence[str], word: str, after: Sequence[str]) -> int | None:
    match word:
        case "COPY" if after[0] != "(" and "FROM" in tokens:
            return 1
        case "ALTER" if after[0] == "TABLE":
            return _skip_fillers(tokens, 1)
        case "DROP":
            if after[0] not in _DROPPABLE or "CASCADE" in tokens or "," in tokens:
                raise UntraceableWriteError(
                    "drop one table at a time, and nothing that contains tables",
                    sql=shortened(" ".join(tokens)),
                )
            return _skip_fillers(tokens, 1) if after[0] == "TABLE" else None
        case "CREATE" if list(after[:3]) == ["OR", "REPLACE", "TABLE"]:
            return _skip_fillers(tokens, 3)
    return None


def _skip_fillers(tokens: Sequence[str], start: int) -> int:
    while start < len(tokens) and tokens[start] in _FILLERS:
        start += 1
    return start


def _name(tokens: Sequence[Token], start: int) -> TableName | None:
    """Read up to three parts with dots; the last two are schema and table."""
    parts: list[str] = []
    while start < len(tokens) and tokens[start].is_name:
        parts.append(tokens[start].name)
        if start + 1 >= len(tokens) or tokens[start + 1].text != ".":
            return TableName(parts[-2] if len(parts) > 1 else DEFAULT_SCHEMA, parts[-1])
        start += 2
    return None
