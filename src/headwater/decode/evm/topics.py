"""Encodes values of indexed parameters as topics, and checks addresses as users write them.

Used only when an event, an address or a filter is defined, on the driver: never per row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headwater.decode.evm.abi import Event, keccak256
from headwater.decode.evm.types import AbiType, Elementary, Kind, Parameter, canonical
from headwater.errors import AddressError, ParameterError

_ADDRESS = re.compile(r"0[xX]([0-9a-fA-F]{40})")
_HEX = re.compile(r"0x((?:[0-9a-fA-F]{2})*)")

TopicFilters = tuple[tuple[int, tuple[str, ...]], ...]


def make_topic_filters(event: Event, params: Mapping[str, object]) -> TopicFilters:
    """Return (topic number, topics) for each filtered parameter, in order of topics.

    Called by `evm.events`. A parameter takes one value or several; several are alternatives.

    Raises:
        ParameterError: a name is no indexed parameter, or a value does not fit its type.
        AddressError: a value for an address is none.
    """
    slots = {
        parameter.name: (slot, parameter)
        for slot, parameter in enumerate(event.indexed, start=event.first_topic)
    }
    filters: dict[int, tuple[str, ...]] = {}
    for name, value in params.items():
        if name not in slots:
            raise _no_such_filter(event, name)
        slot, parameter = slots[name]
        filters[slot] = _encode_all(parameter, value)
    return tuple(sorted(filters.items()))


def _no_such_filter(event: Event, name: str) -> ParameterError:
    known = any(parameter.name == name for parameter in event.parameters)
    reason = "is not indexed, so portals cannot filter by it" if known else "does not exist"
    names = ", ".join(parameter.name for parameter in event.indexed) or "none"
    return ParameterError(
        f"parameter {name!r} of {event.name} {reason}; indexed parameters are: {names}"
    )


def _encode_all(parameter: Parameter, value: object) -> tuple[str, ...]:
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    values = list(value) if several and isinstance(value, Iterable) else [value]
    if not values:
        raise ParameterError(
            f"the filter on {parameter.name!r} is an empty list, which matches nothing; leave it "
            "out to match everything"
        )
    return tuple(dict.fromkeys(_encode(parameter, item) for item in values))


def _encode(parameter: Parameter, value: object) -> str:
    digits = _encode_value(parameter.type, value, f"filter on {parameter.name!r}")
    if digits is None:
        raise ParameterError(
            f"the filter on {parameter.name!r} takes {_describe(parameter.type)}",
            got=repr(value)[:80],
        )
    return f"0x{digits}"


def _encode_value(abi_type: AbiType, value: object, where: str) -> str | None:
    match abi_type:
        case Elementary(Kind.ADDRESS):
            return check_address(value, where)[2:].rjust(64, "0")
        case Elementary(Kind.BOOL):
            return f"{value:064x}" if isinstance(value, bool) else None
        case Elementary(Kind.UINT | Kind.INT):
            return _encode_integer(abi_type, value)
        case Elementary(Kind.FIXED_BYTES, size):
            raw = _raw(value)
            return None if raw is None or len(raw) != size else raw.hex().ljust(64, "0")
        case Elementary(Kind.STRING):
            return keccak256(value.encode()).hex() if isinstance(value, str) else None
        case Elementary(Kind.BYTES):
            raw = _raw(value)
            return None if raw is None else keccak256(raw).hex()
        case _:
            raw = _raw(value)
            return None if raw is None or len(raw) != 32 else raw.hex()


def _encode_integer(abi_type: Elementary, value: object) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    signed = abi_type.kind is Kind.INT
    low = -(2 ** (abi_type.size - 1)) if signed else 0
    high = 2 ** (abi_type.size - signed)
    return f"{value % 2**256:064x}" if low <= value < high else None


def _raw(value: object) -> bytes | None:
    if isinstance(value, bytes):
        return value
    match = _HEX.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else bytes.fromhex(match[1])


def _describe(abi_type: AbiType) -> str:
    match abi_type:
        case Elementary(Kind.BOOL):
            return "True or False"
        case Elementary(Kind.UINT | Kind.INT):
            return f"an integer in the range of {canonical(abi_type)}"
        case Elementary(Kind.FIXED_BYTES, size):
            return f"{size} bytes, or 0x and {2 * size} hex digits"
        case Elementary(Kind.STRING):
            return "text"
        case Elementary(Kind.BYTES):
            return "bytes, or 0x and hex digits"
        case _:
            return f"the 32-byte hash of a {canonical(abi_type)}, as that is all a topic holds"


def check_address(value: object, where: str) -> str:
    """Return the address in lower case. Called for contracts and filters when outputs are defined.

    An address in mixed case carries a checksum in its capitals (EIP-55), so a mistyped digit is
    found. All lower or all upper case carries none.

    Raises:
        AddressError: not an address, or the checksum is wrong.
    """
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise AddressError(f"{where}: not an address", got=repr(value)[:80])
    digits = match[1]
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
