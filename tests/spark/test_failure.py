"""Coded errors survive their way through a worker's traceback."""

from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from headwater import ChangelogMetrics
from headwater.errors import (
    BlockOrderError,
    ForkCursorMissingError,
    WorkerLostError,
    WorkerSilentError,
)
from headwater.spark.executors import coded_error, coded_failures


def test_the_innermost_error_of_a_traceback_is_found() -> None:
    first, then = BlockOrderError("first", got=1), BlockOrderError("then", got=2)
    text = f"Traceback …\n{first}\nduring …\n{then}"
    assert str(coded_error(text)) == str(then)


def test_the_facts_that_code_reads_are_found_again() -> None:
    said = "the portal (of a range) has gone"
    facts = {"status": 404, "cursor": None, "table": "`a`.`b`", "one": "x, y", "padded": "007"}
    error = coded_error(f"Traceback …\n{BlockOrderError(said, **facts)}")
    assert error is not None
    assert (error.message, error.facts) == (said, facts)
    bare = coded_error(str(BlockOrderError(said)))
    assert bare is not None
    assert (bare.message, bare.facts) == (said, {})


@pytest.mark.parametrize("text", ["", "[E3004] without a fix", "[E9999] unknown. Fix: none"])
def test_other_texts_are_not_taken_for_ours(text: str) -> None:
    assert coded_error(text) is None


def test_failures_become_coded_errors_and_others_stay_what_they_are() -> None:
    with pytest.raises(ForkCursorMissingError), coded_failures():
        raise PySparkException(str(ForkCursorMissingError("lost")))
    with pytest.raises(PySparkException), coded_failures():
        raise PySparkException("out of memory")


def test_a_python_process_that_was_too_slow_to_start_is_a_coded_error() -> None:
    slow = "Job aborted: SparkException: Python worker failed to connect back."
    with pytest.raises(WorkerSilentError, match=r"E5038.*10 s,"), coded_failures():
        raise PySparkException(slow)


def test_a_query_that_ends_so_is_told_of_by_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    listener, slow = ChangelogMetrics(CollectorRegistry()), "Python worker failed to connect back."
    for text in (None, "a failure of the user's", f"SparkException: {slow}"):
        listener.onQueryTerminated(QueryTerminatedEvent(uuid4(), uuid4(), text, None))
    assert len(caplog.messages) == 1
    assert "[E5038]" in caplog.messages[0]


def test_a_planner_that_was_lost_is_a_coded_error_and_a_task_that_failed_is_not() -> None:
    lost = "Caused by: SparkException: Python worker exited unexpectedly (crashed)."
    with pytest.raises(WorkerLostError, match="E5008"), coded_failures():
        raise PySparkException(lost)
    with pytest.raises(PySparkException), coded_failures():
        raise PySparkException(f"Job aborted due to stage failure: {lost}")
