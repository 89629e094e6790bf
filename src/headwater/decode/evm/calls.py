"""Calls of one function of EVM contracts as a table. Made by `evm.calls`.

Transactions hold the calls from outside, traces those of contracts too, and what they returned.
Defined on the driver, pickled to executors, never changed; the same batch gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange, RangeSpec
from headwater.decode.columns.buffers import drop_first_bytes, spread
from headwater.decode.columns.field_columns import HEADER, name_columns
from headwater.decode.columns.malformed import MalformedRowsError, OnError, refuse
from headwater.decode.columns.row_filter import (
    absent,
    refuse_absent,
    refuse_missing_filter_fields,
    select_rows,
)
from headwater.decode.columns.transaction_names import check_name, look_up_transactions
from headwater.decode.columns.wire_columns import convert, required
from headwater.decode.evm.abi import Function
from headwater.decode.evm.factory import ChildScope
from headwater.decode.evm.payload import Payload
from headwater.decode.evm.types import Parameter, arrow_field, arrow_type
from headwater.decode.lines.block_lines import HEADER_FIELDS
from headwater.decode.lines.entities import Entities
from headwater.decode.output import DecodedRows, decode_rows
from headwater.errors import UndecodableCallError
from headwater.query import EVM, Field, Query

Source = Literal["transactions", "traces"]

_SIGHASH_DIGITS = 8
_FIELDS = (
    *HEADER_FIELDS,
    pa.field("transaction_hash", pa.string()),
    pa.field("transaction_index", pa.int64()),
)
_PLACE = pa.field("trace_address", pa.list_(pa.int32()))


def _fields(entity: str, *wires: str) -> list[Field]:
    known = {field.wire: field for field in EVM.entity(entity).fields}
    return [known[wire] for wire in wires]


_INDEX, _TRACE_ADDRESS = _fields("trace", "transactionIndex", "traceAddress")
_TRACE_FIELDS = _fields("trace", "callTo", "callFrom", "callInput")
_TRANSACTION_FIELDS = _fields("transaction", "to", "from", "input")
_CALL = (
    pa.field("address", pa.string()),  # the contract that is called
    pa.field("sender", pa.string()),
    pa.field("success", pa.bool_()),
)


@dataclass(frozen=True, slots=True)
class CallsOutput:
    """The table of one function's calls. Made by `evm.calls`.

    Columns: those of the block and the transaction, of traces `trace_address`, then `address` (the
    contract), `sender`, `success`, one per input, and of traces one per output: null where the call
    failed. Names that are taken are prefixed with `arg_` or `result_`. Last, what `scope` asks for
    of the factory's event.

    `success` tells of the call itself: of a trace, a caller further up may still have reverted; of
    a transaction, it is null before receipts had a status.
    """

    function: Function
    source: Source
    query: Query
    ranges: tuple[RangeSpec, ...]
    on_error: OnError = "raise"
    scope: ChildScope | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table; `evm.types` says which ABI type becomes which."""
        inputs, outputs = self.function.inputs, self._results
        names = call_columns(self.function, self.source)
        columns = [
            arrow_field(name, parameter.type)
            for name, parameter in zip(names, (*inputs, *outputs), strict=True)
        ]
        return pa.schema([*_base(self.source), *columns, *self._details])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return the calls of this function among all of a batch, in their order.

        Raises:
            UndecodableCallError: a call has the function's sighash but not its content, and
                `on_error` is "raise". With "skip" such calls are left out and counted.
        """
        own = self._own_rows(entities, ranges)
        return decode_rows(own, self.schema, self._columns, self.on_error, self._explain)

    def _own_rows(
        self, entities: Entities, ranges: Sequence[BlockRange]
    ) -> Iterator[pa.RecordBatch]:
        for batch in entities[self.source.removesuffix("s")].to_batches():
            chosen = select_rows(batch, EVM, self.query.filters[0], ranges)
            if self.scope is not None:
                unknown = absent(chosen, self._fields[0])
                if unknown is not None:  # they may be of a child, so `_columns` refuses them
                    yield self._with_names(self._without_details(chosen.filter(unknown)), entities)
                chosen = self.scope.select(chosen)
            if chosen.num_rows:
                yield self._with_names(chosen, entities)

    @property
    def _results(self) -> tuple[Parameter, ...]:
        return self.function.outputs if self.source == "traces" else ()

    @property
    def _details(self) -> tuple[pa.Field, ...]:
        return self.scope.factory.fields if self.scope is not None else ()

    @property
    def _fields(self) -> list[Field]:
        """The fields that hold the contract, the sender and the data."""
        return _TRACE_FIELDS if self.source == "traces" else _TRANSACTION_FIELDS

    def _with_names(self, batch: pa.RecordBatch, entities: Entities) -> pa.RecordBatch:
        if self.source == "transactions":
            return batch.append_column("name", batch.column("hash"))
        names = look_up_transactions(batch, entities["transaction"], "hash")
        return batch.append_column("name", names)

    def _without_details(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for field in self._details:
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
        return batch

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        is_trace = self.source == "traces"
        address, sender, data = self._fields
        refuse_missing_filter_fields(batch, EVM, self.query.filters[0])
        refuse_absent(batch, address)
        refuse_absent(batch, sender)
        success = self._success(batch)
        columns = [batch.column(name) for name in HEADER]
        columns += [check_name(EVM, batch.column("name")), required(batch, _INDEX)]
        if is_trace:
            columns.append(required(batch, _TRACE_ADDRESS))
        columns += [convert(field, batch.column(field.wire)) for field in (address, sender)]
        columns.append(success)
        digits = _digits(batch.column(data.wire), "input")
        sighash = self.function.sighash[2:].encode()
        other = pc.invert(pc.starts_with(digits, sighash))
        refuse(other, "input does not begin with the sighash")
        if self.function.inputs:
            inputs = drop_first_bytes(digits, _SIGHASH_DIGITS)
            columns += Payload(inputs, "input").decode(self.function.inputs)
        if self._results:
            columns += self._decode_results(batch, success)
        return columns + [batch.column(field.name) for field in self._details]

    def _decode_results(self, batch: pa.RecordBatch, success: pa.Array) -> list[pa.Array]:
        """Return what calls returned; failed ones, and those without any output, returned null."""
        output = batch.column("callResultOutput")
        has_it = pc.and_(success, pc.is_valid(output)).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(has_it)
        try:
            digits = _digits(output.filter(pa.array(has_it)), "output")
            columns = Payload(digits, "output").decode(self._results)
        except MalformedRowsError as error:
            raise MalformedRowsError(rows[error.rows], error.reason) from None
        if not len(rows):
            return [pa.nulls(batch.num_rows, arrow_type(result.type)) for result in self._results]
        return [spread(column, has_it) for column in columns]

    def _success(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        if self.source == "traces":
            return pc.is_null(batch.column("error"))
        return pc.equal(batch.column("status"), 1)

    def _explain(self, batch: pa.RecordBatch, error: MalformedRowsError) -> UndecodableCallError:
        row = batch.slice(int(error.rows.min()), 1).to_pylist()[0]
        place = {"trace_address": row["traceAddress"]} if self.source == "traces" else {}
        return UndecodableCallError(
            f"a call is no {self.function.signature}: {error.reason}",
            block=row["block_number"],
            transaction_index=row["transactionIndex"],
            **place,
            transaction=row["name"],
            contract=row.get("callTo", row.get("to")),
        )


def call_columns(function: Function, source: Source) -> list[str]:
    """Return the names of the columns that hold inputs and outputs.

    Raises:
        SignatureError: a name is taken, and its replacement too.
    """
    results = [parameter.name for parameter in function.outputs] if source == "traces" else []
    groups = {"arg": [parameter.name for parameter in function.inputs], "result": results}
    return name_columns([field.name for field in _base(source)], groups)


def _base(source: Source) -> tuple[pa.Field, ...]:
    return (*_FIELDS, _PLACE, *_CALL) if source == "traces" else (*_FIELDS, *_CALL)


def _digits(column: pa.StringArray, what: str) -> pa.BinaryArray:
    """Return hex text without its 0x."""
    has_prefix = pc.fill_null(pc.starts_with(column, "0x"), False)
    refuse(pc.invert(has_prefix), f"{what} is absent or has no 0x")
    return drop_first_bytes(column.cast(pa.binary()), 2)
