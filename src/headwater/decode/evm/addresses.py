"""Addresses as users write them: checked once, in the one form that portals compare"""

from __future__ import annotations

import re

from headwater.errors import AddressError

_RATE = 136  # bytes absorbed per permutation: 1600 bits minus twice the 256 of the digest
_WORD = (1 << 64) - 1


def _round_constants() -> tuple[int, ...]:
    """Return the 24 constants, from the shift register that the specification defines them by."""
    constants, register = [], 1
    for _ in range(24):
        constant = 0
        for power in range(7):
            if register & 1:
                constant |= 1 << ((1 << power) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(constant)
    return tuple(constants)


def _rotations() -> tuple[tuple[int, int, int], ...]:
    """Return (from, to, bits) for each lane: where `rho` and `pi` carry it, and how far turned."""
    moves, x, y = [(0, 0, 0)], 1, 0
    for step in range(24):
        target_x, target_y = y, (2 * x + 3 * y) % 5
        moves.append((x + 5 * y, target_x + 5 * target_y, (step + 1) * (step + 2) // 2 % 64))
        x, y = target_x, target_y
    return tuple(moves)


_CONSTANTS = _round_constants()
_MOVES = _rotations()


def keccak256(message: bytes) -> bytes:
    """Return the 32-byte digest that Ethereum calls keccak256. Runs where events are defined."""
    return sponge256(message, 0x01)


def sponge256(message: bytes, suffix: int) -> bytes:
    """Return the digest with the given first byte of padding: 0x01 here, 0x06 in SHA-3."""
    padded = bytearray(message)
    padded.append(suffix)
    padded.extend(bytes(-len(padded) % _RATE))
    padded[-1] |= 0x80
    lanes = [0] * 25
    for start in range(0, len(padded), _RATE):
        for lane in range(_RATE // 8):
            first = start + 8 * lane
            lanes[lane] ^= int.from_bytes(padded[first : first + 8], "little")
        lanes = _permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


def _permute(lanes: list[int]) -> list[int]:
    for constant in _CONSTANTS:
        parity = [lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
                  for x in range(5)]  # fmt: skip
        mixed = [parity[x - 1] ^ _rotate(parity[(x + 1) % 5], 1) for x in range(5)]
        turned = [0] * 25
        for source, target, bits in _MOVES:
            turned[target] = _rotate(lanes[source] ^ mixed[source % 5], bits)
        lanes = [
            turned[at] ^ (~turned[at - at % 5 + (at + 1) % 5] & turned[at - at % 5 + (at + 2) % 5])
            for at in range(25)
        ]
        lanes[0] ^= constant
    return lanes


def _rotate(lane: int, bits: int) -> int:
    return ((lane << bits) | (lane >> (64 - bits))) & _WORD


_ADDRESS = re.compile(r"0[xX]([0-9a-fA-F]{40})")


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
    if digits not in (digits.lower(), digits.upper(), checksum(digits)):
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
