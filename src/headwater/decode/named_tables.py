"""Raw tables by name, `"bitcoin.outputs"`, for those who have only text: Spark's options, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headwater.decode.table_forms import FORMS
from headwater.decode.tables import Fields, TableOutput, make_table
from headwater.errors import QueryError
from headwater.query import QUERIES


def named_table(
    name: str,
    *,
    fields: Fields = None,
    filters: Mapping[str, object] | None = None,
    range: object = None,
    decimals: Iterable[str] = (),
) -> TableOutput:
    """Return the raw table that the function of this name would: `tron.logs`, `evm.blocks`.

    Raises:
        QueryError: there is no such table, field or filter, or a value is of the wrong kind.
        ParameterError: `decimals` names a column that cannot be one.
        InvalidRangeError: the range cannot be understood.
    """
    network, _, table = name.partition(".")
    build = QUERIES.get(network)
    if build is None or table not in FORMS[build.network.type]:
        tables = (f"{one}.{name}" for one, query in QUERIES.items()
                  for name in FORMS[query.network.type])  # fmt: skip
        raise QueryError(f"there is no table {name!r}", valid=", ".join(tables))
    return make_table(build, table, fields, filters or {}, range, decimals)
