"""Spells each name twice: snake_case for people, camelCase on the wire.

The catalogue holds the wire's spelling; ours follows from it, so the two cannot drift apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from keyword import iskeyword

from headwater.errors import QueryError

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_name(wire: str) -> str:
    """Return the Python spelling: `transactionIndex` is `transaction_index`."""
    return _HUMP.sub("_", wire).lower()


def argument_name(wire: str) -> str:
    """Return the Python spelling as a keyword argument: `from` is `from_`."""
    name = snake_name(wire)
    return f"{name}_" if iskeyword(name) else name


def unknown_name(what: str, name: object, valid: Iterable[str]) -> QueryError:
    """Return the error for a name that is not in the catalogue; it lists those that are."""
    names = list(valid)
    close = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return QueryError(f"{what} {name!r} is not known{hint}", valid=", ".join(names))
