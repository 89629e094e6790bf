"""Values of filters: checked before anything is sent, written in the one way the wire expects.

A portal compares text. An address in mixed case, with a digit too few or given as bytes would match
nothing for ever and look like a quiet chain, so every such value is an error here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from headwater.errors import QueryError
from headwater.query.catalog import Condition, ValueKind

Item: TypeAlias = str | int
Value: TypeAlias = Item | tuple[Item, ...]

_HEX = re.compile(r"0x[0-9a-f]*")
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58 = {digit: index for index, digit in enumerate(_ALPHABET)}
_PUBKEY_BYTES = 32
_MAX_NUMBER = 2**53 - 1  # beyond it JSON readers round


def check_value(where: str, condition: Condition, value: object) -> Value:
    """Return the value as it goes on the wire: a list without duplicates, or a single value.

    `where` names the filter in errors, such as `logs.address`.
    """
    if not condition.is_list:
        return _check_item(where, condition, value)
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise QueryError(f"{where} takes a list of {describe_item(condition)}", got=_show(value))
    ordered = sorted(value, key=repr) if isinstance(value, AbstractSet) else value
    items = tuple(dict.fromkeys(_check_item(where, condition, item) for item in ordered))
    if not items:
        raise QueryError(
            f"{where} is an empty list, which matches nothing; leave {condition.name} out to match "
            "everything, or leave the whole filter out to match nothing"
        )
    return items


def describe_item(condition: Condition) -> str:
    """Say in words what one value looks like; used in errors and in the reference page."""
    choices = [f"'{choice}'" for choice in condition.choices]
    match condition.kind:
        case ValueKind.HEX:
            plural = "" if condition.width == 1 else "s"
            return " or ".join([*choices, f"0x-hex of {condition.width} byte{plural}"])
        case ValueKind.PUBKEY:
            return "base58 of 32 bytes"
        case ValueKind.NUMBER:
            return "non-negative integer"
        case ValueKind.CHOICE:
            return " or ".join(choices)
        case ValueKind.BOOL:
            return "True or False"


def _check_item(where: str, condition: Condition, item: object) -> Item:
    checked = _CHECKS[condition.kind](condition, item)
    if checked is None:
        raise QueryError(f"{where} takes {describe_item(condition)}", got=_show(item))
    return checked


def _hex(condition: Condition, item: object) -> str | None:
    if not isinstance(item, str):
        return None
    lowered = item.lower()
    if lowered in condition.choices:
        return lowered
    fits = len(lowered) == 2 + 2 * condition.width and _HEX.fullmatch(lowered)
    return lowered if fits else None


def _pubkey(_: Condition, item: object) -> str | None:
    if not isinstance(item, str):
        return None
    number = 0
    for digit in item:
        if digit not in _BASE58:
            return None
        number = number * 58 + _BASE58[digit]
    zeros = len(item) - len(item.lstrip("1"))  # a leading "1" is a leading zero byte
    return item if zeros + (number.bit_length() + 7) // 8 == _PUBKEY_BYTES else None


def _number(_: Condition, item: object) -> int | None:
    if not isinstance(item, int) or isinstance(item, bool):
        return None
    return int(item) if 0 <= item <= _MAX_NUMBER else None


def _choice(condition: Condition, item: object) -> str | None:
    return item if isinstance(item, str) and item in condition.choices else None


def _bool(_: Condition, item: object) -> bool | None:
    return item if isinstance(item, bool) else None


_CHECKS: Mapping[ValueKind, Callable[[Condition, object], Item | None]] = {
    ValueKind.HEX: _hex,
    ValueKind.PUBKEY: _pubkey,
    ValueKind.NUMBER: _number,
    ValueKind.CHOICE: _choice,
    ValueKind.BOOL: _bool,
}


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
