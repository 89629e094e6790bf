"""One spelling per value: the same key is the same text, however a module happens to write it.

`05` and `5` are one integer, `0xAB` and `0xab` the same bytes. Folding and history compare texts,
so they must not see two keys where the database sees one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.reduction import canonical
from headwater.errors import ChangeFormError, ChangeNumberError

_TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")
_ZONE = r"(Z|z|[+-]\d{2}(:?\d{2})?)$"


def one_spelling(values: pa.Array, kind: str, column: str) -> pa.Array:
    """Return values of a column of this type in one spelling; null stays null.

    Called by `check` for keys, and by targets for what they set.

    Raises:
        ChangeNumberError: a number is needed, and a value is none.
        ChangeFormError: a value is not of its type.
    """
    match kind:
        case "integer":
            numbers = canonical(values)
            _refuse(numbers, pc.match_substring(numbers, "."), ChangeNumberError, column, kind)
            return numbers
        case "decimal":
            return canonical(values)
        case "bytes":
            return _hexadecimal(values, column)
        case "boolean":
            lowered = pc.utf8_lower(values)
            true = pc.is_in(lowered, value_set=pa.array(_TRUE))
            known = pc.or_(true, pc.is_in(lowered, value_set=pa.array(_FALSE)))
            _refuse(values, pc.invert(known), ChangeFormError, column, kind)
            named = pc.if_else(true, "true", "false")
            return pc.if_else(pc.is_valid(values), named, pa.scalar(None, pa.string()))
        case "timestamp":
            bare = pc.invert(pc.match_substring_regex(values, _ZONE))
            utc = pc.binary_join_element_wise(values, "+00:00", "")
            return pc.if_else(bare, utc, values)
        case _:
            return values


def _hexadecimal(values: pa.Array, column: str) -> pa.Array:
    plain = pc.replace_substring_regex(pc.utf8_lower(values), r"^\\x", "0x")
    fine = pc.match_substring_regex(plain, "^0x([0-9a-f]{2})*$")
    _refuse(values, pc.invert(fine), ChangeFormError, column, "bytes")
    return plain


def _refuse(
    values: pa.Array,
    wrong: pa.Array,
    error: type[ChangeFormError] | type[ChangeNumberError],
    column: str,
    kind: str,
) -> None:
    wrong = pc.and_(pc.fill_null(wrong, False), pc.is_valid(values))
    if pc.any(wrong, min_count=0).as_py():
        got = values.filter(wrong)[0].as_py()
        raise error("a value is not of its type", column=column, type=kind, got=repr(got[:100]))
