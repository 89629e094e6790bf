"""A simulated Substreams endpoint over real gRPC, and modules and packages for it."""

from headwater.testing.substreams.endpoint import (
    EndpointServer,
    SessionSeen,
    SimEndpoint,
    simulated_endpoint,
)
from headwater.testing.substreams.faults import (
    EndsWith,
    FallsSilent,
    GrowsHuge,
    LowersFinality,
    ModuleFails,
    RepeatsBlocks,
    RepeatsUndo,
    SendsGarbage,
    SessionFault,
    SessionFaults,
    UndoesTo,
)
from headwater.testing.substreams.modules import DB_OUT, TRANSFERS, ModuleSpec, SimModule

__all__ = [
    "DB_OUT",
    "TRANSFERS",
    "EndpointServer",
    "EndsWith",
    "FallsSilent",
    "GrowsHuge",
    "LowersFinality",
    "ModuleFails",
    "ModuleSpec",
    "RepeatsBlocks",
    "RepeatsUndo",
    "SendsGarbage",
    "SessionFault",
    "SessionFaults",
    "SessionSeen",
    "SimEndpoint",
    "SimModule",
    "UndoesTo",
    "simulated_endpoint",
]
