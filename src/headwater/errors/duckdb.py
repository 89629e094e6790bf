"""E25: the DuckDB target."""

from headwater.errors.base import TargetError


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


class RetentionError(
    TargetError,
    code="E2505",
    fix="give unfinalized_blocks_retention=1 or more; 1000 is the default",
):
    """The retention of undo data is zero or negative."""


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
