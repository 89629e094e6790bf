"""From wire bytes to Arrow: our reader beside protobuf's own parser and a walk over its messages.

    python benchmarks/substreams/decode.py [blocks]

CPU time of one core, best of five, all in one run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))

from sample import CLASS, TABLE, TYPES, change_outputs

from headwater.changes import CHANGES_SCHEMA, check, fold
from headwater.substreams.messages import ModuleOutput
from headwater.substreams.outputs import decoder_of

DECODER = decoder_of(TYPES, CLASS.DESCRIPTOR.full_name, [TABLE])
OPERATIONS = ("", "insert", "update", "delete", "upsert")
STEPS = ("set", "set", "add", "max", "min", "set_if_null")


def walk(outputs: Sequence[ModuleOutput]) -> pa.Table:
    """Parse with upb, and build the columns from its messages."""
    columns: dict[str, list[object]] = {name: [] for name in CHANGES_SCHEMA.names}
    for output in outputs:
        for ordinal, change in enumerate(CLASS.FromString(output.value).table_changes):
            columns["table"].append(change.table)
            columns["pk"].append([("", change.pk)])
            columns["operation"].append(OPERATIONS[change.operation])
            columns["fields"].append(
                [(one.name, one.value, STEPS[one.update_op]) for one in change.fields]
            )
            columns["ordinal"].append(ordinal)
            columns["block_number"].append(output.clock.number)
    return pa.table(columns, schema=CHANGES_SCHEMA)


def main() -> None:
    """Print thousand rows a second of each way."""
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    outputs = change_outputs(blocks)
    rows = blocks * 100
    decoded = DECODER.decode(outputs)["changes"]
    if not walk(outputs).equals(decoded):
        raise SystemExit("the two ways disagree")
    checked = check(decoded, [TABLE])
    size = sum(len(one.value) for one in outputs) / rows
    print(f"{rows} changes of {size:.0f} bytes")
    ways: dict[str, Callable[[], object]] = {
        "upb alone": lambda: [CLASS.FromString(one.value) for one in outputs],
        "upb and a walk to Arrow": lambda: walk(outputs),
        "own reader to Arrow": lambda: DECODER.decode(outputs),
        "check": lambda: check(decoded, [TABLE]),
        "fold": lambda: fold(checked, finalized=10**9),
    }
    for name, way in ways.items():
        best = float("inf")
        for _ in range(5):
            begin = time.process_time()
            way()
            best = min(best, time.process_time() - begin)
        print(f"{name:26}{rows / best / 1000:8.0f} thousand rows/s")


if __name__ == "__main__":
    main()
