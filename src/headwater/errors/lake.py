"""E26: lake targets (Iceberg, Delta, Parquet, tables of a session); E23 is Parquet's own."""

from headwater.errors.base import TargetError


class LakePathError(
    TargetError,
    code="E2601",
    fix="give a directory, file:///…, s3://bucket/prefix or another path that fsspec knows (its "
    "package must be installed), and check that the credentials may read and write there; on a "
    "cluster of several machines, a directory that all of them share",
):
    """A path or a catalog of a lake target cannot be used."""


class LakeSchemaError(
    TargetError,
    code="E2602",
    fix="change the frame so that it agrees with the table, or declare table(name, evolve=True), "
    "which adds new columns and, in Iceberg and Parquet, widens types (a column of Delta keeps its "
    "type: cast it, or load a new table under a new stream id); nothing was written",
):
    """A frame does not agree with its table, or has a type that lake tables lack."""


class LakeWriterError(
    TargetError,
    code="E2603",
    fix="let one process at a time run a stream; this one was replaced by a later start and has "
    "changed nothing since: stop it",
):
    """Another writer of the stream has begun; this one may change nothing any more."""


class LakeForeignWriteError(
    TargetError,
    code="E2604",
    fix="let nothing but the stream write its tables (rewriting files without changing rows is "
    "allowed): take the foreign snapshot back, or give the stream a table of its own",
):
    """A table was changed by another writer, or belongs to another stream."""


class LakeUndoError(
    TargetError,
    code="E2605",
    fix="snapshots and log entries of blocks that are not final must not be expired: leave that to "
    "`headwater maintain`; load the table again from the start under a new stream id",
):
    """The snapshot or version that a rollback goes back to is not there any more."""


class LakeDiskFullError(
    TargetError,
    code="E2614",
    fix="free space on the disk of the tables, of the catalog or of the executors, then start the "
    "stream again; nothing of the batch was committed",
    retryable=True,
):
    """A disk or a quota leaves no room for the files of a batch."""


class LakeCommandError(
    TargetError,
    code="E2613",
    fix="tables of a lake are made by the stream that writes them; a folder of Parquet files keeps "
    "no messages and no children of factories",
):
    """A command is asked for what lakes do not have."""


class LakeUnsupportedError(
    TargetError,
    code="E2606",
    fix="use insert, upsert, delete, apply and aggregates; for SQL and hooks write to DuckDB, "
    "PostgreSQL or ClickHouse, or use the engine that reads the table",
):
    """Something is asked for that lake targets do not offer."""


class LakeKeyError(
    TargetError,
    code="E2607",
    fix="declare table(name, key=[...]) or give key=[...]; every row needs a key, and a batch may "
    "hold one row of each",
):
    """A change by key lacks a key, or two rows share one."""


class LakeRewriteError(
    TargetError,
    code="E2608",
    fix="partition or sort the table by its key so that fewer files hold it, raise rewrite_bytes, "
    "or keep tables with many changes by key in PostgreSQL or DuckDB; nothing was committed",
):
    """A change by key would rewrite more of a table than one batch may."""


class UndeclaredLakeTableError(
    TargetError,
    code="E2609",
    fix="name every table that is written in tables=[...]: undo is kept for these",
):
    """A table is written that was not declared, so a fork could not undo it."""


class LakeFileGoneError(
    TargetError,
    code="E2623",
    fix="something has deleted a file of the table: let VACUUM and other sweeps keep what the "
    "newest version names; bring the file back from a copy, or load the table again under a new "
    "stream id; nothing was committed",
):
    """A file that a table names is not there."""


class LakeStorageError(
    TargetError,
    code="E2624",
    fix="the storage was reached and failed then: see its own logs, and start the stream again; "
    "nothing of the batch was committed, or all of it",
    retryable=True,
):
    """A storage fails while a stream writes or reads it."""


class SparkTableError(
    TargetError,
    code="E2625",
    fix="docs/lake.md says which tables spark_table_target takes, and how a session is configured "
    "for its catalog; nothing was written",
):
    """A table of Spark's catalog cannot keep what a stream needs, or cannot be reached."""


class UnexplainedFilesError(
    TargetError,
    code="E2317",
    fix="nothing was deleted: move the file elsewhere if it is not the stream's, restore the state "
    "that belongs to the files, or begin in an empty folder",
):
    """A folder of a table holds a file that neither the state nor a crash explains."""


class ParquetWriterError(
    LakeWriterError,
    code="E2330",
    fix="let one process write a stream; stop the other one, or give this stream another id and "
    "other tables",
):
    """Another process writes this stream, or has taken it over."""


class ParquetWriteError(
    TargetError,
    code="E2331",
    fix="tx.insert is what a folder of Parquet files can do; write upserts and deletes to "
    "PostgreSQL, DuckDB, ClickHouse, Iceberg or Delta",
):
    """A write that plain files cannot take: an upsert or a delete."""
