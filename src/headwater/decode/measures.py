"""Times and amounts of money, in one unit each: microseconds, and the smallest coin.

Networks count time in seconds or milliseconds; a column of time is the same everywhere. Bitcoin's
amounts come as numbers of bitcoins; columns hold satoshis, which are whole.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.decode.block_lines import LAST_MICROSECOND, TICKS, TIMESTAMP
from headwater.decode.malformed import Rows, refuse
from headwater.query import Field, Presence

SATOSHIS = 100_000_000
EXACT_DECIMAL = pa.decimal128(38, 18)
"""What prices and sizes become on request; a double has at most 17 digits of its own."""

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
        refuse(outside.to_numpy(zero_copy_only=False), f"{field.name} is no time", owners)
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
    values = [None if one is None else repr(one) for one in column.to_pylist()]
    try:
        return pa.array(values, pa.string()).cast(EXACT_DECIMAL)
    except pa.ArrowInvalid:
        bad = np.fromiter((not _fits(one) for one in values), bool, len(values))
        refuse(bad, f"{where} does not fit decimal(38, 18), but is asked for as one")
        raise


def _fits(text: str | None) -> bool:
    try:
        pa.array([text], pa.string()).cast(EXACT_DECIMAL)
    except pa.ArrowInvalid:
        return False
    return True
