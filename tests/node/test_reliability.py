"""What operators ask of an indexer: the ordinary command line, a node, PostgreSQL, every trouble.

Each test runs `examples/token_indexer/pipeline.py` as its own process. A fault lasts until so many
requests have met it. Rows are compared with the simulated chain, balances with the rows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.testing import ContentSettings, PortalServer, simulated_portal
from tests.sampling import every
from tests.shared import HANG_S
from tests.stream.truth import COLUMNS, transfers
from tests.targets.postgres_places import database
from tests.targets.postgres_proxy import Proxy

PIPELINE = Path(__file__).parents[2] / "examples" / "token_indexer" / "pipeline.py"
MAIN = "from headwater.cli import main; main()"
REFUSALS = ["rate limit", "error in a 200", "rate limit with a time", "bad gateway", "html"]
WRONG = ["null", "no logs", "removed logs", "logs twice", "cut"]
MET = 5  # requests that meet a fault before it ends


@dataclass
class Indexer:
    """The example's process, on a chain of a simulated node and a database of its own."""

    portal: PortalServer
    folder: Path
    dsn: str = field(default_factory=database)
    first: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.proxy = Proxy(self.dsn)
        self.log = self.folder / "log"

    def start(self) -> None:
        environment = {
            **os.environ,
            "NODE": self.portal.node_url,
            "DATABASE_URL": self.proxy.dsn,
            "FIRST_BLOCK": str(self.first),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN, "run", str(PIPELINE), "--json-logs", "--no-progress"],
                env=environment, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def start_until(self, moment: str) -> None:
        """Start it, and wait until it is in a backfill, or at the head."""
        if moment == "in a backfill":
            self.portal.node.quirks.max_range = 2
        self.start()
        if moment == "in a backfill":
            self.until(lambda: self.cursor() is not None)
        else:
            self.catches_up()

    def end(self, number: int) -> int:
        """Send a signal; return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(HANG_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, as long as the process lives."""
        end = time.monotonic() + HANG_S
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text("utf-8")
            assert time.monotonic() < end, self.log.read_text("utf-8")
            time.sleep(0.02)

    def catches_up(self) -> None:
        """Wait until the tables are those of the chain; then compare them whole."""
        head = self.portal.chain.head
        self.until(lambda: self.cursor() == (head.number, head.hash))
        self.compare()

    def cursor(self) -> tuple[int, str] | None:
        """Return the stored cursor."""
        with psycopg.connect(self.dsn) as connection:
            return cursor_of(connection)

    def compare(self) -> None:
        """Compare what is stored at one moment with the chain up to the stored cursor."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            stored = cursor_of(connection)
            rows = sorted(
                connection.execute(f"SELECT {COLUMNS} FROM transfers".encode()).fetchall()
            )
            sums = connection.execute("SELECT token, owner, amount FROM balances").fetchall()
        last = -1 if stored is None else stored[0]
        expected = sorted(
            transfers(self.portal.chain, self.portal.chain.canonical(self.first, last))
        )
        assert [tuple(map(str, row)) for row in rows] == [tuple(map(str, row)) for row in expected]
        assert {(t, o): int(a) for t, o, a in sums} == balances_of(expected)


def cursor_of(connection: psycopg.Connection[tuple[Any, ...]]) -> tuple[int, str] | None:
    if connection.execute("SELECT to_regclass('sync')").fetchone() == (None,):
        return None
    found = connection.execute(
        "SELECT current_number, current_hash FROM sync ORDER BY current_number DESC LIMIT 1"
    ).fetchone()
    return None if found is None else (int(found[0]), str(found[1]))


def balances_of(rows: Sequence[tuple[object, ...]]) -> dict[tuple[str, str], int]:
    """Work balances out of transfers, in the plainest way."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for _, _, _, token, sender, receiver, value in rows:
        found[str(token), str(receiver)] += int(str(value))
        found[str(token), str(sender)] -= int(str(value))
    return found


@pytest.fixture
def indexer(tmp_path: Path) -> Iterator[Indexer]:
    content = ContentSettings(huge_value_share=0.2, synthetic_log_share=0.2)
    with simulated_portal(seed=21, blocks=150, finality_depth=90, content=content) as portal:
        running = Indexer(portal, tmp_path)
        yield running
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
            running.process.wait(HANG_S)
        running.proxy.close()


# --- crash recovery -------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["in a backfill", "at the head"])
def test_the_database_is_away_for_a_while(indexer: Indexer, moment: str) -> None:
    indexer.start_until(moment)
    indexer.proxy.go_away()
    indexer.portal.extend(3)
    indexer.until(lambda: indexer.proxy.refusals >= 2)
    indexer.proxy.come_back()
    indexer.catches_up()


@pytest.mark.parametrize("moment", ["in a backfill", "in a commit", "at the head"])
def test_killed(indexer: Indexer, moment: str) -> None:
    indexer.start_until(moment)
    if moment == "in a commit":
        with psycopg.connect(indexer.dsn) as holder:
            holder.execute("LOCK TABLE balances IN EXCLUSIVE MODE")  # transfers are inserted before
            indexer.portal.extend(2)
            indexer.until(lambda: waits_for_lock(indexer.dsn))
            indexer.end(signal.SIGKILL)
    else:
        indexer.portal.extend(2)
        indexer.end(signal.SIGKILL)
    indexer.compare()  # no half of a batch
    indexer.start()
    indexer.catches_up()


def waits_for_lock(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        ).fetchone()
    return found is not None and found[0] > 0


def test_terminated(indexer: Indexer) -> None:
    indexer.start_until("in a backfill")
    assert indexer.end(signal.SIGTERM) == 0
    indexer.compare()
    indexer.portal.extend(2)
    indexer.start()
    indexer.catches_up()
    assert indexer.end(signal.SIGTERM) == 0
    indexer.compare()


def test_killed_again_and_again(indexer: Indexer) -> None:
    indexer.portal.node.quirks.max_range = 3
    for _ in range(4):
        before = indexer.cursor()
        indexer.start()
        indexer.until(lambda before=before: indexer.cursor() != before)  # type: ignore[misc]
        indexer.portal.extend(1)
        indexer.end(signal.SIGKILL)
    indexer.start()
    indexer.catches_up()


# --- reorganizations ------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 60])
def test_blocks_are_replaced(indexer: Indexer, depth: int) -> None:
    indexer.start()
    indexer.catches_up()
    indexer.portal.fork(depth, depth + 1)
    indexer.catches_up()


def test_three_reorganizations_in_a_row(indexer: Indexer) -> None:
    indexer.start()
    indexer.catches_up()
    for depth in (4, 9, 2):
        indexer.portal.fork(depth, depth + 1)
    indexer.catches_up()


def test_a_reorganization_while_it_is_down(indexer: Indexer) -> None:
    indexer.start()
    indexer.catches_up()
    indexer.end(signal.SIGKILL)
    indexer.portal.fork(20, 25)
    indexer.start()
    indexer.catches_up()


def test_a_reorganization_below_what_a_backfill_has_reached(indexer: Indexer) -> None:
    indexer.portal.node.quirks.max_range = 2
    indexer.start()
    indexer.until(lambda: (indexer.cursor() or (0, ""))[0] > 75)
    indexer.portal.fork(85, 90)
    indexer.catches_up()


def test_readers_see_only_states_that_the_chain_had(indexer: Indexer) -> None:
    """Transfers and balances of one moment fit each other, also while forks are undone."""
    indexer.start()
    indexer.catches_up()
    for depth in (3, 12):
        indexer.portal.fork(depth, depth + 2)
        head = indexer.portal.chain.head.number
        while (indexer.cursor() or (0, ""))[0] != head:
            with psycopg.connect(indexer.dsn) as reader:
                reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                rows = reader.execute(f"SELECT {COLUMNS} FROM transfers".encode()).fetchall()
                sums = reader.execute("SELECT token, owner, amount FROM balances").fetchall()
            assert {(t, o): int(a) for t, o, a in sums if int(a)} == {
                key: amount for key, amount in balances_of(rows).items() if amount
            }
    indexer.catches_up()


# --- a node that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", every(3).of(REFUSALS))
def test_nothing_but_errors_for_a_while(indexer: Indexer, fault: str) -> None:
    indexer.start()
    indexer.catches_up()
    node = indexer.portal.node
    node.quirks.faults, node.quirks.fault_share = (fault,), 1.0
    indexer.portal.extend(3)
    indexer.until(lambda: node.met[fault] >= MET)
    node.quirks.fault_share = 0.0
    indexer.catches_up()


@pytest.mark.parametrize("fault", every(3).of(WRONG))
def test_answers_that_are_wrong_now_and_then(indexer: Indexer, fault: str) -> None:
    node = indexer.portal.node
    node.quirks.faults, node.quirks.fault_share, node.quirks.max_range = (fault,), 0.2, 9
    indexer.start()
    indexer.until(lambda: node.met[fault] >= MET)
    node.quirks.fault_share = 0.0
    indexer.catches_up()


def test_ceilings_of_blocks_and_logs(indexer: Indexer) -> None:
    node = indexer.portal.node
    node.quirks.max_range, node.quirks.max_logs = 10, 40
    indexer.start()
    indexer.catches_up()
    assert node.met["too wide"] > 0
    assert node.met["too many logs"] > 0
    narrow = node.calls["eth_getLogs"]
    node.quirks.max_range = node.quirks.max_logs = None
    indexer.portal.extend(100)
    indexer.catches_up()
    assert node.calls["eth_getLogs"] - narrow < 100, "ranges are widened again"


def test_a_balancer_with_servers_that_lag(tmp_path: Path) -> None:
    with simulated_portal(seed=22, blocks=80, finality_depth=30, replicas=3) as portal:
        portal.sim.replicas[1].lag(3)
        portal.sim.replicas[2].lag(8)
        indexer = Indexer(portal, tmp_path)
        indexer.start()
        indexer.until(lambda: (indexer.cursor() or (0, ""))[0] > 60)
        portal.fork(5, 7)
        portal.extend(2)
        indexer.catches_up()
        assert indexer.end(signal.SIGTERM) == 0
        indexer.proxy.close()


# --- fidelity, and what repeats -------------------------------------------------------------------


def test_hundreds_of_empty_blocks(tmp_path: Path) -> None:
    content = ContentSettings(transactions_per_block=0)
    with simulated_portal(seed=23, blocks=500, finality_depth=30, content=content) as portal:
        indexer = Indexer(portal, tmp_path)
        indexer.start()
        head = portal.chain.head
        indexer.until(lambda: indexer.cursor() == (head.number, head.hash))
        indexer.end(signal.SIGKILL)
        indexer.proxy.close()


def test_two_runs_give_the_same_rows(indexer: Indexer, tmp_path: Path) -> None:
    indexer.start()
    indexer.catches_up()
    again = Indexer(indexer.portal, tmp_path, first=0)
    again.start()
    again.catches_up()
    found = []
    for one in (indexer, again):
        with psycopg.connect(one.dsn) as connection:
            found.append(
                connection.execute(
                    "SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM transfers t"
                ).fetchone()
            )
    assert found[0] == found[1]
    again.end(signal.SIGKILL)
    again.proxy.close()


def test_the_largest_value_and_the_largest_index_arrive_as_they_are(indexer: Indexer) -> None:
    indexer.start()
    indexer.catches_up()
    with psycopg.connect(indexer.dsn) as connection:
        found = connection.execute(
            "SELECT max(value::numeric), max(log_index) FROM transfers"
        ).fetchone()
    chain = indexer.portal.chain
    expected = transfers(chain, chain.canonical())
    assert found == (max(int(row[6]) for row in expected), max(row[2] for row in expected))
    assert found[0] == 2**256 - 1
    assert found[1] == 0xFFFFFFE2
