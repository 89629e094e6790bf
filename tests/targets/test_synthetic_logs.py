"""Logs that nodes add to blocks, with indexes above 2^31: none of them stops a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from headwater import StopRequested, evm, portal_stream
from headwater.pipeline import Event, Settled
from headwater.targets.clickhouse import clickhouse_target
from headwater.targets.delta import delta_target
from headwater.targets.delta.target import DeltaAdmin
from headwater.targets.duckdb import duckdb_target
from headwater.targets.parquet import ParquetSettings, Rollover, parquet_target
from headwater.targets.parquet.target import ParquetAdmin
from headwater.targets.postgres import postgres_target, table
from headwater.testing import ContentSettings, PortalServer, simulated_portal
from headwater.testing.chain.content import content_of
from headwater.testing.chain.content.evm import SYNTHETIC
from tests.targets import clickhouse_places, postgres_places

HEAD, FINAL = 39, 31
LOGS = {"logs": evm.logs(range=(0, HEAD))}
INT32 = 2**31 - 1


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    content = ContentSettings(transactions_per_block=2, synthetic_log_share=0.5)
    with simulated_portal(seed=11, blocks=HEAD + 1, finality_depth=8, content=content) as server:
        yield server


def indexes(portal: PortalServer, last: int) -> list[tuple[int, int]]:
    """Return block and index of every log of the chain."""
    blocks = portal.chain.canonical(0, last)
    return [
        (one.number, log["logIndex"])
        for one in blocks
        for log in content_of(portal.chain, one).rows("logs")
    ]


def follow(portal: PortalServer, target: Any) -> None:
    """Fill a target; near the head its newest blocks are orphaned, and read again."""
    forked = False

    def on_event(event: Event) -> None:
        nonlocal forked
        if isinstance(event, Settled) and not forked:
            forked = True
            portal.fork(4, 4)
        elif isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
            raise StopRequested

    outputs = {"logs": evm.logs(range=0)}
    stream = portal_stream(
        id="s", portal=portal.url, far=10**9, poll_interval_s=0.01, outputs=outputs
    )
    stream.pipe_to(target, on_event=on_event, progress=False)


def _asked(target: Any, name: str) -> list[tuple[int, int]]:
    rows = target.query(f"SELECT block_number, log_index FROM {name}").to_pylist()
    return [(one["block_number"], one["log_index"]) for one in rows]


def _read(admin: Any) -> list[tuple[int, int]]:
    rows = admin.read_blocks("s", "logs", 0, HEAD).rows.to_pylist()
    return [(one["block_number"], one["log_index"]) for one in rows]


@pytest.mark.guarantee("VALUE-1")
@pytest.mark.parametrize("name", ["postgres", "duckdb", "clickhouse", "delta", "parquet"])
def test_a_log_that_a_node_added_is_stored_in_history_and_at_the_head(
    name: str, portal: PortalServer, tmp_path: Path
) -> None:
    lake, last = tmp_path / "lake", HEAD
    targets: Mapping[str, Callable[[], Any]] = {
        "postgres": lambda: postgres_target(postgres_places.database()),
        "duckdb": lambda: duckdb_target(tmp_path / "chain.duckdb"),
        "clickhouse": lambda: clickhouse_target(clickhouse_places.database()),
        "delta": lambda: delta_target(lake),
        "parquet": lambda: parquet_target(
            lake, settings=ParquetSettings(rollover=Rollover(rows=1))
        ),
    }
    target = targets[name]()
    follow(portal, target)
    if name == "delta":
        found = _read(DeltaAdmin(str(lake), None, "sync"))
    elif name == "parquet":
        found, last = _read(ParquetAdmin(str(lake), None, "sync")), FINAL
    else:
        found = _asked(target, "logs_live" if name == "clickhouse" else "logs")
    wanted = indexes(portal, last)
    assert sorted(found) == wanted
    assert {at > FINAL for at, index in wanted if index == SYNTHETIC} == {False, last == HEAD}
    assert target.altered.values == 0


OLD = (
    "CREATE TABLE logs (block_number bigint, block_hash text, timestamp timestamptz, "
    "transaction_hash text, transaction_index integer, log_index integer, address text, "
    "topics text[], data {bytes}{key})"
)


def old_tables(name: str, key: str, path: Path, **options: Any) -> Any:
    """Return a target with the tables of an earlier release, whose indexes have 32 bits."""
    if name == "postgres":
        dsn = postgres_places.database()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(OLD.format(bytes="bytea", key=key))
        return postgres_target(dsn, **options)
    with duckdb.connect(path / "chain.duckdb") as connection:
        connection.execute(OLD.format(bytes="blob", key=key))
    return duckdb_target(path / "chain.duckdb", **options)


@pytest.mark.parametrize("policy", ["replace", "null", "skip"])
@pytest.mark.parametrize("name", ["postgres", "duckdb"])
def test_a_table_of_32_bits_goes_on_and_what_it_cannot_hold_is_counted(
    name: str, policy: str, portal: PortalServer, tmp_path: Path
) -> None:
    target = old_tables(name, "", tmp_path, unrepresentable=policy)
    follow(portal, target)
    all_of: dict[str, list[int | None]] = {"replace": [INT32], "null": [None], "skip": []}
    instead = all_of[policy]
    wanted = [
        (block, value)
        for block, index in indexes(portal, HEAD)
        for value in (instead if index == SYNTHETIC else [index])
    ]
    assert sorted(_asked(target, "logs"), key=str) == sorted(wanted, key=str)
    assert target.altered.values > 0


@pytest.mark.parametrize("name", ["postgres", "duckdb"])
def test_a_key_of_32_bits_leaves_out_the_row_and_counts_it(
    name: str, portal: PortalServer, tmp_path: Path
) -> None:
    def write(tx: Any, data: Any) -> None:
        tx.upsert("logs", data["logs"])

    key = ["block_number", "log_index"]
    target = old_tables(
        name, f", PRIMARY KEY ({', '.join(key)})", tmp_path,
        tables=[table("logs", key=key)], on_data=write,
    )  # fmt: skip
    follow(portal, target)
    wanted = [one for one in indexes(portal, HEAD) if one[1] != SYNTHETIC]
    assert sorted(_asked(target, "logs")) == wanted
    assert target.altered.rows > 0
