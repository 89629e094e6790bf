"""PostgreSQL: COPY over one connection beside several, committed together by PREPARE TRANSACTION.

Rows are rendered beforehand, in PostgreSQL's binary form, so that only the server and the wire are
measured: a table as a backfill fills it, with a primary key. Each connection loads its share in a
transaction of its own; all are prepared, then all are committed. The server is durable, and on the
machine of its clients. CPU is that of the server's processes. Rounds alternate; medians are shown.

    python benchmarks/bench_postgres_connections.py [rows]
"""

from __future__ import annotations

import os
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import psycopg

from headwater.testing.servers.postgres import postgres_server

ROUNDS = 3
CONNECTIONS = (1, 2, 4)
PIECE = 1 << 20
SETTINGS = {
    "max_prepared_transactions": "8",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
}
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TABLE = """
DROP TABLE IF EXISTS transfers;
CREATE TABLE transfers (
    block_number bigint, log_index int, hash text, contract text, sender text, receiver text,
    value numeric(78, 0){key})
"""
KEY = ", PRIMARY KEY (block_number, log_index)"


def render(first: int, count: int) -> bytes:
    """Return rows as COPY takes them."""
    address = b"0x" + b"ab" * 20
    fields = [b"0x" + b"cd" * 32, address, address, address]
    texts = b"".join(struct.pack("!i", len(one)) + one for one in fields)
    value = struct.pack("!hhHh4h", 4, 3, 0, 0, 12, 3456, 7890, 1234)
    tail = texts + struct.pack("!i", len(value)) + value
    rows = (
        struct.pack("!hiqii", 7, 8, number // 200, 4, number % 200) + tail
        for number in range(first, first + count)
    )
    return HEADER + b"".join(rows) + struct.pack("!h", -1)


def load(dsn: str, body: bytes, name: str | None) -> None:
    """Load one share; with a name, prepare its transaction instead of committing it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        with connection.cursor().copy("COPY transfers FROM STDIN (FORMAT binary)") as copy:
            for at in range(0, len(body), PIECE):
                copy.write(body[at : at + PIECE])
        connection.execute(f"PREPARE TRANSACTION '{name}'" if name else "COMMIT")


def server_seconds(folder: str) -> float:
    """Return the CPU seconds of all processes that PostgreSQL runs, ended ones included."""
    postmaster = int(Path(folder, "postmaster.pid").read_text().split()[0])
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(stat.parent.name) == postmaster or int(fields[1]) == postmaster:
            total += sum(map(int, fields[11:13]))
        if int(stat.parent.name) == postmaster:
            total += sum(map(int, fields[13:15]))
    return total / os.sysconf("SC_CLK_TCK")


def measure(dsn: str, shares: list[bytes], key: str) -> tuple[float, float]:
    """Fill the table anew; return seconds and CPU seconds of the server."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(TABLE.format(key=key).encode())
        found = admin.execute("SHOW data_directory").fetchone()
        assert found is not None
        before, began = server_seconds(found[0]), time.perf_counter()
        if len(shares) == 1:
            load(dsn, shares[0], None)
        else:
            names = [f"part_{index}" for index in range(len(shares))]
            with ThreadPoolExecutor(len(shares)) as pool:
                list(pool.map(load, [dsn] * len(shares), shares, names))
            for name in names:
                admin.execute(f"COMMIT PREPARED '{name}'")
        return time.perf_counter() - began, server_seconds(found[0]) - before


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with postgres_server(settings=SETTINGS) as dsn:
        print(f"{rows:,} rows; {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the start")
        print("\n| table | connections | seconds | rows/s | of one | server CPU-s |")
        print("|---|--:|--:|--:|--:|--:|")
        for kind, key in (("no key", ""), ("primary key", KEY)):
            times: dict[int, list[tuple[float, float]]] = {count: [] for count in CONNECTIONS}
            for _ in range(ROUNDS):
                for count in CONNECTIONS:
                    share = rows // count
                    bodies = [render(index * share, share) for index in range(count)]
                    times[count].append(measure(dsn, bodies, key))
            one = median(seconds for seconds, _ in times[1])
            for count, found in times.items():
                seconds, cpu = (median(column) for column in zip(*found, strict=True))
                print(
                    f"| {kind} | {count} | {seconds:.1f} | {rows / seconds:,.0f} | "
                    f"{one / seconds:.2f} | {cpu:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
