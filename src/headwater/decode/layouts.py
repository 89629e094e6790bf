"""Layouts of Solana instructions and events: discriminator, arguments, names of accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.decode.borsh_types import Struct, parse_struct
from headwater.errors import LayoutError

_DISCRIMINATOR = re.compile(r"0x((?:[0-9a-fA-F]{2}){1,32})")
_WIDTHS = (8, 4, 2, 1)  # what portals can filter by


@dataclass(frozen=True, slots=True)
class Account:
    """An account of an instruction. An optional one that is left out is given as the program."""

    name: str
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """How the data of one instruction or event looks."""

    name: str
    discriminator: bytes
    args: Struct
    accounts: tuple[Account, ...] = ()

    @property
    def filter(self) -> tuple[str, str]:
        """The widest filter of a portal that the discriminator allows: `d8`, and its value."""
        width = next(width for width in _WIDTHS if width <= len(self.discriminator))
        return f"d{width}", f"0x{self.discriminator[:width].hex()}"


def parse_layout(name: str, source: object) -> Layout:
    """Understand `{"discriminator": "0x03", "args": {"amount": "u64"}, "accounts": ["source"]}`.

    A name of an account that ends with `?` is optional.

    Raises:
        LayoutError: something in it cannot be understood.
    """
    if isinstance(source, Layout):
        return source
    if not isinstance(source, Mapping):
        raise LayoutError(f"the layout of {name!r} is no mapping", got=repr(source)[:80])
    unknown = sorted(map(str, source.keys() - {"discriminator", "args", "accounts"}))
    if unknown:
        raise LayoutError(f"the layout of {name!r} has an unknown key", got=", ".join(unknown))
    args, accounts = source.get("args", {}), source.get("accounts", ())
    if not isinstance(args, Mapping):
        raise LayoutError(f"'args' of {name!r} is no mapping of names to types")
    if isinstance(accounts, str) or not all(isinstance(one, str) for one in accounts):
        raise LayoutError(f"'accounts' of {name!r} is no list of names")
    return Layout(
        name,
        parse_discriminator(source.get("discriminator"), name),
        parse_struct(args, name),
        tuple(Account(one.removesuffix("?"), one.endswith("?")) for one in accounts),
    )


def parse_discriminator(value: object, name: str) -> bytes:
    """Understand "0x03", bytes, or a list of numbers as IDLs have it."""
    found = _DISCRIMINATOR.fullmatch(value) if isinstance(value, str) else None
    if found:
        return bytes.fromhex(found[1])
    if isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 256 for one in value):
        value = bytes(value)
    if isinstance(value, bytes) and 1 <= len(value) <= 32:
        return value
    raise LayoutError(
        f"the discriminator of {name!r} is 0x and hex digits, or 1 to 32 bytes",
        got=repr(value)[:80],
    )
