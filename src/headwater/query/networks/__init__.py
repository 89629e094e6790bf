"""All networks that a portal serves and Headwater knows: one module each.

A network is a catalogue, and a builder with a method per family; Bitcoin's is a short one to begin
from. Here it enters `QUERIES`, in `decode/tables` its raw tables. The keys of filters are typed
dictionaries, which type checkers and editors read; their annotations are the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.query.networks.bitcoin import BitcoinQuery
from headwater.query.networks.evm import EvmQuery
from headwater.query.networks.hyperliquid import HyperliquidQuery
from headwater.query.networks.solana import SolanaQuery
from headwater.query.networks.substrate import SubstrateQuery
from headwater.query.networks.tron import TronQuery
from headwater.query.query import Query

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
