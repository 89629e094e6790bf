"""E22: lake targets (Iceberg, Delta, Parquet). E2201 to E2219 are shared and Iceberg's own."""

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
