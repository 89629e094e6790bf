"""The real client and SQL sink of StreamingFast against the simulated endpoint.

`HEADWATER_SUBSTREAMS` and `HEADWATER_SINK_SQL` are the paths of `substreams` and of
`substreams-sink-sql`. Without them this file is one line of a report.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from headwater.stream.substreams import substreams_stream
from headwater.substreams.client import Dialling
from headwater.substreams.package import Package
from headwater.substreams.sink import sink_target
from headwater.substreams.sink_database import SinkDsn
from headwater.testing.chain.tree import SimBlock
from headwater.testing.substreams import EndpointServer, SimModule, simulated_endpoint
from tests.substreams.scripted import (
    CHANGES,
    CREATE,
    DELETE,
    FILES,
    UPDATE,
    chain_of,
    changes,
    run,
)
from tests.targets import postgres_places

CLIENT, SINK = os.environ.get("HEADWATER_SUBSTREAMS"), os.environ.get("HEADWATER_SINK_SQL")
if not (CLIENT and SINK):
    pytest.skip(
        "HEADWATER_SUBSTREAMS and HEADWATER_SINK_SQL name no programs", allow_module_level=True
    )

SCHEMA = """
CREATE TABLE "Slot" (number BIGINT PRIMARY KEY, "Hash" VARCHAR, big NUMERIC(78, 0));
CREATE TABLE latest (name VARCHAR PRIMARY KEY, number BIGINT, at TIMESTAMP, seen BOOLEAN);
CREATE TABLE gone (day DATE PRIMARY KEY, note VARCHAR);
"""
DAY = "2024-02-{:02}"


def changes_of(block: SimBlock) -> bytes:
    """Insert a slot, count in one row, make and remove days: what the older sinks can do."""
    number, random = block.number, Random(block.hash)
    made: list[Any] = [
        ("Slot", str(number), CREATE, {"Hash": block.hash, "big": str(10**77 + number)})
    ]
    if number == 0:
        made.append(("latest", "one", CREATE, {"number": 0, "at": "2024-02-29 01:02:03"}))
        made += [("gone", DAY.format(day), CREATE, {"note": "first"}) for day in range(1, 29)]
    else:
        seen = "true" if random.random() < 0.5 else "false"
        made.append(("latest", "one", UPDATE, {"number": number, "seen": seen}))
        day = DAY.format(number % 28 + 1)
        note = {"note": block.hash}
        made.append(("gone", day, UPDATE, note) if number < 28 else ("gone", day, DELETE, {}))
    return changes(*made)


def expected(blocks: list[SimBlock]) -> dict[str, list[tuple[Any, ...]]]:
    days = {DAY.format(day): "first" for day in range(1, 29)}
    for block in blocks[1:]:
        day = DAY.format(block.number % 28 + 1)
        if block.number < 28:
            days[day] = block.hash
        else:
            del days[day]
    last = blocks[-1]
    seen = Random(last.hash).random() < 0.5
    return {
        "Slot": [(block.number, block.hash, 10**77 + block.number) for block in blocks],
        "latest": [("one", last.number, "2024-02-29 01:02:03", seen)],
        "gone": sorted(days.items()),
    }


def stored(address: str) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(address) as connection:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql.encode()).fetchall()

        return {
            "Slot": rows('SELECT number, "Hash", big FROM "Slot" ORDER BY 1'),
            "latest": rows("SELECT name, number, at::text, seen FROM latest"),
            "gone": rows("SELECT day::text, note FROM gone ORDER BY 1"),
        }


MODULE = SimModule("db_out", CHANGES, changes_of, FILES, SCHEMA)


def call(program: str | None, *arguments: str) -> str:
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


class Database:
    """One database that the sink and Headwater write in turn, from one endpoint."""

    def __init__(self, server: EndpointServer, folder: Path) -> None:
        self.server = server
        self.address = postgres_places.database()
        parts = urlsplit(self.address)
        self.dsn = f"psql://{parts.netloc}{parts.path}?sslmode=disable"
        self.package = folder / "module.spkg"
        self.package.write_bytes(server.package)

    def sink(self, stop: int) -> None:
        call(
            SINK, "run", self.dsn, str(self.package), f"0:{stop}", "--plaintext",
            "-e", self.server.url.removeprefix("http://"), "--live-block-time-delta", "1000000h",
            "--metrics-listen-addr", "", "--pprof-listen-addr", "",
        )  # fmt: skip

    def headwater(self, stop: int) -> None:
        dsn = SinkDsn.parse(self.dsn.partition("?")[0])
        package = Package.read(str(self.package)).resolve()
        target, decoder = sink_target(dsn, package, "db_out")
        stream = substreams_stream(
            id=package.module_hash("db_out"),
            endpoint=self.server.url,
            package=self.package,
            module="db_out",
            start=0,
            stop=stop,
            decoder=decoder,
            dialling=Dialling(idle_s=1.0),
        )
        run(stream, target)


def test_the_real_client_reads_the_simulated_endpoint(tmp_path: Path) -> None:
    with simulated_endpoint(chain=chain_of(40, 20)) as server:
        package = tmp_path / "module.spkg"
        package.write_bytes(server.package)
        address = server.url.removeprefix("http://")
        assert "db_out" in call(CLIENT, "info", str(package))
        for mode in ([], ["--production-mode"]):
            said = call(
                CLIENT, "run", str(package), "db_out", "-e", address, "--plaintext",
                "-s", "10", "-t", "30", "-o", "jsonl", *mode,
            )  # fmt: skip
            blocks = [json.loads(line)["@block"] for line in said.splitlines() if line[:1] == "{"]
            assert blocks
            assert set(blocks) <= set(range(10, 30))


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.parametrize("seed", range(4))
def test_sink_and_headwater_take_turns_while_the_chain_forks(tmp_path: Path, seed: int) -> None:
    """After each turn the last block, or more, is orphaned before the other one starts."""
    chain, random = chain_of(30, 20, seed), Random(seed)
    with simulated_endpoint(chain=chain, modules=[MODULE]) as server:
        database = Database(server, tmp_path)
        call(SINK, "setup", database.dsn, str(database.package))
        for turn in range(6):
            stop = chain.head.number + 1
            (database.sink if turn % 2 == 0 else database.headwater)(stop)
            blocks = list(chain.canonical(0, stop - 1))
            assert stored(database.address) == expected(blocks), f"turn {turn} to {stop}"
            final = chain.finalized
            assert final is not None
            depth = random.randrange(1, chain.head.number - final.number)
            chain.fork(depth, depth + random.randrange(1, 4))
            if turn == 2:
                chain.finalize(chain.head.number - 8)
