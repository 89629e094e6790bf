"""The table of features and faults has a row for everything that the product offers."""

from __future__ import annotations

import inspect

import pytest

from headwater import portal_stream, targets
from headwater.stream.portal import PortalStream
from tests.simulation.kinds import KINDS, NAMES, never_met, offers
from tests.simulation.situations import Fault, Feature, cell
from tests.simulation.themes import EVERY, theme_of

TARGETS = {
    "clickhouse_target": "ClickHouse", "delta_target": "Delta", "duckdb_target": "DuckDB",
    "iceberg_target": "Iceberg", "parquet_target": "Parquet", "postgres_target": "PostgreSQL",
    "history_target": Feature.CHANGES,
}  # fmt: skip
OPTIONS = {
    "flush": Feature.FLUSH, "undo_buffer": Feature.UNDO_BUFFER, "renamed": Feature.RENAMED,
    "on_config_change": Feature.ADDED, "pipe_batches": Feature.TRANSFORM,
    "on_finalized": Feature.OUTBOX, "pipe": Feature.PLAN, "missing_blocks": Feature.GIVEN_UP,
}  # fmt: skip
ELSEWHERE = {  # what is said by all streams, or is of executors, which worlds have none of
    "id", "portal", "outputs", "spark", "flush_backfill", "rollback_cap", "versions", "far",
    "first_span", "spans", "poll_interval_s",
    "max_bytes", "retry", "timeouts", "limits", "pipe_to", "start", "read_into", "preview",
}  # fmt: skip


def test_every_target_has_rows() -> None:
    offered = {name for name in targets.__all__ if name.endswith("_target")}
    offered -= {"spark_table_target"}  # it needs a session: tests/spark/spark_table_suite.py
    assert offered == set(TARGETS)
    assert {one for one in TARGETS.values() if not isinstance(one, Feature)} <= set(NAMES)
    assert set(KINDS) <= set(NAMES)


def test_every_option_and_method_of_a_stream_is_a_feature_or_is_said_to_be_none() -> None:
    methods = {name for name, _ in inspect.getmembers(PortalStream, inspect.isfunction)}
    named = {name for name in methods if not name.startswith("_")}
    named |= set(inspect.signature(portal_stream).parameters)
    assert named == set(OPTIONS) | ELSEWHERE


@pytest.mark.parametrize("feature", Feature)
def test_every_feature_is_offered_somewhere(feature: Feature) -> None:
    assert any(offers(kind, feature) for kind in NAMES)


@pytest.mark.parametrize("seeds", [range(1, 20_001), range(EVERY, EVERY + 500)])
def test_every_cell_is_what_some_world_is_about(seeds: range) -> None:
    cells = {cell for seed in seeds for cell in theme_of(seed).cells}
    assert never_met(dict.fromkeys(cells, 1)) == []


def test_a_cell_that_no_world_has_met_is_named() -> None:
    met = dict.fromkeys(never_met({}), 1)
    gone = cell("Delta", Feature.KEYED, Fault.KILLED)
    assert met.pop(gone)
    assert never_met(met) == [gone]
