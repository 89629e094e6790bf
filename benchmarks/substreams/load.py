"""From an endpoint's socket to committed rows of PostgreSQL, with CPU time split by step.

    python benchmarks/substreams/load.py [changes|relational] [blocks] [--executors]

A server in a process of its own sends messages of the fourth protocol version that it has rendered
beforehand, 100 blocks each, 100 rows a block. `substreams_stream` reads them and commits. CPU time
is that of this process by step; the database's and the endpoint's own are printed beside it.
`--profile` prints the functions that took longest instead, `--executors` lets Spark decode.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import grpc
from google.protobuf import message_factory

sys.path.insert(0, str(Path(__file__).parent))

from sample import MESSAGE, TABLE, change_outputs

from headwater.stream.substreams import substreams_stream
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.mapping import RelationalMapping
from headwater.substreams.messages import ModuleOutput
from headwater.substreams.relational import relational_target
from headwater.substreams.wire import CLASSES
from headwater.targets import history_target
from headwater.targets.sql.change_log import target as _change_log
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


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the CPU time of a function to a step; what a step inside takes is that one's."""

    def call(*args: Any, **given: Any) -> Any:
        begin, before = time.thread_time(), sum(SPENT.values())
        try:
            return function(*args, **given)
        finally:
            inside = sum(SPENT.values()) - before
            SPENT[name] += time.thread_time() - begin - inside

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
    before = time.process_time()
    told.send((port, sum(map(len, sent))))
    told.recv()
    told.send(time.process_time() - before)


# --- the stream -----------------------------------------------------------------------------------


def measure(kind: str, blocks: int, *, profiled: bool, executors: bool) -> None:
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
        target.commit = timed("load", target.commit)
        loop = timed("loop", lambda: stream.pipe_to(target, progress=False))
        profile = cProfile.Profile() if profiled else None
        begin, spent, database = time.perf_counter(), time.process_time(), server_seconds()
        if profile is not None:
            profile.runcall(loop)
        else:
            loop()
        seconds, spent = time.perf_counter() - begin, time.process_time() - spent
        database = server_seconds() - database
        ours.send("end")
        endpoint = ours.recv()
        (held,) = target.query("SELECT count(*) AS n FROM transfers")["n"].to_pylist()
        assert held == rows, "every row is there"
        target.close()
    million = rows / 1e6
    print(f"{kind}: {rows} rows of {size / rows:.0f} bytes in {seconds:.1f} s, "
          f"{rows / seconds / 1000:.0f} thousand rows/s")  # fmt: skip
    SPENT["receive"] = spent - sum(SPENT.values())  # gRPC's threads, and the one that parses
    for name in ("receive", "decode", "check", "fold", "load", "loop"):
        print(f"  {name:16}{SPENT[name] / million:6.2f} CPU-s per million rows")
    print(f"  {'this process':16}{spent / million:6.2f}")
    print(f"  {'PostgreSQL':16}{database / million:6.2f}")
    print(f"  {'endpoint':16}{endpoint / million:6.2f}")
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


class Timed:
    """A decoder whose time is counted."""

    def __init__(self, inner: Any) -> None:
        self.schemas, self.type_url = inner.schemas, inner.type_url
        self.decode = timed("decode", inner.decode)


def server_seconds() -> float:
    """Return the CPU time of all PostgreSQL processes that this one, or theirs, have started."""
    ticks, found = os.sysconf("SC_CLK_TCK"), 0.0
    parents: dict[int, int] = {}
    servers: dict[int, float] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = process.joinpath("stat").read_text().rpartition(")")
        except OSError:
            continue
        fields, number = rest.split(), int(process.name)
        parents[number] = int(fields[1])
        if "(postgres" in name:
            servers[number] = sum(map(int, fields[11:13])) / ticks
    for number, spent in servers.items():
        while number not in (0, 1, os.getpid()):
            number = parents.get(number, 0)
        found += spent if number == os.getpid() else 0.0
    return found


if __name__ == "__main__":
    given = [one for one in sys.argv[1:] if not one.startswith("--")]
    measure(
        given[0] if given else "changes",
        int(given[1]) if len(given) > 1 else 5000,
        profiled="--profile" in sys.argv,
        executors="--executors" in sys.argv,
    )
