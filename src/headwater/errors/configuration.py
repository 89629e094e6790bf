"""E0: Configuration: raised before anything is read or changed."""

from headwater.errors.base import ConfigError


class StreamIdError(
    ConfigError,
    code="E0001",
    fix="give the stream a stable, non-blank id; all stored state is keyed by it",
):
    """A stream has no id."""


class InvalidRangeError(
    ConfigError,
    code="E0002",
    fix="give a block number, 'latest', an ISO date, a datetime, '+N' (end only), or (from, to) "
    "with from <= to",
):
    """A block range cannot be understood, or ends before it begins."""


class DiscriminatorError(
    ConfigError,
    code="E0003",
    fix="use exactly one discriminator width (d1, d2, d4 or d8) in a filter; put instructions of "
    "another width in a filter of their own",
):
    """A Solana instruction filter mixes discriminator widths, or holds a malformed one."""


class PortalUrlError(
    ConfigError,
    code="E0004",
    fix="give the dataset's address, such as https://portal.sqd.dev/datasets/ethereum-mainnet, or "
    "that of a node, such as rpc+https://node.example/key",
):
    """The portal address is not an http(s) URL of a dataset, or of a node behind `rpc+`."""


class QueryError(
    ConfigError,
    code="E0005",
    fix="use the names listed in the message; docs/queries.md shows all of them",
):
    """A query names an unknown field or filter, or gives a value of the wrong kind."""


class QueryLimitError(
    ConfigError,
    code="E0006",
    fix="split the outputs over several streams, or filter by topic and re-check addresses locally",
):
    """A query is larger than a portal accepts; nothing was sent."""


class InvalidOptionError(ConfigError, code="E0007", fix="give a value as the message says"):
    """An option has a value that cannot work."""


class StoredStateError(
    ConfigError,
    code="E0008",
    fix="restore the state from a backup, or remove it to start again from range.from; a newer "
    "format needs a newer Headwater",
):
    """Stored state cannot be read: malformed, or written in a newer format."""


class MissingExtraError(
    ConfigError,
    code="E0009",
    fix="install what the message names, such as: pip install 'headwater[duckdb]'",
):
    """A target needs a package that is not installed."""


class NetworkError(
    ConfigError,
    code="E0010",
    fix="point the stream at a dataset of that network, or use outputs of the network it holds; "
    "all sources of a list hold one network",
):
    """The outputs ask for another network than the dataset holds, or sources differ in it;
    nothing was read or written."""


class SideTablesError(
    ConfigError,
    code="E0011",
    fix="use a target that keeps rows for the stream itself (PostgreSQL, DuckDB, ClickHouse, "
    "Iceberg, Delta), alone or beside others, or leave out what needs them: on_finalized",
):
    """A part of the stream must store rows with each batch, and the target cannot keep them."""


class ConfigChangedError(
    ConfigError,
    code="E0012",
    fix="nothing was written: undo the change, give the stream a new id, read everything again "
    "(headwater cursor reset), have what was added filled with on_config_change='evolve', or go on "
    "from the cursor with 'warn' or 'ignore'",
):
    """The stream asks for something else than what its stored rows were made of."""


class CursorMoveError(
    ConfigError,
    code="E0013",
    fix="headwater cursor show lists the streams and where each can go back to; --force (in "
    "Python: force=True) goes further where rows say their block, and says first what that does to "
    "the data",
):
    """A cursor cannot be moved there without giving something up, or there is no such stream."""


class NothingStoredError(
    CursorMoveError,
    code="E0035",
    fix="check the path or address, --id, --schema and --table: headwater status lists the streams "
    "that are stored there. A stream stores something with its first commit, and a running one can "
    "be asked at HOST:PORT",
):
    """A command was given a place where this stream, or any, has stored nothing."""


class SchemaFileError(
    ConfigError,
    code="E0014",
    fix="write SQL, or JSON or TOML as docs/operations.md shows it; nothing was created, unless "
    "the message says so",
):
    """A schema file cannot be read, or what it asks for cannot be created."""


class AsyncCallbackError(
    InvalidOptionError,
    code="E0015",
    fix="write def instead of async def: Headwater calls your code in its own thread and awaits "
    "nothing; run a coroutine to its end inside the callback (asyncio.run). Nothing was committed",
):
    """A callback is asynchronous: it would return at once, and what it should do never happens."""


class SkippedBlocksError(
    ConfigError,
    code="E0016",
    fix="begin the range, or `start`, at the first of the skipped blocks or below; to leave them "
    "out of a portal's stream on purpose, give both ranges: range=[(0, cursor), (from, None)]; or "
    "use a new stream id. No row was read or written",
):
    """A range, or `start`, begins above blocks that are not there for good: a hole would stay."""


class StateMissingError(
    ConfigError,
    code="E0017",
    fix="nothing was changed: look for the state where settings say it is (schema, table, id) and "
    "restore it, or forget the rest with headwater cursor reset; rows of a change log go with "
    "DELETE FROM it WHERE stream_id = …",
):
    """No cursor is stored, but other rows of the stream are: beginning anew would lose them."""


class EvolveError(
    ConfigError,
    code="E0018",
    fix="docs/evolve.md says what can be filled and what to do otherwise: finish what has begun, "
    "give the stream a new id, or go on from the cursor with on_config_change='warn'. Rows that "
    "were there are as before",
):
    """The definition has changed in a way that on_config_change="evolve" cannot bring about."""


class DashboardAddressError(
    ConfigError,
    code="E0030",
    fix='give a free port, or "host:port"; port 0 takes a free one',
):
    """The dashboard cannot listen at the address that was given."""


class PipelineFileError(
    ConfigError,
    code="E0031",
    fix="mend what the reason names, if there is one; define `stream` and `target`, or "
    "`pipelines`, a list of (stream, target); each stream has an id of its own; what runs them, "
    'such as `pipe_to`, stands under `if __name__ == "__main__":`',
):
    """A file that a command was given defines no pipeline, cannot be read, or runs one itself."""


class ProjectFolderError(
    ConfigError,
    code="E0032",
    fix="name a folder that is empty or not there yet; nothing in it was changed",
):
    """`headwater init` was given a folder that holds something, or that cannot be written."""


class PipelineSilentError(
    ConfigError,
    code="E0034",
    fix="start the stream with pipe_to(target, dashboard=9090), or headwater run --port 9090, and "
    "ask it at HOST:PORT; a DuckDB file can be asked itself once no process holds it",
):
    """`headwater status` finds nobody who knows how far a running stream is."""


class ResumeError(
    ConfigError,
    code="E0065",
    fix="return None for a beginning, the BlockCursor to go on after, or a pair of it and the "
    "finalized BlockCursor that you stored with it (ctx.stream.head.finalized)",
):
    """`resume` of a target of your own returned something that a stream cannot go on from."""


class VerifyError(
    ConfigError,
    code="E0033",
    fix="compare tables that hold the rows of an output (--table TABLE=OUTPUT names both) or "
    "aggregates of all blocks; docs/operations.md says what can be compared",
):
    """`verify` cannot compare a table with the portal."""
