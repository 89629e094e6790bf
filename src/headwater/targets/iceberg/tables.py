"""Tables of a stream in an Iceberg catalog: found, created, widened, and put back to a block.

Runs on the driver. A table belongs to one stream, whose id is among its properties: its snapshots
are what a fork goes back to, so rows of two streams cannot share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from headwater.address import Secret
from headwater.core import PipeState
from headwater.errors import EvolveError, LakeForeignWriteError, LakeSchemaError, LakeUndoError
from headwater.targets.iceberg.partitions import (
    PartitionSplit,
    column_of,
    partition_record,
    partition_spec,
)
from headwater.targets.iceberg.settings import Table, create_namespace
from headwater.targets.iceberg.snapshots import (
    TableChange,
    ancestors,
    block_of,
    live_files,
    properties_of,
)
from headwater.targets.lake.columns import as_of_today, check_columns, lake_schema
from headwater.targets.lake.files import FilePlan, WrittenFile
from headwater.targets.lake.paths import CatalogPlace
from headwater.targets.lake.state import BLOCK, FORMAT, FORMAT_VERSION, HASH, STREAM, position
from headwater.targets.lake.tx import LakeTable

PROPERTIES = {
    FORMAT: str(FORMAT_VERSION),
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
}
NAMESPACE = "headwater.namespace"  # that of the state of the stream that writes a table
_ATTEMPTS = 5  # at a table that others change
NEVER = -1  # the block of an empty table
_PLAIN: Mapping[pa.DataType, Any] = {
    pa.bool_(): iceberg.BooleanType(), pa.int32(): iceberg.IntegerType(),
    pa.int64(): iceberg.LongType(), pa.float32(): iceberg.FloatType(),
    pa.float64(): iceberg.DoubleType(), pa.string(): iceberg.StringType(),
    pa.binary(): iceberg.BinaryType(), pa.date32(): iceberg.DateType(),
    pa.timestamp("us"): iceberg.TimestampType(),
    pa.timestamp("us", "UTC"): iceberg.TimestamptzType(),
}  # fmt: skip


def place_of(table: PyIcebergTable) -> CatalogPlace:
    """Return where the files of a table are."""
    options = tuple(sorted((str(k), str(v)) for k, v in table.io.properties.items()))
    return CatalogPlace(table.location().rstrip("/"), Secret(options))


class StreamTable(LakeTable[DataFile]):
    """One table: what was declared of it, and what it is in the catalog."""

    def __init__(self, declared: Table, stored: PyIcebergTable) -> None:
        super().__init__()
        self.declared = declared
        self.stored = stored
        self.name, self.key = declared.name, declared.key
        self._learn()

    def _learn(self) -> None:
        """Note what follows from the schema."""
        table = self.stored
        self.schema: Schema = table.schema()
        self.columns = _small(schema_to_pyarrow(self.schema))
        self.place = place_of(table)
        self.split = PartitionSplit.of(table.spec(), self.schema)
        self._statistics = compute_statistics_plan(self.schema, table.properties)
        self._paths = parquet_path_to_id_mapping(self.schema)
        order = table.sort_order()
        self._order_id = order.order_id
        names = [self.schema.find_column_name(one.source_id) for one in order.fields]
        self.sort_by = tuple(one for one in names if one is not None)

    def take(self, stored: PyIcebergTable) -> None:
        """Go on with the table as another has committed it."""
        self.stored = stored
        self.forget()
        self._learn()

    def plan(self, frame: pa.Schema, stem: str) -> FilePlan:
        """Return how rows of a frame become files of this table; widen it if that was declared."""
        if self.declared.evolve:
            self.widen(frame)
        check_columns(self.name, frame, self.columns)
        needed = [one.name for one in self.columns if not one.nullable]
        missing = sorted(set(needed) - set(frame.names))
        if missing:
            raise LakeSchemaError(
                "the frame lacks columns that the table requires",
                table=self.name,
                columns=", ".join(missing),
            )
        return FilePlan(self.place, self.columns, stem, sort_by=self.sort_by, split=self.split)

    def data_file(self, file: WrittenFile) -> tuple[str, DataFile]:
        """Return a written file as a manifest names it, and its path."""
        statistics = data_file_statistics_from_parquet_metadata(
            file.metadata, self._statistics, self._paths
        )
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.place.uri_of(file.name),
            file_format=FileFormat.PARQUET,
            partition=partition_record(file.partition),
            file_size_in_bytes=file.size,
            sort_order_id=self._order_id or None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        made.spec_id = self.stored.spec().spec_id
        return made.file_path, made

    def _committed_files(self) -> dict[str, DataFile]:
        return {one.file_path: one for one, _ in live_files(self.stored)}

    def size_of(self, file: DataFile) -> int:
        """Return how many bytes a file has."""
        return int(file.file_size_in_bytes)

    def comparable(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values as Iceberg's bounds are read: times and dates are numbers."""
        if pa.types.is_timestamp(values.type):
            return values.cast(pa.int64())
        return values.cast(pa.int32()) if pa.types.is_date(values.type) else values

    def ends(self, file: DataFile, column: str) -> tuple[Any, Any]:
        """Return the bounds of a column that the file's manifest has."""
        source = self.schema.find_field(column)
        number, kind = source.field_id, cast(Any, source.field_type)
        both: list[Mapping[int, bytes]] = [file.lower_bounds or {}, file.upper_bounds or {}]
        low, high = (from_bytes(kind, one[number]) if number in one else None for one in both)
        return low, high

    def read(self, files: Iterable[DataFile]) -> pa.Table:
        """Return the rows of some files, in the columns of today."""
        found = [self.columns.empty_table()]
        for one in files:
            with self.stored.io.new_input(one.file_path).open() as file:
                found.append(as_of_today(pq.ParquetFile(file).read(), self.columns))
        return pa.concat_tables(found)

    def widens(self, frame: pa.Schema) -> bool:
        """Tell whether a frame would change the columns, as it was declared that it may."""
        return self.declared.evolve and any(self._unlike(frame))

    def _unlike(self, frame: pa.Schema) -> tuple[list[pa.Field], list[pa.Field]]:
        """Return the columns of a frame that are new, and those that are wider."""
        held = {one.name: one for one in self.columns}
        columns = list(lake_schema(frame))
        return [one for one in columns if one.name not in held], [
            one for one in columns if one.name in held and _is_wider(one.type, held[one.name].type)
        ]

    def widen(self, frame: pa.Schema) -> None:
        """Add the columns that are new, and widen those that are too narrow."""
        new, wider = self._unlike(frame)
        if not new and not wider:
            return
        with self.stored.update_schema() as update:
            for one in new:
                update.add_column(one.name, iceberg_type(one.type))
            for one in wider:
                update.update_column(one.name, iceberg_type(one.type))
        self._learn()

    # --- the way back -----------------------------------------------------------------------------

    def put_back(self, state: PipeState, fence: Mapping[str, str] | None = None) -> bool:
        """Make the table end where the state does; return whether there was anything to undo.

        With a `fence` a snapshot is added in any case, so that a writer who has not seen it can
        commit nothing any more. Repeating it changes nothing.

        Raises:
            LakeUndoError: the snapshot to go back to is not there any more.
            LakeForeignWriteError: others have written the table.
        """
        change = TableChange(self.stored)
        current = self.stored.current_snapshot()
        target = self.landing(state)
        back = target is not None and current is not None and target != current
        if back and target is not None:
            change.go_back(target)
        if fence is not None:
            found = {} if target is None else properties_of(target)
            kept = {name: found[name] for name in (BLOCK, HASH) if name in found}
            change.append((), {**fence, BLOCK: str(NEVER), **kept})
        self.forget()
        if change:
            self._commit(change)
        return back

    def landing(self, state: PipeState) -> Snapshot | None:
        """Return the newest snapshot whose rows all belong to the state; None in a new table."""
        seen: Snapshot | None = None
        for one in ancestors(self.stored):
            seen = seen or one
            block = block_of(one)
            if block is None:
                if one.summary is None or one.summary.operation is not Operation.REPLACE:
                    raise LakeForeignWriteError(
                        "the table holds a snapshot of another writer",
                        table=self.name,
                        snapshot=one.snapshot_id,
                    )
                continue
            if is_part_of(block, state):
                return seen
            seen = None
        if self.stored.current_snapshot() is None:
            return None
        raise LakeUndoError(
            "no snapshot of the block is left to go back to", table=self.name, block=state.number
        )

    def _commit(self, change: TableChange) -> None:
        try:
            change.commit()
        except CommitFailedException:
            change.abandon()
            raise


class StreamTables:
    """The declared tables of one stream, by name."""

    def __init__(
        self, catalog: Catalog, namespace: str, stream_id: str, declared: Sequence[Table]
    ) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._id = stream_id
        self._ours = {STREAM: stream_id, NAMESPACE: namespace}
        self.declared = {one.name: one for one in declared}
        self._open: dict[str, StreamTable] = {}

    def identifier(self, name: str) -> str:
        """Return the whole name of a table."""
        return name if "." in name else f"{self._namespace}.{name}"

    def load(self) -> list[StreamTable]:
        """Load the declared tables that exist.

        Raises:
            LakeForeignWriteError: one belongs to another stream.
        """
        self._open = {}
        for name, declared in self.declared.items():
            try:
                stored = self._catalog.load_table(self.identifier(name))
            except NoSuchTableError:
                continue
            self._open[name] = self._adopt(StreamTable(declared, stored))
        return list(self._open.values())

    def opened(self) -> list[StreamTable]:
        """Return the tables that exist."""
        return list(self._open.values())

    def reload(self, table: StreamTable) -> None:
        """Load a table again that others have changed."""
        table.take(self.seen(table))

    def seen(self, table: StreamTable) -> PyIcebergTable:
        """Return a table as the catalog has it at this moment."""
        return self._catalog.load_table(self.identifier(table.name))

    def _is_own(self, identifier: str) -> bool:
        """Tell whether a table is there and belongs to this stream."""
        try:
            stored = self._catalog.load_table(identifier)
        except NoSuchTableError:
            return False
        return bool(stored.properties.get(STREAM) == self._id)

    def check_rename(self, old: str, new: str) -> None:
        """Refuse a new name for a table of the stream that another table has."""
        before, after = self.identifier(old), self.identifier(new)
        if self._is_own(before) and self._catalog.table_exists(after):
            raise EvolveError("a table of the new name is there already", old=before, new=after)

    def rename(self, old: str, new: str) -> None:
        """Give a table of the stream a new name; its files stay where they are."""
        before, after = self.identifier(old), self.identifier(new)
        if not self._is_own(before):
            return  # it was renamed before, or this stream has none of this name
        create_namespace(self._catalog, after.rpartition(".")[0])
        try:
            self._catalog.rename_table(before, after)
        except NotImplementedError:
            raise EvolveError(
                "this catalog renames no tables: keep the output's name", old=before, new=after
            ) from None

    def get(
        self, name: str, frame: pa.Schema | None, epoch: int, check: Callable[[], object]
    ) -> StreamTable | None:
        """Return a declared table; it is created for the columns of a frame, if one is given.

        `check` refuses to go on if another writer has begun. One that was replaced may have made
        the table, and may write it until it finds the commit of this epoch there.
        """
        found = self._open.get(name)
        if found is not None or frame is None:
            return found
        check()
        declared = self.declared[name]
        schema = iceberg_schema(lake_schema(frame))
        identifier = self.identifier(name)
        create_namespace(self._catalog, identifier.rpartition(".")[0])
        try:
            stored = self._catalog.create_table(
                identifier,
                schema,
                partition_spec=partition_spec(declared.partition_by, schema, name),
                sort_order=_sort_order(declared, schema),
                properties={**PROPERTIES, **declared.properties, **self._ours},
            )
        except TableAlreadyExistsError:
            stored = self._catalog.load_table(identifier)
        table = self._adopt(StreamTable(declared, stored))
        for _ in range(_ATTEMPTS):
            check()
            with suppress(CommitFailedException):
                table.put_back(PipeState(), position(self._id, epoch, PipeState()))
                self._open[name] = table
                return table
            self.reload(table)
        raise LakeForeignWriteError("the table is changed by others", table=name)

    def _adopt(self, table: StreamTable) -> StreamTable:
        """Refuse a table of another stream; take one that the user has made."""
        owner = table.stored.properties.get(STREAM)
        if owner is None:
            current = table.stored.current_snapshot()
            if (
                current is not None
                and current.summary
                and int(current.summary.additional_properties.get("total-records", "0"))
            ):
                raise LakeForeignWriteError(
                    "the table holds rows that no stream has written", table=table.name
                )
            with table.stored.transaction() as change:
                change.set_properties({**PROPERTIES, **self._ours})
            return table
        namespace = table.stored.properties.get(NAMESPACE, self._namespace)
        if (owner, namespace) != (self._id, self._namespace):
            raise LakeForeignWriteError(
                "the table belongs to another stream",
                table=table.name,
                stream=owner,
                state_in=namespace,
            )
        return table


def is_part_of(block: tuple[int, str | None], state: PipeState) -> bool:
    """Tell whether a snapshot that ends with this block belongs to the chain of a state.

    Above the second entry of the rollback chain all boundaries of batches are known.
    """
    number, found = block
    if number > state.number:
        return False
    chain = {one.number: one.hash for one in state.rollback_chain}
    if number in chain:
        return found is None or chain[number] is None or chain[number] == found
    known = state.rollback_chain[1:]
    return not known or number < known[0].number


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Return the schema of a new table, for columns in lake types."""
    numbers = iter(range(1, 1 << 16))
    fields = [
        iceberg.NestedField(
            field_id=next(numbers),
            name=one.name,
            field_type=iceberg_type(one.type, numbers),
            required=False,
        )
        for one in schema
    ]
    return Schema(*fields)


def iceberg_type(kind: pa.DataType, numbers: Any = None) -> Any:
    """Return Iceberg's type for a lake type; parts get the next of some numbers as their ids."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    numbers = iter(range(1 << 16, 1 << 17)) if numbers is None else numbers
    if pa.types.is_decimal128(kind):
        return iceberg.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        number = next(numbers)
        element = iceberg_type(kind.value_type, numbers)
        return iceberg.ListType(element_id=number, element=element, element_required=False)
    if pa.types.is_struct(kind):
        return iceberg.StructType(
            *(
                iceberg.NestedField(
                    field_id=next(numbers),
                    name=one.name,
                    field_type=iceberg_type(one.type, numbers),
                    required=False,
                )
                for one in kind
            )
        )
    raise LakeSchemaError("Iceberg has no such type", type=str(kind))


def _sort_order(declared: Table, schema: Schema) -> SortOrder:
    fields = [
        SortField(
            source_id=column_of(schema, one, declared.name).field_id, transform=IdentityTransform()
        )
        for one in declared.order_by
    ]
    return SortOrder(*fields)


def _is_wider(kind: pa.DataType, held: pa.DataType) -> bool:
    types = pa.types
    return bool(
        (types.is_int64(kind) and types.is_int32(held))
        or (types.is_float64(kind) and types.is_float32(held))
        or (
            types.is_decimal(kind)
            and types.is_decimal(held)
            and kind.scale == held.scale
            and kind.precision > held.precision
        )
    )


def _small(schema: pa.Schema) -> pa.Schema:
    """Return a schema with Arrow's usual types of text and lists; ids of fields stay."""
    return pa.schema([one.with_type(_small_type(one.type)) for one in schema])


def _small_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        item = kind.value_field
        return pa.list_(item.with_type(_small_type(item.type)))
    if types.is_struct(kind):
        return pa.struct([one.with_type(_small_type(one.type)) for one in kind])
    return kind
