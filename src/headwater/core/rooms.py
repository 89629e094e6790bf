"""The values that a column of each target can hold, and what becomes of others. Pure data.

Contracts emit any value. `Room` says the limits of one column, and each target's function gives the
room of a type by its name in SQL. `targets/values.py` carries it out on columns of rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

DAY_US = 86_400_000_000
SECOND_NS = 1_000_000_000
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
POSTGRES_KEY_BYTES = 2_400
"""Of all texts of a key together: an entry of an index has at most 2,704 bytes."""
DUCKDB_KEY_BYTES = 8_000  # of 8,192


class Policy(StrEnum):
    """The policy for values that a target cannot hold; each of them counts and tells them."""

    REPLACE = "replace"
    NULL = "null"
    SKIP = "skip"
    STOP = "stop"


class Form(StrEnum):
    """The form of the values in a column, and of text that is written to it."""

    ANY = "any"
    TEXT = "text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    BYTES = "bytes"
    UUID = "uuid"
    TIME = "time"
    DATE = "date"
    JSON = "json"
    OBJECT = "object"
    WORD = "word"


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of one column.

    `lowest` and `highest` are integers: of decimals without their point (`scale` digits follow
    it), of times in microseconds since 1970, of dates in days. `step` is how many nanoseconds lie
    between two times. `nul`: text may hold the character 0. `finite`: a float must be a number.
    `size` and `length` are the most bytes and characters of a text, `width` those of bytes of one
    length. `unique`: the column tells rows apart, so two values must not become one. `required`:
    it cannot be null, and where it `fills`, a text that is null becomes zero. Words are texts of a
    `pattern`, with the `zero` that stands for none. `inner` is the room of what lists, structures
    and maps contain; one without a form is the room of all parts, however deep: its ends are those
    of times, and `days` of dates.
    """

    form: Form = Form.ANY
    lowest: int | None = None
    highest: int | None = None
    scale: int = 0
    step: int = 1
    nul: bool = True
    finite: bool = False
    size: int | None = None
    length: int | None = None
    width: int | None = None
    unique: bool = False
    required: bool = False
    days: tuple[int, int] | None = None
    pattern: str = ""
    zero: str = ""
    fills: bool = False
    inner: Room | None = None


def integers(bits: int, *, signed: bool = True) -> Room:
    """Return the room of integers of so many bits."""
    top = 2 ** (bits - signed)
    return Room(Form.INTEGER, -top if signed else 0, top - 1)


def decimals(digits: int, scale: int) -> Room:
    """Return the room of decimals of so many digits."""
    return Room(Form.DECIMAL, 1 - 10**digits, 10**digits - 1, scale)


def parts(times: tuple[int, int], days: tuple[int, int], step: int = 1000) -> Room:
    """Return the room of what structures contain, by the ends of their times and dates."""
    return Room(Form.ANY, *times, step=step, days=days)


# --- PostgreSQL -----------------------------------------------------------------------------------

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999: Python's and Spark's ends
_PYTHON_TIMES = (_FIRST_DAY * DAY_US, (_LAST_DAY + 1) * DAY_US - 1)
_PYTHON_PARTS = parts(_PYTHON_TIMES, (_FIRST_DAY, _LAST_DAY))
_JSON_PARTS = replace(_PYTHON_PARTS, nul=False, finite=True)
_POSTGRES: dict[str, Room] = {
    "smallint": integers(16),
    "integer": integers(32),
    "bigint": integers(64),
    "numeric": decimals(1100, 100),
    "bytea": Room(Form.BYTES),
    "uuid": Room(Form.UUID),
    "text": Room(Form.TEXT, nul=False),
    "character varying": Room(Form.TEXT, nul=False),
    "character": Room(Form.TEXT, nul=False),
    "json": Room(Form.JSON, nul=False, inner=_JSON_PARTS),
    "jsonb": Room(Form.JSON, nul=False, inner=_JSON_PARTS),
    "timestamp with time zone": Room(Form.TIME, -210_866_803_200_000_000, _INT64, step=1000),
    "timestamp without time zone": Room(Form.TIME, -210_866_803_200_000_000, _INT64, step=1000),
    "date": Room(Form.DATE, -2_440_588, 2_145_042_905),  # 4713 BC to 5874897
}
_CHARACTERS = re.compile(r"character(?: varying)?\((\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),\s*(-?\d+)\)")


def postgres_room(kind: str, bare: str) -> Room:
    """Return the room of a PostgreSQL type; `bare` is its own spelling without precision."""
    if bare.endswith("[]"):
        return Room(inner=postgres_room(kind.removesuffix("[]"), bare.removesuffix("[]")))
    room = _POSTGRES.get(bare, Room(Form.TEXT, nul=False))
    if (limit := _CHARACTERS.fullmatch(kind)) is not None:
        return Room(Form.TEXT, nul=False, length=int(limit[1]))
    if (digits := _NUMERIC.fullmatch(kind)) is not None:
        return decimals(int(digits[1]), int(digits[2]))
    return room


# --- ClickHouse -----------------------------------------------------------------------------------

_BOOL = "^(?i:true|false|t|f|yes|no|y|n|on|off|enable|disable|enabled|disabled|1|0)$"
_BYTE, _GROUP = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])", "[0-9a-fA-F]{1,4}"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}", f"(?:{_GROUP}:){{6}}{_IPV4}"]
    + [f"(?:{_GROUP}:){{{n}}}(?::{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)]
    + [f"(?:{_GROUP}:){{1,7}}:", f":(?::{_GROUP}){{1,7}}", "::", f"::(?:[fF]{{4}}:)?{_IPV4}"]
)
_YEAR_1900, _YEAR_2300 = -25_567, 120_530  # days
_CLICKHOUSE: dict[str, Room] = {
    "Date": Room(Form.DATE, 0, 65_535),
    "Date32": Room(Form.DATE, _YEAR_1900, _YEAR_2300 - 1),
    "UUID": Room(Form.UUID),
    "Bool": Room(Form.WORD, pattern=_BOOL, zero="false"),
    "IPv4": Room(Form.WORD, pattern=f"^{_IPV4}$", zero="0.0.0.0"),
    "IPv6": Room(Form.WORD, pattern=f"^(?:{_IPV6}|{_IPV4})$", zero="::"),
}
_ENUM = re.compile(r"Enum(?:8|16)\(.*\)", re.DOTALL)
_ENUM_NAME = re.compile(r"'((?:[^'\\]|\\.)*)' = -?\d+", re.DOTALL)
_CLICKHOUSE_PARTS = replace(
    parts((_YEAR_1900 * DAY_US, _YEAR_2300 * DAY_US - 1), (_YEAR_1900, _YEAR_2300 - 1), step=1),
    required=True,
)
_CLICKHOUSE_NESTED = re.compile(r"(Nullable|LowCardinality|Array)\((.*)\)")
_CLICKHOUSE_TYPE = re.compile(
    r"(U?)Int(\d+)|Decimal\((\d+), ?(\d+)\)|DateTime64\((\d).*|DateTime(?:\(.*)?|"
    r"FixedString\((\d+)\)"
)


def clickhouse_room(kind: str) -> Room:
    """Return the room of a ClickHouse type."""
    required = True
    while (nested := _CLICKHOUSE_NESTED.fullmatch(kind)) is not None:
        if nested[1] == "Array":
            return Room(inner=clickhouse_room(nested[2]), required=True)
        required, kind = required and nested[1] != "Nullable", nested[2]
    if kind.startswith("Tuple("):
        return Room(inner=_CLICKHOUSE_PARTS, required=True)
    return replace(_clickhouse_room(kind), required=required, fills=required)


def _clickhouse_room(kind: str) -> Room:
    if kind.startswith("Map("):  # its parts have the types that the frame's have, as a tuple's do
        return Room(inner=_CLICKHOUSE_PARTS)
    if kind == "JSON" or kind.startswith("JSON("):
        return Room(Form.OBJECT, zero="{}")
    if _ENUM.fullmatch(kind):
        names = [re.sub(r"\\(.)", r"\1", name) for name in _ENUM_NAME.findall(kind)]
        any_of = "|".join(map(re.escape, names))
        return Room(Form.WORD, pattern=f"^(?:{any_of})$", zero=names[0])
    match = _CLICKHOUSE_TYPE.fullmatch(kind)
    if match is None:
        return _CLICKHOUSE.get(kind, Room())
    unsigned, bits, digits, scale, places, width = match.groups()
    if width:
        return Room(Form.BYTES, width=int(width))
    if bits:
        return integers(int(bits), signed=not unsigned)
    if digits:
        return decimals(int(digits), int(scale))
    if places is None:
        return Room(Form.TIME, 0, (2**32 - 1) * 1_000_000, step=SECOND_NS)
    step = 10 ** (9 - int(places))
    highest = min(_YEAR_2300 * DAY_US - 1, _INT64 * step // 1000)
    return Room(Form.TIME, _YEAR_1900 * DAY_US, highest, step=step)


# --- DuckDB ---------------------------------------------------------------------------------------

_DUCKDB_TIMES = (-_INT64 + 1, _INT64 - 1)  # the ends are the infinities
_DUCKDB_DAYS = (-_INT32 + 1, _INT32 - 1)
_DUCKDB: dict[str, Room] = {
    "BIGNUM": decimals(1000, 0),
    "UUID": Room(Form.UUID),
    "JSON": Room(Form.JSON),
    "DATE": Room(Form.DATE, *_DUCKDB_DAYS),
}
_DUCKDB |= {
    f"{'' if signed else 'U'}{name}": integers(bits, signed=signed)
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64),
                       ("HUGEINT", 128))
    for signed in (True, False)
}  # fmt: skip
_DUCKDB_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")


def duckdb_room(kind: str) -> Room:
    """Return the room of a DuckDB type."""
    if kind.endswith("[]"):
        return Room(inner=duckdb_room(kind.removesuffix("[]")))
    if kind.startswith(("STRUCT", "MAP")):
        return Room(inner=parts(_DUCKDB_TIMES, _DUCKDB_DAYS))
    if kind.startswith("TIMESTAMP"):
        return Room(Form.TIME, *_DUCKDB_TIMES, step=1000)
    digits = _DUCKDB_DECIMAL.fullmatch(kind)
    return _DUCKDB.get(kind, Room()) if digits is None else decimals(*map(int, digits.groups()))


# --- lakes: Iceberg, Delta, Parquet ---------------------------------------------------------------

_LAKE: dict[str, Room] = {
    "int32": integers(32),
    "int64": integers(64),
    "date32[day]": Room(Form.DATE, _FIRST_DAY, _LAST_DAY),
}
_LAKE_DECIMAL = re.compile(r"decimal\w*\((\d+), (\d+)\)")


def lake_room(kind: str) -> Room:
    """Return the room of a type in which lake tables keep values, as Arrow spells it."""
    if kind.startswith(("list", "struct")):
        return Room(inner=_PYTHON_PARTS)
    if kind.startswith("timestamp"):
        return Room(Form.TIME, _PYTHON_TIMES[0], _PYTHON_TIMES[1], step=1000)
    digits = _LAKE_DECIMAL.fullmatch(kind)
    return _LAKE.get(kind, Room()) if digits is None else decimals(*map(int, digits.groups()))
