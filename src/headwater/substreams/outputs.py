"""What modules put out, as tables: changes to rows, or the messages of any other type.

`decoder_of` chooses by the module's output type. DatabaseChanges become one table of changes, which
`history_target` applies. Of any other type the repeated messages become tables of their own, whose
names are the paths of their fields; embedded messages become structs. Each row begins with its
block, and says its place in it (`ordinal`), and that of the row that it belongs to.

Decoders are values: they pickle, and decode on the driver or on executors alike. The source decodes
neighbours together while the loop waits for the database, and hands each output on as a `Piece`
with what it was decoded with; whoever decodes the outputs of a batch takes those tables, if the
batch holds all of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError as WireError

from headwater.changes import CHANGES_SCHEMA, TableSchema, read_database_changes
from headwater.decode.columns.protobuf import Ints, MalformedMessage, Messages
from headwater.errors import MessageTypeError, UndecodableOutputError
from headwater.substreams.columns import (
    MOMENT,
    MessagePlan,
    UnusualMessage,
    as_tables,
    plan_message,
    read_columns,
)
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.messages import ModuleOutput, OutputDecoder, Outputs

DATABASE_CHANGES = frozenset(
    {"sf.substreams.sink.database.v1.DatabaseChanges", "sf.substreams.database.v1.DatabaseChanges"}
)
CHANGES = "changes"  # the output that a module of DatabaseChanges has
TYPE_URL = "type.googleapis.com/"
_BLOCK = [
    pa.field("block_number", pa.int64(), False),
    pa.field("block_hash", pa.string(), False),
    pa.field("timestamp", MOMENT),
]
ORDINAL = pa.field("ordinal", pa.int64(), False)
PARENT = pa.field("parent_ordinal", pa.int64(), False)
_OURS = frozenset(field.name for field in (*_BLOCK, ORDINAL, PARENT))


def decoder_of(types: TypeSet, message: str, tables: Sequence[TableSchema] = ()) -> OutputDecoder:
    """Return the decoder of a module's outputs, by the full name of its output type.

    `tables` say which columns of changes are not text, so that their empty values are null.

    Raises:
        PackageError: the package does not bring the type along.
        MessageTypeError: the type cannot become tables.
    """
    if message in DATABASE_CHANGES:
        return ChangesDecoder(message, field_operations(types, message), tuple(tables))
    decoder = MessageDecoder(types, message)
    _ = decoder.schemas  # refused here, before anything else is done
    return decoder


def type_of(output: ModuleOutput) -> str:
    """Return the full name of the type of an output; empty if there is none."""
    return output.type_url.rpartition("/")[2]


def present(outputs: Sequence[ModuleOutput], message: str) -> list[ModuleOutput]:
    """Return the blocks that have an output.

    Raises:
        UndecodableOutputError: one is of another type.
    """
    for output in outputs:
        if output.type_url and type_of(output) != message:
            raise UndecodableOutputError(
                "an output is of another type",
                block=output.clock.number,
                type=type_of(output),
                wanted=message,
            )
    return [output for output in outputs if output.type_url]


def field_operations(types: TypeSet, message: str) -> Mapping[int, str] | None:
    """Return the field operations by number, as the package's own types number them.

    None if the package does not bring the type along, or an old one without them.
    """
    if message not in types.messages:
        return None
    changes = types.descriptor(message).fields_by_name.get("table_changes")
    fields = changes and changes.message_type.fields_by_name.get("fields")
    operation = fields and fields.message_type.fields_by_name.get("update_op")
    if not operation or operation.enum_type is None:
        return None
    names = {
        value.number: value.name.lower().removeprefix("update_op_")
        for value in operation.enum_type.values
    }
    return {code: "set" if name.startswith("un") else name for code, name in names.items()}


@dataclass(frozen=True)
class ChangesDecoder:
    """Reads DatabaseChanges, of the old or the new package, into one table of changes."""

    message: str
    operations: Mapping[int, str] | None = None
    tables: tuple[TableSchema, ...] = ()
    schema: str = ""  # of the tables that changes name without one

    @property
    def type_url(self) -> str:
        """The message type it reads."""
        return TYPE_URL + self.message

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The one output and its columns."""
        return {CHANGES: CHANGES_SCHEMA}

    def decode(self, outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
        """Return the changes of these blocks, in their order."""
        messages = [
            (output.clock.number, output.value) for output in present(outputs, self.message)
        ]
        numbering: Any = self.operations or "released"
        changes = read_database_changes(messages, tables=self.tables, numbering=numbering)
        if self.schema:
            names = pc.binary_join_element_wise(self.schema, changes["table"], ".")
            changes = changes.set_column(0, CHANGES_SCHEMA.field(0), names)
        return {CHANGES: changes}


@dataclass(frozen=True)
class TypedDecoder(ABC):
    """Reads messages of one type by their columns. Pickled, it is its fields, without caches."""

    types: TypeSet
    message: str

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @property
    def type_url(self) -> str:
        """The message type it reads."""
        return TYPE_URL + self.message

    @cached_property
    def descriptor(self) -> Descriptor:
        """The message type."""
        return self.types.descriptor(self.message)

    def decode(self, outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
        """Return the rows of these blocks, by table.

        If a value is not in its plain form, protobuf rewrites all of them first.

        Raises:
            UndecodableOutputError: one is no message of the type.
        """
        outputs = present(outputs, self.message)
        try:
            return self._decode(outputs, Messages.of([output.value for output in outputs]))
        except (UnusualMessage, MalformedMessage):
            messages = Messages.of(self._in_plain_form(outputs))
        try:
            return self._decode(outputs, messages)
        except MalformedMessage as error:
            block = outputs[min(messages.index_of(error.at), len(outputs) - 1)].clock.number
            raise UndecodableOutputError(str(error), block=block, type=self.message) from error

    @abstractmethod
    def _decode(self, outputs: Sequence[ModuleOutput], messages: Messages) -> dict[str, pa.Table]:
        """Return the rows of messages in plain form, one of each output."""

    def _in_plain_form(self, outputs: Sequence[ModuleOutput]) -> list[bytes]:
        message_type, plain = message_factory.GetMessageClass(self.descriptor), []
        for output in outputs:
            try:
                message = message_type.FromString(output.value)
            except WireError as error:
                raise UndecodableOutputError(
                    "an output cannot be read",
                    block=output.clock.number,
                    type=self.message,
                    reason=error,
                ) from None
            message.DiscardUnknownFields()
            plain.append(message.SerializeToString(deterministic=True))
        return plain


@dataclass(frozen=True)
class MessageDecoder(TypedDecoder):
    """Reads messages of any type into tables."""

    @cached_property
    def plan(self) -> MessagePlan:
        """The columns of the message."""
        return plan_message(self.descriptor, as_tables)

    @cached_property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns of every table."""
        if self._below and not self.plan.shown:
            return self._below
        return {self._root: _schema(self.plan, nested=False), **self._below}

    @cached_property
    def _below(self) -> Mapping[str, pa.Schema]:
        """The columns of the tables that repeated messages become."""
        schemas: dict[str, pa.Schema] = {}
        _add_schemas(self.plan, schemas, nested=False)
        return schemas

    @cached_property
    def _root(self) -> str:
        """The name of the table of the message itself, if it has columns of its own."""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.descriptor.name).lower()
        while name in self._below:
            name = f"{name}_message"
        return name

    def _decode(self, outputs: Sequence[ModuleOutput], messages: Messages) -> dict[str, pa.Table]:
        blocks = BlockColumns.of(outputs)
        tables = {name: schema.empty_table() for name, schema in self.schemas.items()}
        owners = np.arange(len(messages))
        self._read(self._root, messages, self.plan, owners, None, blocks, tables)
        return tables

    def _read(
        self,
        name: str,
        messages: Messages,
        plan: MessagePlan,
        owners: Ints,
        parents: Ints | None,
        blocks: BlockColumns,
        tables: dict[str, pa.Table],
    ) -> None:
        """Read one table, then those of its repeated messages; `owners` are the rows' blocks."""
        row = read_columns(messages, plan)
        ordinals = _places(owners)
        if name in tables:
            columns = [*blocks.columns(owners), pa.array(ordinals)]
            if parents is not None:
                columns.append(pa.array(parents))
            tables[name] = pa.table([*columns, *row.columns.values()], schema=tables[name].schema)
        for table, (inside, rows, inner) in row.tables.items():
            above = None if plan is self.plan else ordinals[rows]
            self._read(table, inside, inner, owners[rows], above, blocks, tables)


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """Number, hash and time of blocks, to be repeated for their rows."""

    numbers: pa.Array
    hashes: pa.Array
    times: pa.Array

    @classmethod
    def of(cls, outputs: Sequence[ModuleOutput]) -> BlockColumns:
        """Take them from the clocks of outputs."""
        clocks = [output.clock for output in outputs]
        times = [
            None if clock.timestamp is None else clock.timestamp * 1_000_000 + clock.nanos // 1000
            for clock in clocks
        ]
        return cls(
            pa.array([clock.number for clock in clocks], pa.int64()),
            pa.array([clock.hash for clock in clocks], pa.string()),
            pa.array(times, pa.int64()).cast(MOMENT),
        )

    def columns(self, owners: Ints) -> list[pa.Array]:
        """Return them for rows of these blocks."""
        taken = pa.array(owners)
        return [column.take(taken) for column in (self.numbers, self.hashes, self.times)]


def _places(owners: Ints) -> Ints:
    """Return the place of each row among those of its block; owners come in order."""
    if not len(owners):
        return owners
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return np.arange(len(owners)) - np.repeat(starts, np.diff(np.append(starts, len(owners))))


def _add_schemas(plan: MessagePlan, schemas: dict[str, pa.Schema], *, nested: bool) -> None:
    for column in plan.tables():
        assert column.table is not None, "it is a table"
        assert column.inner is not None, "a table has columns"
        if column.table in schemas:
            raise MessageTypeError(
                "two fields, by their paths, make tables of one name",
                table=column.table,
                second=column.inner.type,
            )
        schemas[column.table] = _schema(column.inner, nested=nested)
        _add_schemas(column.inner, schemas, nested=True)


def _schema(plan: MessagePlan, *, nested: bool) -> pa.Schema:
    """Return the columns of a table; a field that is called like one of ours gets a `_`."""
    ours = [*_BLOCK, ORDINAL, *([PARENT] if nested else [])]
    theirs = [column.arrow for column in plan.shown]
    renamed = [
        field.with_name(f"{field.name}_") if field.name in _OURS else field for field in theirs
    ]
    return pa.schema([*ours, *renamed])


# --- outputs on their way through the loop --------------------------------------------------------

Tables = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Messages of blocks that are taken together, with the tables of all of them if decoded.

    `ahead` is what the target has prepared of these tables, if it has.
    """

    messages: tuple[Outputs, ...]
    tables: Tables | None = None
    ahead: Any = None

    @property
    def items(self) -> list[ModuleOutput]:
        """Their blocks."""
        return [item for message in self.messages for item in message.items]

    @property
    def size(self) -> int:
        """Their size on the wire."""
        return sum(message.size for message in self.messages)


@dataclass(frozen=True, slots=True)
class Piece:
    """An output on its way through the loop: the line of its block.

    `decoded` is what it was decoded with as it arrived.
    """

    output: ModuleOutput
    decoded: Gathered | None = None

    def __len__(self) -> int:
        return len(self.output.value)


def ahead_of(pieces: Sequence[Piece]) -> Any:
    """Return what the target has prepared of these outputs, all of them and no others."""
    decoded = pieces[0].decoded if pieces else None
    if decoded is None or decoded is not pieces[-1].decoded or len(decoded.items) != len(pieces):
        return None
    return decoded.ahead


def decode_pieces(pieces: Sequence[Piece], decoder: OutputDecoder) -> Tables:
    """Return the tables of outputs; what was decoded as it arrived is not decoded again."""
    tables: list[Tables] = []
    for decoded, several in groupby(pieces, lambda piece: piece.decoded):
        outputs = [piece.output for piece in several]
        known = None if decoded is None else decoded.tables
        if decoded is not None and known is not None and len(decoded.items) == len(outputs):
            tables.append(known)
        else:  # only a part of them was handed out
            tables.append(decoder.decode(outputs))
    if len(tables) == 1:
        return tables[0]
    if not tables:
        return decoder.decode([])
    return {name: pa.concat_tables([part[name] for part in tables]) for name in decoder.schemas}
