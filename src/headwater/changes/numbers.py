"""Exact numbers in text: the arithmetic of add, min and max, without floats and without rounding.

A number that was computed has one text: no exponent, no plus sign, no zeros that say nothing. So
the same number is the same text, however the changes that led to it were cut into batches.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow

from headwater.errors import ChangeNumberError

MAX_DIGITS = 1000

_EXACT = Context(
    prec=4 * MAX_DIGITS,
    Emax=4 * MAX_DIGITS,
    Emin=-4 * MAX_DIGITS,
    traps=[Inexact, InvalidOperation, Overflow],
)
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?", re.ASCII)


def parse_number(text: str) -> Decimal:
    """Return the number that a text stands for, exactly.

    Raises:
        ChangeNumberError: it stands for none, or for one with more than 1000 digits.
    """
    if not _NUMBER.fullmatch(text):
        raise ChangeNumberError("not a number", got=repr(text[:100]))
    try:
        number = _EXACT.create_decimal(text)
    except (Inexact, InvalidOperation, Overflow) as error:
        raise ChangeNumberError("too long a number", got=repr(text[:100])) from error
    if number and max(len(number.as_tuple().digits), abs(number.adjusted())) > MAX_DIGITS:
        raise ChangeNumberError("too long a number", got=repr(text[:100]))
    return number


def format_number(number: Decimal) -> str:
    """Return the one text of a number."""
    if not number:
        return "0"
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def plus(one: Decimal, other: Decimal) -> Decimal:
    """Return the exact sum.

    Raises:
        ChangeNumberError: it has more than 4000 digits.
    """
    try:
        return _EXACT.add(one, other)
    except (Inexact, Overflow) as error:
        raise ChangeNumberError("the sum has too many digits") from error


def negated(text: str) -> str:
    """Return the text of the number with the other sign."""
    return format_number(parse_number(text).copy_negate())
