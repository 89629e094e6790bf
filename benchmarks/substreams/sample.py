"""DatabaseChanges for measurements: 100 rows a block, about 320 bytes a row."""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any

from google.protobuf import message_factory

from headwater.changes import TableSchema
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.messages import Clock, ModuleOutput
from headwater.testing.substreams.modules import changes_file

MESSAGE = "sf.substreams.sink.database.v1.DatabaseChanges"
TYPES = TypeSet([changes_file()])
CLASS: Any = message_factory.GetMessageClass(TYPES.descriptor(MESSAGE))
TABLE = TableSchema(
    "transfers",
    ["id"],
    {
        "id": "text",
        "sender": "text",
        "receiver": "text",
        "value": "integer",
        "block": "integer",
        "log_index": "integer",
        "token": "text",
    },
)


def change_outputs(blocks: int, rows: int = 100, first: int = 1) -> list[ModuleOutput]:
    """Return blocks of inserts."""
    random = Random(1)
    return [
        ModuleOutput(
            Clock(number, sha256(number.to_bytes(8)).hexdigest(), 1_700_000_000 + number),
            f"c{number}",
            number,
            f"type.googleapis.com/{MESSAGE}",
            _changes(random, number, rows),
        )
        for number in range(first, first + blocks)
    ]


def _changes(random: Random, number: int, rows: int) -> bytes:
    made = CLASS()
    for at in range(rows):
        change = made.table_changes.add(
            table="transfers", pk=f"0x{random.getrandbits(256):064x}-{at}", ordinal=at, operation=1
        )
        for name, value in (
            ("sender", f"0x{random.getrandbits(160):040x}"),
            ("receiver", f"0x{random.getrandbits(160):040x}"),
            ("value", str(random.getrandbits(70))),
            ("block", str(number)),
            ("log_index", str(at)),
            ("token", f"0x{random.getrandbits(160):040x}"),
        ):
            change.fields.add(name=name, value=value, update_op=1)
    return bytes(made.SerializeToString())
