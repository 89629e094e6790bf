"""E3: The portal: transport, status codes, malformed or contradictory answers. E31: Substreams:
endpoints, sessions, what modules report. E005: packages, and the SQL sink.
"""

from headwater.errors.base import ConfigError, PortalError


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


class SubstreamsRefusedError(
    PortalError,
    code="E3101",
    fix="read the endpoint's own words in the message: INVALID_ARGUMENT is a request, a module or "
    "a cursor that it refuses, UNAUTHENTICATED and PERMISSION_DENIED are credentials "
    "(SUBSTREAMS_API_KEY or SUBSTREAMS_API_TOKEN), FAILED_PRECONDITION a limit; what is committed "
    "stays as it is",
):
    """The endpoint ended the session with a status that a new session cannot mend."""


class SubstreamsUnreachableError(
    PortalError,
    code="E3102",
    fix="check the endpoint and the network, or raise max_retries; a restart goes on from the "
    "stored cursor",
    retryable=True,
):
    """All permitted sessions in a row ended before a block arrived."""


class QuotaExceededError(
    PortalError,
    code="E3103",
    fix="raise the plan at the provider, or wait until the quota is renewed; a restart goes on "
    "from the stored cursor",
):
    """The provider's quota is used up: asking again would be refused again."""


class ModuleFailedError(
    PortalError,
    code="E3104",
    fix="read the reason and the logs of the module in the message; a module that fails on a "
    "block fails on it each time, so correct the package and start again",
):
    """A module of the package failed at the endpoint."""


class SubstreamsMessageError(
    PortalError,
    code="E3105",
    fix="report it to the endpoint's operator; nothing after the last good block was taken",
):
    """A message of the endpoint cannot be read, or contradicts those before it."""


class UndoDepthError(
    PortalError,
    code="E3106",
    fix="nothing was changed; check that the endpoint serves the chain that the tables were "
    "filled from, raise rollback_cap for deep reorganizations, or rewind to a block you trust",
):
    """The endpoint has another block than a stored one that cannot be undone."""


class PlaintextEndpointError(
    PortalError,
    code="E3110",
    fix="write http://host:port, or give --plaintext to headwater sink run; no key is sent over "
    "plaintext",
):
    """TLS was asked for, and the endpoint answered without."""


class SubstreamsEndpointError(
    PortalError,
    code="E3107",
    fix="give host:port, http://host:port (plaintext) or https://host:port; a network's name needs "
    "SUBSTREAMS_ENDPOINTS_CONFIG_<NETWORK> in the environment",
):
    """The endpoint's address cannot be understood; nothing was dialled."""


class PackageError(
    ConfigError,
    code="E0051",
    fix="give a .spkg file (also .spkg.zst), its https address or its bytes, built by `substreams "
    "pack`, with the .proto files of the output type among its protobuf files",
):
    """A Substreams package cannot be read, or lacks what is needed of it."""


class ModuleChoiceError(
    ConfigError,
    code="E0052",
    fix="name one of the package's map modules that the message lists",
):
    """The package has no such module, or it does not say which one is for a sink."""


class RelationalSchemaError(
    ConfigError,
    code="E0053",
    fix="correct the `schema` annotations of the message that the error names, or give the module "
    "other annotations with --proto-file-override; nothing was created",
):
    """The annotations of a message contradict each other, or the target cannot keep them."""


class SinkCursorError(
    ConfigError,
    code="E0054",
    fix="give a cursor as the endpoint or the sink's `cursors` table has it: about 200 characters "
    "of URL-safe base64",
):
    """A text is no cursor of a Substreams endpoint."""


class SinkDsnError(
    ConfigError,
    code="E0055",
    fix="give psql://user:password@host:5432/name?schemaName=public, clickhouse://…, or the path "
    "of a DuckDB file; ${NAME} stands for a variable of the environment",
):
    """The address of a sink's database cannot be understood."""


class TakeoverError(
    ConfigError,
    code="E0056",
    fix="nothing was changed: use the package, the parameters and the network of the sink that "
    "filled the tables, or say --on-module-hash-mismatch warn to go on from its cursor anyway",
):
    """The database holds the cursor of another module of the SQL sink."""
