"""From an endpoint's socket to committed rows of PostgreSQL, with CPU time split by step.

    python benchmarks/substreams/load.py [changes|relational] [blocks] [--executors]

A server in a process of its own sends messages of the fourth protocol version that it has rendered
beforehand, 100 blocks each, 100 rows a block. `substreams_stream` reads them and commits. CPU time
is that of this process by step; the database's, Spark's and the endpoint's are printed beside it.
`--executors` lets Spark decode.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psycopg
from google.protobuf import message_factory

sys.path.insert(0, str(Path(__file__).parent))

from sample import MESSAGE, TABLE, change_outputs

from headwater.stream.substreams import substreams_stream
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.mapping import RelationalMapping
from headwater.substreams.messages import CLASSES, ModuleOutput
from headwater.substreams.relational import relational_target
from headwater.targets import history_target
from headwater.targets.sql import history as _change_log
from headwater.testing.servers.postgres import postgres_server
from headwater.testing.substreams import SimModule
from headwater.testing.substreams.modules import (
    build_file,
    changes_file,
    column_option,
    table_option,
)

change_log: Any = _change_log
SPENT: dict[str, float] = defaultdict(float)
FILE = build_file(
    "bench.proto", "bench",
    {"Transfers": "*rows 1 .Transfer",
     "Transfer": "id 1 str, sender 2 str, receiver 3 str, value 4 str, block 5 u64, "
     "log_index 6 u32, token 7 str"},
    options={"Transfer": table_option("transfers"),
             "Transfer.id": column_option(primary_key=True),
             "Transfer.value": column_option("uint256")},
)  # fmt: skip


INSIDE = threading.local()  # what the steps within the running one have taken, in this thread


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the CPU time of a function to a step; what a step inside takes is that one's.

    Steps run in two threads at once, so each thread keeps its own account.
    """

    def call(*args: Any, **given: Any) -> Any:
        outer, INSIDE.spent = getattr(INSIDE, "spent", 0.0), 0.0
        begin = time.thread_time()
        try:
            return function(*args, **given)
        finally:
            took = time.thread_time() - begin
            SPENT[name] += took - INSIDE.spent
            INSIDE.spent = outer + took

    return call


# --- the endpoint, in a process of its own --------------------------------------------------------


def relational_outputs(blocks: int) -> list[ModuleOutput]:
    """Return the rows of the changes as messages of a type of their own."""
    kind = message_factory.GetMessageClass(TypeSet([FILE]).descriptor("bench.Transfers"))
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
        value, url = made.SerializeToString(), "type.googleapis.com/bench.Transfers"
        found.append(ModuleOutput(empty.clock, empty.cursor, 0, url, value))
    return found


def messages(outputs: list[ModuleOutput]) -> list[bytes]:
    """Return what an endpoint sends."""
    session = CLASSES["v4.Response"]()
    session.session.trace_id = "bench"
    made = [session.SerializeToString()]
    for first in range(0, len(outputs), 100):
        response = CLASSES["v4.Response"]()
        for one in outputs[first : first + 100]:
            item = response.block_scoped_datas.items.add(
                cursor=one.cursor.ljust(250, "x"), final_block_height=one.clock.number
            )
            item.clock.id, item.clock.number = one.clock.hash, one.clock.number
            item.clock.timestamp.seconds = one.clock.timestamp or 0
            item.output.map_output.type_url = one.type_url
            item.output.map_output.value = one.value
        made.append(response.SerializeToString())
    return made


def serve(kind: str, blocks: int, told: Any) -> None:
    """Render the messages, say the port and their size, and send them to each session."""
    sent = messages(change_outputs(blocks) if kind == "changes" else relational_outputs(blocks))

    def session(request: bytes, context: Any) -> Iterator[bytes]:
        yield from sent

    handler = grpc.unary_stream_rpc_method_handler(session)
    server = grpc.server(ThreadPoolExecutor(2))
    service = "sf.substreams.rpc.v4.Stream"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"Blocks": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    told.send((port, sum(map(len, sent))))
    server.wait_for_termination()


# --- the stream -----------------------------------------------------------------------------------


def measure(kind: str, blocks: int, *, executors: bool) -> None:
    """Load everything, and print what it took."""
    rows = blocks * 100
    ours, theirs = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(kind, blocks, theirs), daemon=True)
    server.start()
    port, size = ours.recv()
    with postgres_server() as address:
        if kind == "changes":
            files, type_name, decoder = (changes_file(),), MESSAGE, None
            target: Any = history_target(address, tables=[TABLE])
        else:
            files, type_name = (FILE,), "bench.Transfers"
            decoder = RelationalMapping(TypeSet(files), type_name)
            target = relational_target(address, decoder)
        package = SimModule("out", type_name, lambda block: b"", files).package()
        spark = None
        if executors:
            from headwater.spark import local_session

            spark = local_session("bench")
        stream = substreams_stream(
            id="bench", endpoint=f"http://127.0.0.1:{port}", package=package, start=1,
            stop=blocks + 1, tables=[TABLE] if kind == "changes" else [], decoder=decoder,
            spark=spark, on_executors=executors,
        )  # fmt: skip
        if not executors:
            object.__setattr__(stream, "decoder", Timed(stream.decoder))
        change_log.check = timed("check", change_log.check)
        change_log.fold = timed("fold", change_log.fold)
        change_log.HistoryTarget._lay_out = timed("lay out", change_log.HistoryTarget._lay_out)
        target.commit = timed("load", target.commit)
        loop = timed("loop", lambda: stream.pipe_to(target, progress=False))
        parts = (os.getpid(), server_of(address), server.pid or 0)
        begin, before = time.perf_counter(), [tree_seconds(one) for one in parts]
        own = time.process_time()
        loop()
        seconds, own = time.perf_counter() - begin, time.process_time() - own
        whole, database, endpoint = (
            tree_seconds(one) - was for one, was in zip(parts, before, strict=True)
        )
        (held,) = target.query("SELECT count(*) AS n FROM transfers")["n"].to_pylist()
        assert held == rows, "every row is there"
        target.close()
    million = rows / 1e6
    print(f"{kind}: {rows} rows of {size / rows:.0f} bytes in {seconds:.1f} s, "
          f"{rows / seconds / 1000:.0f} thousand rows/s")  # fmt: skip
    SPENT["receive"] = own - sum(SPENT.values())  # gRPC's threads, and the one that parses
    SPENT["this process"] = own
    SPENT["Spark"] = whole - own - database - endpoint
    SPENT["PostgreSQL"], SPENT["endpoint"], SPENT["in all"] = database, endpoint, whole
    for name, spent in SPENT.items():
        print(f"  {name:16}{spent / million:6.2f} CPU-s per million rows")
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")


class Timed:
    """A decoder whose time is counted."""

    def __init__(self, inner: Any) -> None:
        self.schemas, self.type_url = inner.schemas, inner.type_url
        self.decode = timed("decode", inner.decode)


def tree_seconds(top: int) -> float:
    """Return the CPU time of a process and all below it, also of those that have ended."""
    times: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = process.joinpath("stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        times[int(process.name)] = sum(map(int, fields[11:15]))
        children[int(fields[1])].append(int(process.name))
    found, waiting = 0, [top]
    while waiting:
        number = waiting.pop()
        found += times.get(number, 0)
        waiting += children[number]
    return found / os.sysconf("SC_CLK_TCK")


def server_of(address: str) -> int:
    """Return the process of a PostgreSQL server."""
    with psycopg.connect(address) as connection:
        (folder,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    return int(Path(folder, "postmaster.pid").read_text().split()[0])


if __name__ == "__main__":
    given = [one for one in sys.argv[1:] if not one.startswith("--")]
    measure(
        given[0] if given else "changes",
        int(given[1]) if len(given) > 1 else 5000,
        executors="--executors" in sys.argv,
    )
