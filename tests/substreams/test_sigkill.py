"""Processes that are killed with SIGKILL at any statement, through forks and faults.

Each life of the process reads from a real socket and writes to a real database. Between two lives
the chain grows, forks and becomes final, so that most lives begin with an undo signal. After the
last one the tables must hold what the chain says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater.testing.chain.tree import ChainSim
from headwater.testing.substreams import DB_OUT, EndpointServer, SimModule, simulated_endpoint
from tests.sampling import is_whole
from tests.substreams.mortal import target_of
from tests.substreams.scripted import chain_of, expected, stored
from tests.substreams.test_clickhouse import FILES, make, rows_of
from tests.targets import clickhouse_places, postgres_places

ROWS = SimModule("map_rows", "test.rows.v1.Rows", make, FILES)
SEEDS, LIVES = (40, 14) if is_whole() else (1, 6)
STATEMENTS = {"postgres": 90, "duckdb": 90, "clickhouse": 60}  # of a life, about


@pytest.fixture(scope="module")
def mother() -> Iterator[subprocess.Popen[str]]:
    """The process whose children live and die."""
    command = [sys.executable, "-m", "tests.substreams.mortal"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.kill()


class Lives:
    """The lives of one stream's process."""

    def __init__(
        self, mother: subprocess.Popen[str], server: EndpointServer, kind: str, address: str,
        package: Path,
    ) -> None:  # fmt: skip
        self._mother = mother
        self._order: dict[str, Any] = {
            "kind": kind,
            "address": address,
            "endpoint": str(server.url),
            "package": str(package),
        }
        self.ends: Counter[str] = Counter()

    def live(self, stop: int, statements: int) -> None:
        """Let a process read up to a block, or die before that statement; 0 is never."""
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        order = self._order | {"stop": stop, "statements": statements}
        self._mother.stdin.write(json.dumps(order) + "\n")
        self._mother.stdin.flush()
        self.ends[self._mother.stdout.readline().strip()] += 1


def change(chain: ChainSim, random: Random) -> None:
    """Let something happen to the chain."""
    final = chain.finalized
    depth = chain.head.number - (0 if final is None else final.number)
    match random.randrange(4):
        case 0 | 1 if depth:
            chain.fork(random.randrange(1, depth + 1), random.randrange(1, 6))
        case 2:
            chain.finalize(max(0, chain.head.number - random.randrange(2, 8)))
        case _:
            chain.grow(random.randrange(1, 8))


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.guarantee("CURSOR-1")
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", ["postgres", "duckdb", "clickhouse"])
def test_a_process_that_is_killed_at_any_statement_leaves_what_the_chain_says(
    mother: subprocess.Popen[str], tmp_path: Path, kind: str, seed: int
) -> None:
    random = Random(f"{kind} {seed}")
    chain = chain_of(12, 4, seed)
    module = ROWS if kind == "clickhouse" else DB_OUT
    address = {
        "postgres": postgres_places.database,
        "duckdb": lambda: str(tmp_path / "a.duckdb"),
        "clickhouse": clickhouse_places.database,
    }[kind]()
    package = tmp_path / "a.spkg"
    package.write_bytes(module.package())
    with simulated_endpoint(
        chain=chain, modules=[module], bundle=random.choice([1, 4, 50])
    ) as server:
        server.faults.by_chance(seed, 0.2)
        lives, highest = Lives(mother, server, kind, address, package), 0
        for _ in range(LIVES):
            lives.live(chain.head.number + 1, random.randrange(1, STATEMENTS[kind]))
            highest = max(highest, chain.head.number)
            change(chain, random)
        server.faults.by_chance(seed, 0.0)
        chain.grow(12 + max(0, highest - chain.head.number))  # above all that was ever read
        stop = chain.head.number + 1
        lives.live(stop, 0)
    assert set(lives.ends) <= {"done", "killed"}, lives.ends
    assert lives.ends["killed"]
    target = target_of(kind, address)
    blocks = chain.canonical(0, stop - 1)
    if kind == "clickhouse":
        found = target.query("SELECT block_number, id, value FROM rows_live").to_pylist()
        wanted = [row for block in blocks for row in rows_of(block)]
        assert sorted(tuple(row.values()) for row in found) == sorted(wanted)
    else:
        assert stored(target.query) == expected(blocks)
    target.close()
