"""Anchor events that programs log (`Program data: …`) as a table. Made by `solana.events`.

Defined on the driver, pickled to executors, never changed; the same batch gives the same rows.
"""

from __future__ import annotations

import binascii
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange, RangeSpec
from headwater.decode.columns.integers import DECIMAL
from headwater.decode.columns.malformed import MalformedRowsError, OnError, refuse
from headwater.decode.columns.row_filter import keep_rows, refuse_missing_filter_fields, select_rows
from headwater.decode.lines.entities import Entities
from headwater.decode.output import DecodedRows, decode_rows
from headwater.decode.solana.borsh import arrow_field
from headwater.decode.solana.data_layout import DataLayout
from headwater.decode.solana.instructions import (
    LOG_FIELDS,
    decode_args,
    decode_own,
    explain_item,
    item_columns,
    layout_columns,
    with_transactions,
)
from headwater.errors import UndecodableInstructionError
from headwater.query import SOLANA, Query

_PREFIX = "Program data: "


@dataclass(frozen=True, slots=True)
class AnchorEventsOutput:
    """The table of one event that a program logs. Made by `solana.events`.

    Columns: block_number (the slot), block_hash, timestamp, signature, transaction_index,
    log_index, instruction_address, program_id, is_committed, then one per field.
    """

    layout: DataLayout
    query: Query
    ranges: tuple[RangeSpec, ...]
    committed_only: bool = True
    on_error: OnError = "raise"
    decimals: frozenset[str] = frozenset()

    @property
    def entities(self) -> tuple[str, ...]:
        """What it decodes from."""
        return ("log", "transaction")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table; `borsh` says which type becomes which."""
        names = layout_columns(self.layout, LOG_FIELDS)
        columns = [
            pa.field(name, DECIMAL) if one.name in self.decimals else arrow_field(name, one.type)
            for name, one in zip(names, self.layout.args.members, strict=True)
        ]
        return pa.schema([*LOG_FIELDS, *columns])

    def decode(self, entities: Entities, ranges: Sequence[BlockRange]) -> DecodedRows:
        """Return this event's rows among all messages of a batch, in their order.

        Raises:
            UndecodableInstructionError: a message has the discriminator but not the content, and
                `on_error` is "raise". With "skip" such messages are left out and counted.
        """
        own = self._own_rows(entities, ranges)
        return decode_rows(own, self.schema, self._columns, self.on_error, self._explain)

    def _own_rows(
        self, entities: Entities, ranges: Sequence[BlockRange]
    ) -> Iterator[pa.RecordBatch]:
        for batch in entities["log"].to_batches():
            chosen = select_rows(batch, SOLANA, self.query.filters[0], ranges)
            chosen = self._candidates(chosen)
            if not chosen.num_rows:
                continue
            named = with_transactions(chosen, entities)
            if self.committed_only:
                named = keep_rows(named, [pc.fill_null(named.column("isCommitted"), True)])
            yield named

    def _candidates(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages whose first characters are the discriminator's, or are absent.

        Three bytes are four characters, so all but the last bits of it show.
        """
        if not batch.num_rows:
            return batch
        whole = len(self.layout.discriminator) * 8 // 6
        start = b64encode(self.layout.discriminator).decode()[:whole]
        message = batch.column("message")
        bare = pc.starts_with(message, start)
        mask = pc.or_(bare, pc.starts_with(message, _PREFIX + start))
        return keep_rows(batch, [pc.fill_null(mask, True)])

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        message = batch.column("message")
        refuse(pc.is_null(message), "message is absent")
        data = _decode_messages(message.to_pylist())
        return decode_own(batch, data, self.layout.discriminator, self._own_columns)

    def _own_columns(self, batch: pa.RecordBatch, data: pa.BinaryArray) -> list[pa.Array]:
        refuse_missing_filter_fields(batch, SOLANA, self.query.filters[0])
        if self.committed_only:
            refuse(pc.is_null(batch.column("isCommitted")), "its transaction is absent")
        fields = decode_args(self.layout, data, self.decimals)
        return [*item_columns(batch, LOG_FIELDS), *fields]

    def _explain(
        self, batch: pa.RecordBatch, error: MalformedRowsError
    ) -> UndecodableInstructionError:
        return explain_item(batch, error, f"an event {self.layout.name!r}")


def _decode_messages(messages: list[str]) -> pa.BinaryArray:
    decoded = [_decode_base64(message.removeprefix(_PREFIX)) for message in messages]
    refuse(np.array([one is None for one in decoded], bool), "the message is not base64")
    return pa.array(decoded, pa.binary())


def _decode_base64(text: str) -> bytes | None:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None
