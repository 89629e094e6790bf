"""E5: Spark: sessions, column types, the data source."""

from headwater.errors.base import SparkError


class JavaMissingError(
    SparkError,
    code="E5001",
    fix="install a Java 17 runtime or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17) and, if it is "
    "not on the PATH, set JAVA_HOME to it",
):
    """Spark needs Java 17 or newer, and none was found."""


class SourceOptionError(
    SparkError,
    code="E5002",
    fix="correct the option that the message names; docs/spark.md has the table of all options",
):
    """An option of the data source, in `read` or `readStream`, is missing, unknown or contradicts
    another."""


class NotFinalError(
    SparkError,
    code="E5003",
    fix="end the range at or below the finalized head, or leave toBlock out; blocks above it can "
    "still be replaced and are read by a stream",
    retryable=True,
):
    """A range that is read in parallel ends above what is final."""


class ColumnTypeError(
    SparkError,
    code="E5005",
    fix="cast the column to a type that Spark has: a signed integer, float, decimal128, string, "
    "binary, boolean, date, timestamp in microseconds, list or struct",
):
    """An Arrow column has a type that Spark cannot hold without loss."""


class RelayError(
    SparkError,
    code="E5006",
    fix="let executors connect to the driver: spark.driver.host must be a name that they can "
    "resolve; spark.headwater.relay.port (relay_port of postgres_target) and "
    "spark.headwater.permits.port name ports that a firewall lets through",
    retryable=True,
):
    """An executor could not connect to the driver, to send its rows or to ask how much it may
    request of the portal."""


class SparkStartError(
    SparkError,
    code="E5007",
    fix="look at what Java has written above; most often memory is short (set "
    "spark.driver.memory), or JAVA_HOME and SPARK_HOME do not fit this version of Spark",
    retryable=True,
):
    """Spark was started on this machine, and its Java process has ended before it was ready."""


class WorkerLostError(
    SparkError,
    code="E5008",
    fix="run it again; if it stays, look for what ends the driver's Python workers: most often the "
    "machine is out of memory (dmesg says so)",
    retryable=True,
):
    """A Python worker was killed while Spark planned a scan, several times in a row."""


class WorkerSilentError(
    SparkError,
    code="E5038",
    fix="run it again when the machine is less busy: Spark gives each Python process it starts "
    "10 s, which no setting changes; start fewer queries at once, leave spark.python.use.daemon at "
    "true, and keep pandas out of the driver's environment: every process imports it where it is",
    retryable=True,
):
    """Spark started a Python process, and it took too long: "Python worker failed to connect
    back"."""


class OffsetFormatError(
    SparkError,
    code="E5010",
    fix="read the checkpoint with the version of Headwater that wrote it, or start the query with "
    "a new checkpointLocation and a new journal",
):
    """A checkpoint of a streaming query holds an offset that this version cannot read."""


class JournalFormatError(
    SparkError,
    code="E5011",
    fix="give each query a journal of its own and keep its options; read an old journal with the "
    "version of Headwater that wrote it, or start with a new checkpointLocation and a new journal",
):
    """A journal has another format, belongs to a query with other options, or is damaged."""


class JournalMissingError(
    SparkError,
    code="E5012",
    fix="restore the journal that belongs to the checkpoint; without it, start the query with a "
    "new checkpointLocation and a new journal, and empty what it has written",
):
    """The journal does not hold blocks that the checkpoint needs: only it could give them back."""


class JournalInUseError(
    SparkError,
    code="E5013",
    fix="stop the other query, or give each source of each query a journal of its own; a frame "
    "that is joined with itself is two sources",
    retryable=True,
):
    """A journal is in use by another query, or by a second source of the same query."""


class SparkVersionError(
    SparkError,
    code="E5015",
    fix="use Spark 4.0 or newer, and install the same version of pyspark as the session's: "
    "docs/compatibility.md says what each version offers",
):
    """The Spark of a session is too old, or another one than this process has of pyspark."""


class ConnectSessionError(
    SparkError,
    code="E5019",
    fix="leave limits= out over Spark Connect, and bound the requests in flight by the cluster's "
    "cores; or give a session whose driver is this process",
):
    """A stream over Spark Connect was given limits= of its requests: executors would ask this
    process for a share of them, and cannot reach it."""


class ExecutorPythonError(
    SparkError,
    code="E5014",
    fix="give executors a Python of the driver's version that has this version of headwater: set "
    "PYSPARK_PYTHON or spark.pyspark.python to it before Spark starts (headwater doctor looks); or "
    "call headwater.spark.ship(spark), which brings headwater to a Python that has the libraries "
    "it is made with",
):
    """The Python of an executor lacks headwater or a library of it, or is, or has, another version
    than the driver."""


class MicroBatchOrderError(
    SparkError,
    code="E5016",
    fix="go on with the checkpoint that the target was written with; a query with a new one needs "
    "another id in foreach_batch, or an empty target",
):
    """A target holds a later micro-batch than the query is at, or one of another query: another
    checkpoint wrote it."""


class MicroBatchGapError(
    SparkError,
    code="E5035",
    fix="Spark does not hand out a micro-batch again once it has committed it: restore the target, "
    "the checkpoint and the journal from the same backup; or begin anew, with a new checkpoint, a "
    "new journal and empty tables under another id",
):
    """A target lacks micro-batches that the query has done with: it was rewound, restored from a
    backup, or emptied, and the query was not."""


class MicroBatchTargetError(
    SparkError,
    code="E5036",
    fix="use a target that keeps side tables (PostgreSQL, ClickHouse, DuckDB, Iceberg, Delta); "
    "create_target takes a changelog with finalOnly=true; Parquet files are written by Spark "
    'itself: writeStream.format("parquet") of a changelog with finalOnly=true',
):
    """`foreach_batch` was given a target that cannot hold a micro-batch once it has returned, or a
    target of create_target rows that a fork may take back; or a writer a target that cannot take
    its rows."""


class MicroBatchReadError(
    SparkError,
    code="E5037",
    fix="let write(read) go through all of read(cursor), with the cursor that it stored, each time "
    "it is called: a micro-batch that is left is never handed over again",
):
    """`write` of create_target returned, in foreach_batch, before it had all of a micro-batch, or
    with a cursor below what it was given before."""


class JournalStorageError(
    SparkError,
    code="E5017",
    fix="see whether the folder of the journal exists, has room, and may be written; a store's "
    "credentials are those of the driver's environment",
    retryable=True,
):
    """The folder of a journal cannot be opened, read or written."""


class TransformActionError(
    SparkError,
    code="E5030",
    fix="say it with columns, or give the transform to pipe_batches(f), which calls it for each "
    "batch with frames that may be looked at",
):
    """A transform given to `pipe` looked at rows, or wrote them: `count`, `collect`, `first`,
    `toArrow`, `toPandas`, `cache`, `write` and the like, on a frame or on what was made of it."""


class TransformPlanError(
    SparkError,
    code="E5031",
    fix="return DataFrames that are made of the given ones by select, where, join and the like; "
    "anything else is a transform for pipe_batches(f)",
):
    """A transform given to `pipe` returned something that is no plan of the frames it was given."""


class TransformValueError(
    SparkError,
    code="E5032",
    fix="cast to a wider type, filter such rows before the cast, or use try_cast, which gives null",
):
    """A transform casts a column to a type that a value of it does not fit."""


class StoppedSparkError(
    SparkError,
    code="E5040",
    fix="start the stream again: it goes on from its last commit",
):
    """A run that was told to stop asked for Spark, or waited for it to start."""
