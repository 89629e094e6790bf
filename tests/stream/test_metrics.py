"""Every figure equals what the events and the chain say, through forks, faults and a restart."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headwater import StopRequested, evm
from headwater.errors import HeadwaterError
from headwater.metrics import REGISTRY, instruments
from headwater.pipeline import Committed, Event, RolledBack, Settled
from headwater.portal import RetryPolicy
from headwater.stream import portal_stream
from headwater.substreams.sink_metrics import sink_metrics
from headwater.targets import DuckDBTarget, duckdb_target
from headwater.testing import simulated_portal
from headwater.testing.faults.kinds import Status
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


@pytest.mark.guarantee("METRICS-1")
@pytest.mark.parametrize("seed", [3, 4])
def test_every_metric_equals_what_happened(seed: int, tmp_path: Path) -> None:
    """METRICS-1: figures are those of the loop's events and of the canonical chain."""
    dice, name = random.Random(seed), f"metrics-{seed}"
    seen: Counter[str] = Counter()
    depths: list[int] = []
    file = tmp_path / "chain.duckdb"
    with simulated_portal(seed=seed, blocks=60, finality_depth=15) as portal:
        portal.sim.faults.add(Status(503), route="stream", times=2)

        def on_event(event: Event) -> None:
            seen[type(event).__name__] += 1
            if isinstance(event, Committed):
                seen["blocks"] += event.blocks
            if isinstance(event, RolledBack):
                depths.append(event.orphaned.number - event.state.number)
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
        chain = portal.chain
        assert got[("headwater_cursor_block",)] == chain.head.number
        assert got[("headwater_head_block",)] == chain.head.number
        assert got[("headwater_lag_blocks",)] == 0
        assert got[("headwater_running",)] == 0
        assert got[("headwater_blocks_total",)] == seen["blocks"]
        assert got[("headwater_commits_total",)] == seen["Committed"]
        assert got[("headwater_forks_total",)] == len(depths) == 4
        assert got[("headwater_fork_depth_blocks_sum",)] == sum(depths)
        assert got[("headwater_retries_total", "503")] == 2
        assert got[("sqd_portal_requests_total", "error", "503")] == 2
        assert got[("sqd_portal_requests_total", "success", "409")] >= 4
        assert got[("sqd_processed_block",)] == chain.head.number
        assert got[("sqd_forks_total",)] == 4
        rows = len(transfers(chain, chain.canonical()))
        assert got[("headwater_rows_total",)] - got[("headwater_rows_undone_total",)] == rows
        assert got[("headwater_stage_seconds_count", "roll_back")] == 4
        assert got[("headwater_stage_seconds_count", "commit")] >= seen["Committed"]


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
