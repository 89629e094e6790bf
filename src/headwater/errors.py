"""Every error Headwater raises on purpose: a code, what happened, with which values, what to do.

    HeadwaterError
    ├── E0…  configuration: raised before anything is read or changed
    ├── E1…  forks: the chain and the stored state cannot be reconciled
    ├── E3…  portal: transport, status codes, malformed or contradictory answers
    └── E4…  decoding: event signatures, contents of blocks and logs

The text starts with the code because text is all that survives a Spark worker. Errors pickle.
Numbers that the SQD Pipes SDK uses keep its meaning. `docs/errors.md` lists all of them; a test
keeps raised ⇔ documented ⇔ tested.
"""

from __future__ import annotations

from typing import Any, ClassVar

REGISTRY: dict[str, type[HeadwaterError]] = {}


class HeadwaterError(Exception):
    """Base of all coded errors; never raised itself.

    Subclasses declare `code` and `fix` in the class statement. `facts` are the values that a reader
    needs; they are shown after the message, and are attributes of `error.facts`.
    """

    code: ClassVar[str]
    fix: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str, fix: str, retryable: bool = False) -> None:
        """Register the class under its code; refuse a code that is taken."""
        super().__init_subclass__()
        if code in REGISTRY:
            raise TypeError(f"error code {code} is taken by {REGISTRY[code].__name__}")
        cls.code, cls.fix, cls.retryable = code, fix, retryable
        REGISTRY[code] = cls

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in self.facts.items())
        return f"[{self.code}] {self.message}{f' ({shown})' if shown else ''}. Fix: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(cls: type[HeadwaterError], message: str, facts: dict[str, object]) -> HeadwaterError:
    return cls(message, **facts)


# --- E0: configuration ----------------------------------------------------------------------------


class StreamIdError(
    HeadwaterError,
    code="E0001",
    fix="give the stream a stable, non-blank id; all stored state is keyed by it",
):
    """A stream has no id."""


class InvalidRangeError(
    HeadwaterError,
    code="E0002",
    fix="give a block number, 'latest', an ISO date, a datetime, '+N' (end only), or (from, to) "
    "with from <= to",
):
    """A block range cannot be understood, or ends before it begins."""


class DiscriminatorError(
    HeadwaterError,
    code="E0003",
    fix="use exactly one discriminator width (d1, d2, d4 or d8) in a filter; put instructions of "
    "another width in a filter of their own",
):
    """A Solana instruction filter mixes discriminator widths, or holds a malformed one."""


class PortalUrlError(
    HeadwaterError,
    code="E0004",
    fix="give the dataset's address, such as https://portal.sqd.dev/datasets/ethereum-mainnet",
):
    """The portal address is not an http(s) URL of a dataset."""


class QueryError(
    HeadwaterError,
    code="E0005",
    fix="use the names listed in the message; docs/queries.md shows all of them",
):
    """A query names an unknown field or filter, or gives a value of the wrong kind."""


class QueryLimitError(
    HeadwaterError,
    code="E0006",
    fix="split the outputs over several streams, or filter by topic and re-check addresses locally",
):
    """A query is larger than a portal accepts; nothing was sent."""


class InvalidOptionError(
    HeadwaterError, code="E0007", fix="give a value in the range that the message names"
):
    """An option has a value that cannot work."""


class StoredStateError(
    HeadwaterError,
    code="E0008",
    fix="restore the state from a backup, or remove it to start again from range.from; a newer "
    "format needs a newer Headwater",
):
    """Stored state cannot be read: malformed, or written in a newer format."""


class NetworkError(
    HeadwaterError,
    code="E0010",
    fix="point the stream at a dataset of that network, or use the outputs of the dataset's network",
):
    """The outputs ask for another network than the dataset holds; nothing was read or written."""


# --- E1: forks ------------------------------------------------------------------------------------


class ForkHandlerMissingError(
    HeadwaterError,
    code="E1001",
    fix="give create_target a fork callback, or pipe_to_iterator an on_fork, that returns the last "
    "good cursor",
):
    """The chain forked, and the target has nothing to decide with."""


class EmptyForkSampleError(
    HeadwaterError,
    code="E1002",
    fix="report it to the portal's operator; the state is untouched, so a restart is safe",
):
    """The portal reported a fork (409) without naming a single block of its chain."""


class ForkCursorMissingError(
    HeadwaterError,
    code="E1003",
    fix="the state is untouched; check that the portal serves the same chain, then rewind to a "
    "block you trust or start a new stream",
):
    """No block held locally can still be canonical without giving up finalized data."""


class LaggingPortalError(
    HeadwaterError,
    code="E1004",
    fix="the state is untouched; wait for the portal's replicas to catch up, or use another portal",
    retryable=True,
):
    """The portal keeps answering from below a cursor that is already final."""


class RewindError(
    HeadwaterError,
    code="E1005",
    fix="rewind only to a cursor of the rollback chain, or to the finalized cursor",
):
    """A rewind names a block that the state holds no anchor for."""


class HotBatchError(
    HeadwaterError,
    code="E1006",
    fix="cut answers with headwater.core.cut_batches: a batch holds final blocks, or one hot block",
):
    """A batch holds several blocks above the finalized head, so it could not be undone exactly."""


# --- E3: portal -----------------------------------------------------------------------------------


class PortalHttpError(
    HeadwaterError,
    code="E3001",
    fix="read the portal's own words in the message; 400 is a query it refuses, 404 a dataset or "
    "block it does not have, 401/403 missing credentials",
):
    """The portal answered with a status that a retry cannot mend."""


class PortalUnreachableError(
    HeadwaterError,
    code="E3002",
    fix="check the address and the network, or raise the number of attempts",
    retryable=True,
):
    """All permitted attempts failed."""


class MalformedLineError(
    HeadwaterError,
    code="E3003",
    fix="report the block to the portal's operator; nothing after the last good block was taken",
):
    """A line of the stream is not a block: broken JSON, or no usable header."""


class BlockOrderError(
    HeadwaterError,
    code="E3004",
    fix="report it to the portal's operator; nothing after the last good block was taken",
):
    """Blocks arrived twice, out of order, or outside the requested range."""


class BlockLinkError(
    HeadwaterError,
    code="E3005",
    fix="report it to the portal's operator; nothing after the last good block was taken",
):
    """A block does not name its predecessor as parent: one is missing or foreign."""


class MalformedAnswerError(
    HeadwaterError,
    code="E3006",
    fix="check that the address is an SQD portal dataset; report it to the portal's operator",
):
    """An answer other than a block line is not what the protocol says."""


class TransportError(
    HeadwaterError, code="E3007", fix="check the address and the network", retryable=True
):
    """A connection failed, timed out or broke; the client retries it."""


class TimestampError(
    HeadwaterError,
    code="E3008",
    fix="give a date inside the dataset's history, or a block number",
):
    """The portal has no block at or after the given time."""


# --- E4: decoding ---------------------------------------------------------------------------------


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


# --- Extras and E25: DuckDB -----------------------------------------------------------------------


class MissingExtraError(
    HeadwaterError,
    code="E0009",
    fix="install what the message names, such as: pip install 'headwater[duckdb]'",
):
    """A target needs a package that is not installed."""


class DuckDBFileError(
    HeadwaterError,
    code="E2501",
    fix="DuckDB lets one process at a time open a file: stop the other process, or run both "
    "streams in one process; otherwise check the path",
):
    """The DuckDB file cannot be opened: another process holds it, or the path is wrong."""


class TableSchemaError(
    HeadwaterError,
    code="E2502",
    fix="change the frame or the declaration so that they agree with the table, or write to a new "
    "table; nothing was written",
):
    """A frame, a declaration and an existing table do not agree."""


class UndeclaredTableError(
    HeadwaterError,
    code="E2503",
    fix="name every table that on_data writes in tables=[...]: undo is kept for these",
):
    """A table is written that was not declared, so a fork could not undo it."""


class TableKeyError(
    HeadwaterError,
    code="E2504",
    fix="declare the key with table(name, key=[...]); each row needs one, and only one row may "
    "have it",
):
    """A write needs a key that the table or its rows lack, or that two rows share."""


class RetentionError(
    HeadwaterError,
    code="E2505",
    fix="give unfinalized_blocks_retention=1 or more; 1000 is the default",
):
    """The retention of undo data is zero or negative."""


class UntraceableWriteError(
    HeadwaterError,
    code="E2506",
    fix="use tx.insert, tx.upsert or tx.delete; or name the changed tables in "
    "tx.execute(sql, params, tables=[...]); or declare the table untracked",
):
    """SQL would change data in a way that a fork could not undo."""


class StreamInUseError(
    HeadwaterError,
    code="E2507",
    fix="give each stream its own id, and close a target before another one takes its place",
):
    """Two targets of one process write the same stream id."""


class AppendOnlyError(
    HeadwaterError,
    code="E2508",
    fix="insert only rows of the batch's own blocks and let one stream write the table, or declare "
    "table(name, append_only=False)",
):
    """Rows of an append-only table could not be undone by their block number."""


# --- E5: Spark ------------------------------------------------------------------------------------


class JavaMissingError(
    HeadwaterError,
    code="E5001",
    fix="install a Java 17 runtime or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17) and, if it is "
    "not on the PATH, set JAVA_HOME to it",
):
    """Spark needs Java 17 or newer, and none was found."""


class SourceOptionError(
    HeadwaterError,
    code="E5002",
    fix="correct the option that the message names; the data source takes portal, from_block, "
    "to_block, partitions, and either event (with contracts, params, decimals, on_error) or query",
):
    """An option of `spark.read.format("headwater")` is missing, unknown or contradicts another."""


class NotFinalError(
    HeadwaterError,
    code="E5003",
    fix="end the range at or below the finalized head, or leave to_block out; blocks above it can "
    "still be replaced and are read by a stream",
    retryable=True,
):
    """A range that is read in parallel ends above what is final."""


class FinalizedForkError(
    HeadwaterError,
    code="E5004",
    fix="run it again; if it stays, report to the portal's operator that its replicas disagree "
    "about finalized blocks",
    retryable=True,
):
    """The portal reported a fork among finalized blocks."""


class ColumnTypeError(
    HeadwaterError,
    code="E5005",
    fix="cast the column to a type that Spark has: a signed integer, float, decimal128, string, "
    "binary, boolean, date, timestamp in microseconds, list or struct",
):
    """An Arrow column has a type that Spark cannot hold without loss."""
