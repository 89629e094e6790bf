"""Every error Headwater raises on purpose: a code, what happened, with which values, what to do.

    HeadwaterError
    ├── E0…  configuration: raised before anything is read or changed
    ├── E1…  forks: the chain and the stored state cannot be reconciled
    ├── E20… the ClickHouse target
    ├── E21… the PostgreSQL target
    ├── E25… the DuckDB target
    ├── E3…  portal: transport, status codes, malformed or contradictory answers
    ├── E4…  decoding: signatures, layouts, contents of blocks
    ├── E5…  Spark: Java, sessions, column types, the data source
    ├── E6…  changes: operations on rows
    └── E7…  side effects: messages and their delivery

The text starts with the code because text is all that survives a Spark worker. Errors pickle.
Numbers that the SQD Pipes SDK uses keep its meaning. `docs/errors.md` lists all of them; a test
keeps raised ⇔ documented ⇔ tested.
"""

from headwater.errors.base import REGISTRY, HeadwaterError
from headwater.errors.changes import (
    ChangeBlockError,
    ChangeFormError,
    ChangeKeyError,
    ChangeNumberError,
    ChangeRefusedError,
    DatabaseChangesError,
    DuplicateInsertError,
    PrimaryKeyNeededError,
    TableDeclarationError,
    TableMismatchError,
    UnknownColumnError,
    UnknownTableError,
    UnsetOperationError,
)
from headwater.errors.clickhouse import (
    ClickHouseBlockColumnError,
    ClickHouseConnectionError,
    ClickHouseMaxRowsError,
    ClickHouseRowsError,
    ClickHouseServerError,
    ClickHouseSharedTableError,
    ClickHouseTableError,
    ClickHouseTableNameError,
    ClickHouseUndeclaredError,
    ClickHouseWriterError,
    DistributedTableError,
    RollbackHandlerMissingError,
)
from headwater.errors.configuration import (
    ConfigChangedError,
    CursorMoveError,
    DiscriminatorError,
    InvalidOptionError,
    InvalidRangeError,
    MissingExtraError,
    NetworkError,
    PortalUrlError,
    QueryError,
    QueryLimitError,
    SchemaFileError,
    SideTablesError,
    StoredStateError,
    StreamIdError,
)
from headwater.errors.decoding import (
    AddressError,
    BlockContentError,
    LayoutError,
    ParameterError,
    SignatureError,
    UndecodableCallError,
    UndecodableInstructionError,
    UndecodableLogError,
)
from headwater.errors.duckdb import (
    AppendOnlyError,
    DuckDBFileError,
    RetentionError,
    StreamInUseError,
    TableKeyError,
    TableSchemaError,
    UndeclaredTableError,
    UntraceableWriteError,
)
from headwater.errors.effects import (
    DeadLetterError,
    DeliveryError,
    DeliveryRefusedError,
    MessageRowsError,
)
from headwater.errors.forks import (
    EmptyForkSampleError,
    ForkCursorMissingError,
    ForkHandlerMissingError,
    HotBatchError,
    LaggingPortalError,
    RewindError,
)
from headwater.errors.portal import (
    BlockLinkError,
    BlockOrderError,
    MalformedAnswerError,
    MalformedLineError,
    PortalHttpError,
    PortalUnreachableError,
    TimestampError,
    TransportError,
)
from headwater.errors.postgres import (
    PostgresAppendOnlyError,
    PostgresConnectionError,
    PostgresKeyError,
    PostgresLockError,
    PostgresRetentionError,
    PostgresStatementError,
    PostgresTableError,
    PrimaryKeyMissingError,
    UntrackedTableError,
)
from headwater.errors.spark import (
    ColumnTypeError,
    FinalizedForkError,
    JavaMissingError,
    NotFinalError,
    SourceOptionError,
)

__all__ = [
    "REGISTRY",
    "AddressError",
    "AppendOnlyError",
    "BlockContentError",
    "BlockLinkError",
    "BlockOrderError",
    "ChangeBlockError",
    "ChangeFormError",
    "ChangeKeyError",
    "ChangeNumberError",
    "ChangeRefusedError",
    "ClickHouseBlockColumnError",
    "ClickHouseConnectionError",
    "ClickHouseMaxRowsError",
    "ClickHouseRowsError",
    "ClickHouseServerError",
    "ClickHouseSharedTableError",
    "ClickHouseTableError",
    "ClickHouseTableNameError",
    "ClickHouseUndeclaredError",
    "ClickHouseWriterError",
    "ColumnTypeError",
    "ConfigChangedError",
    "CursorMoveError",
    "DatabaseChangesError",
    "DeadLetterError",
    "DeliveryError",
    "DeliveryRefusedError",
    "DiscriminatorError",
    "DistributedTableError",
    "DuckDBFileError",
    "DuplicateInsertError",
    "EmptyForkSampleError",
    "FinalizedForkError",
    "ForkCursorMissingError",
    "ForkHandlerMissingError",
    "HeadwaterError",
    "HotBatchError",
    "InvalidOptionError",
    "InvalidRangeError",
    "JavaMissingError",
    "LaggingPortalError",
    "LayoutError",
    "MalformedAnswerError",
    "MalformedLineError",
    "MessageRowsError",
    "MissingExtraError",
    "NetworkError",
    "NotFinalError",
    "ParameterError",
    "PortalHttpError",
    "PortalUnreachableError",
    "PortalUrlError",
    "PostgresAppendOnlyError",
    "PostgresConnectionError",
    "PostgresKeyError",
    "PostgresLockError",
    "PostgresRetentionError",
    "PostgresStatementError",
    "PostgresTableError",
    "PrimaryKeyMissingError",
    "PrimaryKeyNeededError",
    "QueryError",
    "QueryLimitError",
    "RetentionError",
    "RewindError",
    "RollbackHandlerMissingError",
    "SchemaFileError",
    "SideTablesError",
    "SignatureError",
    "SourceOptionError",
    "StoredStateError",
    "StreamIdError",
    "StreamInUseError",
    "TableDeclarationError",
    "TableKeyError",
    "TableMismatchError",
    "TableSchemaError",
    "TimestampError",
    "TransportError",
    "UndeclaredTableError",
    "UndecodableCallError",
    "UndecodableInstructionError",
    "UndecodableLogError",
    "UnknownColumnError",
    "UnknownTableError",
    "UnsetOperationError",
    "UntraceableWriteError",
    "UntrackedTableError",
]
