"""Decodes the data of logs and calls along their ABI types, all rows together.

A value is a vector of positions, one per element; an array's elements become a longer vector, whose
`owners` say which log each belongs to. So an array of tuples of strings costs some vector steps per
level of its type, and no loop over logs. A 32-byte word is kept as the 64 hex digits that the
portal sent: an address is then a copy, a check for zero is a comparison, and only numbers are
computed (`integers`). Runs on the driver and on executors.

Nothing in the data is trusted. An offset must lead behind the heads it stands among, so there are
no loops; offsets and lengths must stay inside their own log. Encoders never let values share bytes,
so no level of a type may hold more than the log itself: data made to unfold into gigabytes is
malformed before it unfolds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.columns.buffers import (
    column_of,
    fixed_width_array,
    lists_of,
    offsets_of,
    stretches,
    text_parts,
)
from headwater.decode.columns.bytes_text import bytes_of, hex_mask, is_lower_hex, numbers_of
from headwater.decode.columns.integers import DIGITS, ONE, PARTS, ZEROS, WordText, decode_integers
from headwater.decode.columns.malformed import MalformedRowsError, Rows, refuse, refuse_unless_utf8
from headwater.decode.evm.types import (
    AbiType,
    Array,
    Elementary,
    Kind,
    Parameter,
    Tuple,
    arrow_type,
    canonical,
    head_words,
    is_dynamic,
)

Positions = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a value is part of: where offsets count from, where heads end, which log it is of."""

    bases: Positions
    floors: Positions
    owners: Rows


class Payload:
    """The data of some logs or calls: `digits` holds all, `starts` and `ends` say where each is.

    `what` names it in errors.
    """

    def __init__(self, data: pa.BinaryArray, what: str = "data") -> None:
        self._what = what
        self.starts, self.ends, text = text_parts(data)
        refuse((self.ends - self.starts) % 2 != 0, f"{what} has an odd number of hex digits")
        self.digits = self._checked(text)

    def decode(self, parameters: tuple[Parameter, ...]) -> list[pa.Array]:
        """Return the columns of the parameters that are not indexed, in their order.

        Called by `evm`; the same data gives the same columns again.

        Raises:
            MalformedRowsError: some logs do not hold such values.
        """
        needed = DIGITS * sum(head_words(parameter.type) for parameter in parameters)
        refuse(
            self.ends - self.starts < needed, f"{self._what} is shorter than {needed // 2} bytes"
        )
        owners = np.arange(len(self.starts), dtype=np.int64)
        frame = _Frame(self.starts, self.starts + needed, owners)
        columns, at = [], 0
        for parameter in parameters:
            if isinstance(parameter.type, Elementary) and not is_dynamic(parameter.type):
                words = self._head_words(at)
                columns.append(decode_words(parameter.type, words, f"'{parameter.name}'", owners))
            else:
                head = self.starts + DIGITS * at
                columns.append(self._value(parameter.type, head, frame, f"'{parameter.name}'"))
            at += head_words(parameter.type)
        return columns

    def _checked(self, text: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the digits in lower case, or name the rows that hold anything else."""
        if is_lower_hex(text):
            return text
        capital = (text >= ord("A")) & (text <= ord("F"))
        lowered = np.where(capital, text | np.uint8(0x20), text)
        wrong = np.flatnonzero(~hex_mask(lowered))
        if len(wrong):
            rows = np.unique(np.searchsorted(self.ends, wrong, side="right"))
            raise MalformedRowsError(rows, f"{self._what} is not hex")
        return lowered

    def _head_words(self, at: int) -> WordText:
        """Return the word of this place in every log's head; a view if all logs are as long."""
        rows = len(self.starts)
        length = len(self.digits) // rows if rows else 0
        if length % PARTS == 0 and rows and (self.ends - self.starts == length).all():
            words: WordText = self.digits.view("<u8").reshape(rows, length // PARTS)
            return words[:, PARTS * at : PARTS * (at + 1)]
        return self._words(self.starts + DIGITS * at)

    def _words(self, positions: Positions) -> WordText:
        """Return the words at any positions, which are known to lie inside the data."""
        every = max(0, len(self.digits) - DIGITS + 1)
        windows = np.ndarray((every,), f"V{DIGITS}", self.digits.data, strides=(1,))
        return windows[positions].view("<u8").reshape(len(positions), PARTS)

    def _value(self, abi_type: AbiType, heads: Positions, frame: _Frame, where: str) -> pa.Array:
        """Return the column of the values whose heads are here."""
        owners = frame.owners
        match abi_type:
            case Elementary(Kind.BYTES | Kind.STRING):
                return self._bytes(abi_type, heads, frame, where)
            case Elementary():
                return decode_words(abi_type, self._words(heads), where, owners)
            case Tuple():
                if is_dynamic(abi_type):
                    size = sum(head_words(member.type) for member in abi_type.members)
                    heads = self._follow(heads, frame, size, where)
                    frame = _Frame(heads, heads + DIGITS * size, owners)
                return self._members(abi_type, heads, frame, where)
            case Array(item, None):
                heads = self._follow(heads, frame, 1, where)
                lengths = self._lengths(heads, owners, DIGITS * head_words(item), where)
                return self._items(item, heads + DIGITS, lengths, owners, where)
            case Array(item, length):
                if is_dynamic(abi_type):
                    heads = self._follow(heads, frame, length or 0, where)
                lengths = np.full(len(heads), length, np.int64)
                return self._items(item, heads, lengths, owners, where)

    def _members(
        self, abi_type: Tuple, heads: Positions, frame: _Frame, where: str
    ) -> pa.StructArray:
        columns, at = [], 0
        for member in abi_type.members:
            place = f"{where}.{member.name}"
            columns.append(self._value(member.type, heads + DIGITS * at, frame, place))
            at += head_words(member.type)
        return pa.StructArray.from_arrays(columns, fields=list(arrow_type(abi_type)))

    def _items(
        self, item: AbiType, firsts: Positions, lengths: Positions, owners: Rows, where: str
    ) -> pa.ListArray:
        """Return the lists of items whose heads lie one behind the other from `firsts` on."""
        size = DIGITS * head_words(item)
        bounds = offsets_of(lengths)
        within = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
        frame = _Frame(
            np.repeat(firsts, lengths),
            np.repeat(firsts + size * lengths, lengths),
            np.repeat(owners, lengths),
        )
        items = self._value(item, frame.bases + size * within, frame, f"an item of {where}")
        return lists_of(items, lengths)

    def _bytes(self, abi_type: Elementary, heads: Positions, frame: _Frame, where: str) -> pa.Array:
        at = self._follow(heads, frame, 1, where)
        lengths = self._lengths(at, frame.owners, 2, where)
        digits = self._cut(at + DIGITS, at + DIGITS + 2 * lengths)
        column = column_of(arrow_type(abi_type), offsets_of(lengths), bytes_of(digits))
        if abi_type.kind is Kind.STRING:
            refuse_unless_utf8(column, where, frame.owners)
        return column

    def _cut(self, starts: Positions, ends: Positions) -> npt.NDArray[np.uint8]:
        """Return the digits of these stretches, one behind the other."""
        if not (ends[:-1] <= starts[1:]).all():  # not in the order that encoders write
            parts = [self.digits[start:end] for start, end in zip(starts, ends, strict=True)]
            return np.concatenate(parts)
        if not len(starts):
            return _NO_BYTES
        chosen = stretches(pa.binary(), self.digits, starts, ends)
        total = int((ends - starts).sum())
        return np.frombuffer(chosen.buffers()[2], np.uint8)[:total] if total else _NO_BYTES

    # --- offsets and lengths ----------------------------------------------------------------------

    def _follow(self, heads: Positions, frame: _Frame, words: int, where: str) -> Positions:
        """Return where the offsets in these heads lead; so many words must lie there."""
        reason = f"the offset of {where} leads nowhere in the data"
        ends = self.ends[frame.owners]
        room = ((ends - frame.bases) // 2).astype(np.uint64)
        targets = frame.bases + 2 * self._number(heads, frame.owners, room, reason)
        outside = (targets < frame.floors) | (targets + DIGITS * words > ends)
        refuse(outside, reason, frame.owners)
        self._refuse_unfolding(np.full(len(heads), DIGITS * words), frame.owners, where)
        return targets

    def _lengths(self, at: Positions, owners: Rows, unit: int, where: str) -> Positions:
        """Return the lengths that stand here; as many units of digits must follow."""
        reason = f"the length of {where} exceeds the data"
        room = (self.ends[owners] - at - DIGITS) // unit
        lengths = self._number(at, owners, room.astype(np.uint64), reason)
        self._refuse_unfolding(lengths * unit, owners, where)
        return lengths

    def _number(self, at: Positions, owners: Rows, limit: Sizes, reason: str) -> Positions:
        """Return the numbers in these words, which must not exceed their limits."""
        words = self._words(at)
        values = (numbers_of(words[:, PARTS - 2]) << np.uint64(32)) | numbers_of(words[:, -1])
        bad = (words[:, : PARTS - 2] != ZEROS).any(axis=1) | (values > limit)
        refuse(bad, reason, owners)
        return values.astype(np.int64)

    def _refuse_unfolding(self, digits: Positions, owners: Rows, where: str) -> None:
        """No level may hold more than its log: the values of one would share bytes."""
        totals = np.bincount(owners, weights=digits, minlength=len(self.starts))
        room = self.ends - self.starts
        refuse((totals > room)[owners], f"values of {where} overlap", owners)


_NO_BYTES = np.zeros(0, np.uint8)


_ADDRESS_DIGITS = 40
_PREFIX = np.frombuffer(b"0x", np.uint8)


def decode_words(abi_type: Elementary, words: WordText, where: str, owners: Rows) -> pa.Array:
    """Return the column of a static type. Called for topics, heads and elements of arrays.

    `where` names the parameter in errors; `owners` are the rows that the words belong to.

    Raises:
        MalformedRowsError: some words are no values of the type.
    """
    if abi_type.integer is not None:
        return decode_integers(abi_type.integer, words, where, owners)
    match abi_type.kind:
        case Kind.ADDRESS:
            return _decode_addresses(words, where, owners)
        case Kind.BOOL:
            return _decode_booleans(words, where, owners)
        case Kind.FIXED_BYTES:
            return _decode_fixed_bytes(abi_type.size, words, where, owners)
        case _:
            raise TypeError(f"{canonical(abi_type)} is not one word")


def _decode_addresses(words: WordText, where: str, owners: Rows) -> pa.StringArray:
    bad = (words[:, 0] != ZEROS) | (words[:, 1] != ZEROS) | (words[:, 2] != ZEROS)
    refuse(bad, f"{where} is wider than an address", owners)
    text = np.empty((len(words), 2 + _ADDRESS_DIGITS), np.uint8)
    text[:, :2] = _PREFIX
    text[:, 2:] = words.view(np.uint8)[:, DIGITS - _ADDRESS_DIGITS :]
    return fixed_width_array(pa.string(), text)


def _decode_booleans(words: WordText, where: str, owners: Rows) -> pa.BooleanArray:
    last = words[:, 7]
    bad = ((last != ZEROS) & (last != ONE)) | (words[:, :7] != ZEROS).any(axis=1)
    refuse(bad, f"{where} is neither 0 nor 1", owners)
    return pa.array(last == ONE)


def _decode_fixed_bytes(size: int, words: WordText, where: str, owners: Rows) -> pa.BinaryArray:
    digits = words.view(np.uint8)
    if size < DIGITS // 2:
        padding = digits[:, 2 * size :] != ord("0")
        refuse(padding.any(axis=1), f"{where} is longer than {size} bytes", owners)
    values = bytes_of(np.ascontiguousarray(digits[:, : 2 * size]).reshape(-1))
    return fixed_width_array(pa.binary(), values.reshape(len(words), size))
