"""The history target: a million mixed operations beside one statement per row, and their revert.

    .venv/bin/python benchmarks/bench_history.py [operations] [sample]

On PostgreSQL (a server of its own, durable) and DuckDB (a file): (a) the operations of
`bench_changes` applied in two commits of final blocks, beside one statement per operation, sent as
it is and prepared, for the last of them, in one transaction, where all others are applied; (b)
100,000 operations in 100 hot blocks, committed together with their history, and reverted. All ways
leave the same tables; the better of two times counts; CPU is that of client and server. Exit code 1
if plain statements take less than 20 times as long by the clock, or the revert takes 3 s.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa

from bench_changes import BLOCKS, mixed_operations
from headwater.changes import TableSchema
from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.targets import Delivery, history_target
from headwater.testing.servers.postgres import postgres_server

RATIO, REVERT_S, ROUNDS = 20, 3.0, 2
BATCHES, HOT_BLOCKS, HOT_OPERATIONS = 2, 100, 100_000
TABLES = [
    TableSchema(
        "transfer",
        key=["id"],
        columns={"id": "text", "from": "text", "to": "text", "value": "integer", "seen": "integer"},
    ),
    TableSchema(
        "balance",
        key=["owner"],
        columns={"owner": "text", "amount": "integer", "largest": "integer", "first": "text",
                 "smallest": "integer", "last": "text"},
    ),
]  # fmt: skip
DURABLE = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
    "shared_buffers": "1GB", "max_wal_size": "4GB", "autovacuum": "off",
}  # fmt: skip
STEPS = {
    "set": "{value}",
    "add": "COALESCE({held} + {value}, {value})",
    "sub": "COALESCE({held} - {value}, 0::numeric - {value})",
    "max": "GREATEST({held}, {value})",
    "min": "LEAST({held}, {value})",
    "set_if_null": "COALESCE({held}, {value})",
}


class Stream:
    """Commits changes to a target, as the loop does."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.state: PipeState = target.recover()

    def commit(self, batches: list[tuple[int, pa.Table]], final: int) -> None:
        """Commit batches that end in these blocks."""
        made, state = [], self.state
        for number, changes in batches:
            head = Head(BlockCursor(final, f"h{final}"))
            header = BlockHeader(number, f"h{number}", "p", number - 1, number)
            state = state.advance([header], head)
            batch = Batch((header,), head, state, (), Delivery({"changes": changes}))
            made.append(self.target.prepare_batch(batch))
        self.target.commit(made, state)
        self.state = state

    def revert(self, number: int) -> None:
        """Go back to a block."""
        points = self.state.landing_points()
        state = self.state.rewind(next(one for one in points if one.number == number))
        self.target.roll_back(state)
        self.state = state


def cut(operations: pa.Table, parts: int) -> list[tuple[int, pa.Table]]:
    """Cut operations into batches of whole blocks."""
    numbers = operations["block_number"].to_numpy()
    bounds = np.linspace(0, BLOCKS, parts + 1).astype(int)[1:]
    ends = np.searchsorted(numbers, bounds)
    return [
        (int(bound) - 1, operations.slice(start, end - start))
        for bound, start, end in zip(bounds, np.append(0, ends[:-1]), ends, strict=True)
    ]


def statement(change: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return one change as one statement with parameters."""
    table, operation = change["table"], change["operation"]
    key, fields = change["pk"][0], change["fields"] or []
    kinds = next(one.columns for one in TABLES if one.name == table)
    values = [
        f"${at}::{'numeric' if kinds[one['name']] == 'integer' else 'text'}"
        for at, one in enumerate(fields, 2)
    ]
    names = [f'"{one["name"]}"' for one in fields]
    assign = ", ".join(
        f"{name} = " + STEPS[one["operation"]].format(held=f"{table}.{name}", value=value)
        for name, one, value in zip(names, fields, values, strict=True)
    )
    params = [key["value"], *(one["value"] for one in fields)]
    gaps = {"table": table, "key": f'"{key["name"]}"', "assign": assign}
    if operation == "delete":
        return "DELETE FROM {table} WHERE {key} = $1".format_map(gaps), params[:1]
    if operation == "update":
        return "UPDATE {table} SET {assign} WHERE {key} = $1".format_map(gaps), params
    signs = ["0::numeric - " if one["operation"] == "sub" else "" for one in fields]
    gaps["names"] = ", ".join([gaps["key"], *names])
    gaps["values"] = ", ".join(["$1", *map(str.__add__, signs, values)])
    sql = "INSERT INTO {table} ({names}) VALUES ({values})"
    if operation == "upsert":
        sql += " ON CONFLICT ({key}) DO UPDATE SET {assign}"
    return sql.format_map(gaps), params


class OnPostgres:
    """PostgreSQL: one transaction, statements prepared or sent as they are."""

    name, prepares = "PostgreSQL", True

    def __init__(self, dsn: str) -> None:
        self.place = dsn
        with psycopg.connect(dsn) as connection:
            ((folder,),) = connection.execute("SHOW data_directory").fetchall()
        self.server = int(Path(folder, "postmaster.pid").read_text().splitlines()[0])

    def cpu(self) -> float:
        """Return the CPU seconds of this process and of the server's."""
        spent = time.process_time()
        for one in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = one.read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == self.server:
                    spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return spent

    @contextmanager
    def statements(self, *, prepared: bool = False) -> Iterator[Callable[[str, list[Any]], Any]]:
        threshold = 1 if prepared else None
        with psycopg.connect(self.place, prepare_threshold=threshold) as connection:
            cursor = psycopg.RawCursor(connection)
            yield lambda sql, params: cursor.execute(sql.encode(), params)


class OnDuckDB:
    """DuckDB: the same, with the types that it has instead. It prepares nothing between calls."""

    name, prepares = "DuckDB", False

    def __init__(self, folder: str) -> None:
        self.place = str(Path(folder) / "bench.duckdb")

    def cpu(self) -> float:
        """Return the CPU seconds of this process."""
        return time.process_time()

    @contextmanager
    def statements(self, *, prepared: bool = False) -> Iterator[Callable[[str, list[Any]], Any]]:
        connection = duckdb.connect(self.place)
        connection.execute("BEGIN")

        def run(sql: str, params: list[Any]) -> Any:
            return connection.execute(sql.replace("::numeric", "::BIGNUM"), params)

        yield run
        connection.execute("COMMIT")
        connection.close()


def digest(stream: Stream) -> list[Any]:
    """Return what tells the contents of the tables from others."""
    found = []
    for sql in (
        "SELECT count(*) AS n, sum(value) AS s FROM transfer",
        "SELECT count(*) AS n, sum(amount) AS s FROM balance",
    ):
        row = stream.target.query(sql).to_pylist()[0]
        found += [row["n"], str(row["s"])]
    return found


class Timed:
    """CPU seconds and seconds by the clock of what is done inside."""

    def __init__(self, engine: OnPostgres | OnDuckDB) -> None:
        self._engine = engine

    def __enter__(self) -> Timed:
        self._begin = (self._engine.cpu(), time.perf_counter())
        return self

    def __exit__(self, *_: object) -> None:
        ends = (self._engine.cpu(), time.perf_counter())
        self.cpu, self.clock = (end - begin for end, begin in zip(ends, self._begin, strict=True))


def best(times: list[Timed]) -> tuple[float, float]:
    """Return the least CPU time and the least time by the clock."""
    return min(one.cpu for one in times), min(one.clock for one in times)


def compare(engine: OnPostgres | OnDuckDB, operations: pa.Table, sample: int) -> list[bool]:
    """Run everything on one database, print its lines, and tell which limits hold."""
    applied, hot_applied, reverted = [], [], []
    hot = shifted(operations.slice(0, HOT_OPERATIONS))
    for _ in range(ROUNDS):
        empty(engine)
        stream = Stream(history_target(engine.place, tables=TABLES))
        with Timed(engine) as took:
            for one in cut(operations, BATCHES):
                stream.commit([one], one[0])
        applied.append(took)
        wanted = digest(stream)
        with Timed(engine) as took:
            stream.commit(hot, BLOCKS - 1)
        hot_applied.append(took)
        counted = stream.target.query("SELECT count(*) AS n FROM substreams_history").to_pylist()
        with Timed(engine) as took:
            stream.revert(BLOCKS - 1)
        reverted.append(took)
        assert digest(stream) == wanted, "the revert brings everything back"
        stream.target.close()
    at_once, whole = best(applied), operations.num_rows / sample
    print(f"| {engine.name}, set-based | {at_once[0]:.1f} s | | {at_once[1]:.1f} s | |", flush=True)
    held = False
    ways = [("one statement per row", False), ("the same, prepared", True)]
    for name, prepared in ways[: 1 + engine.prepares]:
        times = [one_by_one(engine, operations, sample, wanted, prepared) for _ in range(ROUNDS)]
        cpu, clock = (one * whole for one in best(times))
        ratios = cpu / at_once[0], clock / at_once[1]
        held = held or (not prepared and ratios[1] >= RATIO)
        print(
            f"| {engine.name}, {name} | {cpu:,.0f} s | {ratios[0]:.0f}x | {clock:,.0f} s | "
            f"{ratios[1]:.0f}x |",
            flush=True,
        )
    print(
        f"| {engine.name}, {HOT_BLOCKS} hot blocks, {counted[0]['n']:,} entries | "
        f"{best(hot_applied)[0]:.1f} s | | {best(hot_applied)[1]:.1f} s | |\n"
        f"| {engine.name}, reverted | {best(reverted)[0]:.2f} s | | {best(reverted)[1]:.2f} s | |",
        flush=True,
    )
    return [held, best(reverted)[1] < REVERT_S]


def one_by_one(
    engine: OnPostgres | OnDuckDB,
    operations: pa.Table,
    sample: int,
    wanted: list[Any],
    prepared: bool,
) -> Timed:
    """Apply the last operations one by one, where all others are applied."""
    empty(engine)
    stream = Stream(history_target(engine.place, tables=TABLES))
    stream.commit([(BLOCKS - 1, operations.slice(0, operations.num_rows - sample))], BLOCKS - 1)
    stream.target.close()
    last = operations.slice(operations.num_rows - sample).to_pylist()
    made = [statement(one) for one in last]
    with engine.statements(prepared=prepared) as run, Timed(engine) as took:
        for sql, params in made:
            run(sql, params)
    stream = Stream(history_target(engine.place, tables=TABLES))
    assert digest(stream) == wanted, "all ways leave the same"
    stream.target.close()
    return took


def shifted(operations: pa.Table) -> list[tuple[int, pa.Table]]:
    """Return operations once more, in hot blocks, on other transfers but the same balances."""
    numbers = BLOCKS + np.arange(operations.num_rows) * HOT_BLOCKS // operations.num_rows
    fresh = [
        {**one, "pk": [{**one["pk"][0], "value": "again " + one["pk"][0]["value"]}]}
        if one["table"] == "transfer" else one
        for one in operations.to_pylist()
    ]  # fmt: skip
    table = pa.Table.from_pylist(fresh, schema=operations.schema)
    at = table.schema.get_field_index("block_number")
    table = table.set_column(at, table.schema.field(at), pa.array(numbers))
    return [
        (number, table.filter(pa.array(numbers == number)))
        for number in range(BLOCKS, BLOCKS + HOT_BLOCKS)
    ]


def empty(engine: OnPostgres | OnDuckDB) -> None:
    """Remove every table, state included."""
    with engine.statements() as run:
        for name in ("transfer", "balance", "sync", "cursors", "substreams_history"):
            run(f"DROP TABLE IF EXISTS {name}", [])


def main() -> int:
    given = [int(one) for one in sys.argv[1:]]
    count, sample = (*given, 1_000_000)[0], (*given, 0, 5_000)[1] or 5_000
    operations = mixed_operations(count)
    print(f"{count:,} operations in {BATCHES} commits, {sample:,} of them one by one\n")
    print("| | CPU | ratio | by the clock | ratio |")
    print("|---|---|---|---|---|", flush=True)
    held: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        held += compare(OnDuckDB(folder), operations, sample)
    with postgres_server(settings=DURABLE) as dsn:
        held += compare(OnPostgres(dsn), operations, sample)
    print(f"\nlimits {RATIO}x by the clock, and {REVERT_S:.0f} s for the revert")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
