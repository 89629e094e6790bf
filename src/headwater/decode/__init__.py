"""Block lines to Arrow columns, vectorised: events, calls, instructions and raw tables.

`evm`, `solana` and the modules of the other networks define outputs; `decode_outputs` turns the
lines of a batch into one table per output. Runs on the driver and on Spark executors; pure, so a
retry gives the same rows.
"""

from headwater.decode import evm, solana
from headwater.decode.evm.abi import Event, Function, parse_event, parse_function
from headwater.decode.evm.builtin_events import KNOWN_EVENTS
from headwater.decode.evm.calls import CallsOutput
from headwater.decode.evm.events import CreationsOutput, EventsOutput, creations_of
from headwater.decode.evm.factory import Children, ChildScope, Factory
from headwater.decode.lines.entities import Entities
from headwater.decode.lines.logs import LOG_SCHEMA, parse_logs
from headwater.decode.output import (
    Decoded,
    DecodedRows,
    Output,
    decode_blocks,
    decode_entities,
    decode_outputs,
    read_outputs,
)
from headwater.decode.solana.data_layout import load_idl
from headwater.decode.solana.instructions import InstructionsOutput
from headwater.decode.tables import bitcoin, hyperliquid, substrate, tron
from headwater.decode.tables.raw_table import TableOutput, named_table

__all__ = [
    "KNOWN_EVENTS",
    "LOG_SCHEMA",
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
    "InstructionsOutput",
    "Output",
    "TableOutput",
    "bitcoin",
    "creations_of",
    "decode_blocks",
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
