"""From wire messages to committed rows of PostgreSQL, with CPU time split by step.

    python benchmarks/substreams/load.py [changes|relational] [blocks]

Messages of the fourth protocol version, 100 blocks each, 100 rows a block, are read as the client
reads them; their outputs are decoded, checked, folded and committed, 1000 blocks a commit, by one
process. CPU time is of this process; the server's own is not in it. The network is left out.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf import message_factory

sys.path.insert(0, str(Path(__file__).parent))

from sample import TABLE, TYPES, change_outputs

from headwater.core import BlockCursor, BlockHeader, Blocks, Head, PipeState, batches
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.mapping import RelationalMapping
from headwater.substreams.messages import ModuleOutput, Outputs
from headwater.substreams.outputs import decoder_of
from headwater.substreams.relational import relational_target
from headwater.substreams.wire import CLASSES, V4, read_response
from headwater.targets import history_target
from headwater.targets.contract import Delivery, prepared
from headwater.testing.servers.postgres import postgres_server
from headwater.testing.substreams.modules import build_file, column_option, table_option

SPENT: dict[str, float] = defaultdict(float)
COMMIT = 1000  # blocks


@contextmanager
def step(name: str) -> Iterator[None]:
    """Add the CPU time of a block to a step."""
    begin = time.process_time()
    yield
    SPENT[name] += time.process_time() - begin


def messages(outputs: list[ModuleOutput]) -> list[bytes]:
    """Return what an endpoint would send."""
    made = []
    for first in range(0, len(outputs), 100):
        response = CLASSES["v4.Response"]()
        for one in outputs[first : first + 100]:
            item = response.block_scoped_datas.items.add(
                cursor=one.cursor, final_block_height=one.clock.number
            )
            item.clock.id, item.clock.number = one.clock.hash, one.clock.number
            item.clock.timestamp.seconds = one.clock.timestamp or 0
            item.output.map_output.type_url = one.type_url
            item.output.map_output.value = one.value
        made.append(response.SerializeToString())
    return made


def relational() -> tuple[RelationalMapping, Any]:
    """Return annotated transfers, the columns of which are those of the changes."""
    file = build_file(
        "bench.proto", "bench",
        {"Transfers": "*rows 1 .Transfer",
         "Transfer": "id 1 str, sender 2 str, receiver 3 str, value 4 str, block 5 u64, "
         "log_index 6 u32, token 7 str"},
        options={"Transfer": table_option("transfers"),
                 "Transfer.id": column_option(primary_key=True),
                 "Transfer.value": column_option("uint256")},
    )  # fmt: skip
    mapping = RelationalMapping(TypeSet([file]), "bench.Transfers")
    return mapping, message_factory.GetMessageClass(mapping.descriptor)


def relational_outputs(kind: Any, mapping: RelationalMapping, blocks: int) -> list[ModuleOutput]:
    """Return the same rows as messages of a type of their own."""
    random, found = Random(1), []
    for empty in change_outputs(blocks, rows=0):
        number, made = empty.clock.number, kind()
        for at in range(100):
            made.rows.add(
                id=f"0x{random.getrandbits(256):064x}-{at}",
                sender=f"0x{random.getrandbits(160):040x}",
                receiver=f"0x{random.getrandbits(160):040x}",
                value=str(random.getrandbits(70)),
                block=number,
                log_index=at,
                token=f"0x{random.getrandbits(160):040x}",
            )
        value = made.SerializeToString()
        found.append(ModuleOutput(empty.clock, empty.cursor, 0, mapping.type_url, value))
    return found


def main() -> None:
    """Print rows a second and the CPU seconds of a million rows, by step."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "changes"
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    with postgres_server() as address:
        if kind == "changes":
            decoder: Any = decoder_of(TYPES, "sf.substreams.sink.database.v1.DatabaseChanges",
                                      [TABLE])  # fmt: skip
            target: Any = history_target(address, tables=[TABLE])
            sent = messages(change_outputs(blocks))
        else:
            decoder, made = relational()
            target = relational_target(address, decoder)
            sent = messages(relational_outputs(made, decoder, blocks))
        target.bind("bench")
        state = target.recover()
        begin = time.perf_counter()
        state = load(sent, decoder, target, state)
        seconds = time.perf_counter() - begin
        target.close()
    rows = blocks * 100
    size = sum(map(len, sent)) / rows
    print(f"{kind}: {rows} rows of {size:.0f} bytes in {seconds:.1f} s, "
          f"{rows / seconds / 1000:.0f} thousand rows/s")  # fmt: skip
    for name, spent in SPENT.items():
        print(f"  {name:8}{spent / rows * 1e6:6.2f} CPU-s per million rows")
    print(f"  {'all':8}{sum(SPENT.values()) / rows * 1e6:6.2f}")


def load(sent: list[bytes], decoder: Any, target: Any, state: PipeState) -> PipeState:
    """Commit everything."""
    waiting: list[ModuleOutput] = []
    for at, raw in enumerate(sent):
        with step("receive"):
            said = read_response(V4, raw)
            assert isinstance(said, Outputs), "blocks were sent"
            waiting += said.items
        if len(waiting) < COMMIT and at + 1 < len(sent):
            continue
        with step("decode"):
            data = decoder.decode(waiting)
        last = waiting[-1].clock
        head = Head(BlockCursor(last.number, last.hash), BlockCursor(last.number, last.hash))
        headers = tuple(
            BlockHeader(one.clock.number, one.clock.hash, f"0x{one.clock.number - 1:064x}",
                        one.clock.number - 1, one.clock.timestamp or 0)
            for one in waiting
        )  # fmt: skip
        (batch,) = batches(state, Blocks(headers, tuple(b"" for _ in headers), head))
        with step("check"):
            ready = prepared(target, batch.with_data(Delivery(data)))
        with step("load"):
            target.commit([ready], batch.state)
        state, waiting = batch.state, []
    return state


if __name__ == "__main__":
    main()
