"""What to ask a portal: filters, fields, the union of outputs, the request and its hash.

Pure, standard library only. `EvmQuery` and `SolanaQuery` are for people; `Query` is what the rest
of Headwater sees; `EVM` and `SOLANA` are the catalogues that decoders and the simulator read.
"""

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
from headwater.query.networks import EvmQuery, SolanaQuery
from headwater.query.page import reference_page
from headwater.query.plan import merge_queries, plan_requests
from headwater.query.query import Query
from headwater.query.solana import SOLANA

__all__ = [
    "EVM",
    "MAX_BODY_BYTES",
    "MAX_FILTERS",
    "SOLANA",
    "Condition",
    "Entity",
    "EvmQuery",
    "Family",
    "Field",
    "Filter",
    "Network",
    "Presence",
    "Query",
    "Relation",
    "SolanaQuery",
    "ValueKind",
    "WireType",
    "check_limits",
    "hash_document",
    "merge_queries",
    "plan_requests",
    "reference_page",
]
