"""Blockchain data in Apache Spark that stays correct when the chain reorganizes.

from headwater import evm, portal_stream
from headwater.targets import duckdb_target

stream = portal_stream(id="usdc", portal="https://…", outputs={"transfers": evm.events(…)})
stream.pipe_to(duckdb_target("chain.duckdb"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.core import BlockCursor, Flush, Head, find_rollback_index
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.decode import bitcoin, evm, hyperliquid, solana, substrate, tron
    from headwater.stream import create_target, pipe_to_iterator, portal_stream

__version__ = "0.1.0"

# Names whose modules are heavy (Arrow, Spark) and imported at their first use.
_LAZY = {
    "bitcoin": "headwater.decode",
    "create_target": "headwater.stream",
    "evm": "headwater.decode",
    "hyperliquid": "headwater.decode",
    "pipe_to_iterator": "headwater.stream",
    "portal_stream": "headwater.stream",
    "solana": "headwater.decode",
    "substrate": "headwater.decode",
    "tron": "headwater.decode",
}

__all__ = [
    "BlockCursor",
    "Flush",
    "Head",
    "HeadwaterError",
    "bitcoin",
    "create_target",
    "evm",
    "find_rollback_index",
    "hyperliquid",
    "pipe_to_iterator",
    "portal_stream",
    "solana",
    "substrate",
    "tron",
]


def __getattr__(name: str) -> Any:
    """Import a heavy module at the first use of one of its names."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
