"""`headwater sink` and its cursors, as a user of substreams-sink-sql types them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from headwater.core import BlockCursor
from headwater.errors import (
    CursorMoveError,
    DuckDBPathError,
    InvalidOptionError,
    SchemaFileError,
    SinkCursorError,
    TakeoverError,
)
from headwater.metrics import REGISTRY
from headwater.substreams.cursor_text import CursorText, write_cursor
from headwater.substreams.outputs import decoder_of
from headwater.substreams.package import Package
from headwater.substreams.sink_metrics import PREFIX, sink_metrics
from headwater.targets import duckdb_target, postgres_target
from headwater.testing.substreams import EndsWith, SendsGarbage, simulated_endpoint
from headwater.testing.substreams.modules import DB_OUT, ORDERS
from tests.change_model import apply_one_by_one
from tests.cli.test_cursor import run
from tests.substreams.follower import output_of
from tests.targets import postgres_places

PACKAGE = Package.read(DB_OUT.package()).resolve()
HASH = PACKAGE.module_hash("db_out")


@pytest.fixture
def package(tmp_path: Path) -> str:
    path = tmp_path / "db.spkg"
    path.write_bytes(DB_OUT.package())
    return str(path)


@pytest.mark.sink_defect(9)
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
def test_setup_run_and_cursors(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgres_places.database() if kind == "postgres" else str(tmp_path / "a.duckdb")
    monkeypatch.setenv("PLACE", address.removeprefix("postgresql://"))
    dsn = "psql://${PLACE}" if kind == "postgres" else "${PLACE}"
    assert "Ran 3 statements" in run("sink", "setup", dsn, package)
    with pytest.raises(SchemaFileError, match=r"E0014.*already exists"):
        run("sink", "setup", dsn, package)
    run("sink", "setup", dsn, package, "--ignore-duplicate-table-errors")
    with simulated_endpoint(7, blocks=60, finality_depth=5) as server:
        run("sink", "run", dsn, package, "1:40", "-e", str(server.url), "--no-progress",
            "--live-block-flush-interval", "3")  # fmt: skip
        run("sink", "run", dsn, package, "db_out", ":58", "-e", str(server.url), "--no-progress")
        blocks = server.chain.canonical(1, 57)
    decoder = decoder_of(PACKAGE.types, DB_OUT.output_type)
    changes = decoder.decode([output_of(DB_OUT, one) for one in blocks])["changes"].to_pylist()
    expected = apply_one_by_one({}, changes)
    target: Any = (postgres_target if kind == "postgres" else duckdb_target)(address)
    held = {
        row["address"]: row["balance"]
        for row in target.query("SELECT address, balance::text AS balance FROM holder").to_pylist()
    }
    count = target.query("SELECT count(*) AS n FROM transfer").to_pylist()
    wanted = {keys[0][1]: row["balance"] for (table, keys), row in expected.items()
              if table == "holder"}  # fmt: skip
    assert held == wanted
    assert count == [{"n": sum(table == "transfer" for table, _ in expected)}]
    assert f"{HASH} block 57" in run("cursor", "read", dsn)
    block = BlockCursor(50, "0xabc")
    text = write_cursor(CursorText(1, block, block, BlockCursor(48, "0xdef")))
    assert "final 48" in run("cursor", "write", dsn, HASH, text)
    assert f"{HASH} block 50" in run("cursor", "read", dsn)
    with pytest.raises(SinkCursorError, match="40 characters"):
        run("cursor", "write", dsn, "short", text)
    with pytest.raises(CursorMoveError, match="--all"):
        run("cursor", "delete", dsn)
    run("cursor", "write", dsn, "e" * 40, text)
    assert "none" in run("cursor", "delete", dsn, "0" * 40, "--yes")
    assert HASH in run("cursor", "delete", dsn, HASH, "--yes")
    assert run("cursor", "read", dsn).count(" block ") == 1, "that of the other module is there"
    run("cursor", "delete", dsn, "--all", "--yes")
    assert "no cursors" in run("cursor", "read", dsn)


def test_a_cursor_of_another_module_is_refused_or_taken(package: str) -> None:
    dsn = postgres_places.database()
    run("sink", "setup", dsn, package)
    block = BlockCursor(20, "0xabc")
    text = write_cursor(CursorText(17, block, block, block))
    run("cursor", "write", dsn, "f" * 40, text)
    with pytest.raises(TakeoverError, match=rf"E0056.*module={HASH}.*block=20"):
        run("sink", "run", dsn, package, "-e", "http://127.0.0.1:1")
    from headwater.substreams.sink_database import SinkDsn, check_cursors

    with pytest.raises(InvalidOptionError, match="error, warn or ignore"):
        check_cursors(SinkDsn.parse(dsn), "cursors", HASH, "maybe")
    assert "block 20" in check_cursors(SinkDsn.parse(dsn), "cursors", HASH, "warn")
    assert f"{HASH} block 20" in run("cursor", "read", dsn)
    with pytest.raises(DuckDBPathError, match="no such file"):
        run("cursor", "read", "chain.duckdb")
    with pytest.raises(InvalidOptionError, match="PostgreSQL and DuckDB"):
        run("cursor", "read", "clickhouse://localhost/chain")


def test_a_relational_module_into_duckdb(tmp_path: Path) -> None:
    path, place = tmp_path / "orders.spkg", tmp_path / "chain.duckdb"
    path.write_bytes(ORDERS.package())
    assert "map_orders" in run("sink", "info", str(path))
    assert "Ready for map_orders" in run("sink", "setup", str(place), str(path))
    with simulated_endpoint(3, blocks=40, finality_depth=4, modules=(ORDERS,)) as server:
        run("sink", "run", str(place), str(path), "0:38", "-e", str(server.url), "--no-progress",
            "-H", "x-note: a:b")  # fmt: skip
        blocks = server.chain.canonical(0, 37)
    from headwater.substreams.mapping import RelationalMapping

    mapping = RelationalMapping(Package.read(path).types, ORDERS.output_type)
    expected = mapping.decode([output_of(ORDERS, one) for one in blocks])
    for name, rows in expected.items():
        got: Any = duckdb_target(place).query(f"SELECT count(*) AS n FROM {name}")
        assert got["n"].to_pylist() == [rows.num_rows]


def test_a_command_of_the_sink_runs_as_it_is(package: str, tmp_path: Path) -> None:
    """With flags that have nothing to set here."""
    dsn = str(tmp_path / "a.duckdb")
    run("sink", "setup", dsn, package)
    with simulated_endpoint(7, blocks=20) as server:
        said = run("sink", "run", dsn, package, "--stop-block", "+15", "--start-block", "0",
                   "-e", str(server.url).removeprefix("http://"), "--plaintext",
                   "--write-mode", "copy", "--spool-dir", "/nowhere", "--decode-workers", "8",
                   "--skip-package-validation", "--live-block-time-delta", "0s")  # fmt: skip
    assert "effect here: --write-mode, --spool-dir, --decode-workers, --skip-package-" in said
    assert f"{HASH}: done at block 14, " in said
    assert f"{HASH} block 14" in run("cursor", "read", dsn)


@pytest.mark.parametrize(
    "options",
    [["1-2"], ["1:2", "-s", "1"], ["a:b"], ["1:2", "-p", "x"], ["1:2", "-H", "secret"],
     ["1:2", "--insecure"], ["1:2", "--ca-file", "/nowhere"], ["1:2", "--noop-mode"],
     ["1:2", "--plaintext", "-e", "https://secret@x:1"]],
)  # fmt: skip
def test_options_that_cannot_be_read(package: str, tmp_path: Path, options: list[str]) -> None:
    dsn = str(tmp_path / "a.duckdb")
    run("sink", "setup", dsn, package)
    given = [options[0]] if ":" in options[0] else ["db_out", options[0]]
    with pytest.raises(InvalidOptionError, match="E0007") as caught:
        run("sink", "run", dsn, package, *given, "-e", "http://127.0.0.1:1", *options[1:])
    assert "secret" not in str(caught.value)


NAMES = """
head_block_number head_block_time_drift block_wait_time block_time_delta local_processing_time
message_size_bytes error data_message data_message_size_bytes undo_message unknown_message
progress_message progress_message_last_block progress_message_running_jobs
progress_message_last_contiguous_block progress_message_total_processed_blocks
progress_message_processed_bytes backprocessing_completion postgres_store_flush_count
postgres_flushed_rows_count postgres_store_flush_duration postgres_head_block_number
postgres_head_block_time_drift sql_tx_query_execution_duration
"""


def test_the_sinks_metrics_tell_of_a_run_under_its_names(package: str, tmp_path: Path) -> None:
    """A run with an undo signal and two cuts; `prune_…` is a part of each commit here."""
    dsn = str(tmp_path / "a.duckdb")
    sink_metrics()
    before = _figures()
    run("sink", "setup", dsn, package)
    with simulated_endpoint(7, blocks=60, finality_depth=8, bundle=4) as server:
        server.faults.add(EndsWith(1, "INTERNAL"), SendsGarbage(1, b""), EndsWith(0, "INTERNAL"))
        run("sink", "run", dsn, package, ":58", "-e", str(server.url), "--no-progress")
        server.chain.fork(5, 8)
        run("sink", "run", dsn, package, ":61", "-e", str(server.url), "--no-progress")
        newest = server.chain.canonical(60, 60)[0]
    now = _figures()
    assert {name.partition("{")[0] for name in now} == set(NAMES.split())
    more = {name: value - before.get(name, 0) for name, value in now.items()}
    assert now["head_block_number"] == now["postgres_head_block_number"] == 60
    assert now["head_block_time_drift"] == pytest.approx(time.time() - newest.timestamp, abs=60)
    assert now["block_time_delta"] == newest.timestamp - server.chain.canonical(59, 59)[0].timestamp
    assert (more["undo_message"], more["unknown_message"], more["error"]) == (1, 1, 2)
    assert more["data_message"] >= 61 / 4
    assert more["data_message_size_bytes"] == more["message_size_bytes"] > 1000
    assert more["progress_message"] >= 4, "each session begins with one"
    assert now['progress_message_running_jobs{stage="0"}'] == 1
    assert now['progress_message_last_block{stage="0"}'] <= 60
    assert now["backprocessing_completion"] == 1
    assert more["postgres_store_flush_count"] >= 2
    assert more["postgres_flushed_rows_count"] > 50
    seconds = more['sql_tx_query_execution_duration{type="normal"}']
    assert more["postgres_store_flush_duration"] == pytest.approx(seconds * 1e9)
    assert more['sql_tx_query_execution_duration{type="undo"}'] > 0
    assert more["local_processing_time"] > seconds > 0
    assert more["block_wait_time"] > 0


def _figures() -> dict[str, float]:
    """Return what a scrape shows of the sink's metrics."""
    found = {}
    for line in generate_latest(REGISTRY).decode().splitlines():
        if line.startswith(PREFIX):
            name, _, value = line.rpartition(" ")
            found[name.removeprefix(PREFIX)] = float(value)
    return found
