"""Tables of a user's own catalogs as a target: rows and state in one commit of each table.

The stream writes through the user's session, so the catalog may be any that Spark can be configured
with. Every table's commits say the whole state, and none leads: of several tables the one that is
furthest behind counts. So a commit counts once its last table is done, a rollback once its first
one is, and what a crash leaves in between are rows above a block: every start removes these. Runs
on the driver, in one thread; the rows of a backfill are written by Spark's executors.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headwater.core import Batch, PipeState
from headwater.errors import (
    InvalidOptionError,
    LakeWriterError,
    SparkTableError,
    StateMissingError,
    UndeclaredLakeTableError,
)
from headwater.runtime import ALONE, Runtime
from headwater.targets.contract import Capabilities, Delivery, StoredConfig
from headwater.targets.database import LEGACY_ID
from headwater.targets.frames import executor_rows, to_arrow
from headwater.targets.spark_table.formats import TABLE_PROPERTIES, DeltaTable, IcebergTable
from headwater.targets.spark_table.tables import (
    ATTEMPTS,
    BLOCK_NUMBER,
    Name,
    Record,
    StreamTable,
    Write,
    at_mark,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.catalog_tables import CatalogTables

_FORMATS: Mapping[str, type[StreamTable]] = {"iceberg": IcebergTable, "delta": DeltaTable}
_ONLY = ""  # the output of a target that was given one table
logger = logging.getLogger("headwater.targets.spark_table")


def spark_table_target(
    table: str | Mapping[str, str],
    *,
    spark: SparkSession | None = None,
    create: str | None = None,
    id: str | None = None,
) -> SparkTableTarget:
    """Write a stream to Iceberg or Delta tables of the catalogs of a Spark session.

    Args:
        table: `"catalog.schema.table"` for the only output of a stream, or a table for each output.
        spark: your session, whose catalogs these are; the stream needs the same one. Left out, the
            session that is active.
        create: `"iceberg"` or `"delta"`: tables that are missing are created as such, with the
            columns of the first rows. Left out, tables that are missing are refused.
        id: the id of the stream in these tables, if it is another than the stream's own.
    """
    tables = {_ONLY: table} if isinstance(table, str) else dict(table)
    if not tables or len(set(tables.values())) < len(tables):
        raise InvalidOptionError("each output has a table of its own", got=repr(table))
    if create is not None and create not in _FORMATS:
        raise InvalidOptionError(
            "create= names a format", got=repr(create), known=", ".join(_FORMATS)
        )
    if id is not None and not id.strip():
        raise InvalidOptionError("a stream id cannot be blank", got=repr(id))
    named = {output: Name.parse(name) for output, name in tables.items()}
    return SparkTableTarget(named, spark, create, id)


class SparkTableTarget:
    """Made by `spark_table_target`. `on_statement` is told each one before it runs, for tests."""

    def __init__(
        self,
        names: Mapping[str, Name],
        spark: SparkSession | None,
        create: str | None,
        given_id: str | None,
    ) -> None:
        self.on_statement: Callable[[str], None] | None = None
        self._names = names
        self._spark = spark
        self._create = create
        self._given_id = given_id
        self._id = given_id or LEGACY_ID
        self._writer = ""
        self._catalogs: CatalogTables | None = None
        self._tables: dict[str, StreamTable] = {}
        self._record = self._first("")
        self._dirty = True
        self._replaced: LakeWriterError | None = None

    @property
    def capabilities(self) -> Capabilities[Delivery]:
        """It keeps the configuration; frames are written as DataFrames."""
        return Capabilities(config=self, uses_frames=True)

    def bind(self, stream_id: str, runtime: Runtime = ALONE) -> None:
        """Take the stream's id, unless another was given."""
        if self._catalogs is not None:
            raise InvalidOptionError("a target is bound before it is opened", stream=stream_id)
        self._id = self._given_id or stream_id

    def recover(self) -> PipeState:
        """Return the state of all tables, after removing what is above it.

        An earlier writer of the stream can change nothing from here on.

        Raises:
            SparkTableError: a table cannot keep what a stream needs.
            LakeWriterError: a later start has begun.
            LakeForeignWriteError: a table is another stream's, or others have changed rows.
            StateMissingError: nothing tells any more how far the stream was.
        """
        if self._replaced is not None:
            raise self._replaced
        if self._dirty:
            with self._changing():
                self._open()
        return self._record.state

    def commit(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> None:
        """Add the rows of all batches and the state to each table, in a commit of its own."""
        self.recover()
        with self._changing():
            writes = self._writes(batches, state)
            for output, table in self._tables.items():
                table.commit(writes.get(output, Write()), state)
            self._note(state)

    def roll_back(self, state: PipeState) -> None:
        """Remove the rows above a block, and store the state with it."""
        self.recover()
        self._record.state.check_reach(state)
        with self._changing():
            for table in self._tables.values():
                table.commit(Write(above=state.number), state)
            self._note(state)

    def close(self) -> None:
        """Let go of the session, which stays open."""
        self._dirty, self._replaced, self._catalogs = True, None, None
        self._tables = {}

    def stored_config(self) -> StoredConfig:
        """Return where the definition of this stream is kept."""
        return self

    def read(self) -> str | None:
        """Return the definition of the stream; None if none is stored."""
        self.recover()
        return self._record.config

    def write(self, text: str) -> None:
        """Replace it. Without a table yet it comes with the first commit."""
        self.recover()
        with self._changing():
            for table in self._tables.values():
                table.commit(Write(), self._record.state, text)
            self._note(self._record.state, text)

    # --- opening ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """Take over every table that is there, at the state of the one that is furthest behind."""
        from headwater.spark.catalog_tables import CatalogTables

        self._catalogs = CatalogTables(self._spark, self._announce)
        self._writer = secrets.token_hex(6)
        self._tables = {}
        for output, name in sorted(self._names.items(), key=_name):  # starts meet at the first
            columns = self._catalogs.columns(str(name))
            if columns is not None:
                self._tables[output] = self._table(name, columns)
            elif self._create is None:
                raise SparkTableError(
                    "there is no such table; create it, or say create='iceberg' or 'delta'",
                    table=name,
                )
        for _ in range(ATTEMPTS):
            records = [
                record for table in self._tables.values() if (record := table.look()) is not None
            ]
            self._record = min(records, key=_behind, default=self._first(""))
            self._check_complete(len(records))
            epoch = 1 + max([table.epochs() for table in self._tables.values()], default=0)
            if all(self._claim(table, epoch) for table in self._tables.values()):
                return
        raise LakeWriterError("other starts begin all the time", stream=self._id)

    def _check_complete(self, count: int) -> None:
        """Refuse tables of which one has lost its rows and its state; all have them, or none."""
        if count < len(self._names) and self._record.state != PipeState():
            raise StateMissingError(
                "a table of the stream is gone, or is new: a stream with an id of its own fills it",
                stream=self._id,
                tables=", ".join(map(str, self._names.values())),
            )

    def _table(self, name: Name, columns: Any) -> StreamTable:
        """Return a table of one of the formats.

        Raises:
            SparkTableError: it is of another one, or lacks what a stream needs.
        """
        assert self._catalogs is not None, "the session is there"
        said = {
            row["col_name"]: row["data_type"]
            for row in self._catalogs.sql(f"DESCRIBE TABLE EXTENDED {name}")
        }
        provider = str(said.get("Provider", said.get("Type", ""))).lower()
        if provider not in _FORMATS:
            raise SparkTableError(
                "rows and state are kept together, and forks undone, in Iceberg and Delta tables "
                "alone",
                table=name,
                found=provider or "another kind",
            )
        kinds = {column.name: column.dataType.simpleString() for column in columns}
        if kinds.get(BLOCK_NUMBER) != "bigint":
            raise SparkTableError(
                f"rows are undone by their {BLOCK_NUMBER}, a bigint",
                table=name,
                found=kinds.get(BLOCK_NUMBER, "no such column"),
            )
        padded = [name for name, kind in said.items() if str(kind).startswith("char(")]
        if padded:
            raise SparkTableError("char(n) changes texts", table=name, columns=", ".join(padded))
        table = _FORMATS[provider](self._catalogs, name, columns, self._id)
        table.check()
        return table

    def _claim(self, table: StreamTable, epoch: int) -> bool:
        state, config = self._record.state, self._record.config
        final = at_mark(state)
        record = Record(self._id, epoch, 0, self._writer, state, final=final, config=config)
        behind = None if table.last is None else table.last.state.number
        if not table.claim(record):
            return False
        table.claimed()
        if behind is not None and behind > state.number:
            logger.info("table.back table=%s block=%d", table.name, state.number)
        return True

    def _first(self, config: str) -> Record:
        return Record(self._id, 0, 0, self._writer, PipeState(), config=config or None)

    # --- writing ----------------------------------------------------------------------------------

    def _writes(self, batches: Sequence[Batch[Delivery]], state: PipeState) -> dict[str, Write]:
        """Return what is written to each table; tables that are missing are created first.

        Raises:
            UndeclaredLakeTableError: an output has no table.
        """
        assert self._catalogs is not None, "the session is there"
        frames: dict[str, list[tuple[int, int, Any]]] = {}
        states = [self._record.state, *(batch.state for batch in batches[:-1]), state]
        for batch, (before, after) in zip(batches, pairwise(states), strict=False):
            for output, rows in self._outputs(batch.data.data).items():
                frame, is_empty = self._frame(rows)
                if output not in self._tables:
                    self._make(output, frame)
                if not is_empty:
                    frames.setdefault(output, []).append((before.number, after.number, frame))
        return {
            output: Write(self._fitted(self._tables[output], several))
            for output, several in frames.items()
        }

    def _outputs(self, data: Mapping[str, Any]) -> dict[str, Any]:
        if _ONLY in self._names and len(data) == 1:
            return dict.fromkeys([_ONLY], *data.values())
        missing = sorted(data.keys() - self._names.keys())
        if missing:
            raise UndeclaredLakeTableError(
                "an output has no table; name one for each: "
                'spark_table_target({"output": "catalog.schema.table"})',
                outputs=", ".join(missing),
            )
        return dict(data)

    def _frame(self, rows: Any) -> tuple[Any, bool]:
        """Return rows as a DataFrame, and whether it is known that there are none."""
        assert self._catalogs is not None, "the session is there"
        if executor_rows(rows) is not None:
            return self._catalogs.frame(rows), False
        table = to_arrow(rows)
        return self._catalogs.frame(table), not table.num_rows

    def _fitted(self, table: StreamTable, several: Sequence[tuple[int, int, Any]]) -> Any:
        assert self._catalogs is not None, "the session is there"
        return self._catalogs.union(
            [
                self._catalogs.fitted(
                    str(table.name), frame, table.columns, (BLOCK_NUMBER, after, last),
                    table.never_empty(),
                )
                for after, last, frame in several
            ]
        )  # fmt: skip

    def _make(self, output: str, frame: Any) -> None:
        """Create a missing table, and take it over at the state before this commit."""
        assert self._catalogs is not None, "the session is there"
        assert self._create is not None, "missing tables were refused"
        name = self._names[output]
        said = TABLE_PROPERTIES if self._create == "iceberg" else {}
        self._catalogs.create(str(name), frame, self._create, said)
        table = self._table(name, self._catalogs.columns(str(name)))
        if table.look() is not None or not self._claim(table, 1 + table.epochs()):
            raise LakeWriterError("another writer of the stream has begun", table=name)
        self._tables[output] = table

    def _note(self, state: PipeState, config: str | None = None) -> None:
        """Note what is stored now."""
        record = self._record
        self._record = Record(
            self._id, record.epoch, record.number, self._writer, state,
            config=record.config if config is None else config,
        )  # fmt: skip

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Surround a change: after a failure nothing that is remembered is used any more."""
        self._dirty = True
        try:
            yield
        except LakeWriterError as error:
            self._replaced = error
            raise
        self._dirty = False

    def _announce(self, statement: str) -> None:
        if self.on_statement is not None:
            self.on_statement(statement)


def _name(named: tuple[str, Name]) -> Name:
    return named[1]


def _behind(record: Record) -> int:
    return record.state.number
