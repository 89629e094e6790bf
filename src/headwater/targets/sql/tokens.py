"""The words of SQL text: what is a comment, a text in quotes, a name, and where a statement ends.

It reads tokens, not grammar. Used to split files into statements, and to refuse statements of a
user's that would escape the transaction of a batch or its undo log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_SHOWN = 120
_COMMENT = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    """One token: its text, and where it begins.

    A word is in capitals. A name in quotes begins with its quote. A text in quotes is `''`,
    whatever it says.
    """

    text: str
    start: int

    @property
    def is_name(self) -> bool:
        """Whether it may be a part of a table's name."""
        return self.text[0] in '"`_' or self.text[0].isalpha()

    @property
    def name(self) -> str:
        """The name that it stands for, without quotes."""
        quote = self.text[0]
        return self.text[1:-1].replace(quote * 2, quote) if quote in '"`' else self.text


@dataclass(frozen=True, slots=True)
class Scanner:
    """Splits SQL into tokens by the rules of one database.

    `nested`: comments may contain comments.
    """

    pattern: re.Pattern[str]
    nested: bool

    def tokens(self, sql: str) -> list[Token]:
        """Return all tokens but comments; the rest of an open comment is one too."""
        return list(self._tokens(sql))

    def statements(self, sql: str) -> list[list[Token]]:
        """Return the tokens of each statement that has any, without semicolons."""
        statements: list[list[Token]] = [[]]
        for token in self._tokens(sql):
            if token.text == ";":
                statements.append([])
            else:
                statements[-1].append(token)
        return [statement for statement in statements if statement]

    def split(self, sql: str) -> list[str]:
        """Return the text of each statement, without those that are only comments."""
        ends = [token.start for token in self._tokens(sql) if token.text == ";"]
        pieces = [
            sql[begin:end]
            for begin, end in zip([0, *(at + 1 for at in ends)], [*ends, len(sql)], strict=True)
        ]
        return [piece.strip() for piece in pieces if self.tokens(piece)]

    def _tokens(self, sql: str) -> Iterator[Token]:
        at = 0
        while at < len(sql):
            match = self.pattern.match(sql, at)
            assert match is not None, "the pattern takes any character"
            kind, start = match.lastgroup, at
            at = match.end()
            if kind == "comment":
                at = self._comment_end(sql, at)
            elif kind == "word":
                yield Token(match["word"].upper(), start)
            elif match["text"] is not None:
                yield Token("''", start)
            elif kind != "skip":
                yield Token(match[0], start)

    def _comment_end(self, sql: str, at: int) -> int:
        depth = 1
        while depth and (match := _COMMENT.search(sql, at)):
            if match[0] == "*/":
                depth -= 1
            elif self.nested:
                depth += 1
            at = match.end()
        return len(sql) if depth else at


def _pattern(skip: str, text: str, quoted: str) -> re.Pattern[str]:
    return re.compile(
        rf"""
          (?P<skip> \s+ | --[^\n]* {skip} )
        | (?P<comment> /\* )
        | (?P<text> {text} | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
        | (?P<quoted> {quoted} )
        | (?P<word> [^\W\d][\w$]* )
        | (?P<number> \d+ )
        | (?P<other> . )
        """,
        re.VERBOSE | re.DOTALL,
    )


STANDARD = Scanner(
    _pattern("", r"[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*'", r'"(?:[^"]|"")*"'), nested=True
)
CLICKHOUSE = Scanner(
    _pattern(r"| \#[ !][^\n]*", r"'(?:[^'\\]|\\.|'')*'", r'"(?:[^"\\]|\\.)*" | `(?:[^`\\]|\\.)*`'),
    nested=False,
)


def shortened(sql: str | Sequence[Token]) -> str:
    """Return SQL as an error shows it: on one line, and not too long."""
    words = sql.split() if isinstance(sql, str) else [token.text for token in sql]
    flat = " ".join(words)
    return flat if len(flat) <= _SHOWN else f"{flat[:_SHOWN]}…"
