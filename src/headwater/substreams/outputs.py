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
_OURS = frozenset(one.name for one in (*_BLOCK, ORDINAL, PARENT))


def decoder_of(types: TypeSet, message: str, tables: Sequence[TableSchema] = ()) -> OutputDecoder:
    """Return what reads the outputs of a module, by the full name of its output type.

    `tables` say which columns of changes are not text, so that their empty values are null.

    Raises:
        PackageError: the package does not bring the type along.
        MessageTypeError: the type cannot become tables.
    """
    if message in DATABASE_CHANGES:
        return ChangesDecoder(message, field_operations(types, message), tuple(tables))
    made = MessageDecoder(types, message)
    _ = made.schemas  # refused here, before anything else is done
    return made


def type_of(output: ModuleOutput) -> str:
    """Return the full name of the type of an output; empty if there is none."""
    return output.type_url.rpartition("/")[2]


def present(outputs: Sequence[ModuleOutput], message: str) -> list[ModuleOutput]:
    """Return the blocks that have an output.

    Raises:
        UndecodableOutputError: one is of another type.
    """
    for one in outputs:
        if one.type_url and type_of(one) != message:
            raise UndecodableOutputError(
                "an output is of another type",
                block=one.clock.number,
                type=type_of(one),
                wanted=message,
            )
    return [one for one in outputs if one.type_url]


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
        held = [(one.clock.number, one.value) for one in present(outputs, self.message)]
        numbering: Any = self.operations or "released"
        changes = read_database_changes(held, tables=self.tables, numbering=numbering)
        if self.schema:
            names = pc.binary_join_element_wise(self.schema, changes["table"], ".")
            changes = changes.set_column(0, CHANGES_SCHEMA.field(0), names)
        return {CHANGES: changes}


@dataclass(frozen=True)
class TypedDecoder(ABC):
    """Reads messages of one type by their columns. Without what it has worked out, it pickles."""

    types: TypeSet
    message: str

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, one.name) for one in fields(self))

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
        held = present(outputs, self.message)
        try:
            return self._decode(held, Messages.of([one.value for one in held]))
        except (UnusualMessage, MalformedMessage):
            messages = Messages.of(self._in_plain_form(held))
        try:
            return self._decode(held, messages)
        except MalformedMessage as error:
            block = held[min(messages.index_of(error.at), len(held) - 1)].clock.number
            raise UndecodableOutputError(str(error), block=block, type=self.message) from error

    @abstractmethod
    def _decode(self, outputs: Sequence[ModuleOutput], messages: Messages) -> dict[str, pa.Table]:
        """Return the rows of messages in plain form, one of each output."""

    def _in_plain_form(self, outputs: Sequence[ModuleOutput]) -> list[bytes]:
        made, plain = message_factory.GetMessageClass(self.descriptor), []
        for one in outputs:
            try:
                message = made.FromString(one.value)
            except WireError as error:
                raise UndecodableOutputError(
                    "an output cannot be read",
                    block=one.clock.number,
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
        """What becomes of the message."""
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
        found: dict[str, pa.Schema] = {}
        _add_schemas(self.plan, found, nested=False)
        return found

    @cached_property
    def _root(self) -> str:
        """The name of the table of the message itself, if it has columns of its own."""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.descriptor.name).lower()
        while name in self._below:
            name = f"{name}_message"
        return name

    def _decode(self, outputs: Sequence[ModuleOutput], messages: Messages) -> dict[str, pa.Table]:
        blocks = BlockColumns.of(outputs)
        found = {name: schema.empty_table() for name, schema in self.schemas.items()}
        owners = np.arange(len(messages))
        self._read(self._root, messages, self.plan, owners, None, blocks, found)
        return found

    def _read(
        self,
        name: str,
        messages: Messages,
        plan: MessagePlan,
        owners: Ints,
        parents: Ints | None,
        blocks: BlockColumns,
        found: dict[str, pa.Table],
    ) -> None:
        """Read one table, then those of its repeated messages; `owners` are the rows' blocks."""
        row = read_columns(messages, plan)
        ordinals = _places(owners)
        if name in found:
            columns = [*blocks.columns(owners), pa.array(ordinals)]
            if parents is not None:
                columns.append(pa.array(parents))
            found[name] = pa.table([*columns, *row.columns.values()], schema=found[name].schema)
        for table, (inside, rows, inner) in row.tables.items():
            above = None if plan is self.plan else ordinals[rows]
            self._read(table, inside, inner, owners[rows], above, blocks, found)


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """Number, hash and time of blocks, to be repeated for their rows."""

    numbers: pa.Array
    hashes: pa.Array
    times: pa.Array

    @classmethod
    def of(cls, outputs: Sequence[ModuleOutput]) -> BlockColumns:
        """Take them from the clocks of outputs."""
        clocks = [one.clock for one in outputs]
        times = [
            None if one.timestamp is None else one.timestamp * 1_000_000 + one.nanos // 1000
            for one in clocks
        ]
        return cls(
            pa.array([one.number for one in clocks], pa.int64()),
            pa.array([one.hash for one in clocks], pa.string()),
            pa.array(times, pa.int64()).cast(MOMENT),
        )

    def columns(self, owners: Ints) -> list[pa.Array]:
        """Return them for rows of these blocks."""
        taken = pa.array(owners)
        return [one.take(taken) for one in (self.numbers, self.hashes, self.times)]


def _places(owners: Ints) -> Ints:
    """Return the place of each row among those of its block; owners come in order."""
    if not len(owners):
        return owners
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return np.arange(len(owners)) - np.repeat(starts, np.diff(np.append(starts, len(owners))))


def _add_schemas(plan: MessagePlan, found: dict[str, pa.Schema], *, nested: bool) -> None:
    for column in plan.tables():
        assert column.table is not None, "it is a table"
        assert column.inner is not None, "a table has columns"
        if column.table in found:
            raise MessageTypeError(
                "two fields, by their paths, make tables of one name",
                table=column.table,
                second=column.inner.type,
            )
        found[column.table] = _schema(column.inner, nested=nested)
        _add_schemas(column.inner, found, nested=True)


def _schema(plan: MessagePlan, *, nested: bool) -> pa.Schema:
    """Return the columns of a table; a field that is called like one of ours gets a `_`."""
    ours = [*_BLOCK, ORDINAL, *([PARENT] if nested else [])]
    theirs = [one.arrow for one in plan.shown]
    renamed = [one.with_name(f"{one.name}_") if one.name in _OURS else one for one in theirs]
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
        return sum(one.size for one in self.messages)


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
    return {name: pa.concat_tables([one[name] for one in tables]) for name in decoder.schemas}
