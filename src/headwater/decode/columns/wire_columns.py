"""Converts wire forms to the column types of `field_columns`; refuses what does not fit.

Nothing is ever cut or wrapped. Networks count time in seconds or milliseconds; a column of time is
in microseconds everywhere. Bitcoin's amounts come as numbers of bitcoins; columns hold satoshis,
which are whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.columns.buffers import (
    Bytes,
    column_of,
    drop_first_bytes,
    lists_of,
    spread,
    text_parts,
)
from headwater.decode.columns.bytes_text import (
    DIGITS_OF_BASE58,
    NO_DIGIT,
    bytes_of,
    count_digits,
    decode_base58,
    hex_mask,
)
from headwater.decode.columns.field_columns import EXACT_DECIMAL, column_type, scalar_type
from headwater.decode.columns.integers import (
    DECIMAL,
    DIGITS,
    PARTS,
    ZEROS,
    Integer,
    WordText,
    decode_integers,
)
from headwater.decode.columns.malformed import MalformedRowsError, Rows, refuse
from headwater.decode.lines.block_lines import LAST_MICROSECOND, MAX_INDEX, TICKS, TIMESTAMP
from headwater.query import Field, Presence, WireType

_CODES = (WireType.HEX, WireType.BARE_HEX, WireType.BASE58)
_PREFIX = int.from_bytes(b"0x", "little")
_INT64 = Integer(64, signed=True)
_WIDE = Integer(256)
_WIDE_DECIMAL = Integer(256, as_decimal=True)
_INTEGER = r"^-?[0-9]{1,38}$"


def convert(field: Field, column: pa.Array, owners: Rows | None = None) -> pa.Array:
    """Return the column of a field, given its wire form. `owners` are the rows of the elements.

    Raises:
        MalformedRowsError: some values are not what the field's kind allows.
    """
    if owners is None:
        owners = np.arange(len(column), dtype=np.int64)
    if field.is_list:
        return _convert_list(field, column, owners)
    if field.members:
        return _convert_struct(field, column, owners)
    return _convert_scalar(field, column, owners)


def required(batch: pa.RecordBatch, field: Field) -> pa.Array:
    """Return the column of a field that every row of the table must have.

    Raises:
        MalformedRowsError: some rows lack it, or have one of the wrong kind.
    """
    column = batch.column(field.wire)
    refuse(pc.is_null(column), f"{field.name} is absent")
    return convert(field, column)


def _convert_list(field: Field, column: pa.ListArray, owners: Rows) -> pa.ListArray:
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    inner = np.repeat(owners, counts)
    convert_item = _convert_struct if field.members else _convert_scalar
    items = convert_item(field, column.flatten(), inner)
    mask = pc.is_null(column) if column.null_count else None
    return lists_of(items, counts, mask)


def _convert_struct(field: Field, column: pa.StructArray, owners: Rows) -> pa.StructArray:
    parts = [
        convert(member, part, owners)
        for member, part in zip(field.members, column.flatten(), strict=True)
    ]
    kinds = [pa.field(member.name, column_type(member)) for member in field.members]
    mask = pc.is_null(column) if column.null_count else None
    return pa.StructArray.from_arrays(parts, fields=kinds, mask=mask)


def _convert_scalar(field: Field, column: pa.Array, owners: Rows) -> pa.Array:
    kind = scalar_type(field)
    is_coded = field.type is WireType.QUANTITY or kind == pa.binary()
    if field.type in _CODES and not is_coded:
        texts = check_text(field.type, column, field.name, owners)
        return pc.binary_join_element_wise(field.prefix, texts, "") if field.prefix else texts
    match field.type:
        case WireType.NUMBER | WireType.INTEGER:
            numbers = _cast_numbers(column, kind, field.name, owners)
            return numbers if field.type is WireType.INTEGER else _natural(numbers, field, owners)
        case WireType.INDEX:
            return _index(column, field, owners)
        case _ if kind == column.type and not is_coded:
            return column
        case WireType.SECONDS | WireType.MILLISECONDS:
            return times(field, column, owners)
        case WireType.BITCOINS:
            return satoshis(field, column, owners)
        case WireType.QUANTITY:
            return convert_valid(column, owners, lambda part, rows: _quantities(part, field, rows))
        case WireType.NUMBER_OR_DECIMAL:
            return _natural(_cast_decimals(column, kind, field.name, owners), field, owners)
        case WireType.DECIMAL | WireType.WIDE_DECIMAL:
            return _cast_decimals(column, kind, field.name, owners)
        case WireType.BASE58:
            return convert_valid(column, owners, lambda part, rows: decode_base58(part, rows))
        case WireType.BARE_HEX:
            digits = column.cast(pa.binary())
            return convert_valid(
                digits, owners, lambda part, rows: decode_hex(part, field.name, rows)
            )
        case _:
            return convert_valid(
                column, owners, lambda part, rows: decode_hex(part, field.name, rows)
            )


def check_text(kind: WireType, column: pa.StringArray, where: str, owners: Rows) -> pa.StringArray:
    """Return a column that stays text, once it is known to be hex or base58; nulls stay null.

    Raises:
        MalformedRowsError: some texts are none.
    """
    starts, ends, text = text_parts(column)
    if kind is WireType.HEX and _is_hex_of_one_length(starts, ends, text):
        return column
    bad = np.zeros(len(column), bool)
    valid = DIGITS_OF_BASE58[text] != NO_DIGIT if kind is WireType.BASE58 else hex_mask(text)
    if kind is WireType.HEX and len(column):
        is_long = ends - starts >= len("0x")
        bad |= ~is_long
        if column.null_count:
            bad &= pc.is_valid(column).to_numpy(zero_copy_only=False)
        first = starts[is_long]
        bad[is_long] |= (text[first] != ord("0")) | (text[first + 1] != ord("x"))
        valid[first + 1] = True
    if not valid.all():
        bad[np.searchsorted(ends, np.flatnonzero(~valid), side="right")] = True
    refuse(bad, f"{where} is not {'base58' if kind is WireType.BASE58 else 'hex'}", owners)
    return column


def _is_hex_of_one_length(starts: Rows, ends: Rows, text: Bytes) -> bool:
    """Whether all texts are hex and equally long, as addresses and hashes are: found faster."""
    length = int(ends[0] - starts[0]) if len(starts) else 0
    if length < len("0x") or not (ends - starts == length).all():
        return False
    begins = np.ndarray((len(starts),), "<u2", text.data, strides=(length,))
    return bool((begins == _PREFIX).all()) and count_digits(text) == len(text) - len(starts)


def _natural(column: pa.Array, field: Field, owners: Rows) -> pa.Array:
    """Return numbers, none of which may be negative."""
    least = pc.min(column).as_py()
    if least is not None and least < 0:
        refuse(pc.less(column, 0), f"{field.name} is negative", owners)
    return column


def _index(column: pa.Int64Array, field: Field, owners: Rows) -> pa.Int64Array:
    """Return places of logs or transactions: 32 bits without a sign, of which some use the last."""
    most = pc.max(column).as_py()
    if most is not None and most > MAX_INDEX:
        refuse(pc.greater(column, MAX_INDEX), f"{field.name} is too large", owners)
    return _natural(column, field, owners)


def convert_valid(
    column: pa.Array, owners: Rows, convert_part: Callable[[pa.Array, Rows], pa.Array]
) -> pa.Array:
    """Convert the values that are not null, and put nulls back where they were."""
    if not column.null_count:
        return convert_part(column, owners)
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return spread(convert_part(column.drop_null(), owners[valid]), valid)


def as_decimals(column: pa.Array, where: str) -> pa.Decimal128Array:
    """Return exact decimal text as decimal128(38, 0), or doubles as they are written.

    Called for the columns that the user asked for as decimals.

    Raises:
        MalformedRowsError: some values have more digits.
    """
    if pa.types.is_floating(column.type):
        return exact_decimals(column, where)
    long = pc.greater(pc.binary_length(pc.utf8_ltrim(column, "-")), 38)
    refuse(long, f"{where} has more than 38 digits, but is asked for as a decimal")
    return column.cast(DECIMAL)


def decode_hex(column: pa.Array, where: str, owners: Rows) -> pa.BinaryArray:
    """Return the bytes of hex text with 0x, or of binary digits without it; no value is null.

    Raises:
        MalformedRowsError: some texts are not hex of whole bytes.
    """
    starts, ends, text = text_parts(column)
    if pa.types.is_string(column.type):
        refuse(pc.invert(pc.starts_with(column, "0x")), f"{where} does not begin with 0x", owners)
        column = drop_first_bytes(column.cast(pa.binary()), 2)
        starts, ends, text = text_parts(column)
    refuse((ends - starts) % 2 != 0, f"{where} has an odd number of hex digits", owners)
    digits = text | np.uint8(0x20)  # capitals become small, digits stay
    wrong = np.flatnonzero(~hex_mask(digits) | (text < ord("0")))
    if len(wrong):
        rows = np.unique(np.searchsorted(ends, wrong, side="right"))
        raise MalformedRowsError(owners[rows], f"{where} is not hex")
    offsets = np.append(starts, ends[-1:]) // 2 if len(starts) else np.zeros(1, np.int64)
    return column_of(pa.binary(), offsets, np.ascontiguousarray(bytes_of(digits)))


def _quantities(column: pa.StringArray, field: Field, owners: Rows) -> pa.Array:
    words = quantity_words(column, field.name, owners)
    kind = scalar_type(field)
    integer = _WIDE_DECIMAL if kind == DECIMAL else _INT64 if kind == pa.int64() else _WIDE
    return decode_integers(integer, words, field.name, owners)


def quantity_words(column: pa.StringArray, where: str, owners: Rows) -> WordText:
    """Return the numbers of quantities as words; no value is null.

    Raises:
        MalformedRowsError: some are no quantities.
    """
    starts, ends, text = text_parts(column)
    lengths = ends - starts - 2
    has_prefix = pc.starts_with(column, "0x").to_numpy(zero_copy_only=False)
    bad = ~has_prefix | (lengths < 1) | (lengths > DIGITS)
    refuse(bad, f"{where} is no quantity", owners)
    if not len(column):
        return np.zeros((0, PARTS), np.uint64)
    parts = -(-int(lengths.max()) // 8)
    at = ends[:, None] - 8 * parts + np.arange(8 * parts)
    inside = at >= (starts + 2)[:, None]
    digits = np.where(inside, text[np.maximum(at, 0)] | np.uint8(0x20), np.uint8(ord("0")))
    valid = np.asarray(hex_mask(digits).all(axis=1))
    refuse(~valid, f"{where} is no quantity", owners)
    words = np.full((len(column), PARTS), ZEROS, np.uint64)
    words[:, PARTS - parts :] = np.ascontiguousarray(digits).view("<u8")
    return words


def _cast_numbers(column: pa.Array, kind: pa.DataType, where: str, owners: Rows) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        limit = 2**31
        bad = pc.or_(pc.greater_equal(column, limit), pc.less(column, -limit))
        refuse(bad, f"{where} is too large", owners)
        raise


def _cast_decimals(column: pa.StringArray, kind: pa.DataType, where: str, owners: Rows) -> pa.Array:
    other = pc.invert(pc.match_substring_regex(column, _INTEGER))
    refuse(other, f"{where} is no integer of at most 38 digits", owners)
    numbers = column.cast(DECIMAL)
    try:
        return numbers.cast(kind)
    except pa.ArrowInvalid:
        least, limit = pa.scalar(-(2**63), DECIMAL), pa.scalar(2**63, DECIMAL)
        bad = pc.or_(pc.greater_equal(numbers, limit), pc.less(numbers, least))
        refuse(bad, f"{where} is too large", owners)
        raise


SATOSHIS = 100_000_000
_EXACT = 2**53  # satoshis: beyond, a double no longer tells neighbours apart


def times(field: Field, column: pa.Int64Array, owners: Rows) -> pa.TimestampArray:
    """Return a column of time. A time that no calendar holds is null where the field is optional:
    it is one that users wrote into their transactions, and must not stop a stream.

    Raises:
        MalformedRowsError: a field that must be there has such a time.
    """
    tick = TICKS[field.type]
    outside = pc.or_(pc.less(column, 0), pc.greater(column, LAST_MICROSECOND // tick))
    outside = pc.fill_null(outside, False)
    if field.presence is not Presence.OPTIONAL:
        refuse(outside, f"{field.name} is no time", owners)
    known = pc.if_else(outside, None, column)
    return pc.multiply(known, tick).cast(TIMESTAMP)


def satoshis(field: Field, column: pa.DoubleArray, owners: Rows) -> pa.Int64Array:
    """Return numbers of bitcoins as whole satoshis.

    Raises:
        MalformedRowsError: some are negative, too large for a double to be exact, or not whole.
    """
    bitcoins = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    whole = np.rint(np.minimum(bitcoins * SATOSHIS, 2.0 * _EXACT))
    is_near = np.abs(bitcoins - whole / SATOSHIS) <= np.spacing(np.abs(bitcoins))
    bad = (bitcoins < 0) | (whole > _EXACT) | ~is_near
    refuse(bad, f"{field.name} is no amount of whole satoshis", owners)
    mask = pc.is_null(column).to_numpy(zero_copy_only=False)
    return pa.array(whole.astype(np.int64), mask=mask)


def exact_decimals(column: pa.DoubleArray, where: str) -> pa.Decimal128Array:
    """Return the decimals that doubles are written as, which the user asked for.

    Raises:
        MalformedRowsError: some have more than 20 digits before the point or 18 behind it.
    """
    values = [None if value is None else repr(value) for value in column.to_pylist()]
    try:
        return pa.array(values, pa.string()).cast(EXACT_DECIMAL)
    except pa.ArrowInvalid:
        bad = np.fromiter((not _fits(value) for value in values), bool, len(values))
        refuse(bad, f"{where} does not fit decimal(38, 18), but is asked for as one")
        raise


def _fits(text: str | None) -> bool:
    try:
        pa.array([text], pa.string()).cast(EXACT_DECIMAL)
    except pa.ArrowInvalid:
        return False
    return True
