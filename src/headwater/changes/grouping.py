"""Keys as integers: which changes concern the same row, found without building a row.

Columns are dictionary-encoded and their codes combined, so that no separator is needed and none
can collide: ("a/b", "c") and ("a", "b/c") are two keys.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import Codes, column

_ROOM = 2**62
Held = TypeVar("Held", pa.Array, pa.Table)


def key_codes(table: pa.Table) -> Codes:
    """Return a number for each change: the same for the same table and key, and only then.

    `table` has passed `conform`. Called by `fold`.
    """
    keys = column(table, "pk")
    lengths = pc.list_value_length(keys).to_numpy(zero_copy_only=False).astype(np.int64)
    parts = keys.flatten()
    names, values = codes_of(parts.field(0))[0], codes_of(parts.field(1))[0]
    codes = codes_of(column(table, "table"))[0]
    if not len(lengths) or int(lengths.max()) == 1:
        return combine(combine(codes, names), values)
    names, values = _ordered(lengths, names, values)
    starts = np.cumsum(lengths) - lengths
    for at in range(int(lengths.max())):
        has = lengths > at
        places = np.where(has, starts + at, 0)
        for part in (names, values):
            codes = combine(codes, np.where(has, part[places] + 1, 0))
    return codes


def codes_of(texts: pa.Array) -> tuple[Codes, pa.Array]:
    """Return the code of each text, and the texts by code. Null has none: it must not occur."""
    encoded = texts.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, encoded.dictionary


def first_places(codes: Codes) -> Codes:
    """Return where each distinct code occurs first, in the order of the codes."""
    if not len(codes):
        return codes
    lowest, highest = int(codes.min()), int(codes.max())
    if highest - lowest > 4 * len(codes):
        return np.unique(codes, return_index=True)[1]
    firsts = np.full(highest - lowest + 1, -1, np.int64)
    firsts[codes[::-1] - lowest] = np.arange(len(codes) - 1, -1, -1)
    return firsts[firsts >= 0]


def combine(one: Codes, other: Codes) -> Codes:
    """Return codes of pairs; they stay below 2^62, being made dense when they would not."""
    if not len(one):
        return one
    width = int(other.max()) + 1
    if (int(one.max()) + 1) * width >= _ROOM:
        one = np.unique(one, return_inverse=True)[1].astype(np.int64)
    return one * width + other


def sorted_by(codes: Codes) -> Codes:
    """Return the places of the codes in ascending order, equal ones as they come.

    Code and place are sorted as one number, which is faster than a stable sort of places.
    """
    count = max(len(codes), 1)
    if (codes[1:] >= codes[:-1]).all():
        return np.arange(len(codes))
    if len(codes) and (int(codes.max()) + 1) >= 2 * _ROOM // count:
        return np.argsort(codes, kind="stable")
    packed = codes * count + np.arange(len(codes))
    packed.sort()
    return packed % count


def taken(values: Held, places: Codes) -> Held:
    """Return what stands at the places; the same values if these are all places, in order."""
    if len(places) == len(values) and (places == np.arange(len(places))).all():
        return values
    return values.take(pa.array(places))


def _ordered(lengths: Codes, names: Codes, values: Codes) -> tuple[Codes, Codes]:
    """Return the parts of each key in the order of their names' codes, so that order is no part."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = sorted_by(combine(rows, names))
    return names[order], values[order]
