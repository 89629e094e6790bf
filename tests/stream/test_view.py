"""What a person reads of a stream, in one line."""

from __future__ import annotations

from io import StringIO
from threading import Semaphore

import pytest
from prometheus_client import CollectorRegistry

from headwater.core import AtHead, BlockCursor, Head, PipeState
from headwater.core.messages import Settled
from headwater.metrics import StreamRecord
from headwater.portal import Notice, NoticeKind
from headwater.stream import view
from headwater.stream.view import ProgressView, describe
from tests.shared import HANG_S


@pytest.fixture
def record() -> StreamRecord:
    return StreamRecord("usdc", registry=CollectorRegistry())


def follow(record: StreamRecord) -> None:
    head = BlockCursor(9, "0x9")
    record.read(AtHead(Head(None, head)))
    record.happened(Settled(PipeState(head, BlockCursor(6, "0x6"), (head,))))


def test_a_stream_at_the_head_says_so(record: StreamRecord) -> None:
    follow(record)
    assert describe(record) == "usdc: block 9, at the head, 3 not final, no forks"


def test_what_a_stream_at_the_head_waits_for_is_said(record: StreamRecord) -> None:
    follow(record)
    record.activity = "Spark is starting"
    assert describe(record).endswith("3 not final, no forks, Spark is starting")


@pytest.mark.parametrize(
    ("facts", "says"), [({}, "does not answer"), ({"status": 503}, "answers 503")]
)
def test_a_portal_that_is_away_is_said_until_it_answers(
    facts: dict[str, object], says: str, record: StreamRecord
) -> None:
    away = Notice(NoticeKind.RETRYING, "asking again", facts)
    record.noticed(away)
    assert describe(record) == f"usdc: the portal {says}, asking again …"
    follow(record)
    assert "asking again" not in describe(record)
    record.noticed(away)
    record.noticed(away)
    shown = describe(record)
    assert shown == f"usdc: block 9, the portal {says}, asking again, 3 not final, no forks"
    assert len(record.snapshot()["messages"]) == 2, "one message each time that it went away"


def test_forced_colours_do_not_make_a_terminal_of_a_file(
    record: StreamRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI sets FORCE_COLOR: what draws lines again filled its logs with codes."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = StringIO()
    with ProgressView(lambda: [record], out, always_ends=True):
        follow(record)
    assert out.getvalue() == f"{describe(record)}\n"


def test_what_a_stream_waits_for_is_one_line_where_lines_are_not_drawn_again(
    record: StreamRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark took longer to start than it is from one line to the next: each said so again."""
    monkeypatch.setattr(view, "FIRST_LINE_S", 0.0)
    monkeypatch.setattr(view, "LINE_S", 0.0)
    asked = Semaphore(0)

    def records() -> list[StreamRecord]:
        asked.release()
        return [record]

    out = StringIO()
    record.activity = "Spark is starting"
    with ProgressView(records, out):
        assert all(asked.acquire(timeout=HANG_S) for _ in range(5))
        record.activity = None
        follow(record)
    lines = out.getvalue().splitlines()
    assert lines.count("usdc: Spark is starting …") == 1
    assert lines[-1] == describe(record)
