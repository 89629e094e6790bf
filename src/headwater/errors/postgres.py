"""E21: the PostgreSQL target. E2101 to E2107 are the Pipes SDK's, of which Headwater raises
E2102 to E2105: it needs no client of the user's, undoes cycles of foreign keys like everything
else, and has no names to resolve.
"""

from headwater.errors.base import TargetError


class PostgresConnectionError(
    TargetError,
    code="E2119",
    fix="check the address, the user's rights and that the server is up; what was committed is "
    "kept, so a restart is safe",
    retryable=True,
):
    """The server cannot be reached, or the connection was lost too often in a row."""


class PostgresRetentionError(
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
