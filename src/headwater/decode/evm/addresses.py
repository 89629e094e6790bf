"""Checks addresses as users write them, and computes keccak-256.

Used only when an event, an address or a filter is defined, on the driver: never per row.
"""

from __future__ import annotations

import re

from Crypto.Hash import keccak

from headwater.errors import AddressError

_ADDRESS = re.compile(r"0[xX]([0-9a-fA-F]{40})")


def keccak256(message: bytes) -> bytes:
    """Return the 32-byte digest that Ethereum calls keccak256, which SHA-3 is not."""
    return keccak.new(digest_bits=256, data=message).digest()


def check_address(value: object, where: str) -> str:
    """Return the address in lower case. Called for contracts and filters when outputs are defined.

    An address in mixed case carries a checksum in its capitals (EIP-55), so a mistyped digit is
    found. All lower or all upper case carries none.

    Raises:
        AddressError: not an address, or the checksum is wrong.
    """
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise AddressError(f"{where}: not an address", got=repr(value)[:80])
    digits = found[1]
    if digits not in (digits.lower(), digits.upper()) and digits != checksum(digits):
        raise AddressError(
            f"{where}: the checksum is wrong, so a digit or a capital is mistyped", got=value
        )
    return f"0x{digits.lower()}"


def checksum(digits: str) -> str:
    """Return the 40 digits with the capitals of EIP-55."""
    lowered = digits.lower()
    nibbles = keccak256(lowered.encode()).hex()
    return "".join(
        digit.upper() if int(nibble, 16) >= 8 else digit
        for digit, nibble in zip(lowered, nibbles, strict=False)
    )
