"""Splitting SQL into statements: the server takes one at a time."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<comment> --[^\n]* | \#[ !][^\n]* | /\*.*?\*/ )
  | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*" | `(?:[^`\\]|\\.)*`
  | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
  | (?P<end> ; )
    """,
    re.DOTALL | re.VERBOSE,
)


def split_statements(sql: str) -> list[str]:
    """Return the statements of a text, without those that are only comments."""
    pieces: list[str] = []
    begin = 0
    for found in _TOKEN.finditer(sql):
        if found["end"]:
            pieces.append(sql[begin : found.start()])
            begin = found.end()
    pieces.append(sql[begin:])
    return [one.strip() for one in pieces if _says_something(one)]


def _says_something(piece: str) -> bool:
    return bool(_TOKEN.sub(lambda found: "" if found["comment"] else found[0], piece).strip())
