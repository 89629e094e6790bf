"""Spans: the same rows as on the driver, one fetch, and nothing lost or doubled by failures."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from headwater import duckdb_target, portal_stream
from headwater.core import BlockCursor, BlockHeader, BlockRange, Fork
from headwater.decode import Output, evm
from headwater.errors import (
    BlockLinkError,
    FinalizedForkError,
    HeadwaterError,
    InvalidOptionError,
    InvalidRangeError,
)
from headwater.portal import PortalClient, RetryPolicy, portal_address
from headwater.query import Query, merge_queries
from headwater.spark import Span, read_span
from headwater.spark.executors import described_job
from headwater.spark.parts import Part, PartReader, RawRows, Receipt, sum_receipts
from headwater.testing import (
    DropAfter,
    DropBeforeHeaders,
    GarbageLine,
    PortalServer,
    Status,
    simulated_portal,
)
from tests.spark.conftest import ALL, APPROVAL, LAST, TRANSFER, decoded, lines, requested

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

ONE: Mapping[str, Output] = {"transfers": TRANSFER}
EVERYWHERE: Mapping[str, Sequence[BlockRange]] = {"transfers": [BlockRange(0)]}


def span_of(
    spark: SparkSession,
    portal: PortalServer,
    outputs: Mapping[str, Output] = ONE,
    ranges: Mapping[str, Sequence[BlockRange]] = EVERYWHERE,
    block_range: BlockRange = ALL,
    **options: Any,
) -> Span:
    return read_span(spark, portal.url, outputs, ranges, union(outputs), block_range, **options)


def union(outputs: Mapping[str, Output]) -> Query:
    return merge_queries(output.query for output in outputs.values())


def rows(frame: Any, expected: pa.Table) -> pa.Table:
    return frame.toArrow().cast(expected.schema)


def persisted(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return int(context._jsc.getPersistentRDDs().size())


@pytest.mark.parametrize("partitions", [1, 3, 17])
def test_rows_equal_those_decoded_on_the_driver(
    spark: SparkSession, portal: PortalServer, partitions: int
) -> None:
    span = span_of(spark, portal, partitions=partitions)
    assert len(span.parts) == partitions
    expected = decoded(portal, ONE, EVERYWHERE, TRANSFER.query)
    assert rows(span.frames["transfers"], expected["transfers"]).equals(expected["transfers"])


def test_several_outputs_share_one_fetch_and_keep_their_own_filters_and_ranges(
    spark: SparkSession, portal: PortalServer
) -> None:
    everything = decoded(portal, ONE, EVERYWHERE, TRANSFER.query)["transfers"]
    token = everything["address"][0].as_py()
    outputs = {
        "all.transfers": TRANSFER,
        "one token": evm.events("erc20.Transfer", contracts=[token]),
        "Approvals": APPROVAL,
        "nothing": evm.events("Never(uint256 value)"),
    }
    ranges = {
        "all.transfers": [BlockRange(100, 199), BlockRange(300)],
        "one token": [BlockRange(0)],
        "Approvals": [BlockRange(50, 250)],
        "nothing": [BlockRange(0)],
    }
    expected = decoded(portal, outputs, ranges, union(outputs))
    assert expected["Approvals"].num_rows > 0
    assert 0 < expected["one token"].num_rows < everything.num_rows
    span = span_of(spark, portal, outputs, ranges, partitions=6)
    portal.ledger.clear()
    with span:
        for name, frame in span.frames.items():
            assert rows(frame, expected[name]).equals(expected[name]), name
        assert requested(portal) == list(range(LAST + 1)), "each block once for all outputs"
        report = span.report()
        assert requested(portal) == list(range(LAST + 1)), "nor does the report fetch again"
    assert report.skipped == dict.fromkeys(outputs, 0)
    assert persisted(spark) == 0


def nothing(batches: Iterable[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
    """Do nothing with the rows of a part."""
    yield from ()


def test_rows_of_a_single_output_are_kept_only_for_dataframes(
    spark: SparkSession, portal: PortalServer
) -> None:
    span = span_of(spark, portal, partitions=2)
    portal.ledger.clear()
    assert span.frames["transfers"].toArrow().num_rows > 0
    assert persisted(spark) == 0
    assert requested(portal) == list(range(LAST + 1))
    portal.ledger.clear()
    frame = span.frames["transfers"]
    assert frame.where("log_index >= 2").union(frame).count() == frame.count() + sum(
        index >= 2 for index in frame.toArrow()["log_index"].to_pylist()
    )
    assert requested(portal) == list(range(LAST + 1))
    span.release()
    span.release()
    assert persisted(spark) == 0


def test_two_spans_at_once_do_not_share_what_is_persisted(
    spark: SparkSession, portal: PortalServer
) -> None:
    lower = span_of(spark, portal, block_range=BlockRange(0, 99), partitions=2)
    upper = span_of(spark, portal, block_range=BlockRange(100, 199), partitions=2)
    with lower, upper:
        counts = [span.frames["transfers"].count() for span in (lower, upper)]
        both = lower.frames["transfers"].union(upper.frames["transfers"])
        assert both.count() == sum(counts)
        assert upper.frames["transfers"].where("block_number < 100").isEmpty()
        assert lower.frames["transfers"].where("block_number >= 100").isEmpty()


def test_the_report_says_what_was_read(spark: SparkSession, portal: PortalServer) -> None:
    span = span_of(spark, portal, partitions=1)
    assert span.frames["transfers"].executor_rows().run(nothing, pa.schema([])).num_rows == 0
    portal.ledger.clear()
    report = span.report()
    assert requested(portal) == [], "the job has brought it"
    sent = lines(portal, TRANSFER.query)
    assert (report.blocks, report.bytes_read) == (len(sent), sum(map(len, sent)))
    block = portal.chain.at_or_below(LAST)
    assert block is not None
    assert report.cursor == block.cursor


def test_a_report_that_is_asked_for_first_reads_the_span_once(
    spark: SparkSession, portal: PortalServer
) -> None:
    expected = decoded(portal, ONE, EVERYWHERE, TRANSFER.query)["transfers"]
    with span_of(spark, portal, partitions=3) as span:
        portal.ledger.clear()
        whole = span.report()
        assert whole.rows == {"transfers": expected.num_rows}
        assert rows(span.frames["transfers"], expected).equals(expected)
        assert requested(portal) == list(range(LAST + 1))
    with span_of(spark, portal, partitions=3) as span:
        assert span.frames["transfers"].limit(1).count() == 1
        assert span.report() == whole


def test_what_cannot_be_decoded_is_counted_or_fails_with_its_code(
    spark: SparkSession, portal: PortalServer
) -> None:
    skipping = evm.events("erc20.Transfer", decimals=["value"], on_error="skip")
    with span_of(spark, portal, {"transfers": skipping}, partitions=3) as span:
        kept = span.frames["transfers"].count()
        total = decoded(portal, ONE, EVERYWHERE, TRANSFER.query)["transfers"].num_rows
        assert span.report().skipped == {"transfers": total - kept}
    assert total > kept
    raising = {"transfers": replace(skipping, on_error="raise")}
    span = span_of(spark, portal, raising, partitions=1)
    with pytest.raises(HeadwaterError, match=r"\[E4002\]"):
        span.frames["transfers"].toArrow()
    with pytest.raises(HeadwaterError, match=r"\[E4002\]"):
        span.frames["transfers"].count()
    assert persisted(spark) == 0


def test_broken_connections_change_no_row(spark: SparkSession, portal: PortalServer) -> None:
    expected = decoded(portal, ONE, EVERYWHERE, TRANSFER.query)["transfers"]
    span = span_of(spark, portal, partitions=4)
    for fault in (DropAfter(), DropBeforeHeaders(reset=True), Status(503)):
        portal.sim.faults.add(fault, times=3, probability=0.4, route="finalized-stream")
    portal.ledger.clear()
    assert rows(span.frames["transfers"], expected).equals(expected)
    assert sum(portal.ledger.faults().values()) >= 3


def test_a_task_that_fails_is_tried_again_and_gives_exact_rows(
    spark: SparkSession, portal: PortalServer
) -> None:
    expected = decoded(portal, ONE, EVERYWHERE, TRANSFER.query)["transfers"]
    span = span_of(spark, portal, partitions=2)
    portal.sim.faults.add(GarbageLine(), nth=3, times=2, route="finalized-stream")
    portal.ledger.clear()
    assert rows(span.frames["transfers"], expected).equals(expected)
    assert portal.ledger.faults()["garbage-line"] == 2, "the client gives up on such a line"
    sent = [line for part in span.parts for line in lines(portal, TRANSFER.query, part)]
    assert span.report().bytes_read == sum(map(len, sent)), "nor is anything counted twice"


def test_credentials_reach_executors_and_no_plan(spark: SparkSession) -> None:
    with simulated_portal(seed=3, blocks=60, auth=("ann", "s3cret-word")) as portal:
        url = portal.url.replace("http://", "http://ann:s3cret-word@")
        span = read_span(
            spark, url, ONE, EVERYWHERE, TRANSFER.query, BlockRange(0, 39), partitions=2
        )
        frame: Any = span.frames["transfers"]
        with span:
            assert frame.count() > 0
            execution = frame._jdf.queryExecution()
            shown = [
                execution.toString(),
                *(
                    frame._sc._jvm.PythonSQLUtils.explainString(execution, mode)
                    for mode in ("simple", "extended", "formatted", "codegen", "cost")
                ),
                *(plan.toJSON() for plan in (execution.analyzed(), execution.executedPlan())),
            ]
            for text in shown:
                assert "s3cret-word" not in text
                assert "gASV" not in text, "nor a pickle in base64"


def test_what_cannot_work_is_refused_before_anything_is_asked(
    spark: SparkSession, portal: PortalServer
) -> None:
    with pytest.raises(InvalidRangeError, match="needs an end"):
        span_of(spark, portal, block_range=BlockRange(0))
    with pytest.raises(InvalidOptionError, match="partitions"):
        span_of(spark, portal, partitions=0, samples=0)
    assert portal.ledger.stream_requests() == []


def test_a_fork_among_final_blocks_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = Fork((BlockCursor(6, "0x6"),))
    monkeypatch.setattr(PortalClient, "read", lambda *_, **__: iter([fork]))
    address = portal_address("http://127.0.0.1:1/x")
    reader = PartReader(address, TRANSFER.query, RawRows(), dataset=None, retry=RetryPolicy())
    with pytest.raises(FinalizedForkError, match=r"\[E1005\].*range=5\.\.9, sample=6#0x6"):
        list(reader.read(Part(0, BlockRange(5, 9))))


def test_seams_between_parts_are_checked() -> None:
    parts = [BlockRange(0, 9), BlockRange(10, 19)]
    last = BlockHeader(9, "0x9", "0x8")
    good, bad = (BlockHeader(10, "0xa", parent) for parent in ("0x9", "0xbad"))

    def report(first: BlockHeader) -> Any:
        receipts = [Receipt(0, 1, 1, last, last), Receipt(1, 1, 1, first, first)]
        return sum_receipts(receipts, parts, complete=False)

    assert report(good).cursor == good.cursor
    with pytest.raises(BlockLinkError, match="block 10 is not a descendant of block 9"):
        report(bad)


def test_a_part_without_a_receipt_is_missed() -> None:
    receipts = [Receipt(0), Receipt(0)]
    with pytest.raises(BlockLinkError, match=r"without a receipt.*parts=2\.\.3"):
        sum_receipts(receipts, [BlockRange(0, 1), BlockRange(2, 3)], complete=False)


class KillsWorker:
    """A row maker that kills the worker which unpickles it, as often as it has lives left."""

    def __init__(self, real: Any, lives: Path) -> None:
        self.real = real
        self.lives = lives

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __reduce__(self) -> Any:
        return _or_die, (self.real, str(self.lives))


def _or_die(real: Any, lives: str) -> Any:
    for one in Path(lives).iterdir():
        one.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return real


def test_a_worker_that_is_killed_is_replaced(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    """No Python process plans a span: each that can be killed is a task's, which is tried again."""
    for number in range(2):
        tmp_path.joinpath(str(number)).touch()
    span = span_of(spark, portal, partitions=2)
    reader: Any = span._reader
    span._reader = replace(reader, row_maker=KillsWorker(reader.row_maker, tmp_path))
    expected = decoded(portal, ONE, EVERYWHERE, TRANSFER.query)["transfers"]
    with span:
        assert rows(span.frames["transfers"], expected).equals(expected)
        assert not list(tmp_path.iterdir())


def test_sparks_pages_say_which_blocks_a_job_reads(
    spark: SparkSession, portal: PortalServer, tmp_path: Path
) -> None:
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 199))}
    stream = portal_stream(id="a", portal=portal.url, outputs=outputs, spark=spark, far=50)
    stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"), progress=False)
    store = spark._jsparkSession.sparkContext().statusStore()
    jobs = store.jobsList(None)
    shown = {str(jobs.apply(at).description()) for at in range(jobs.size())}
    assert any(text.startswith("Some(headwater: read and write blocks 0..") for text in shown)
    assert not spark.sparkContext.getLocalProperty("spark.job.description")
    spark.sparkContext.setJobDescription("mine")
    try:
        with described_job(spark, "read"):
            assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", "")
