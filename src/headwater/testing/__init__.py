"""A simulated chain behind a simulated portal: test your pipeline against forks before they happen.

    from headwater.testing import simulated_portal

    with simulated_portal(seed=7, blocks=1000) as portal:
        ...                     # point your stream at portal.url
        portal.fork(depth=3)    # three blocks are replaced; see what your tables do
        print(portal.ledger)    # what was asked and answered

`PortalSim` with `SimTransport` and `VirtualClock` does the same in memory, without a socket.
"""

from headwater.testing.chain.live import LiveChain
from headwater.testing.chain.tree import ChainSim, ContentSettings, ForkRecord, Network, SimBlock
from headwater.testing.fault_plan import CATALOGUE, Asked, FaultPlan, Rule, fault_from_json
from headwater.testing.faults import (
    Delay,
    DropAfter,
    DropBeforeHeaders,
    DuplicateBlock,
    EmptyAnswer,
    EmptySample,
    Fault,
    FinalityRegressed,
    ForeignBlock,
    GarbageLine,
    InvalidUtf8,
    MissingBlock,
    NewestFirst,
    NoHeadHeaders,
    NonBlockLine,
    NoPreviousBlocks,
    RetryAfter,
    SampleBelowFinality,
    SampleOfOne,
    ShuffledSample,
    StallAfter,
    StallBeforeHeaders,
    Status,
    SwappedBlocks,
    TornLine,
    WrongFinalityHash,
)
from headwater.testing.portal.answer import Break, Exchange, Ledger, SimAnswer
from headwater.testing.portal.dataset import PortalSim, SimResponse, SimTransport, VirtualClock
from headwater.testing.portal.node import NodeSim, Quirks
from headwater.testing.portal.replicas import Balance, Finality, Follow, Replica, ReplicaSet, View
from headwater.testing.portal.select import BadRequest, Selection
from headwater.testing.portal.server import PortalServer, live_portal, simulated_portal
from headwater.testing.portal.stream_plan import Behind, Surface

__all__ = [
    "CATALOGUE",
    "Asked",
    "BadRequest",
    "Balance",
    "Behind",
    "Break",
    "ChainSim",
    "ContentSettings",
    "Delay",
    "DropAfter",
    "DropBeforeHeaders",
    "DuplicateBlock",
    "EmptyAnswer",
    "EmptySample",
    "Exchange",
    "Fault",
    "FaultPlan",
    "Finality",
    "FinalityRegressed",
    "Follow",
    "ForeignBlock",
    "ForkRecord",
    "GarbageLine",
    "InvalidUtf8",
    "Ledger",
    "LiveChain",
    "MissingBlock",
    "Network",
    "NewestFirst",
    "NoHeadHeaders",
    "NoPreviousBlocks",
    "NodeSim",
    "NonBlockLine",
    "PortalServer",
    "PortalSim",
    "Quirks",
    "Replica",
    "ReplicaSet",
    "RetryAfter",
    "Rule",
    "SampleBelowFinality",
    "SampleOfOne",
    "Selection",
    "ShuffledSample",
    "SimAnswer",
    "SimBlock",
    "SimResponse",
    "SimTransport",
    "StallAfter",
    "StallBeforeHeaders",
    "Status",
    "Surface",
    "SwappedBlocks",
    "TornLine",
    "View",
    "VirtualClock",
    "WrongFinalityHash",
    "fault_from_json",
    "live_portal",
    "simulated_portal",
]
