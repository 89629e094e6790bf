"""E4: Decoding: signatures and logs that cannot be understood."""

from headwater.errors.base import DecodeError


class SignatureError(
    DecodeError,
    code="E4001",
    fix="write the event or function as in Solidity, 'Transfer(address indexed from, address "
    "indexed to, uint256 value)', give its JSON ABI entry, or a built-in name such as "
    "'erc20.Transfer'",
):
    """The signature of an event or a function cannot be understood."""


class UndecodableLogError(
    DecodeError,
    code="E4002",
    fix="check that the signature is the contract's own (which parameters are indexed, and their "
    "types), or use on_error='skip' to leave such logs out and count them",
):
    """A log has the event's topics, but its content is not what the event's types allow."""


class BlockContentError(
    DecodeError,
    code="E4003",
    fix="select the fields that the output's query names; if they were selected, report the block "
    "to the portal's operator",
):
    """A block line, or an item in it, lacks a field or has one of the wrong kind."""


class AddressError(
    DecodeError,
    code="E4004",
    fix="give 0x and 40 hex digits, all in lower case or with the checksum capitals of EIP-55",
):
    """A contract address is malformed, or its capitals contradict its checksum."""


class ParameterError(
    DecodeError,
    code="E4005",
    fix="use the names and kinds of value that the message lists",
):
    """An option names a parameter that the event lacks or that cannot serve, or a wrong value."""


class UndecodableCallError(
    DecodeError,
    code="E4006",
    fix="check that the signature is the contract's own (types of inputs and outputs), or use "
    "on_error='skip' to leave such calls out and count them",
):
    """A call has the function's first four bytes, but not what the function's types allow."""


class LayoutError(
    DecodeError,
    code="E4007",
    fix="give an Anchor IDL (path, JSON or dictionary), a layout {'discriminator': '0x03', 'args': "
    "{'amount': 'u64'}, 'accounts': ['source', …]}, or a built-in name such as "
    "'spl_token.transfer'",
):
    """An IDL, or the layout of an instruction or event of Solana, cannot be understood."""


class UndecodableInstructionError(
    DecodeError,
    code="E4008",
    fix="check that the IDL or layout is of the program's version in these blocks, or use "
    "on_error='skip' to leave such items out and count them",
):
    """An instruction or event of Solana has the discriminator, but not what its types allow."""


class MessageTypeError(
    DecodeError,
    code="E4009",
    fix="give the module an output type whose messages do not contain themselves, hold no groups "
    "and have no two repeated fields like `a_b` and `b` within `a`; a tree can be put out as rows "
    "that name their parent, and a RelationalMapping or a decoder of your own chooses other tables",
):
    """A message type cannot become tables: it contains itself, or two tables have one name."""


class UndecodableOutputError(
    DecodeError,
    code="E4010",
    fix="check that the package is the one that the endpoint runs; if it is, report the block to "
    "the module's author. Nothing of the block was written",
):
    """The output of a module is no message of its type."""


class IntegerRangeError(
    DecodeError,
    code="E4020",
    fix="leave such rows out before, or use the form that begins with try_ and gives NULL",
):
    """A text is no integer, or a result has no place in 256 bits or in a decimal of 38 digits."""
