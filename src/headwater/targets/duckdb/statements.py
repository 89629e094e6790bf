"""Which tables does a statement change? Read from its text, before it runs.

DuckDB has no triggers, so SQL that a user writes must say what it changes, or be refused. This is a
guard against accidents. It reads words, not grammar: writes inside a `WITH` count, whatever DuckDB
calls the statement, and so do those that `EXPLAIN ANALYZE` runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headwater.errors import UntraceableWriteError
from headwater.targets.duckdb.sql import DEFAULT_SCHEMA, TableName

_TOKEN = re.compile(
    r"""
      (?P<skip> \s+ | --[^\n]* | /\*.*?\*/ )
    | (?P<text> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<quoted> "(?:[^"]|"")*" )
    | (?P<word> [^\W\d]\w* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
READING = {"SELECT", "EXPLAIN", "MULTI", "RELATION"}
ALLOWED = READING | {"INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "DROP", "ALTER", "COPY"}
ALLOWED |= {"SET", "VARIABLE_SET"}
_DROPPABLE = {"TABLE", "VIEW", "INDEX", "MACRO", "FUNCTION", "SEQUENCE", "TYPE"}
_FILLERS = {"ONLY", "IF", "NOT", "EXISTS", "TABLE"}


def changed_tables(sql: str) -> list[TableName]:
    """Return the tables that one statement writes, alters or drops, in the order of mention."""
    tokens = _tokens(sql)
    found = []
    for index, word in enumerate(tokens):
        start = _target(tokens, index, word)
        if start is not None:
            name = _name(tokens, start)
            if name is None:
                raise UntraceableWriteError("cannot tell which table this changes", sql=_short(sql))
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
                    sql=_short(" ".join(tokens)),
                )
            return _skip_fillers(tokens, 1) if after[0] == "TABLE" else None
        case "CREATE" if list(after[:3]) == ["OR", "REPLACE", "TABLE"]:
            return _skip_fillers(tokens, 3)
    return None


def _skip_fillers(tokens: Sequence[str], start: int) -> int:
    while start < len(tokens) and tokens[start] in _FILLERS:
        start += 1
    return start


def _name(tokens: Sequence[str], start: int) -> TableName | None:
    """Read up to three parts with dots; the last two are schema and table."""
    parts: list[str] = []
    while start < len(tokens):
        word = tokens[start]
        if not (word.startswith('"') or word[0].isalpha() or word[0] == "_"):
            return None
        parts.append(word[1:-1].replace('""', '"') if word.startswith('"') else word)
        if start + 1 >= len(tokens) or tokens[start + 1] != ".":
            break
        start += 2
    if not parts:
        return None
    return TableName(parts[-2] if len(parts) > 1 else DEFAULT_SCHEMA, parts[-1])


def _tokens(sql: str) -> list[str]:
    """Return words in capitals, identifiers with their quotes, and everything else by character."""
    found = []
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        if kind == "word":
            found.append(match["word"].upper())
        elif kind == "quoted":
            found.append(match["quoted"])
        elif match["text"] is not None:
            found.append("''")
        elif kind == "other":
            found.append(match["other"])
    return found


def _short(sql: str) -> str:
    flat = " ".join(sql.split())
    return flat if len(flat) <= 120 else f"{flat[:120]}…"
