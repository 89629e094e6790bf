"""What stays hand-made against the library that could replace it, in one run, by CPU time.

    python benchmarks/compare_clients.py          # docs/decisions/0014

COPY: Arrow columns by our encoder against psycopg's own writer of rows, binary and text, into the
same table. ClickHouse: an insert of Arrow and its reading back, by our client and by
clickhouse-connect, if that is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import psycopg
import pyarrow as pa

from headwater.targets.clickhouse import ClickHouseClient
from headwater.targets.postgres.encode import HEADER, TRAILER, encode, encoder
from headwater.testing.servers import clickhouse_server, postgres_server

ROWS = 100_000
TIMES = 3
READ = f"SELECT * FROM t LIMIT {ROWS}"  # noqa: S608 - a constant
TYPES = {"number": "bigint", "position": "integer", "address": "text", "hash": "text"}
TYPES["value"] = "numeric"


def rows() -> pa.Table:
    return pa.table(
        {
            "number": pa.array(range(ROWS), pa.int64()),
            "position": pa.array([one % 400 for one in range(ROWS)], pa.int32()),
            "address": [f"0x{one % 997:040x}" for one in range(ROWS)],
            "hash": [f"0x{one:064x}" for one in range(ROWS)],
            "value": [str(10**18 * one + 7) for one in range(ROWS)],
        }
    )


def best(what: str, work: Callable[[], object]) -> None:
    seconds = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    print(f"{what:42} {ROWS / min(seconds):12,.0f} rows per second of CPU")


def compare_copy(dsn: str, table: pa.Table) -> None:
    made = [encoder(table.schema.field(name).type, kind) for name, kind in TYPES.items()]
    encoders = [one for one in made if one is not None]
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())

    def ours() -> Iterator[bytes | memoryview]:
        yield HEADER
        yield from encode(table.to_batches(), encoders)
        yield TRAILER

    with psycopg.connect(dsn, autocommit=True) as connection:

        def fresh() -> None:
            connection.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t ({columns})".encode())

        def by_columns() -> None:
            fresh()
            with connection.cursor().copy("COPY t FROM STDIN (FORMAT binary)") as copy:
                for piece in ours():
                    copy.write(piece)

        def by_rows(form: str) -> None:
            fresh()
            with connection.cursor().copy(f"COPY t FROM STDIN {form}".encode()) as copy:
                if form:
                    copy.set_types(list(TYPES.values()))
                for *plain, value in zip(*(one.to_pylist() for one in table.columns), strict=True):
                    copy.write_row((*plain, Decimal(value) if form else value))

        best("COPY, our encoder of columns", by_columns)
        best("COPY, psycopg's write_row, binary", lambda: by_rows("(FORMAT binary)"))
        best("COPY, psycopg's write_row, text", lambda: by_rows(""))


def compare_clickhouse(url: str, table: pa.Table) -> None:
    client = ClickHouseClient(url)
    client.run(
        "CREATE TABLE t (number Int64, position Int32, address String, hash String, value String) "
        "ENGINE = MergeTree ORDER BY number"
    )
    best("ClickHouse, our insert of Arrow", lambda: client.insert("t", table, None))
    best("ClickHouse, our query to Arrow", lambda: client.query(READ))
    if find_spec("clickhouse_connect") is None:
        print("clickhouse-connect is not installed: pip install clickhouse-connect")
        return
    connect: Any = __import__("clickhouse_connect")
    port = int(url.rsplit(":", 1)[1])
    other = connect.get_client(host="127.0.0.1", port=port)
    best("clickhouse-connect, insert_arrow", lambda: other.insert_arrow("t", table))
    best(
        "clickhouse-connect, query_arrow",
        lambda: other.query_arrow(READ),
    )


def main() -> None:
    table = rows()
    with postgres_server() as dsn:
        compare_copy(dsn, table)
    with clickhouse_server() as url:
        compare_clickhouse(url, table)


if __name__ == "__main__":
    main()
