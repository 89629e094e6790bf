"""Values at the ends of every type that all targets hold, which a transform adds to rows.

What a target cannot hold is for its own tests to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class End:
    """A column, its type, and the values that rows are given by turns; each may be null, too."""

    name: str
    type: pa.DataType
    values: tuple[Any, ...]

    def at(self, place: int) -> Any:
        """Return the value of a row."""
        which = place % (len(self.values) + 1)
        return self.values[which] if which < len(self.values) else None


ENDS = (
    End("whole", pa.int64(), (0, -1, 2**63 - 1, -(2**63), 2**53 + 1)),
    End("text", pa.string(),
        ("", " ", "'\"`\\;--", "line\nbreak\ttab\r", "\U0001f30a \u202e\u0301\ufffd", "x" * 9000)),
    End("flag", pa.bool_(), (True, False)),
    End("tiny", pa.int8(), (-128, 127)),
    End("small", pa.int32(), (-(2**31), 2**31 - 1)),
    End("counted", pa.uint64(), (0, 2**63, 2**64 - 1)),
    End("ratio", pa.float64(),
        (0.0, float("inf"), float("-inf"), float("nan"), 5e-324, -1.7976931348623157e308, 0.1)),
    End("fraction", pa.decimal128(38, 18),
        (Decimal("1e-18"), Decimal("99999999999999999999.999999999999999999"),
         Decimal("-99999999999999999999.999999999999999999"), Decimal(0))),
    End("day", pa.date32(), (date(1900, 1, 1), date(2299, 12, 31), date(1970, 1, 1))),
    End("moment", pa.timestamp("us", "UTC"),
        (_EPOCH.replace(year=1900, microsecond=1), _EPOCH - timedelta(microseconds=1),
         datetime(2299, 12, 31, 23, 59, 59, 999999, UTC))),
    End("raw", pa.binary(), (b"", b"\x00\xff\x80", b"'\"\\", bytes(9000))),
)  # fmt: skip
NAMES = tuple(one.name for one in ENDS)
_BY_NAME = {one.name: one for one in ENDS}


def ends_of(block: int, log: int) -> tuple[Any, ...]:
    """Return the values that a row is given, as `seen` spells them."""
    return tuple(seen(one.name, one.at(block * 31 + log * 7 + at)) for at, one in enumerate(ENDS))


def add_ends(rows: pa.Table) -> pa.Table:
    """Return rows with values at the ends of all types."""
    places = list(zip(rows["block_number"].to_pylist(), rows["log_index"].to_pylist(), strict=True))
    for at, one in enumerate(ENDS):
        values: Sequence[Any] = [one.at(block * 31 + log * 7 + at) for block, log in places]
        rows = rows.append_column(one.name, pa.array(values, one.type))
    return rows


def seen(name: str, value: Any) -> Any:
    """Return a value in a form in which equal ones are the same, whoever has read it."""
    kind = _BY_NAME[name].type
    if value is None:
        return "null"
    if pa.types.is_binary(kind):
        return bytes(value.encode() if isinstance(value, str) else value).hex()
    if pa.types.is_timestamp(kind):
        there = value if value.tzinfo else value.replace(tzinfo=UTC)
        return str((there - _EPOCH) // timedelta(microseconds=1))
    if pa.types.is_decimal(kind):
        return "{}/{}".format(*Decimal(value).as_integer_ratio())
    if pa.types.is_boolean(kind):
        return str(bool(value))
    return repr(float(value)) if pa.types.is_floating(kind) else str(value)
