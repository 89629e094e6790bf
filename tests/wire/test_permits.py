"""Two processes of executors read from one portal within one budget."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from headwater.core import BlockRange, Blocks
from headwater.core.retry import RetryPolicy
from headwater.decode import evm
from headwater.errors import RelayError
from headwater.portal import PortalBudget, PortalClient, PortalLimits, portal_address
from headwater.spark.entrance import connect
from headwater.spark.parts import Part, PartReader, RawRows, Receipt
from headwater.spark.relay import Office, PermitOffice, TaskPermits
from headwater.testing import Asked, PortalServer, Status, simulated_portal
from headwater.testing.faults import RetryAfter
from tests.shared import HANG_S
from tests.traffic import Traffic

ROOT = Path(__file__).parents[2]
QUERY = evm.events("erc20.Transfer").query
TASKS = 4  # of each process
EXECUTOR = """
import pickle, sys
from concurrent.futures import ThreadPoolExecutor
reader, parts = pickle.load(sys.stdin.buffer)
def read(part):
    return sum(batch.num_rows for batch in reader.read(part))
with ThreadPoolExecutor(len(parts)) as pool:
    print(sum(pool.map(read, parts)))
"""


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    with simulated_portal(seed=7, blocks=500, blocks_per_answer=10) as portal:
        yield portal


@pytest.fixture
def lines(portal: PortalServer) -> list[list[bytes]]:
    """The blocks that hold what is asked for, in what each process reads."""
    with PortalClient(portal.url) as client:
        ranges = (BlockRange(0, 199), BlockRange(200, 399))
        readings = [client.read(QUERY, one, finalized=True) for one in ranges]
        return [
            [line for answer in reading if isinstance(answer, Blocks) for line in answer.lines]
            for reading in readings
        ]


@pytest.fixture
def expected(lines: list[list[bytes]]) -> list[int]:
    """How many they are."""
    return [len(one) for one in lines]


def read_by_two_processes(portal: PortalServer, office: Office) -> list[int]:
    """Let two processes read 200 blocks each, with four tasks each; return what they counted."""
    query = QUERY
    reader = PartReader(
        portal_address(portal.url), query, RawRows(), None, RetryPolicy(), office=office
    )
    running = []
    for process in range(2):
        firsts = [process * 200 + task * 50 for task in range(TASKS)]
        parts = [Part(0, BlockRange(first, first + 49)) for first in firsts]
        one = subprocess.Popen(
            [sys.executable, "-c", EXECUTOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert one.stdin is not None
        one.stdin.write(pickle.dumps((reader, parts)))
        one.stdin.close()
        one.stdin = None
        running.append(one)
    counted = [int(one.communicate(timeout=HANG_S)[0]) for one in running]
    assert [one.returncode for one in running] == [0, 0]
    return counted


def test_requests_of_all_processes_together_stay_within_the_limit_and_one_429_stops_them_all(
    portal: PortalServer, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = Traffic(monkeypatch, hold_s=0.1)
    portal.ledger.clear()
    portal.sim.faults.add(
        Status(429, RetryAfter.SECONDS, 1), where=lambda asked: is_late(asked, portal), times=1
    )
    budget = ToldBudget(PortalLimits(requests=3))
    with PermitOffice(budget, "127.0.0.1", "127.0.0.1", 0) as office:
        counted = read_by_two_processes(portal, office.office)
    assert counted == expected, "every block came once"
    assert 2 <= traffic.most <= 3, "eight tasks wanted to"
    assert len(traffic.refused) == 1
    (told,) = budget.told
    soon = [one for one in traffic.begun if told < one < told + 0.95]
    assert len(soon) <= 2, "those that were on their way with a permit"
    assert max(traffic.begun) > told + 1


class ToldBudget(PortalBudget):
    """A budget that notes when it was told of a refusal: a busy client tells it late."""

    def __init__(self, limits: PortalLimits) -> None:
        super().__init__(limits)
        self.told: list[float] = []

    def refused(self, retry_after_s: float | None) -> None:
        super().refused(retry_after_s)
        self.told.append(time.monotonic())


def is_late(asked: Asked, portal: PortalServer) -> bool:
    return len(portal.ledger.stream_requests()) > 12


def test_bytes_of_all_processes_together_stay_within_the_rate(
    portal: PortalServer, lines: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(len(line) for one in lines for line in one)
    traffic, rate = Traffic(monkeypatch, hold_s=0), size // 4
    budget = PortalBudget(PortalLimits(bytes_per_second=rate))
    with PermitOffice(budget, "127.0.0.1", "127.0.0.1", 0) as office:
        assert read_by_two_processes(portal, office.office) == [len(one) for one in lines]
    lasted = max(traffic.begun) - min(traffic.begun)
    # a second's worth comes at once, and what the last requests bring is counted afterwards
    assert lasted > size / rate - 2.5


def test_a_task_that_is_gone_holds_nothing() -> None:
    budget = PortalBudget(PortalLimits(requests=1))
    with PermitOffice(budget, "127.0.0.1", "127.0.0.1", 0) as office:
        for _ in range(3):
            permits = TaskPermits(office.office)
            permits.begin()
            permits.close()  # as if it were killed in the middle of a request


@pytest.mark.parametrize("what", ["begin", "spend"])
def test_tasks_that_wait_do_not_hold_up_the_end_of_a_run(what: str) -> None:
    """The portal has said to come back in five minutes, or more bytes came than may in an hour."""
    asked = Event()

    class Watched(PortalBudget):
        def refused(self, retry_after_s: float | None) -> None:
            super().refused(retry_after_s)
            asked.set()  # what the task says next is heard next

    office = PermitOffice(Watched(PortalLimits(bytes_per_second=1)), "127.0.0.1", "127.0.0.1", 0)
    office.__enter__()
    permits = TaskPermits(office.office)
    permits.begin()

    def wait() -> None:
        permits.refused(300.0)
        with suppress(RelayError):
            permits.begin() if what == "begin" else permits.spend(3600)

    waiting = Thread(target=wait, daemon=True)
    ending = Thread(target=office.__exit__, daemon=True)
    waiting.start()
    asked.wait()
    waiting.join(0.3)
    assert waiting.is_alive(), "it has to wait"
    ending.start()
    ending.join(HANG_S)
    assert not ending.is_alive(), "the run hangs"
    waiting.join(HANG_S)
    assert not waiting.is_alive(), "the task hangs"


def test_a_machine_that_is_gone_without_a_word_is_noticed_within_two_minutes() -> None:
    """Of a connection that nothing answers on, both sides hear from the system, not in hours."""
    with PermitOffice(PortalBudget(), "127.0.0.1", "127.0.0.1", 0) as office:
        task = connect(office.office.entrance)
        (driver,) = office._server._open
        for side in (task, driver):
            idle, every, count = (
                side.getsockopt(socket.IPPROTO_TCP, one)
                for one in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert side.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert idle + every * count <= 120
        unanswered = driver.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert 0 < unanswered <= 120_000, "of what was granted to it, in milliseconds"
        task.close()


def test_a_task_that_cannot_ask_goes_on_only_where_no_limit_was_set() -> None:
    with PermitOffice(PortalBudget(), "127.0.0.1", "127.0.0.1", 0) as office:
        entrance = office.office.entrance
    TaskPermits(Office(entrance, required=False)).begin()
    with pytest.raises(RelayError, match="cannot ask the driver"):
        TaskPermits(Office(entrance, required=True)).begin()


@pytest.mark.parametrize("refuses", [True, False])
def test_a_task_that_asks_nobody_notes_in_its_receipt_that_it_was_refused(
    refuses: bool, portal: PortalServer
) -> None:
    if refuses:
        portal.sim.faults.add(Status(429), times=1)
    reader = PartReader(portal_address(portal.url), QUERY, RawRows(), None, RetryPolicy())
    receipt = Receipt(0)
    assert sum(batch.num_rows for batch in reader.rows(Part(0, BlockRange(0, 49)), receipt)) > 0
    assert receipt.refused == refuses
