"""Block lines to Arrow columns, vectorised, for the events of EVM contracts.

`evm.events` defines an output; `decode_outputs` turns the lines of a batch into one table per
output. Runs on the driver and on Spark executors; pure, so a retry gives the same rows.
"""

from headwater.decode import evm
from headwater.decode.abi import Event, Parameter, parse_event
from headwater.decode.contracts import KNOWN_EVENTS
from headwater.decode.evm import EventsOutput
from headwater.decode.logs import LOG_SCHEMA, parse_logs
from headwater.decode.output import Decoded, DecodedRows, Output, decode_outputs

__all__ = [
    "KNOWN_EVENTS",
    "LOG_SCHEMA",
    "Decoded",
    "DecodedRows",
    "Event",
    "EventsOutput",
    "Output",
    "Parameter",
    "decode_outputs",
    "evm",
    "parse_event",
    "parse_logs",
]
