"""Block lines to Arrow columns, vectorised: events, calls, instructions and raw tables.

`evm`, `solana` and the modules of the other networks define outputs; `decode_outputs` turns the
lines of a batch into one table per output. Runs on the driver and on Spark executors; pure, so a
retry gives the same rows.
"""

from headwater.decode import bitcoin, evm, hyperliquid, solana, substrate, tron
from headwater.decode.abi import Event, Parameter, parse_event
from headwater.decode.abi_file import Abi
from headwater.decode.anchor_events import AnchorEventsOutput
from headwater.decode.calls import CallsOutput
from headwater.decode.children import Children
from headwater.decode.contracts import KNOWN_EVENTS
from headwater.decode.creations import CreationsOutput, creations_of
from headwater.decode.entities import Entities
from headwater.decode.events import EventsOutput
from headwater.decode.factory import ChildScope, Factory
from headwater.decode.functions import Function, parse_function
from headwater.decode.idl import Idl, load_idl
from headwater.decode.instructions import InstructionsOutput
from headwater.decode.logs import LOG_SCHEMA, parse_logs
from headwater.decode.named_tables import named_table
from headwater.decode.output import (
    Decoded,
    DecodedRows,
    Output,
    decode_entities,
    decode_outputs,
    read_outputs,
)
from headwater.decode.tables import TableOutput

__all__ = [
    "KNOWN_EVENTS",
    "LOG_SCHEMA",
    "Abi",
    "AnchorEventsOutput",
    "CallsOutput",
    "ChildScope",
    "Children",
    "CreationsOutput",
    "Decoded",
    "DecodedRows",
    "Entities",
    "Event",
    "EventsOutput",
    "Factory",
    "Function",
    "Idl",
    "InstructionsOutput",
    "Output",
    "Parameter",
    "TableOutput",
    "bitcoin",
    "creations_of",
    "decode_entities",
    "decode_outputs",
    "evm",
    "hyperliquid",
    "load_idl",
    "named_table",
    "parse_event",
    "parse_function",
    "parse_logs",
    "read_outputs",
    "solana",
    "substrate",
    "tron",
]
