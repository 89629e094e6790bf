"""E20, E21, E25: targets on databases: ClickHouse, PostgreSQL, DuckDB.

E2001 to E2007 and E2101 to E2107 are the Pipes SDK's. E2004 and E2005 (a collapse column of another
name, or none) are reserved and never raised, because any name works; of the latter Headwater raises
E2102 to E2105: it needs no client of the user's, undoes cycles of foreign keys like everything
else, and has no names to resolve.
"""

from headwater.errors.base import TargetError


class ClickHouseMaxRowsError(
    TargetError,
    code="E2001",
    fix="give max_rows=1 or more; 10000 is the default",
):
    """The state would be kept for no batch at all."""


class ClickHouseTableNameError(
    TargetError,
    code="E2002",
    fix="write name or database.name; put parts that hold a dot in backticks or double quotes",
):
    """The name of a table has more than two parts, or none."""


class DistributedTableError(
    TargetError,
    code="E2003",
    fix="name the local table of each shard, and run one stream per shard; a Distributed table "
    "only forwards rows and cannot take them back",
):
    """A table is of engine Distributed, so a fork could not be undone in it."""


class ClickHouseBlockColumnError(
    TargetError,
    code="E2006",
    fix="give the table a column with the number of the block, as a plain integer, and name it "
    "with table(name, block_column=...)",
):
    """A table has no usable column with the number of the block, so a fork could not be undone."""


class RollbackHandlerMissingError(
    TargetError,
    code="E2007",
    fix="name the tables that on_data writes in tables=[...], and forks are undone for you; or "
    "give on_rollback=... and do it yourself",
):
    """A fork would not be undone: on_data writes, but neither tables nor on_rollback are given."""


class ClickHouseConnectionError(
    TargetError,
    code="E2010",
    fix="check the address, the user's rights and that the server is up; a restart removes what "
    "was written above the stored cursor",
    retryable=True,
):
    """The server cannot be reached, or has failed too often in a row."""


class ClickHouseServerError(
    TargetError,
    code="E2011",
    fix="the reason is the server's own; correct the statement, the rights or the table",
):
    """The server has refused a statement."""


class ClickHouseTableError(
    TargetError,
    code="E2012",
    fix="change the frame or the declaration so that they agree with the table, or write to a new "
    "table; what the batch has written is removed at the next start",
):
    """A frame, a declaration and an existing table do not agree, or a value does not fit."""


class ClickHouseUndeclaredError(
    TargetError,
    code="E2013",
    fix="name every table that on_data writes in tables=[...]",
):
    """A table is written that was not declared, so a fork could not undo it."""


class ClickHouseRowsError(
    TargetError,
    code="E2014",
    fix="insert only rows of the batch's own blocks, and name columns that tell them apart with "
    "table(name, order_by=[...]): the engine merges rows that agree in these",
):
    """Rows could not be undone by their block number, or the engine would merge them into one."""


class ClickHouseSharedTableError(
    TargetError,
    code="E2015",
    fix="declare table(name, stream_column=...) in every stream that writes it, or give each "
    "stream a table of its own; a table with rows of unknown origin must be emptied first",
):
    """Rows of another stream, or of unknown origin, could not be told from this stream's."""


class ClickHouseWriterError(
    TargetError,
    code="E2016",
    fix="a stream id has one writer at a time: stop the other one, then start this one again; "
    "after headwater cursor or outbox, which stop a writer too, just start it again",
    retryable=True,
):
    """Another writer has started the stream, or an operator has moved its cursor."""


class ClickHouseDiskFullError(
    TargetError,
    code="E2017",
    fix="free space on the server's disks, or add some, then start the stream again; rows of a "
    "batch that was not committed are removed at the start",
    retryable=True,
):
    """The server's disks stayed full for all attempts at a statement."""


class ClickHouseDatabaseError(
    TargetError,
    code="E2018",
    fix="correct the name in the address or in ClickHouseSettings(database=...); a new database is "
    "created by CREATE DATABASE or by headwater setup",
):
    """The database that the stream is to write is not there: its name may be mistyped."""


class PostgresConnectionError(
    TargetError,
    code="E2119",
    fix="check the address, the user's rights and that the server is up; what was committed is "
    "kept, so a restart is safe",
    retryable=True,
):
    """The server cannot be reached, or the connection was lost too often in a row."""


class RetentionError(
    TargetError,
    code="E2102",
    fix="give unfinalized_blocks_retention=1 or more; 1000 is the default",
):
    """The retention of undo data is zero or negative."""


class PostgresLockError(
    TargetError,
    code="E2103",
    fix="a stream id has one writer at a time: stop the other one, or give each stream its own id; "
    "nothing was changed",
    retryable=True,
):
    """Another process writes this stream, has moved its cursor, or keeps its state elsewhere."""


class UntrackedTableError(
    TargetError,
    code="E2104",
    fix="name every table that on_data writes in tables=[...], also those that foreign keys or "
    "triggers write; table(name, untracked=True) for one that forks shall leave alone",
):
    """A table is written that was not declared, so a fork could not undo it."""


class PrimaryKeyMissingError(
    TargetError,
    code="E2105",
    fix="add a primary key, declare table(name, key=[...]) for a table that is created, or "
    "table(name, append_only=True) for one whose rows carry their block number",
):
    """A table has no primary key, so its rows could not be restored one by one."""


class PostgresTableError(
    TargetError,
    code="E2110",
    fix="change the frame or the declaration so that they agree with the table, or write to a new "
    "table; nothing was written",
):
    """A frame, a declaration and an existing table do not agree, or a value does not fit."""


class PostgresKeyError(
    TargetError,
    code="E2111",
    fix="declare the key with table(name, key=[...]); each row needs one, and only one row may "
    "have it",
):
    """A write needs a key that the table or its rows lack, or that two rows share."""


class PostgresAppendOnlyError(
    TargetError,
    code="E2112",
    fix="insert only rows of the batch's own blocks and let one stream write the table, or declare "
    "the table with a key",
):
    """Rows of an append-only table could not be undone by their block number."""


class PostgresStatementError(
    TargetError,
    code="E2113",
    fix="use DELETE instead of TRUNCATE while blocks can still be forked, leave BEGIN and COMMIT "
    "to the target, and let errors of the transaction pass",
):
    """SQL would escape the undo log or end the batch's transaction."""


class PostgresTransactionError(
    TargetError,
    code="E2114",
    fix="take COMMIT, ROLLBACK and pg_advisory_unlock out of the SQL that callbacks run; rows of "
    "hot blocks that became visible without their cursor are undone, at the latest by the next "
    "start, those of final blocks stay and are written once more",
):
    """A callback has ended the target's transaction or released the stream's lock."""


class PostgresNameError(
    TargetError,
    code="E2116",
    fix="give the column a name of at most 63 bytes in a transform; nothing was changed",
):
    """A column's name is longer than PostgreSQL keeps it."""


class PostgresSizeError(
    TargetError,
    code="E2117",
    fix="divide wide rows among several tables, and index columns of short values; the texts of a "
    "key and of columns in an index are shortened by the target, those of expressions are not. "
    "Nothing of the batch was committed",
):
    """A row, an entry of an index or a statement is larger than PostgreSQL takes."""


class PostgresConflictError(
    TargetError,
    code="E2118",
    fix="start the stream again; if others change the tables that on_data reads all the time, "
    "read them elsewhere, or give isolation_level='read committed'. Nothing of the batch was "
    "committed, and it is written again",
    retryable=True,
):
    """Transactions of others were in conflict with that of a batch at every attempt."""


class PostgresDiskFullError(
    TargetError,
    code="E2115",
    fix="free space on the server, or add some, then start the stream again; nothing of the batch "
    "was committed, and it is written again",
    retryable=True,
):
    """The server's disk stayed full for all attempts at a transaction."""


class DuckDBFileError(
    TargetError,
    code="E2501",
    fix="DuckDB lets one process at a time open a file: stop the other process, or run both "
    "streams in one process",
):
    """The DuckDB file cannot be opened: another process holds it."""


class DuckDBPathError(
    TargetError,
    code="E2511",
    fix="name a file in a folder that exists and may be written; the file itself is created if it "
    "is not there",
):
    """The path of a DuckDB file leads to no database: no such folder, or another kind of file."""


class TableSchemaError(
    TargetError,
    code="E2502",
    fix="change the frame or the declaration so that they agree with the table, or write to a new "
    "table; nothing was written",
):
    """A frame, a declaration and an existing table do not agree."""


class UndeclaredTableError(
    TargetError,
    code="E2503",
    fix="name every table that on_data writes in tables=[...]: undo is kept for these",
):
    """A table is written that was not declared, so a fork could not undo it."""


class TableKeyError(
    TargetError,
    code="E2504",
    fix="declare the key with table(name, key=[...]); each row needs one, and only one row may "
    "have it",
):
    """A write needs a key that the table or its rows lack, or that two rows share."""


class UntraceableWriteError(
    TargetError,
    code="E2506",
    fix="use tx.insert, tx.upsert or tx.delete; or name the changed tables in "
    "tx.execute(sql, params, tables=[...]); or declare the table untracked",
):
    """SQL would change data in a way that a fork could not undo."""


class StreamInUseError(
    TargetError,
    code="E2507",
    fix="give each stream its own id, and close a target before another one takes its place",
):
    """Two targets write the same stream id, or keep its state in two tables."""


class AppendOnlyError(
    TargetError,
    code="E2508",
    fix="insert only rows of the batch's own blocks and let one stream write the table, or declare "
    "table(name, append_only=False)",
):
    """Rows of an append-only table could not be undone by their block number."""


class DuckDBTransactionError(
    TargetError,
    code="E2509",
    fix="take COMMIT and ROLLBACK out of the SQL that callbacks run; rows of hot blocks that "
    "became visible without their cursor are undone, at the latest by the next start, those of "
    "final blocks stay and are written once more",
):
    """A callback has ended the target's transaction."""


class DuckDBDiskFullError(
    TargetError,
    code="E2510",
    fix="free space on the disk of the file, or move the file to a larger one, then start the "
    "stream again; nothing of the batch was committed",
    retryable=True,
):
    """The disk, a quota or a limit of file sizes leaves no room for the file or its log."""
