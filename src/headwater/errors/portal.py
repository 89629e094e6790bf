"""E3: The portal: transport, status codes, malformed or contradictory answers."""

from headwater.errors.base import PortalError


class PortalHttpError(
    PortalError,
    code="E3001",
    fix="read the portal's own words in the message; 400 is a query it refuses, 404 a dataset or "
    "block it does not have, 401/403 missing credentials",
):
    """The portal answered with a status that a retry cannot mend."""


class PortalUnreachableError(
    PortalError,
    code="E3002",
    fix="check the address and the network, or raise the number of attempts",
    retryable=True,
):
    """All permitted attempts failed."""


class MalformedLineError(
    PortalError,
    code="E3003",
    fix="report the block to the portal's operator; nothing after the last good block was taken",
):
    """A line of the stream is not a block: broken JSON, or no usable header."""


class BlockOrderError(
    PortalError,
    code="E3004",
    fix="report it to the portal's operator; nothing after the last good block was taken",
):
    """Blocks arrived twice, out of order, or outside the requested range."""


class BlockLinkError(
    PortalError,
    code="E3005",
    fix="report it to the portal's operator; nothing after the last good block was taken",
):
    """A block does not name its predecessor as parent: one is missing or foreign."""


class MalformedAnswerError(
    PortalError,
    code="E3006",
    fix="check that the address is an SQD portal dataset; report it to the portal's operator",
):
    """An answer other than a block line is not what the protocol says."""


class TransportError(
    PortalError, code="E3007", fix="check the address and the network", retryable=True
):
    """A connection failed, timed out or broke; the client retries it."""


class AnswerTooLargeError(
    PortalError,
    code="E3009",
    fix="check that the address is an SQD portal dataset; report it to the portal's operator; "
    "nothing after the last good block was taken",
):
    """The headers, a line or a single answer of the portal are larger than any can be."""


class MissingBlocksError(
    PortalError,
    code="E3010",
    fix="take a portal that has these blocks; or begin the range, and the factories, with the "
    "oldest block; or leave out what is missing, counted: portal_stream(missing_blocks='skip')",
):
    """The portal does not have the blocks that come next: its oldest one lies above them.

    Real-time services keep a window of blocks that moves on. Rows that are not final and lie below
    it cannot be compared with the chain any more.
    """


class TimestampError(
    PortalError,
    code="E3008",
    fix="give a time that has come (a datetime without a zone is UTC), or a block number; a range "
    "without an end follows the head",
):
    """A range begins or ends at a time in the future, or before the first block that a portal has
    which finds no block by time (others are searched by the times of blocks)."""


class NodeLacksError(
    PortalError,
    code="E3011",
    fix="take a portal for what the message names, or leave it out of the outputs; a node is asked "
    "for blocks, transactions, receipts and logs of EVM networks",
):
    """A query asks a node for something that it does not have. Nothing was read."""
