"""Borsh decoded a column at a time: fixed and variable layouts alike, without a loop over rows.

A value is a vector of positions, one per element, and decoding returns the column and the positions
behind the values. Items of fixed size lie at known places, so a list of them is one longer vector;
items of variable size are read in rounds: all first items, then all second ones.

Nothing is trusted: every read must stay inside its own row, so a length can never claim more than
the row has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decode.base58 import encode_base58
from headwater.decode.borsh_types import (
    BorshType,
    Enum,
    FixedBytes,
    Option,
    Scalar,
    Sequence,
    Struct,
    arrow_type,
    fixed_size,
    least_size,
)
from headwater.decode.decimal_text import format_integers, negate
from headwater.decode.malformed import Rows, refuse
from headwater.decode.types import DECIMAL
from headwater.decode.wire_columns import spread, text_parts
from headwater.decode.words import fixed_width_array

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Read = tuple[pa.Array, Positions]


class BorshReader:
    """The bytes of some instructions or events: `data` holds all, `ends` where each row's end."""

    def __init__(self, column: pa.BinaryArray) -> None:
        self.starts, self.ends, self.data = text_parts(column)

    def decode(self, layout: Struct, skip: int) -> list[pa.Array]:
        """Return the columns of the members, which begin behind the first `skip` bytes.

        Bytes behind the last member are allowed, as programs allow them.

        Raises:
            MalformedRowsError: some rows do not hold such values.
        """
        at, columns = self.starts + skip, []
        rows = np.arange(len(at), dtype=np.int64)
        for member in layout.members:
            column, at = self._read(member.type, at, rows, f"'{member.name}'")
            columns.append(column)
        return columns

    def _read(self, borsh: BorshType, at: Positions, owners: Rows, where: str) -> Read:
        match borsh:
            case Scalar("string" | "bytes" | "long_string"):
                return self._stretch(borsh, at, owners, where)
            case Scalar():
                return self._scalar(borsh, at, owners, where)
            case FixedBytes(size):
                raw = self._window(at, size, owners, where)
                return fixed_width_array(pa.binary(), raw), at + size
            case Option(item):
                return self._option(item, at, owners, where)
            case Sequence(item, length):
                return self._sequence(item, length, at, owners, where)
            case Struct(members):
                columns = []
                for member in members:
                    column, at = self._read(member.type, at, owners, f"{where}.{member.name}")
                    columns.append(column)
                return _struct(columns, arrow_type(borsh), len(at)), at
            case Enum():
                return self._enum(borsh, at, owners, where)

    # --- values without parts ---------------------------------------------------------------------

    def _window(self, at: Positions, size: int, owners: Rows, where: str) -> Bytes:
        """Return so many bytes from each position on, as a matrix."""
        refuse(at + size > self.ends[owners], f"{where} is cut off", owners)
        if not len(at) or not size:
            return np.zeros((len(at), size), np.uint8)
        every = len(self.data) - size + 1
        windows = np.ndarray((every,), f"V{size}", self.data.data, strides=(1,))
        return windows[at].view(np.uint8).reshape(len(at), size)

    def _scalar(self, borsh: Scalar, at: Positions, owners: Rows, where: str) -> Read:
        size = fixed_size(borsh) or 0
        raw = self._window(at, size, owners, where)
        if borsh.name == "pubkey":
            return encode_base58(raw), at + size
        if borsh.name == "bool":
            refuse(raw[:, 0] > 1, f"{where} is neither 0 nor 1", owners)
            return pa.array(raw[:, 0] == 1), at + size
        if borsh.bits == 0:
            return pa.array(raw.view(f"<f{size}").reshape(-1)), at + size
        return _integers(borsh, raw), at + size

    def _stretch(self, borsh: Scalar, at: Positions, owners: Rows, where: str) -> Read:
        """Return text or bytes, whose length stands before them."""
        size = 8 if borsh.name == "long_string" else 4
        lengths = self._length(at, size, 1, owners, where)
        at = at + size
        flat = np.repeat(at - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data[flat])]
        column = pa.Array.from_buffers(pa.binary(), len(at), buffers)
        if arrow_type(borsh) == pa.string():
            bad = [not _is_utf8(text) for text in column.to_pylist()]
            refuse(np.array(bad, bool), f"{where} is not UTF-8", owners)
            column = column.cast(pa.string())
        return column, at + lengths

    def _length(self, at: Positions, size: int, unit: int, owners: Rows, where: str) -> Positions:
        """Return the lengths that stand here; as many units of bytes must follow."""
        raw = self._window(at, size, owners, where).view(f"<u{size}").reshape(-1)
        room = ((self.ends[owners] - at - size) // unit).astype(np.uint64)
        refuse(raw > room, f"the length of {where} exceeds the data", owners)
        return raw.astype(np.int64)

    # --- values with parts ------------------------------------------------------------------------

    def _option(self, item: BorshType, at: Positions, owners: Rows, where: str) -> Read:
        tags = self._window(at, 1, owners, where)[:, 0]
        refuse(tags > 1, f"{where} is neither absent (0) nor present (1)", owners)
        at = at + 1
        present = tags == 1
        return self._some(item, at, present, owners, where)

    def _some(
        self,
        item: BorshType,
        at: Positions,
        present: npt.NDArray[np.bool_],
        owners: Rows,
        where: str,
    ) -> Read:
        """Read the item where it is present; null elsewhere."""
        column, after = self._read(item, at[present], owners[present], where)
        following = at.copy()
        following[present] = after
        if not present.any():
            return pa.nulls(len(at), arrow_type(item)), following
        return spread(column, present), following

    def _sequence(
        self, item: BorshType, length: int | None, at: Positions, owners: Rows, where: str
    ) -> Read:
        if length is None:
            lengths = self._length(at, 4, least_size(item), owners, where)
            at = at + 4
        else:
            lengths = np.full(len(at), length, np.int64)
            room = self.ends[owners] - at
            refuse(lengths * least_size(item) > room, f"{where} is cut off", owners)
        place = f"an item of {where}"
        size = fixed_size(item)
        if size is None:
            items, after = self._rounds(item, lengths, at, owners, place)
        else:
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            firsts = np.repeat(at, lengths)
            items, _ = self._read(item, firsts + size * within, np.repeat(owners, lengths), place)
            after = at + size * lengths
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), items), after

    def _rounds(
        self, item: BorshType, lengths: Positions, at: Positions, owners: Rows, where: str
    ) -> Read:
        """Read items of variable size: the first of every list, then the second, and so on."""
        at, parts, places = at.copy(), [], []
        firsts = np.cumsum(lengths) - lengths
        for turn in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > turn)
            column, at[rows] = self._read(item, at[rows], owners[rows], where)
            parts.append(column)
            places.append(firsts[rows] + turn)
        if not parts:
            return pa.array([], arrow_type(item)), at
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order)), at

    def _enum(self, borsh: Enum, at: Positions, owners: Rows, where: str) -> Read:
        tags = self._window(at, 1, owners, where)[:, 0]
        refuse(tags >= len(borsh.variants), f"{where} is no known variant", owners)
        names = pa.array([one.name for one in borsh.variants], pa.string())
        chosen = names.take(pa.array(tags))
        at, kind = at + 1, arrow_type(borsh)
        if pa.types.is_string(kind):
            return chosen, at
        columns = [chosen]
        for tag, variant in enumerate(borsh.variants):
            if variant.content is not None:
                place = f"{where}.{variant.name}"
                column, at = self._some(variant.content, at, tags == tag, owners, place)
                columns.append(column)
        return _struct(columns, kind, len(at)), at


def _integers(borsh: Scalar, raw: Bytes) -> pa.Array:
    column, size = arrow_type(borsh), borsh.bits // 8
    signed = borsh.name[0] == "i"
    if pa.types.is_string(column):
        words = raw.view("<u4").reshape(len(raw), size // 4)[:, ::-1]
        limbs = [words[:, at].astype(np.uint64) for at in range(size // 4)]
        if not signed:
            return format_integers(limbs)
        negative = limbs[0] >> np.uint64(31) == 1
        return format_integers(negate(limbs, negative), negative)
    values = raw.view(f"<{'i' if signed else 'u'}{size}").reshape(-1)
    if column == DECIMAL:
        pairs = np.zeros((len(values), 2), np.uint64)
        pairs[:, 0] = values
        return pa.Array.from_buffers(DECIMAL, len(values), [None, pa.py_buffer(pairs.reshape(-1))])
    return pa.array(values.astype(np.int64)).cast(column)


def _struct(columns: list[pa.Array], kind: pa.DataType, rows: int) -> pa.StructArray:
    if not columns:
        return pa.array([{}] * rows, kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
