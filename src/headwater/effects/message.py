"""Messages: rows of an output, each with the block it is of and a key that never changes.

A batch has one message per row, in an order that every replay repeats. Spark gives rows in any
order, so they are put in the order of the chain first (transaction, log, place within it), and rows
that share their place in the order of their text. A row's ordinal within its block is therefore the
same whenever and however the block is read again. Runs on the driver.

The payload is the row as exact JSON: integers beyond ±(2^53 - 1), which many readers of JSON would
round, are strings, and so are all decimals; bytes are `0x…`, times ISO 8601. Columns of plain types
become text a column at a time; the others, nested ones above all, value by value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import Batch
from headwater.errors import MessageRowsError
from headwater.targets.contract import Delivery

KEY_DIGITS = 32
COLUMNS = pa.schema(
    [
        pa.field("block_number", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("block_hash", pa.string()),
        pa.field("key", pa.string()),
        pa.field("payload", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Message:
    """A row of an output, as a deliverer is given it.

    `key` is the same at every attempt and every replay of this row of this block, and no other
    message of any stream has it: a receiver that has seen it may drop the message. `payload` is the
    row as JSON text.
    """

    key: str
    stream: str
    output: str
    block_number: int
    block_hash: str
    ordinal: int
    payload: str

    @property
    def row(self) -> dict[str, Any]:
        """The row, read from the payload."""
        row: dict[str, Any] = json.loads(self.payload)
        return row

    def to_json(self) -> str:
        """Return the whole message as JSON; the payload is in it as it is."""
        fields = {
            "key": self.key,
            "stream": self.stream,
            "output": self.output,
            "block": {"number": self.block_number, "hash": self.block_hash},
            "ordinal": self.ordinal,
        }
        head = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        return f'{head[:-1]},"row":{self.payload}}}'


def idempotency_key(
    stream: str, output: str, block_number: int, block_hash: str, ordinal: int
) -> str:
    """Return the key of a message, made of what identifies it and of nothing else."""
    parts = json.dumps([stream, output, block_number, block_hash, ordinal])
    return hashlib.sha256(parts.encode()).hexdigest()[:KEY_DIGITS]


def read_messages(stream: str, output: str, rows: pa.Table) -> list[Message]:
    """Read messages from the rows of an outbox."""
    return [Message(stream=stream, output=output, **row) for row in rows.to_pylist()]


def message_rows(messages: Sequence[Message]) -> pa.Table:
    """Return messages as rows of an outbox."""
    rows = [{name: getattr(message, name) for name in COLUMNS.names} for message in messages]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


SAFE = 2**53 - 1
CHUNK_ROWS = 65_536
PLACE = ("transaction_index", "log_index", "trace_address", "instruction_address")
Convert = Callable[[Any], Any]


def collect_messages(stream_id: str, output: str, batch: Batch[Delivery]) -> pa.Table:
    """Return the rows that a batch adds to the outbox of an output.

    Raises:
        MessageRowsError: there is no such output, or its rows do not belong to blocks of the batch.
    """
    frame = batch.data.data.get(output)
    if frame is None:
        raise MessageRowsError(
            "there is no such output to deliver", output=output, outputs=", ".join(batch.data.data)
        )
    rows = frame if isinstance(frame, pa.Table) else frame.toArrow()
    _check(output, rows, batch)
    numbers = map(int, rows.column("block_number").to_pylist())
    hashes = rows.column("block_hash").to_pylist()
    known = [name for name in PLACE if name in rows.schema.names]
    places = [map(_sortable, rows.column(name).to_pylist()) for name in known]
    in_block = zip(*places, strict=True) if places else repeat(())
    key = partial(idempotency_key, stream_id, output)
    ordered = sorted(zip(numbers, in_block, json_rows(rows), hashes, strict=False))
    entries = [
        (number, ordinal, block_hash, key(number, block_hash, ordinal), text)
        for number, group in groupby(ordered, key=itemgetter(0))
        for ordinal, (_, _, text, block_hash) in enumerate(group)
    ]
    columns = zip(*entries, strict=True) if entries else repeat(())
    arrays = [pa.array(*column) for column in zip(columns, COLUMNS.types, strict=False)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def _check(output: str, rows: pa.Table, batch: Batch[Delivery]) -> None:
    """Refuse rows of blocks that are not the batch's: they would be delivered, or undone, wrong."""
    lacking = [name for name in ("block_number", "block_hash") if name not in rows.schema.names]
    if lacking:
        raise MessageRowsError(
            "rows to deliver lack columns", output=output, columns=", ".join(lacking)
        )
    if not rows.num_rows:
        return
    numbers = rows.column("block_number")
    if numbers.null_count or rows.column("block_hash").null_count:
        raise MessageRowsError("rows to deliver name no block", output=output)
    lowest, highest = _blocks(batch)
    ends = pc.min_max(numbers).as_py()
    if not lowest <= ends["min"] <= ends["max"] <= highest:
        raise MessageRowsError(
            "rows to deliver are of other blocks than their batch",
            output=output,
            rows=f"{ends['min']}..{ends['max']}",
            batch=f"{lowest}..{highest}",
        )


def _blocks(batch: Batch[Delivery]) -> tuple[int, int]:
    """Return the first and the last block of a batch; of a span the last header alone is known."""
    first, last = batch.headers[0].number, batch.headers[-1].number
    ctx = batch.data.ctx
    count = len(batch.headers) if ctx is None else ctx.batch.blocks_count
    return min(first, last - count + 1), last


def _sortable(value: Any) -> tuple[bool, Any]:
    return value is None, value


def json_rows(rows: pa.Table) -> list[str]:
    """Return each row as a JSON object with its columns in their order."""
    return [text for start in range(0, rows.num_rows, CHUNK_ROWS) for text in _chunk(rows, start)]


def _chunk(rows: pa.Table, start: int) -> Iterator[str]:
    pieces: list[Any] = []
    for field, column in zip(rows.schema, rows.slice(start, CHUNK_ROWS).columns, strict=True):
        pieces.append(f"{',' if pieces else '{'}{_dump(field.name)}:")
        pieces.append(_texts(column.combine_chunks()))
    yield from pc.binary_join_element_wise(*pieces, "}", "").to_pylist()


def _texts(values: pa.Array) -> pa.Array:
    """Return the JSON of each value."""
    texts = _plain(values)
    if texts is None:
        convert = _converter(values.type)
        documents = [
            _dump(None if value is None else convert(value)) for value in values.to_pylist()
        ]
        texts = pa.array(documents, pa.string())
    return pc.fill_null(texts, "null")


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# --- a column at a time ---------------------------------------------------------------------------


def _plain(values: pa.Array) -> pa.Array | None:
    """Return the JSON of a column of a plain type; None if it is not one."""
    kind, types = values.type, pa.types
    if types.is_boolean(kind):
        return pc.if_else(values, "true", "false")
    if types.is_integer(kind):
        texts = values.cast(pa.string())
        ends = pc.min_max(values).as_py()
        if ends["min"] is not None and not -SAFE <= ends["min"] <= ends["max"] <= SAFE:
            safe = pa.array(
                [number is not None and -SAFE <= number <= SAFE for number in values.to_pylist()]
            )
            texts = pc.if_else(safe, texts, _quoted(texts))
        return texts
    if types.is_decimal(kind) and kind.scale == 0:
        return _quoted(values.cast(pa.string()))
    if types.is_string(kind):
        special = pc.any(pc.match_substring_regex(values, r'["\\\x00-\x1f]'), min_count=0).as_py()
        return None if special else _quoted(values)
    if types.is_timestamp(kind) and kind.unit in ("s", "ms", "us"):
        instants = values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        texts = pc.strftime(instants.cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%S")
        texts = pc.replace_substring_regex(texts, r"\.000000$", "")
        return _quoted(pc.binary_join_element_wise(texts, "Z", "") if kind.tz else texts)
    return None


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


# --- value by value -------------------------------------------------------------------------------


def _converter(kind: pa.DataType) -> Convert:
    """Return what makes values of a type fit for JSON."""
    types = pa.types
    if types.is_dictionary(kind):
        return _converter(kind.value_type)
    if types.is_map(kind):
        item = _nullable(_converter(kind.item_type))
        return lambda pairs: {str(key): item(value) for key, value in pairs}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _nullable(_converter(kind.value_type))
        return lambda values: [element(value) for value in values]
    if types.is_struct(kind):
        parts = {field.name: _nullable(_converter(field.type)) for field in kind}
        return lambda value: {name: part(value[name]) for name, part in parts.items()}
    return next((convert for test, convert in _CONVERTERS if test(kind)), str)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _integer(value: int) -> int | str:
    return value if -SAFE <= value <= SAFE else str(value)


def _float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _time(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def _binary(kind: pa.DataType) -> bool:
    plain = kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    return plain or bool(pa.types.is_fixed_size_binary(kind))


_CONVERTERS: list[tuple[Callable[[pa.DataType], bool], Convert]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, lambda value: format(value, "f")),
    (_binary, lambda value: "0x" + value.hex()),
    (pa.types.is_timestamp, _time),
    (pa.types.is_date, lambda value: value.isoformat()),
]
