"""E4: Decoding: signatures and logs that cannot be understood."""

from headwater.errors.base import HeadwaterError


class SignatureError(
    HeadwaterError,
    code="E4001",
    fix="write the event as in Solidity, 'Transfer(address indexed from, address indexed to, "
    "uint256 value)', give its JSON ABI entry, or a built-in name such as 'erc20.Transfer'",
):
    """An event signature cannot be understood."""


class UndecodableLogError(
    HeadwaterError,
    code="E4002",
    fix="check that the signature is the contract's own (which parameters are indexed, and their "
    "types), or use on_error='skip' to leave such logs out and count them",
):
    """A log has the event's topics, but its content is not what the event's types allow."""


class BlockContentError(
    HeadwaterError,
    code="E4003",
    fix="select the log fields that the output's query names; if they were selected, report the "
    "block to the portal's operator",
):
    """A block line, or a log in it, lacks a field or has one of the wrong kind."""


class AddressError(
    HeadwaterError,
    code="E4004",
    fix="give 0x and 40 hex digits, all in lower case or with the checksum capitals of EIP-55",
):
    """A contract address is malformed, or its capitals contradict its checksum."""


class ParameterError(
    HeadwaterError,
    code="E4005",
    fix="use the names and kinds of value that the message lists",
):
    """An option names a parameter that the event lacks or that cannot serve, or a wrong value."""
