"""E22: lake targets (Iceberg, Delta, Parquet). E2201 to E2219 are shared and Iceberg's own,
E2220 to E2229 Parquet's, E2230 to E2239 Delta's.
"""

from headwater.errors.base import TargetError


class LakePathError(
    TargetError,
    code="E2201",
    fix="give a directory, file:///…, s3://bucket/prefix or another path that fsspec knows (its "
    "package must be installed), and check that the credentials may read and write there",
):
    """A path or a catalog of a lake target cannot be used."""


class LakeSchemaError(
    TargetError,
    code="E2202",
    fix="change the frame so that it agrees with the table, or declare table(name, evolve=True), "
    "which adds new columns and widens types; nothing was written",
):
    """A frame does not agree with its table, or has a type that lake tables lack."""


class UnexplainedFilesError(
    TargetError,
    code="E2220",
    fix="nothing was deleted: move the file elsewhere if it is not the stream's, restore the state "
    "that belongs to the files, or begin in an empty folder",
):
    """A folder of a table holds a file that neither the state nor a crash explains."""


class ParquetWriterError(
    TargetError,
    code="E2221",
    fix="let one process write a stream; stop the other one, or give this stream another id and "
    "other tables",
):
    """Another process writes this stream, or has taken it over."""


class ParquetWriteError(
    TargetError,
    code="E2222",
    fix="tx.insert is what a folder of Parquet files can do; write upserts and deletes to "
    "PostgreSQL, DuckDB, ClickHouse, Iceberg or Delta",
):
    """A write that plain files cannot take: an upsert or a delete."""
