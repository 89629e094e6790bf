"""E20: the ClickHouse target. E2001 to E2007 are the Pipes SDK's; E2004 and E2005 (a collapse
column of another name, or none) are reserved and never raised, because any name works.
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
