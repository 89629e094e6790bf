"""PostgreSQL: what backfill, undo capture, rollback and the head cost, beside the plain engine.

    .venv/bin/python benchmarks/bench_postgres.py [rows]

Everything runs on one server of its own, durable (fsync, synchronous commit), in one run:
(a) a stream by the default path, one output, fetched, decoded and written by Spark's tasks, beside
COPY of the same rows from an Arrow table into the same table, encoded on the way and before; (b)
rollback of 100 hot blocks, with 200 rows each and with more; (c) database CPU of undo capture,
beside row-level triggers of the form that the Pipes SDK has; (d) a block of 200 rows at the head.
Exit code 1 if a limit is broken.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession

from headwater import evm, portal_stream
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.spark import local_session
from headwater.targets import Delivery
from headwater.targets.postgres import PostgresSettings, PostgresTarget, postgres_target, table
from headwater.targets.postgres.dialect import TableName, postgres_address, read_layout
from headwater.targets.postgres.encode import HEADER, TRAILER
from headwater.targets.postgres.session import Session
from headwater.targets.postgres.transfer import plan_transfer
from headwater.testing.servers.postgres import postgres_server
from template_portal import decoded, template_portal

BACKFILL_RATIO, ROLLBACK_MS, LINEAR, CAPTURE_RATIO = 0.5, 300.0, 2.0, 3.0
CONF = {"spark.master": "local[2]"}
LOGS = 100  # in a block of the backfill
DURABLE = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
    "shared_buffers": "1GB", "max_wal_size": "4GB", "autovacuum": "off",
}  # fmt: skip
COLUMNS = ["block_number", "log_index", "transaction_hash", "from", "to", "value", "timestamp"]
TYPES = {"value": "numeric(78,0)"}


def transfers(rows: int, first: int = 0) -> pa.Table:
    """Return rows such as ERC-20 transfers: hashes, addresses, values of up to 27 digits."""
    dice = np.random.default_rng(7)
    pick = pa.array(dice.integers(0, 1000, rows))
    addresses = pa.array([f"0x{i:040x}" for i in dice.integers(0, 2**62, 1000).tolist()])
    hashes = pa.array([f"0x{i:064x}" for i in dice.integers(0, 2**62, 1000).tolist()])
    values = pa.array([str(i * 10**9) for i in dice.integers(0, 2**60, 1000).tolist()])
    index = np.arange(first, first + rows)
    return pa.table(
        {
            "block_number": pa.array(index // 200),
            "log_index": pa.array((index % 200).astype(np.int32)),
            "transaction_hash": hashes.take(pick),
            "from": addresses.take(pick),
            "to": pc_reversed(addresses).take(pick),
            "value": values.take(pick),
            "timestamp": pa.array(index * 10**6 + 1_700_000_000_000_000, pa.timestamp("us", "UTC")),
        }
    )


def pc_reversed(values: pa.Array) -> pa.Array:
    return values.take(pa.array(np.arange(len(values))[::-1]))


class Stream:
    """Commits blocks to a target, as the loop does."""

    def __init__(self, target: PostgresTarget) -> None:
        self.target = target
        self.state: PipeState = target.recover()

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


def encoded(dsn: str, rows: pa.Table) -> Iterator[bytes | memoryview]:
    """Yield the rows as binary COPY takes them."""
    session = Session(postgres_address(dsn), None, 0, "read committed")
    session.connect()
    layout = read_layout(session, TableName.parse("transfers"))
    session.close()
    transfer = plan_transfer(rows.schema, layout)
    yield HEADER
    yield from transfer.encode(rows.schema, rows.to_batches())
    yield TRAILER


def backfill(dsn: str, spark: SparkSession, count: int) -> bool:
    """Run a stream by the default path, beside COPY of rows that were decoded before."""
    blocks = count // LOGS
    best = dict.fromkeys(("COPY", "COPY, encoded before", "Spark"), 1e9)
    with template_portal(blocks + 50, LOGS) as portal:
        rows = decoded(portal, blocks)
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        for _ in range(5):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            target = postgres_target(
                dsn, tables=[table("transfers", append_only=True, types=TYPES)]
            )
            stream = portal_stream(
                id="bench",
                portal=portal,
                outputs={"transfers": evm.events("erc20.Transfer", range=(0, blocks - 1))},
                spark=spark,
                first_span=blocks,
            )
            began = time.perf_counter()
            stream.pipe_to(target)
            best["Spark"] = min(best["Spark"], time.perf_counter() - began)
            with psycopg.connect(dsn, autocommit=True) as connection:
                found = connection.execute("SELECT count(*) FROM transfers").fetchone()
                assert found == (len(rows),)
                for name, chunks in (
                    ("COPY", encoded(dsn, rows)),
                    ("COPY, encoded before", iter(list(encoded(dsn, rows)))),
                ):
                    connection.execute("TRUNCATE transfers; CHECKPOINT")
                    began = time.perf_counter()
                    with connection.cursor().copy(
                        f"COPY transfers ({names}) FROM STDIN (FORMAT binary)".encode()
                    ) as copy:
                        for chunk in chunks:
                            copy.write(chunk)
                    best[name] = min(best[name], time.perf_counter() - began)
    ratio = best["COPY"] / best["Spark"]
    print(f"(a) backfill of {len(rows):,} rows, 10 columns, index on the block number, best of 5")
    for name, seconds in best.items():
        print(f"    {name:20} {seconds:6.2f} s  {len(rows) / seconds:10,.0f} rows/s")
    print(f"    Spark reaches {ratio:.0%} of COPY; limit {BACKFILL_RATIO:.0%}")
    return ratio >= BACKFILL_RATIO


def rollback(dsn: str) -> bool:
    """Undo 100 blocks; half of their rows replace final ones, half are new."""
    print("(b) rollback of 100 hot blocks, half updates, half inserts")
    per_row: list[float] = []
    first_ms = 0.0
    for rows in (200, 1_000, 10_000):
        name = f"keyed_{rows}"
        target = postgres_target(
            dsn,
            tables=[table(name, key=["block_number", "log_index"], types=TYPES)],
            on_data=lambda tx, data: tx.upsert(data["name"], data["rows"]),
            settings=PostgresSettings(id=name),
        )
        stream = Stream(target)
        total = 100 * rows
        data = transfers(total)
        stream.block(1, {"name": name, "rows": data.slice(0, total // 2)}, final=1)
        order = np.random.default_rng(1).permutation(total)
        for number in range(2, 102):
            part = order[(number - 2) * rows : (number - 1) * rows]
            taken = data.take(pa.array(np.sort(part)))
            stream.block(number, {"name": name, "rows": taken}, final=1)
        before = f"SELECT count(*) AS n FROM {name}"  # noqa: S608 - a name of our own
        assert target.query(before)["n"].to_pylist() == [total]
        took = stream.fork(1)
        assert target.query(before)["n"].to_pylist() == [total // 2]
        target.close()
        per_row.append(1e6 * took / total)
        first_ms = first_ms or 1000 * took
        print(f"    {total:9,} rows {1000 * took:9.0f} ms  {per_row[-1]:6.2f} us per row")
    growth = per_row[-1] / per_row[0]
    print(f"    limits {ROLLBACK_MS:.0f} ms for 20,000 rows; per row at most {LINEAR:.0f}x of that")
    return first_ms < ROLLBACK_MS and growth <= LINEAR


ROW_TRIGGER = """
CREATE FUNCTION maybe_snapshot_t() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('sqd.snapshot_enabled', true), 'false')::boolean THEN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO t__snapshots VALUES (NEW.*, TG_OP,
                current_setting('sqd.snapshot_block_number')::bigint)
            ON CONFLICT (___sqd__block_number, block_number, log_index) DO NOTHING;
        ELSE
            INSERT INTO t__snapshots VALUES (OLD.*, TG_OP,
                current_setting('sqd.snapshot_block_number')::bigint)
            ON CONFLICT (___sqd__block_number, block_number, log_index) DO NOTHING;
        END IF;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER t_snapshot_trigger AFTER INSERT OR UPDATE OR DELETE ON t
FOR EACH ROW EXECUTE FUNCTION maybe_snapshot_t();
"""


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def capture(dsn: str, rows: int = 100_000) -> bool:
    """Measure the server's CPU for the same statements with no, row-level and our capture."""
    data = transfers(rows)
    best: dict[str, dict[str, float]] = {}
    for _ in range(3):
        for form in ("none", "row", "headwater"):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            target = postgres_target(
                dsn,
                tables=[table("t", key=["block_number", "log_index"], types=TYPES)],
                on_data=lambda tx, data: tx.insert("t", data["rows"]),
            )
            Stream(target).block(0, {"rows": data.slice(0, 1)}, final=9)
            target.close()
            for kind, seconds in _statements(dsn, form, data).items():
                held = best.setdefault(form, {})
                held[kind] = min(held.get(kind, 1e9), seconds)
    print(f"(c) database CPU of undo capture, {rows:,} rows, seconds, best of 3")
    ratios = {}
    for kind in best["none"]:
        none, row, ours = (best[form][kind] for form in ("none", "row", "headwater"))
        ratios[kind] = (row - none) / max(ours - none, 0.005)
        print(f"    {kind:7} none {none:.2f}, row-level {row:.2f}, headwater {ours:.2f}: "
              f"capture {ratios[kind]:.1f}x cheaper")  # fmt: skip
    total = sum(best["row"].values()) - sum(best["none"].values())
    ours = sum(best["headwater"].values()) - sum(best["none"].values())
    print(f"    together {total / ours:.1f}x cheaper; limit {CAPTURE_RATIO:.0f}x")
    return total / ours >= CAPTURE_RATIO


def _statements(dsn: str, form: str, data: pa.Table) -> dict[str, float]:
    took: dict[str, float] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        if form != "headwater":
            for event in ("insert", "update", "delete", "start", "key", "truncate"):
                connection.execute(f"DROP TRIGGER sqd_snapshot_{event} ON t".encode())
        if form == "row":
            connection.execute(
                "ALTER TABLE t__snapshots DROP COLUMN ___sqd__id, DROP COLUMN ___sqd__nested"
            )
            connection.execute(ROW_TRIGGER)
        connection.execute("TRUNCATE t; CHECKPOINT")
        connection.execute("SET sqd.snapshot_enabled = 'true'; SET sqd.snapshot_id = 'bench'")
        session = Session(postgres_address(dsn), None, 0, "read committed")
        session.connect()
        layout = read_layout(session, TableName.parse("t"))
        session.close()
        made = plan_transfer(data.schema, layout).encode(data.schema, data.to_batches())
        chunks: list[bytes | memoryview] = [HEADER, *made, TRAILER]
        for block, kind in enumerate(("COPY", "UPDATE", "DELETE"), 2):
            connection.execute(f"SET sqd.snapshot_block_number = '{block}'".encode())
            began = cpu(connection.info.backend_pid)
            if kind == "COPY":
                with connection.cursor().copy("COPY t FROM STDIN (FORMAT binary)") as copy:
                    for chunk in chunks:
                        copy.write(chunk)
            else:
                connection.execute("UPDATE t SET value = value + 1" if kind == "UPDATE"
                                   else "DELETE FROM t")  # fmt: skip
            took[kind] = cpu(connection.info.backend_pid) - began
    return took


def at_the_head(dsn: str, blocks: int = 300) -> None:
    target = postgres_target(
        dsn,
        tables=[table("log", append_only=True, types=TYPES), table("seen", key=["from"])],
        on_data=lambda tx, data: (
            tx.insert("log", data["rows"]),
            tx.upsert("seen", data["senders"]),
        ),
        settings=PostgresSettings(id="head"),
    )
    stream = Stream(target)
    took = []
    for number in range(blocks):
        rows = transfers(200, first=number * 200)
        senders = rows.group_by("from").aggregate([("block_number", "max")])
        took.append(1000 * stream.block(number, {"rows": rows, "senders": senders}, final=0))
    target.close()
    warm = took[20:]
    p95 = quantiles(warm, n=20)[18]
    print(f"(d) head: a block of 200 rows, append-only and upsert, in one durable transaction: "
          f"p50 {median(warm):.1f} ms, p95 {p95:.1f} ms")  # fmt: skip


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    spark = local_session("bench", **CONF)
    with postgres_server(settings=DURABLE) as dsn:
        with psycopg.connect(dsn) as connection:
            version = connection.info.server_version // 10000
        print(f"PostgreSQL {version}, durable, on this machine with the client, 2 cores")
        kept = [backfill(dsn, spark, rows), rollback(dsn), capture(dsn)]
        at_the_head(dsn)
    spark.stop()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
