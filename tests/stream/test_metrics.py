"""Every figure equals what the events and the chain say, through forks, faults and a restart."""

from __future__ import annotations

import gc
import inspect
import json
import random
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headwater import ChangelogMetrics, StopRequested, evm
from headwater.core import AtHead, BlockCursor, BlockHeader, Blocks, Head, PipeState
from headwater.core.messages import Discarded, Waited
from headwater.errors import HeadwaterError
from headwater.metrics import REGISTRY, instruments
from headwater.metrics.facts import BatchFacts, Counts
from headwater.metrics.record import StreamRecord
from headwater.pipeline import Committed, Event, RolledBack, Settled
from headwater.portal import Notice, NoticeKind, RetryPolicy, SourceState
from headwater.stream import portal_stream
from headwater.substreams.sink_metrics import sink_metrics
from headwater.targets import DuckDBTarget, duckdb_target, table
from headwater.targets.admin import open_admin
from headwater.testing import simulated_portal
from headwater.testing.faults import Status
from tests.stream.truth import transfers


def figures(stream_id: str) -> dict[tuple[str, ...], float]:
    """Read the text form as a scraper does; keys are names with the labels other than the id."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(generate_latest(REGISTRY).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("id", None) == stream_id:
                found[(sample.name, *labels.values())] = sample.value
    return found


OF_SOURCES = "test_sources_of_a_list_are_shown_as_they_are"
OF_A_RUN, OF_RARE_EVENTS, OF_UNDO, OF_QUERIES = (
    "test_every_metric_equals_what_happened",
    "test_what_happens_rarely_is_counted_too",
    "test_rows_kept_for_undo_are_those_of_the_log",
    "test_the_journal_of_a_changelog_is_what_its_query_says",
)
CHECKED_BY = {
    "headwater_cursor_block": OF_A_RUN,
    "headwater_head_block": OF_A_RUN,
    "headwater_finalized_block": OF_A_RUN,
    "headwater_lag_blocks": OF_A_RUN,
    "headwater_lag_seconds": OF_RARE_EVENTS,
    "headwater_hot_blocks": OF_A_RUN,
    "headwater_running": OF_A_RUN,
    "headwater_blocks_per_second": OF_RARE_EVENTS,
    "headwater_rows_per_second": OF_RARE_EVENTS,
    "headwater_blocks": OF_A_RUN,
    "headwater_rows": OF_A_RUN,
    "headwater_bytes": OF_A_RUN,
    "headwater_rows_skipped": OF_RARE_EVENTS,
    "headwater_values_unrepresentable": "test_values_that_a_column_cannot_hold_are_counted",
    "headwater_logs_unlike": "test_logs_that_fit_the_topic_only_are_counted_and_said_once",
    "headwater_commits": OF_A_RUN,
    "headwater_stage_seconds": OF_A_RUN,
    "headwater_outbox_messages": "test_the_depth_and_age_of_an_outbox_are_those_of_its_table",
    "headwater_outbox_age_blocks": "test_the_depth_and_age_of_an_outbox_are_those_of_its_table",
    "headwater_forks": OF_A_RUN,
    "headwater_fork_depth_blocks": OF_A_RUN,
    "headwater_rows_undone": OF_A_RUN,
    "headwater_undo_rows": OF_UNDO,
    "headwater_missing_blocks": OF_RARE_EVENTS,
    "headwater_finality_unknown_seconds": OF_RARE_EVENTS,
    "headwater_ahead_seconds": OF_RARE_EVENTS,
    "headwater_journal_blocks": OF_QUERIES,
    "headwater_journal_bytes": OF_QUERIES,
    "headwater_blocks_discarded": OF_RARE_EVENTS,
    "headwater_source_in_use": OF_SOURCES,
    "headwater_source_good": OF_SOURCES,
    "headwater_source_head_block": OF_SOURCES,
    "headwater_source_changes": OF_SOURCES,
    "headwater_retries": OF_A_RUN,
    "headwater_stalls": OF_RARE_EVENTS,
    "headwater_replica_waits": OF_RARE_EVENTS,
    "headwater_errors": "test_an_error_that_ends_a_stream_is_counted_by_its_code",
    "sqd_processed_block": OF_A_RUN,
    "sqd_end_block": OF_RARE_EVENTS,
    "sqd_progress_ratio": OF_RARE_EVENTS,
    "sqd_eta_seconds": OF_RARE_EVENTS,
    "sqd_blocks_processed": OF_A_RUN,
    "sqd_bytes_downloaded": OF_A_RUN,
    "sqd_forks": OF_A_RUN,
    "sqd_decode_errors_skipped": OF_RARE_EVENTS,
    "sqd_portal_requests": OF_A_RUN,
    "sqd_batch_size_blocks": OF_A_RUN,
    "sqd_batch_size_bytes": OF_A_RUN,
}


def test_no_metric_is_forgotten() -> None:
    """Every name of the registry is compared with an oracle by the test that is named here."""
    registry = CollectorRegistry()
    instruments(registry)
    names = [one.name for one in registry.collect()]
    assert sorted(CHECKED_BY) == sorted(names)
    for name, test in CHECKED_BY.items():
        assert f'"{name}' in inspect.getsource(globals()[test]), f"{test} does not compare {name}"


@pytest.mark.guarantee("METRICS-1")
def test_sources_of_a_list_are_shown_as_they_are() -> None:
    record = StreamRecord("of-sources")
    first = SourceState("1 http://a", False, "failing", "refused", None, None, 3, 2)
    second = SourceState("2 http://b", True, "good", "", 17, 9, 5, 0)
    states = [first, second]
    record.reads_from(lambda: states)
    changed = Notice(NoticeKind.SOURCE_CHANGED, "blocks are read from http://b now")
    for _ in range(2):
        record.noticed(changed)
    found = figures("of-sources")
    for name, one, other in (
        ("headwater_source_in_use", 0, 1),
        ("headwater_source_good", 0, 1),
        ("headwater_source_head_block", -1, 17),
    ):
        assert found[name, "1 http://a"] == one
        assert found[name, "2 http://b"] == other
    assert found[("headwater_source_changes_total",)] == 2
    states[:] = [replace(first, in_use=True, head=18), replace(second, in_use=False)]
    assert figures("of-sources")["headwater_source_in_use", "1 http://a"] == 1
    assert figures("of-sources")["headwater_source_head_block", "1 http://a"] == 18
    assert [one["reason"] for one in record.snapshot()["sources"]] == ["refused", ""]


@pytest.mark.guarantee("METRICS-1")
@pytest.mark.parametrize("seed", [3, 4])
def test_every_metric_equals_what_happened(seed: int, tmp_path: Path) -> None:
    """METRICS-1: figures are those of the loop's events and of the canonical chain."""
    dice, name = random.Random(seed), f"metrics-{seed}"
    seen: Counter[str] = Counter()
    depths: list[int] = []
    states: list[PipeState] = [PipeState()]
    file = tmp_path / "chain.duckdb"
    with simulated_portal(seed=seed, blocks=60, finality_depth=15) as portal:
        portal.sim.faults.add(Status(503), route="stream", times=2)

        def rows_between(low: int, high: int) -> int:
            own = [one for one in portal.chain.canonical() if low < one.number <= high]
            return len(transfers(portal.chain, own))

        def on_event(event: Event) -> None:
            seen[type(event).__name__] += 1
            if isinstance(event, Committed):
                seen["blocks"] += event.blocks
                seen["rows"] += rows_between(states[-1].number, event.state.number)
            if isinstance(event, RolledBack):
                depths.append(event.orphaned.number - event.state.number)
            states.append(event.state)
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                if len(depths) >= 4:
                    raise StopRequested
                if dice.random() < 0.6:
                    portal.fork(dice.randint(1, 6))
                else:
                    portal.extend(dice.randint(1, 4))

        stream = portal_stream(
            id=name,
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer")},
            far=10**9,
            poll_interval_s=0.01,
        )
        stream.pipe_to(duckdb_target(file), on_event=on_event)
        got = figures(name)
        chain, last = portal.chain, states[-1]
        assert last.finalized is not None
        assert got[("headwater_cursor_block",)] == chain.head.number
        assert got[("headwater_head_block",)] == chain.head.number
        assert got[("headwater_finalized_block",)] == last.finalized.number
        assert got[("headwater_hot_blocks",)] == len(last.landing_points()) - 1 > 0
        assert got[("headwater_lag_blocks",)] == 0
        assert got[("headwater_running",)] == 0
        assert got[("headwater_blocks_total",)] == seen["blocks"]
        assert got[("sqd_blocks_processed_total",)] == seen["blocks"]
        assert got[("sqd_batch_size_blocks_sum",)] == seen["blocks"]
        assert got[("headwater_commits_total",)] == seen["Committed"]
        assert got[("headwater_forks_total",)] == len(depths) == 4
        assert got[("headwater_fork_depth_blocks_sum",)] == sum(depths)
        assert got[("headwater_retries_total", "503")] == 2
        assert got[("sqd_portal_requests_total", "error", "503")] == 2
        assert got[("sqd_portal_requests_total", "success", "409")] >= 4
        assert got[("sqd_processed_block",)] == chain.head.number
        assert got[("sqd_forks_total",)] == 4
        rows = rows_between(-1, chain.head.number)
        assert got[("headwater_rows_total",)] == seen["rows"]
        assert got[("headwater_rows_undone_total",)] == seen["rows"] - rows > 0
        size = got[("headwater_bytes_total",)]
        assert size == got[("sqd_bytes_downloaded_total",)] == got[("sqd_batch_size_bytes_sum",)]
        assert size > 100 * seen["rows"]
        assert got[("headwater_stage_seconds_count", "recover")] == 1
        assert got[("headwater_stage_seconds_count", "roll_back")] == 4
        assert got[("headwater_stage_seconds_count", "commit")] >= seen["Committed"]


@pytest.mark.guarantee("METRICS-1")
def test_what_happens_rarely_is_counted_too() -> None:
    """With a clock of its own: speeds, ages and estimates are exact."""
    now = 1_000.0
    registry = CollectorRegistry()
    record = StreamRecord("rare", registry=registry, wall=lambda: now, clock=lambda: now)
    state = PipeState()
    for step in range(1, 4):
        now += 10.0
        cursor = BlockCursor(step * 100, f"h{step}", int(now) - 7)
        state = PipeState(cursor, cursor)
        counts = Counts(rows=50, bytes=1_000, skipped=step)
        record.transformed(
            BatchFacts(100, cursor, 0, 1_000, 10.0 * step, 10.0, 70.0, lambda c=counts: c)  # type: ignore[misc]
        )
        record.happened(Committed(state, 100))
    record.happened(Discarded(state, BlockCursor(303, "x"), 3))
    record.missing(54)
    for _ in range(2):
        record.happened(Waited(state))
    record.noticed(Notice(NoticeKind.STALLED, "nothing has arrived for 60 s", {"status": 503}))
    assert record.status == "stalled"
    record.happened(Settled(state))
    for _ in range(8):  # at 0 to 70 s: a stall after 60
        record.waits_for_target("the database is away")
        now += 10
    assert (record.status, record.trouble) == ("stalled", "the database is away")
    reasons = {
        (one.name, one.labels["reason"]): one.value
        for family in registry.collect()
        for one in family.samples
        if "reason" in one.labels and one.name.endswith("_total")
    }
    assert reasons == {
        ("headwater_stalls_total", "503"): 1,
        ("headwater_stalls_total", "connection"): 0,
        ("headwater_stalls_total", "database"): 1,
        ("headwater_retries_total", "connection"): 0,
        ("headwater_retries_total", "database"): 8,
    }
    now -= 80
    got = {
        one.name: one.value
        for family in registry.collect()
        for one in family.samples
        if one.labels.get("id") == "rare"
    }
    assert got["headwater_lag_seconds"] == 7
    assert got["headwater_blocks_per_second"] == 10
    assert got["headwater_rows_per_second"] == 5
    assert got["headwater_rows_skipped_total"] == got["sqd_decode_errors_skipped_total"] == 6
    assert got["headwater_blocks_discarded_total"] == 3
    assert got["headwater_missing_blocks"] == record.snapshot()["missing_blocks"] == 54
    assert got["headwater_replica_waits_total"] == 2
    assert got["headwater_finality_unknown_seconds"] == record.snapshot()["ahead_seconds"] == 0
    block = BlockHeader(301, "h", "p")
    record.read(Blocks((block,), (b"",), Head(BlockCursor(250), BlockCursor(301))))
    record.read(AtHead(Head()))
    record.ahead_of(299)
    now += 4
    record.ahead_of(299)
    record.happened(Settled(state))
    shown = record.snapshot()
    assert (shown["status"], shown["trouble"][-7:]) == ("waiting", "for 4 s")
    got = {one.name: one.value for family in registry.collect() for one in family.samples}
    assert got["headwater_finality_unknown_seconds"] == got["headwater_ahead_seconds"] == 4
    record.read(Blocks((block,), (b"",), Head(BlockCursor(250), BlockCursor(301))))
    got = {one.name: one.value for family in registry.collect() for one in family.samples}
    assert got["headwater_finality_unknown_seconds"] == got["headwater_ahead_seconds"] == 0
    assert got["sqd_end_block"] == 1_000
    assert got["sqd_progress_ratio"] == pytest.approx(0.3)
    assert got["sqd_eta_seconds"] == 70


@pytest.mark.guarantee("METRICS-1")
@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_values_that_a_column_cannot_hold_are_counted(tmp_path: Path, policy: str) -> None:
    """Amounts of tokens in a column of 16 bits."""
    file, id = tmp_path / "chain.duckdb", f"narrow-{policy}"
    tables = [table("transfers", types={"value": "SMALLINT"})]
    with simulated_portal(seed=7, blocks=30) as portal:
        outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 20))}
        stream = portal_stream(id=id, portal=portal.url, outputs=outputs, far=10**9)
        target = duckdb_target(file, tables=tables, unrepresentable=policy)
        stream.pipe_to(target, progress=False)
        blocks = portal.chain.canonical(0, 20)
        wide = sum(int(row[-1]) >= 2**15 for row in transfers(portal.chain, blocks))
    got = figures(id)
    assert got[("headwater_values_unrepresentable_total",)] == wide > 0
    assert got[("headwater_rows_skipped_total",)] == (wide if policy == "skip" else 0)


@pytest.mark.guarantee("METRICS-1")
def test_rows_kept_for_undo_are_those_of_the_log(tmp_path: Path) -> None:
    """Counted with the first commit and every 25th, when old ones are removed."""
    file, commits = tmp_path / "chain.duckdb", 0
    tables = [table("transfers", key=["block_number", "log_index"])]
    with simulated_portal(seed=3, blocks=60, finality_depth=15) as portal:

        def on_event(event: Event) -> None:
            nonlocal commits
            commits += isinstance(event, Committed)
            if commits == 1 + 25:
                raise StopRequested
            if isinstance(event, Settled):
                portal.extend(1)

        portal_stream(
            id="metrics-undo",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer")},
            far=10**9,
            poll_interval_s=0.01,
        ).pipe_to(duckdb_target(file, tables=tables), on_event=on_event, progress=False)
    rows = open_admin(str(file)).undo_rows("metrics-undo")
    assert rows
    assert figures("metrics-undo")[("headwater_undo_rows",)] == rows


@pytest.mark.guarantee("METRICS-1")
def test_the_journal_of_a_changelog_is_what_its_query_says() -> None:
    """`tests/spark/streaming` compares what a query says with the files of its journal."""
    registry = CollectorRegistry()
    end = {"version": 1, "number": 59, "finalized": 44, "forks": 2}
    latest = {**end, "lag": 0, "journal_blocks": 15, "journal_bytes": 9_000}
    source = SimpleNamespace(endOffset=json.dumps(end), latestOffset=json.dumps(latest))
    event: Any = SimpleNamespace(progress=SimpleNamespace(name="usdc", id="1", sources=[source]))
    ChangelogMetrics(registry).onQueryProgress(event)
    expected = {"headwater_journal_blocks": 15, "headwater_journal_bytes": 9_000}
    assert {one: registry.get_sample_value(one, {"id": "usdc"}) for one in expected} == expected


def test_an_error_that_ends_a_stream_is_counted_by_its_code(tmp_path: Path) -> None:
    with simulated_portal(seed=1, blocks=20) as portal:
        portal.sim.faults.add(Status(400), route="stream")
        stream = portal_stream(
            id="metrics-fails", portal=portal.url, outputs={"t": evm.events("erc20.Transfer")}
        )
        handle = stream.start(duckdb_target(tmp_path / "chain.duckdb"))
        with pytest.raises(HeadwaterError) as error:
            handle.await_termination()
        got = figures("metrics-fails")
        assert got[("headwater_errors_total", error.value.code)] == 1
        assert got[("headwater_running",)] == 0
        shown = handle.record.snapshot()
        assert (shown["status"], shown["error"]) == ("failed", str(error.value))


def test_a_record_keeps_forks_and_the_blocks_they_orphaned(tmp_path: Path) -> None:
    with simulated_portal(seed=5, blocks=40, finality_depth=10) as portal:
        forked = False

        def on_event(event: Event) -> None:
            nonlocal forked
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                if forked:
                    raise StopRequested
                portal.fork(depth=3, length=5)
                forked = True

        stream = portal_stream(
            id="metrics-forks",
            portal=portal.url,
            outputs={"t": evm.events("erc20.Transfer")},
            poll_interval_s=0.01,
        )
        handle = stream.start(duckdb_target(tmp_path / "chain.duckdb"), on_event=on_event)
        assert handle.await_termination(300)
        shown = handle.record.snapshot()
        assert shown["status"] == "stopped"
        (fork,) = shown["recent_forks"]
        assert fork["depth"] == 3
        assert fork["healed_s"] is not None
        orphans = [one["number"] for one in shown["recent_blocks"] if one["orphaned"]]
        kept = [one["number"] for one in shown["recent_blocks"] if not one["orphaned"]]
        assert sorted(orphans) == [fork["reached"] - 2, fork["reached"] - 1, fork["reached"]]
        assert kept == sorted(set(kept))
        assert handle.record.preview()["t"]


def test_logs_that_fit_the_topic_only_are_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An event with other `indexed` has the same topic: no row would ever come, in silence."""
    wrong = "Transfer(address from, address indexed to, uint256 value)"
    with simulated_portal(seed=3, blocks=30) as portal:
        events = {"t": wrong, "right": "erc20.Transfer"}
        outputs = {name: evm.events(event, range=(0, 29)) for name, event in events.items()}
        stream = portal_stream(id="unlike", portal=portal.url, outputs=outputs)
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"), progress=False)
        logs = len(transfers(portal.chain, portal.chain.canonical()))
    assert figures("unlike")["headwater_logs_unlike_total", "t"] >= logs > 0
    assert ("headwater_logs_unlike_total", "right") not in figures("unlike")
    said = [one.getMessage() for one in caplog.records if "event.unlike" in one.getMessage()]
    assert len(said) == 1
    assert "output t: no row" in said[0]


@pytest.mark.guarantee("METRICS-1")
def test_the_depth_and_age_of_an_outbox_are_those_of_its_table(tmp_path: Path) -> None:
    """After every commit, through forks, failed deliveries and a restart."""
    name, file, compared = "metrics-outbox", tmp_path / "chain.duckdb", Counter[str]()
    calls = 0

    def deliver(messages: object) -> None:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise OSError("not now")

    with simulated_portal(seed=3, blocks=60, finality_depth=15) as portal:
        for _ in range(2):
            target = duckdb_target(file)

            def on_event(event: Event, target: DuckDBTarget = target) -> None:
                if not isinstance(event, Committed | Settled):
                    return
                rows = target.query("SELECT block_number AS n FROM headwater_outbox_transfers")
                numbers = rows["n"].to_pylist()
                final = -1 if event.state.finalized is None else event.state.finalized.number
                got = figures(name)
                assert got[("headwater_outbox_messages", "transfers")] == len(numbers)
                age = max(0, final - min(numbers, default=final))
                assert got[("headwater_outbox_age_blocks", "transfers")] == age
                compared.update(waiting=bool(numbers), late=age > 0)
                if isinstance(event, Settled):
                    if compared["forks"] % 4 == 3:
                        compared["forks"] += 1
                        raise StopRequested
                    compared["forks"] += 1
                    portal.fork(3)
                    portal.chain.finalize(portal.chain.head.number - 10)

            portal_stream(
                id=name,
                portal=portal.url,
                outputs={"transfers": evm.events("erc20.Transfer")},
                far=10**9,
                poll_interval_s=0.01,
            ).on_finalized(
                "transfers", deliver, batch_size=20, retry=RetryPolicy((0.001,), attempts=50)
            ).pipe_to(target, on_event=on_event, progress=False)
    assert compared["waiting"] > 5


def test_a_registry_takes_its_metrics_along() -> None:
    """A registry that nothing holds is freed: a process of many streams does not grow."""
    registry = CollectorRegistry()
    assert instruments(registry) is instruments(registry)
    assert sink_metrics(registry) is sink_metrics(registry)
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None
