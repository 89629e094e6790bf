"""ClickHouse: what backfill, undo and cancelled rows cost, beside the plain engine.

    .venv/bin/python benchmarks/bench_clickhouse.py [rows]

Everything runs on one server of its own, in one run: (a) a stream by the default path (one
output, fetched, decoded and inserted by Spark's tasks), beside the engine's own insert of the same
rows, decoded before, by wall clock and by the CPU time of all processes (what two cores would need
if nothing else ran); the engine takes its rows so fast that reading and decoding them are most of
the stream's time; (b) undo of 100 hot blocks of
2,000 rows each; (c) what rows of the sign -1 do to scans, before and after the engine has merged
them away; (d) a block of 200 rows at the head. Exit code 1 if a limit is broken.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from headwater import evm, portal_stream
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.spark import local_session
from headwater.targets import Delivery
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    ClickHouseTarget,
    clickhouse_target,
    table,
)
from headwater.testing.servers.clickhouse import ClickHouseServer
from template_portal import decoded, template_portal

BACKFILL_RATIO, UNDO_S = 0.2, 5.0
CONF = {"spark.master": "local[2]"}
LOGS = 100  # in a block of the backfill
ROUNDS = 8  # Java needs some to be warm
TRANSFERS = table("transfers", types={"value": "UInt256"})


def transfers(rows: int, first: int = 0, per_block: int = 200) -> pa.Table:
    """Return rows such as ERC-20 transfers: hashes, addresses, values of up to 27 digits."""
    dice = np.random.default_rng(7)
    pick = pa.array(dice.integers(0, 1000, rows))
    addresses = pa.array([f"0x{i:040x}" for i in dice.integers(0, 2**62, 1000).tolist()])
    hashes = pa.array([f"0x{i:064x}" for i in dice.integers(0, 2**62, 1000).tolist()])
    values = pa.array([str(i * 10**9) for i in dice.integers(0, 2**60, 1000).tolist()])
    index = np.arange(first, first + rows)
    return pa.table(
        {
            "block_number": pa.array(index // per_block + 1),
            "log_index": pa.array((index % per_block).astype(np.int32)),
            "transaction_hash": hashes.take(pick),
            "from": addresses.take(pick),
            "to": addresses.take(pa.array(dice.integers(0, 1000, rows))),
            "value": values.take(pick),
            "timestamp": pa.array(index * 10**6 + 1_700_000_000_000_000, pa.timestamp("us", "UTC")),
        }
    )


class Stream:
    """Commits blocks to a target, as the loop does."""

    def __init__(self, url: str, name: str) -> None:
        self.target: ClickHouseTarget = clickhouse_target(
            f"{url}/{name}", tables=[TRANSFERS], on_data=insert_all,
            settings=ClickHouseSettings(id=name),
        )  # fmt: skip
        self.state: PipeState = self.target.recover()

    def block(self, number: int, data: Any, final: int) -> float:
        head = Head(BlockCursor(final, f"h{final}"))
        header = BlockHeader(number, f"h{number}", f"h{number - 1}", number - 1, number)
        state = self.state.advance([header], head)
        began = time.perf_counter()
        batch = Batch((header,), head, state, (), Delivery(data))
        self.target.commit([batch], state)
        self.state = state
        return time.perf_counter() - began

    def fork(self, number: int) -> float:
        safe = next(one for one in self.state.landing_points() if one.number == number)
        state = self.state.rewind(safe)
        began = time.perf_counter()
        self.target.roll_back(state)
        self.state = state
        return time.perf_counter() - began

    def count(self, name: str = "transfers_live") -> int:
        found = self.target.query(f"SELECT count() AS n FROM {name}")  # noqa: S608 - our own
        return int(found["n"][0].as_py())


def insert_all(store: Any, data: Any) -> None:
    store.insert("transfers", data["transfers"])


def cpu() -> float:
    """Return the CPU seconds of this process and all that it started: JVM, workers, server."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid, seconds in used.items():
        at = pid
        while at in parents and at != os.getpid():
            at = parents[at]
        total += seconds if at == os.getpid() else 0.0
    return total


def backfill(server: ClickHouseServer, spark: SparkSession, count: int) -> bool:
    """Run a stream by the default path, beside inserts of rows that were decoded before."""
    blocks = count // LOGS
    best: dict[str, tuple[float, ...]] = dict.fromkeys(("Spark", "engine"), (1e9, 1e9))
    with template_portal(blocks + 50, LOGS) as portal:
        rows = decoded(portal, blocks)
        names = ", ".join(f"`{name}`" for name in rows.column_names)
        for turn in range(ROUNDS):
            database = f"backfill_{turn}"
            ClickHouseClient(server.url).run(f"CREATE DATABASE {database}")
            client = ClickHouseClient(f"{server.url}/{database}")
            target = clickhouse_target(
                f"{server.url}/{database}", tables=[table("transfers", types={"value": "UInt256"})]
            )
            stream = portal_stream(
                id="bench",
                portal=portal,
                outputs={"transfers": evm.events("erc20.Transfer", range=(0, blocks - 1))},
                spark=spark,
                first_span=blocks,
            )
            for name in best:
                began, used = time.perf_counter(), cpu()
                if name == "engine":
                    client.run("TRUNCATE TABLE transfers SYNC")
                    for start in range(0, len(rows), 500_000):
                        client.insert(f"transfers ({names})", rows.slice(start, 500_000), None)
                else:
                    stream.pipe_to(target)
                took = time.perf_counter() - began, cpu() - used
                best[name] = tuple(map(min, best[name], took))
                found = client.rows("SELECT count() AS n FROM transfers_live")
                assert found == [{"n": len(rows)}], found
            client.run(f"DROP DATABASE {database} SYNC", settings={"database": "default"})
    ratio = best["engine"][0] / best["Spark"][0]
    by_cpu = best["engine"][1] / (best["Spark"][1] / 2)
    print(f"(a) backfill of {len(rows):,} rows, 10 columns, UInt256 from text, best of {ROUNDS}")
    for name, (seconds, used) in best.items():
        print(f"    {name:8} {seconds:6.2f} s  {len(rows) / seconds:10,.0f} rows/s, "
              f"CPU {used:.2f} s")  # fmt: skip
    print(
        f"    Spark on 2 cores reaches {ratio:.0%} of the engine's own insert by the clock, "
        f"{by_cpu:.0%} by CPU time; limit {BACKFILL_RATIO:.0%} by the clock"
    )
    return ratio >= BACKFILL_RATIO


def undo(server: ClickHouseServer, blocks: int = 100, per_block: int = 2000) -> bool:
    stream = Stream(server.url, "undo")
    total = blocks * per_block
    rows = transfers(2 * total, per_block=per_block)
    stream.block(blocks, {"transfers": rows.slice(0, total)}, final=blocks)
    for number in range(blocks, 2 * blocks):
        hot = rows.slice(number * per_block, per_block)
        stream.block(number + 1, {"transfers": hot}, final=blocks)
    assert stream.count() == 2 * total
    used = cpu()
    took = stream.fork(blocks)
    used = cpu() - used
    assert stream.count() == total
    again = stream.fork(blocks)
    stream.target.close()
    print(f"(b) undo of {blocks} blocks x {per_block:,} rows: {1000 * took:.0f} ms, "
          f"{1000 * used:.0f} ms of CPU, {1e6 * took / total:.1f} us per row; "
          f"with nothing left to undo {1000 * again:.0f} ms; limit {UNDO_S:.0f} s")  # fmt: skip
    return took <= UNDO_S


def scans(server: ClickHouseServer, rows: pa.Table) -> None:
    """Sum a column of the live rows while more and more of the table is cancelled."""
    print(f"(c) sum(value) over {len(rows):,} live rows, ms, best of 5: plain table without FINAL, "
          "view of the live rows, and sum(value * sign)")  # fmt: skip
    last = rows["block_number"][-1].as_py()
    for share in (0, 10, 50):
        name = f"scan_{share}"
        stream = Stream(server.url, name)
        stream.block(last, {"transfers": rows}, final=last)
        client = ClickHouseClient(f"{server.url}/{name}")
        orphaned = len(rows) * share // 100
        if orphaned:
            lost = transfers(orphaned, first=last * 200)
            end = lost["block_number"][-1].as_py()
            stream.block(end, {"transfers": lost}, final=last)
            stream.fork(last)
        for merged in (False, True):
            if merged:
                client.run("OPTIMIZE TABLE transfers FINAL")
            plain, live, signed = (
                _best(client, sql)
                for sql in (
                    "SELECT sum(value) FROM transfers",
                    "SELECT sum(value) FROM transfers_live",
                    "SELECT sum(value * sign) FROM transfers",
                )
            )
            print(f"    {share:3} % orphaned, {'merged ' if merged else 'as written'}: "
                  f"{plain:6.1f} {live:6.1f} {signed:6.1f}")  # fmt: skip
        stream.target.close()


def _best(client: ClickHouseClient, sql: str) -> float:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        client.run(f"{sql} FORMAT Null")
        took.append(1000 * (time.perf_counter() - began))
    return min(took)


def at_the_head(server: ClickHouseServer, blocks: int = 200) -> None:
    stream = Stream(server.url, "head")
    took = [
        1000 * stream.block(number + 1, {"transfers": transfers(200, number * 200)}, final=0)
        for number in range(blocks)
    ]
    stream.target.close()
    warm = took[20:]
    print(f"(d) head: a block of 200 rows, then its cursor: p50 {median(warm):.1f} ms, "
          f"p95 {quantiles(warm, n=20)[18]:.1f} ms")  # fmt: skip


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    spark = local_session("bench", **CONF)
    server = ClickHouseServer()
    try:
        server.start()
        version = ClickHouseClient(server.url).rows("SELECT version() AS v")[0]["v"]
        print(f"ClickHouse {version} on this machine with the client, 2 cores")
        rows = transfers(count)
        kept = [backfill(server, spark, len(rows)), undo(server)]
        scans(server, rows.slice(0, count // 2))
        at_the_head(server)
        print(f"load average {os.getloadavg()[0]:.1f} at the end")
    finally:
        server.remove()
        spark.stop()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
