"""Figures of running streams: one registry, fed by the loop's events."""

from headwater.metrics.facts import BatchFacts, Counts
from headwater.metrics.instruments import REGISTRY, Instruments, instruments
from headwater.metrics.record import (
    Stage,
    Status,
    StreamRecord,
    announce,
    records,
)

__all__ = [
    "REGISTRY",
    "BatchFacts",
    "Counts",
    "Instruments",
    "Stage",
    "Status",
    "StreamRecord",
    "announce",
    "instruments",
    "records",
]
