"""Checks names and values of filters before anything is sent, and writes them as the wire expects.

A portal compares text. An address in mixed case, with a digit too few or given as bytes would match
nothing for ever and look like a quiet chain, so every such value is an error here. The catalogue
holds the wire's camelCase names; our snake_case follows from them, so the two cannot drift apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from keyword import iskeyword
from typing import Literal, TypeAlias

from headwater.errors import QueryError
from headwater.query import base58

Item: TypeAlias = str | int
Value: TypeAlias = Item | tuple[Item, ...]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HEX = re.compile(r"0x[0-9a-f]*")
_BARE_HEX = re.compile(r"(?:0x)?([0-9a-f]*)")
_TRON = re.compile(r"(?:0x)?(?:41)?([0-9a-f]{40})")
_NAME = re.compile(r"\w+\.\w+", re.ASCII)
_BECH32 = {digit: index for index, digit in enumerate("qpzry9x8gf2tvdw0s3jn54khce6mua7l")}
_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CONSTANTS = (1, 0x2BC830A3)  # of bech32, and of bech32m since taproot
_PUBKEY_BYTES = 32
_BITCOIN_BYTES, _TRON_BYTES = 21, 21  # a byte for the kind of address, and 20 of a hash
_MAX_NUMBER = 2**53 - 1  # beyond it JSON readers round


def snake_name(wire: str) -> str:
    """Return the Python spelling: `transactionIndex` is `transaction_index`."""
    return _HUMP.sub("_", wire).lower()


def argument_name(wire: str) -> str:
    """Return the Python spelling as a keyword argument: `from` is `from_`."""
    name = snake_name(wire)
    return f"{name}_" if iskeyword(name) else name


def wire_name(argument: str) -> str:
    """Return the wire's spelling of a keyword argument: `from_` is `from`."""
    first, *rest = argument.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def unknown_name(what: str, name: object, valid: Iterable[str]) -> QueryError:
    """Return the error for a name that is not in the catalogue; it lists those that are."""
    names = list(valid)
    close = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return QueryError(f"{what} {name!r} is not known{hint}", valid=", ".join(names))


class ValueKind(StrEnum):
    """The values that a filter compares with."""

    HEX = "hex"  # "0x…" of exactly `width` bytes, or one of `choices`
    BARE_HEX = "bare hex"  # the same, sent without 0x
    PUBKEY = "pubkey"  # base58 of 32 bytes
    BITCOIN_ADDRESS = "bitcoin address"  # base58 or bech32, both with a checksum
    TRON_ADDRESS = "tron address"  # "T…" or hex, sent as hex of `width` bytes: 21 with 41, or 20
    QUALIFIED_NAME = "qualified name"  # "Pallet.name"
    TEXT = "text"  # any text but none
    NUMBER = "number"
    CHOICE = "choice"  # one of `choices`
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a filter: a list of accepted values or, with `is_list` false, a single value.

    Written as an annotation of that key, it leaves `wire` to `Family.of`.

    `at` says where the value stands that it compares with, if that is not the field of the same
    name: the field, then keys inside its JSON, the place in its list, or `*` for any item of its
    lists. Of several places the first that there is counts, of those with `*` each. With
    `is_prefix` the value need only begin with the one given; with `bound` it may be larger
    ("least") or smaller ("most").
    """

    kind: ValueKind
    width: int = 0
    choices: tuple[str, ...] = ()
    is_list: bool = True
    at: tuple[tuple[str, ...], ...] = ()
    is_prefix: bool = False
    bound: Literal["least", "most"] | None = None
    wire: str = ""

    @property
    def name(self) -> str:
        """Our spelling, as a keyword argument."""
        return argument_name(self.wire)


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
    if condition.kind is ValueKind.HEX:
        plural = "" if condition.width == 1 else "s"
        return " or ".join([*choices, f"0x-hex of {condition.width} byte{plural}"])
    if condition.kind is ValueKind.BARE_HEX:
        return f"hex of {condition.width} bytes"
    return _WORDS.get(condition.kind) or " or ".join(choices)


_WORDS = {
    ValueKind.PUBKEY: "base58 of 32 bytes",
    ValueKind.BITCOIN_ADDRESS: "Bitcoin address",
    ValueKind.TRON_ADDRESS: "Tron address: T… or hex of 21 bytes (41…)",
    ValueKind.QUALIFIED_NAME: "name with its pallet, as in Balances.Transfer",
    ValueKind.TEXT: "text",
    ValueKind.NUMBER: "non-negative integer",
    ValueKind.BOOL: "True or False",
}


def _check_item(where: str, condition: Condition, item: object) -> Item:
    checked = _check_text(condition, item) if isinstance(item, str) else None
    if condition.kind is ValueKind.BOOL and isinstance(item, bool):
        checked = item
    if condition.kind is ValueKind.NUMBER and isinstance(item, int) and not isinstance(item, bool):
        checked = int(item) if 0 <= item <= _MAX_NUMBER else None
    if checked is None:
        raise QueryError(f"{where} takes {describe_item(condition)}", got=_show(item))
    return checked


def _check_text(condition: Condition, text: str) -> Item | None:
    """Return the text as it goes on the wire; None if it is no value of this kind."""
    lowered = text.lower()
    match condition.kind:
        case ValueKind.HEX:
            fits = len(lowered) == 2 + 2 * condition.width and _HEX.fullmatch(lowered)
            return lowered if fits or lowered in condition.choices else None
        case ValueKind.BARE_HEX:
            digits = _BARE_HEX.fullmatch(lowered)
            return digits[1] if digits and len(digits[1]) == 2 * condition.width else None
        case ValueKind.PUBKEY:
            raw = _attempt(base58.decode, text)
            return text if raw is not None and len(raw) == _PUBKEY_BYTES else None
        case ValueKind.BITCOIN_ADDRESS:
            if text in (lowered, text.upper()) and is_bech32(lowered):
                return lowered
            raw = _attempt(base58.decode_with_checksum, text)
            return text if raw is not None and len(raw) == _BITCOIN_BYTES else None
        case ValueKind.TRON_ADDRESS:
            return _tron_address(condition, text)
        case ValueKind.QUALIFIED_NAME:
            return text if _NAME.fullmatch(text) else None
        case ValueKind.CHOICE:
            return text if text in condition.choices else None
        case ValueKind.TEXT:
            return text or None
        case _:
            return None


def _tron_address(condition: Condition, text: str) -> str | None:
    raw = _attempt(base58.decode_with_checksum, text)
    digits = _TRON.fullmatch(raw.hex() if raw and len(raw) == _TRON_BYTES else text.lower())
    if digits is None:
        return None
    return digits[1] if condition.width < _TRON_BYTES else f"41{digits[1]}"


def _attempt(decode: Callable[[str], bytes], text: str) -> bytes | None:
    try:
        return decode(text)
    except ValueError:
        return None


def is_bech32(text: str) -> bool:
    """Whether text is a bech32 or bech32m address in lower case with the right checksum."""
    human, _, data = text.rpartition("1")
    if (
        not human
        or len(data) < 6
        or len(text) > 90
        or any(character not in _BECH32 for character in data)
    ):
        return False
    expanded = (
        [ord(character) >> 5 for character in human]
        + [0]
        + [ord(character) & 31 for character in human]
    )
    return _remainder([*expanded, *(_BECH32[character] for character in data)]) in _CONSTANTS


def _remainder(values: list[int]) -> int:
    total = 1
    for value in values:
        top = total >> 25
        total = (total & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATORS):
            total ^= generator if top >> bit & 1 else 0
    return total


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
