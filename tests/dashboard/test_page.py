"""The page in a real browser, in every state that a stream can be in."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headwater.core import AtHead, BlockCursor, ForkResolution, ForkRule, Head, PipeState
from headwater.core.messages import Committed, RolledBack
from headwater.dashboard import Dashboard
from headwater.metrics import BatchFacts, Counts, StreamRecord
from headwater.portal import Notice, NoticeKind
from tests.shared import starting

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    "--disable-dev-shm-usage",
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=2500",
]

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium: the page was not opened")


class Told:
    """A record that is told what a run would tell it, block by block."""

    def __init__(self, name: str) -> None:
        self.now = 1_800_000_000.0
        self.record = StreamRecord(
            name, portal="https://portal/x", target="DuckDBTarget",
            registry=CollectorRegistry(), wall=lambda: self.now,
        )  # fmt: skip
        self.chain: list[BlockCursor] = []

    def commit(
        self, number: int, *, branch: str = "a", final: int = 3, head: int = 12, blocks: int = 1
    ) -> None:
        cursor = BlockCursor(number, f"0x{branch}{number:02d}", int(self.now) - 5)
        self.chain.append(cursor)
        self.now += 1
        self.record.read(AtHead(Head(None, BlockCursor(head, "0xhead"))))
        self.record.transformed(
            BatchFacts(
                blocks, cursor, 0, head, 100 * number / head, 1.0, 4.0, lambda: Counts(7, 900)
            )
        )
        finalized = next((one for one in self.chain if one.number == final), None)
        state = PipeState(cursor, finalized, tuple(self.chain[-4:]))
        self.record.happened(Committed(state, blocks))

    def fork(self, to: int) -> None:
        orphaned = self.chain[-1]
        self.chain = [one for one in self.chain if one.number <= to]
        rule = ForkResolution(self.chain[-1], ForkRule.MATCH)
        self.record.happened(RolledBack(PipeState(self.chain[-1]), orphaned, rule))


def empty(told: Told) -> None:
    """Nothing happened yet."""


def backfilling(told: Told) -> None:
    for number in range(4):
        told.commit(number, head=25_000_000)


def following(told: Told) -> None:
    for number in range(13):
        told.commit(number)


def forked(told: Told) -> None:
    following(told)
    told.fork(9)
    told.commit(10, branch="b")


def flushed(told: Told) -> None:
    """Three hot blocks were committed together; then a fork took two commits of five blocks."""
    following(told)
    told.commit(15, blocks=3)
    told.commit(17, blocks=2, head=17)
    told.fork(12)


def without_spark(told: Told) -> None:
    following(told)
    told.record.activity = "Spark is starting"


def stalled(told: Told) -> None:
    following(told)
    told.now += 200
    told.record.undo(1234)
    told.record.outbox("alerts", 3, 2)
    told.record.noticed(Notice(NoticeKind.STALLED, "nothing has arrived for 60 s"))


def failed(told: Told) -> None:
    following(told)
    told.record.ended(ValueError("[E1003] <b>no ancestor</b>"))


def stopped(told: Told) -> None:
    following(told)
    told.record.ended(stopped=True)


def opened(streams: dict[str, StreamRecord], folder: Path) -> str:
    """Return the page as the browser has built it."""
    assert BROWSER is not None
    with starting("Chromium"), Dashboard(0, streams=lambda: streams) as dashboard:
        ran = subprocess.run(
            [BROWSER, *FLAGS, f"--user-data-dir={folder}", "--dump-dom", dashboard.url],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    return ran.stdout


STATES = [
    empty, backfilling, following, forked, flushed, without_spark, stalled, failed, stopped,
]  # fmt: skip


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what one page shows of streams in every state, by their ids."""
    streams = {}
    for tell in STATES:
        told = Told(tell.__name__)
        tell(told)
        streams[told.record.id] = told.record
    page = opened(streams, tmp_path_factory.mktemp("browser"))
    assert f">{len(STATES)} streams" in page
    body = page.split("<main", 1)[1].split("<script", 1)[0]
    found = body.split('<section class="stream" aria-labelledby="h-')[1:]
    return {section.partition('"')[0]: section for section in found}


@pytest.mark.parametrize(
    ("tell", "status", "shows"),
    [
        (empty, "starting", ["cursor", "rows so far"]),
        (backfilling, "backfilling", ["progressbar", "0.0 % of 0 ", ">25M<"]),
        (following, "following", ["12", "The chain near the cursor", "Rows per second"]),
        (
            forked,
            "following",
            ["blocks undone", "not yet", "orphaned", "21", "a fork undid 3 blocks"],
        ),
        (flushed, "following", ["a fork undid 5 blocks", "\u00d73", "\u00d72", "blocks 13 to 15"]),
        (without_spark, "waiting", ["Spark is starting"]),
        (
            stalled,
            "stalled",
            ["nothing has arrived for 60 s", "now 0, at most", "1,234", "outbox alerts"],
        ),
        (failed, "failed", ["[E1003] <b>no ancestor</b>", 'role="alert"']),
        (stopped, "stopped", ["cursor"]),
    ],
)
def test_the_page_shows_each_state(
    tell: Callable[[Told], None], status: str, shows: list[str], sections: dict[str, str]
) -> None:
    assert list(sections) == [one.__name__ for one in STATES]
    section = sections[tell.__name__]
    assert re.search(f'data-status="{status}"', section)
    for text in shows:
        assert text in unescape(section)
    assert "<b>no" not in section, "text of an error is text"


def test_the_page_counts_its_streams(tmp_path: Path) -> None:
    told = Told("usdc")
    failed(told)
    page = opened({"usdc": told.record}, tmp_path)
    assert ">1 stream, 1 failed<" in page
    assert page.count("<section") == 1


def test_the_page_says_that_no_stream_runs(tmp_path: Path) -> None:
    assert "No stream runs in this process yet." in opened({}, tmp_path)
