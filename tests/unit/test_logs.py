"""Log lines for people and for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from headwater import setup_logging


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    logger, py4j = logging.getLogger("headwater"), logging.getLogger("py4j")
    before = (list(logger.handlers), logger.level, logger.propagate, py4j.level)
    yield
    logger.handlers[:], logger.level, logger.propagate, py4j.level = before
    logger.setLevel(before[1])
    py4j.setLevel(before[3])


def test_an_event_and_its_values_are_taken_apart() -> None:
    out = io.StringIO()
    setup_logging(json_lines=True, out=out)
    logging.getLogger("headwater.stream").info("batch.committed id=%s blocks=%d level=x", "a b", 3)
    line = json.loads(out.getvalue())
    assert line["event"] == "batch.committed"
    assert (line["id"], line["blocks"], line["level"]) == ("a", "3", "INFO")
    assert line["message"] == "batch.committed id=a b blocks=3 level=x"


def test_text_and_errors_are_kept_whole() -> None:
    out = io.StringIO()
    setup_logging("DEBUG", json_lines=True, out=out)
    try:
        int("broken")
    except ValueError:
        logging.getLogger("headwater").exception("it failed: %s", "ä\n")
    (line,) = map(json.loads, out.getvalue().splitlines())
    assert line["message"] == "it failed: ä\n"
    assert "ValueError: invalid literal" in line["error"]
    assert "event" not in line


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(out=first)
    setup_logging(out=second)
    logging.getLogger("headwater.portal").warning("stalled: nothing arrives")
    assert first.getvalue() == ""
    assert second.getvalue().endswith("WARNING headwater.portal  stalled: nothing arrives\n")


def test_py4j_is_kept_quiet_unless_the_program_says_otherwise() -> None:
    setup_logging(out=io.StringIO())
    assert logging.getLogger("py4j").level == logging.CRITICAL
    logging.getLogger("py4j").setLevel(logging.DEBUG)
    setup_logging(out=io.StringIO())
    assert logging.getLogger("py4j").level == logging.DEBUG


def test_lines_go_to_what_standard_error_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stderr", first)
    setup_logging()
    monkeypatch.setattr("sys.stderr", second)
    first.close()
    logging.getLogger("headwater.stream").warning("batch.late id=a")
    assert second.getvalue().endswith("headwater.stream  batch.late id=a\n")
