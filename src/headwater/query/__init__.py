"""What to ask a portal: filters, fields, the union of outputs, the request and its hash.

Pure, standard library only. `EvmQuery`, `SolanaQuery` and their like are for people; `Query` is
what the rest of Headwater sees; `EVM`, `SOLANA` and their like are the catalogues that decoders
read.
"""

from headwater.query.bitcoin import BITCOIN, BitcoinQuery
from headwater.query.body import MAX_BODY_BYTES, MAX_FILTERS, check_limits, hash_document
from headwater.query.catalog import (
    Condition,
    Entity,
    Family,
    Field,
    Network,
    Presence,
    Relation,
    ValueKind,
    WireType,
)
from headwater.query.evm import EVM
from headwater.query.filters import Filter
from headwater.query.hyperliquid import HYPERLIQUID, HyperliquidQuery
from headwater.query.networks import NETWORKS, EvmQuery, SolanaQuery
from headwater.query.page import reference_page
from headwater.query.plan import merge_queries, plan_requests
from headwater.query.query import Query
from headwater.query.solana import SOLANA
from headwater.query.substrate import SUBSTRATE, SubstrateQuery
from headwater.query.tron import TRON, TronQuery

__all__ = [
    "BITCOIN",
    "EVM",
    "HYPERLIQUID",
    "MAX_BODY_BYTES",
    "MAX_FILTERS",
    "NETWORKS",
    "SOLANA",
    "SUBSTRATE",
    "TRON",
    "BitcoinQuery",
    "Condition",
    "Entity",
    "EvmQuery",
    "Family",
    "Field",
    "Filter",
    "HyperliquidQuery",
    "Network",
    "Presence",
    "Query",
    "Relation",
    "SolanaQuery",
    "SubstrateQuery",
    "TronQuery",
    "ValueKind",
    "WireType",
    "check_limits",
    "hash_document",
    "merge_queries",
    "plan_requests",
    "reference_page",
]
