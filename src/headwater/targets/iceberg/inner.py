"""The inner parts of pyiceberg that commits are made of: all that is not its documented interface.

pyiceberg cannot add several snapshots, go back and expire in one commit, nor tell statistics of a
file that another has written. `tests/targets/test_lake_parts.py` names each part, so that a version
that lacks one is noticed before the bound in `pyproject.toml` is raised.
"""

from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import (
    _pyarrow_schema_ensure_small_types as with_small_types,
)
from pyiceberg.io.pyarrow import (
    _pyarrow_to_schema_without_ids as schema_without_ids,
)
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import update
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)

__all__ = [
    "MAIN_BRANCH",
    "DataFile",
    "DataFileContent",
    "FileFormat",
    "ManifestContent",
    "ManifestEntry",
    "ManifestEntryStatus",
    "ManifestFile",
    "Operation",
    "Snapshot",
    "SnapshotRefType",
    "SnapshotSummaryCollector",
    "Summary",
    "compute_statistics_plan",
    "data_file_statistics_from_parquet_metadata",
    "from_bytes",
    "parquet_path_to_id_mapping",
    "schema_to_pyarrow",
    "schema_without_ids",
    "update",
    "update_snapshot_summaries",
    "with_small_types",
    "write_manifest",
    "write_manifest_list",
]
