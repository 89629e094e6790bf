"""The catalogue of fills on Hyperliquid, and `HyperliquidQuery`.

Times are milliseconds. Prices, sizes and fees are doubles on the portal's server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self, TypedDict, Unpack

from headwater.query.catalog import Entity, Field, Network, Presence, WireType, fields, header
from headwater.query.filters import Family
from headwater.query.query import Query
from headwater.query.values import Condition, ValueKind

_NUMBER, _HEX, _STRING = WireType.NUMBER, WireType.HEX, WireType.STRING
_FLOAT, _OPTIONAL = WireType.FLOAT, Presence.OPTIONAL

_BLOCK = (
    Field("number", _NUMBER),
    *fields("hash parentHash", _HEX),
    Field("timestamp", WireType.MILLISECONDS),
)

_FILL = (
    Field("fillIndex", _NUMBER),
    Field("user", _HEX),
    Field("coin", _STRING),
    *fields("px sz", _FLOAT),
    Field("side", _STRING),  # "A" ask, "B" bid
    Field("time", WireType.MILLISECONDS),
    Field("startPosition", _FLOAT),
    Field("dir", _STRING),
    Field("closedPnl", _FLOAT),
    Field("hash", _HEX),
    Field("oid", _NUMBER),
    Field("crossed", WireType.BOOL),
    Field("fee", _FLOAT),
    Field("builderFee", _FLOAT, _OPTIONAL),
    Field("tid", _NUMBER),
    Field("cloid", _HEX, _OPTIONAL),
    Field("feeToken", _STRING),
    Field("builder", _HEX, _OPTIONAL),
    Field("twapId", _NUMBER, _OPTIONAL),
)

_Users = Annotated[Iterable[str], Condition(ValueKind.HEX, width=20)]
_Texts = Annotated[Iterable[str], Condition(ValueKind.TEXT)]


class HyperliquidFills(TypedDict, total=False):
    """Keys of `add_fills`."""

    user: _Users
    coin: _Texts
    dir: _Texts
    cloid: Annotated[Iterable[str], Condition(ValueKind.HEX, width=16)]
    fee_token: _Texts
    builder: _Users


HYPERLIQUID = Network(
    "hyperliquidFills",
    (header(_BLOCK), Entity("fill", "fills", _FILL, key=("fillIndex",))),
    (Family.of("fills", "fill", HyperliquidFills),),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HyperliquidQuery(Query):
    """A query of the fills on Hyperliquid."""

    network: ClassVar[Network] = HYPERLIQUID

    def add_fills(self, **keys: Unpack[HyperliquidFills]) -> Self:
        """Add a filter on fills."""
        return self.add_filter("fills", **keys)
