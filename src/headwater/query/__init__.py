"""Queries of a portal: filters, fields, the union of outputs, the request and its hash.

Pure, standard library only. `EvmQuery`, `SolanaQuery` and their like are for people; `Query` is
what the rest of Headwater sees; `EVM`, `SOLANA` and their like are the catalogues that decoders
read.
"""

from collections.abc import Mapping

from headwater.query.catalog import Entity, Field, Network, Presence, WireType
from headwater.query.filters import Family, Filter, Relation
from headwater.query.networks.bitcoin import BITCOIN, BitcoinQuery
from headwater.query.networks.evm import EVM, EvmQuery
from headwater.query.networks.hyperliquid import HYPERLIQUID, HyperliquidQuery
from headwater.query.networks.solana import SOLANA, SolanaQuery
from headwater.query.networks.substrate import SUBSTRATE, SubstrateQuery
from headwater.query.networks.tron import TRON, TronQuery
from headwater.query.query import (
    MAX_BODY_BYTES,
    MAX_FILTERS,
    Query,
    check_limits,
    hash_document,
    merge_queries,
    merge_requests,
    plan_requests,
)
from headwater.query.values import Condition, ValueKind

__all__ = [
    "BITCOIN",
    "EVM",
    "HYPERLIQUID",
    "MAX_BODY_BYTES",
    "MAX_FILTERS",
    "NETWORKS",
    "QUERIES",
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
    "merge_requests",
    "plan_requests",
]

QUERIES: Mapping[str, type[Query]] = {
    "evm": EvmQuery,
    "solana": SolanaQuery,
    "bitcoin": BitcoinQuery,
    "tron": TronQuery,
    "hyperliquid": HyperliquidQuery,
    "substrate": SubstrateQuery,
}
"""The builder of every network, by the name of the module whose functions make its tables."""

NETWORKS = tuple(query.network for query in QUERIES.values())
"""Every type of network that a portal serves and Headwater knows."""
