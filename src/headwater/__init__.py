"""Blockchain data in Apache Spark that stays correct when the chain reorganizes."""

from headwater.core import BlockCursor, Head, find_rollback_index
from headwater.errors import HeadwaterError

__all__ = ["BlockCursor", "Head", "HeadwaterError", "find_rollback_index"]
__version__ = "0.1.0"
