"""Outputs of Hyperliquid: blocks and fills.

    hyperliquid.fills(coin=["BTC"], decimals=["px", "sz"], range="latest")

Prices, sizes and fees are doubles on the portal's server, and here unless `decimals` names them:
then they are the decimals that those doubles are written as. All of these are values: made on the
driver, pickled to executors, never changed; the same lines give the same rows again. The functions
raise `QueryError` if a field or filter is not known, or a value is of the wrong kind, and
`ParameterError` if `decimals` names a column that cannot be one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from headwater.core import Ranges
from headwater.decode.tables.raw_table import Fields, TableOutput, make_table
from headwater.query.networks.hyperliquid import HyperliquidFills, HyperliquidQuery

__all__ = ["TableOutput", "blocks", "fills"]


def blocks(*, fields: Fields = None, range: Ranges = None) -> TableOutput:
    """Return the table of all blocks. docs/schema.md lists the fields and their types."""
    return make_table(HyperliquidQuery, "blocks", fields, {}, range)


def fills(
    *,
    fields: Fields = None,
    range: Ranges = None,
    decimals: Iterable[str] = (),
    **filters: Unpack[HyperliquidFills],
) -> TableOutput:
    """Return the table of fills that match the filters of `HyperliquidQuery.add_fills`."""
    return make_table(HyperliquidQuery, "fills", fields, filters, range, decimals)
