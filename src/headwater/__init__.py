"""Blockchain data in Apache Spark that stays correct when the chain reorganizes.

    from headwater import duckdb_target, evm, portal_stream

    stream = portal_stream(id="usdc", portal="https://…", outputs={"transfers": evm.events(…)})
    stream.pipe_to(duckdb_target("chain.duckdb"))

All that most programs need is here; the rest is in `headwater.targets`, `headwater.effects`,
`headwater.errors` and `headwater.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.core import (
    BlockCursor,
    Flush,
    Head,
    RollbackHistory,
    SpanLimits,
    find_rollback_index,
)
from headwater.core.messages import (
    Buffered,
    Committed,
    Discarded,
    Event,
    Recovered,
    RolledBack,
    Settled,
    Waited,
)
from headwater.core.retry import RetryPolicy
from headwater.errors import (
    ConfigError,
    DecodeError,
    ForkError,
    HeadwaterError,
    PortalError,
    TargetError,
)
from headwater.logs import setup_logging

if TYPE_CHECKING:
    from headwater.decode import bitcoin, evm, hyperliquid, solana, substrate, tron
    from headwater.effects.kafka import kafka
    from headwater.effects.webhook import webhook
    from headwater.portal import PortalLimits, Timeouts
    from headwater.spark.numbers import (
        to_decimal,
        try_to_decimal,
        try_uint256_add,
        try_uint256_compare,
        try_uint256_sub,
        try_units,
        uint256_add,
        uint256_compare,
        uint256_sub,
        units,
    )
    from headwater.stream import (
        BatchContext,
        PortalStream,
        Progress,
        StopRequested,
        StreamBatch,
        StreamHandle,
        create_target,
        foreach_batch,
        pipe_to_iterator,
        portal_stream,
    )
    from headwater.stream.changelog_metrics import ChangelogMetrics
    from headwater.stream.substreams import SubstreamsStream, substreams_stream
    from headwater.stream.verification import verify
    from headwater.targets import (
        aggregate,
        clickhouse_target,
        delta_target,
        duckdb_target,
        history_target,
        iceberg_target,
        parquet_target,
        postgres_target,
        spark_table_target,
        table,
    )

__version__ = "0.2.0"

# Names whose modules are heavy (Arrow, HTTP, Spark, databases) and imported at their first use.
_LAZY = {
    "decode": ("bitcoin", "evm", "hyperliquid", "solana", "substrate", "tron"),
    "effects": ("kafka", "webhook"),
    "portal": ("PortalLimits", "Timeouts"),
    "spark.numbers": (
        "to_decimal", "try_to_decimal", "try_uint256_add", "try_uint256_compare",
        "try_uint256_sub", "try_units", "uint256_add", "uint256_compare", "uint256_sub", "units",
    ),
    "stream": (
        "BatchContext", "PortalStream", "Progress", "StopRequested", "StreamBatch", "StreamHandle",
        "create_target", "foreach_batch", "pipe_to_iterator", "portal_stream",
    ),
    "stream.changelog_metrics": ("ChangelogMetrics",),
    "stream.substreams": ("SubstreamsStream", "substreams_stream"),
    "stream.verification": ("verify",),
    "targets": (
        "aggregate", "clickhouse_target", "delta_target", "duckdb_target", "history_target",
        "iceberg_target", "parquet_target", "postgres_target", "spark_table_target",
        "table",
    ),
}  # fmt: skip
_HOMES = {name: home for home, names in _LAZY.items() for name in names}

__all__ = [
    "BatchContext",
    "BlockCursor",
    "Buffered",
    "ChangelogMetrics",
    "Committed",
    "ConfigError",
    "DecodeError",
    "Discarded",
    "Event",
    "Flush",
    "ForkError",
    "Head",
    "HeadwaterError",
    "PortalError",
    "PortalLimits",
    "PortalStream",
    "Progress",
    "Recovered",
    "RetryPolicy",
    "RollbackHistory",
    "RolledBack",
    "Settled",
    "SpanLimits",
    "StopRequested",
    "StreamBatch",
    "StreamHandle",
    "SubstreamsStream",
    "TargetError",
    "Timeouts",
    "Waited",
    "aggregate",
    "bitcoin",
    "clickhouse_target",
    "create_target",
    "delta_target",
    "duckdb_target",
    "evm",
    "find_rollback_index",
    "foreach_batch",
    "history_target",
    "hyperliquid",
    "iceberg_target",
    "kafka",
    "parquet_target",
    "pipe_to_iterator",
    "portal_stream",
    "postgres_target",
    "setup_logging",
    "solana",
    "spark_table_target",
    "substrate",
    "substreams_stream",
    "table",
    "to_decimal",
    "tron",
    "try_to_decimal",
    "try_uint256_add",
    "try_uint256_compare",
    "try_uint256_sub",
    "try_units",
    "uint256_add",
    "uint256_compare",
    "uint256_sub",
    "units",
    "verify",
    "webhook",
]


def __getattr__(name: str) -> Any:
    """Import a heavy module at the first use of one of its names."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
