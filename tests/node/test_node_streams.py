"""Streams that read a node: the same tables as through a portal, through forks and faults."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from headwater import StopRequested, evm
from headwater.errors import HeadwaterError, NodeLacksError, PortalHttpError, PortalUrlError
from headwater.pipeline import Event, Settled
from headwater.portal import RetryPolicy, Timeouts
from headwater.stream import PortalStream, portal_stream
from headwater.stream.verification import verify
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.portal.node import FAULTS
from tests.stream import pool_truth
from tests.stream.truth import COLUMNS, transfers

QUICK = RetryPolicy(schedule_s=(0.001, 0.002))
AWAY = "rpc+http://127.0.0.1:9"  # nobody listens there


def stream_of(server: PortalServer, block_range: Any = 0, **options: Any) -> PortalStream:
    return portal_stream(
        **{
            "id": "transfers",
            "portal": server.node_url,
            "outputs": {"transfers": evm.events("erc20.Transfer", range=block_range)},
            "far": 10**9,
            "poll_interval_s": 0.01,
            "retry": QUICK,
            **options,
        }
    )


def rows_of(path: Path, table: str = "transfers", columns: str = COLUMNS) -> list[tuple[Any, ...]]:
    found = duckdb_target(path).query(f"SELECT {columns} FROM {table} ORDER BY ALL")
    return [tuple(row.values()) for row in found.to_pylist()]


class MovesTheChain:
    """Forks or extends the chain whenever a stream has reached its head; ends after some moves."""

    def __init__(self, portal: PortalServer, seed: int, moves: int) -> None:
        self.portal = portal
        self.dice = Random(seed)
        self.moves = moves
        self.forks = 0

    def __call__(self, event: Event) -> None:
        chain = self.portal.chain
        if not isinstance(event, Settled) or event.state.cursor != chain.head.cursor:
            return
        if not self.moves:
            raise StopRequested
        self.moves -= 1
        final = 0 if chain.finalized is None else chain.finalized.number
        room = chain.head.number - final
        if room > 1 and self.dice.random() < 0.6:
            depth = self.dice.randint(1, room)
            chain.fork(depth, self.dice.randint(max(1, depth - 1), depth + 2))
            self.forks += 1
        else:
            chain.extend(self.dice.randint(1, 3))
        if self.dice.random() < 0.3:
            chain.finalize(max(final, chain.head.number - self.dice.randint(10, 30)))


@pytest.mark.parametrize("seed", range(4))
def test_forks_at_the_head_leave_the_rows_of_the_chain_alone(tmp_path: Path, seed: int) -> None:
    with simulated_portal(seed=seed, blocks=40, finality_depth=15) as portal:
        moves = MovesTheChain(portal, seed, moves=25)
        stream_of(portal).pipe_to(duckdb_target(tmp_path / "a.duckdb"), on_event=moves)
        expected = transfers(portal.chain, portal.chain.canonical())
        assert rows_of(tmp_path / "a.duckdb") == sorted(expected)
        assert moves.forks > 3


@pytest.mark.parametrize("seed", range(2))
def test_forks_lagging_servers_and_faults_at_once(tmp_path: Path, seed: int) -> None:
    with simulated_portal(seed=seed, blocks=40, finality_depth=15, replicas=3) as portal:
        portal.sim.replicas[1].lag(2)
        portal.sim.replicas[2].lag(5)
        quirks = portal.node.quirks
        quirks.fault_share, quirks.max_range, quirks.max_batch = 0.1, 5, 8
        moves = MovesTheChain(portal, seed, moves=12)
        limits = Timeouts(headers_s=0.2, chunk_s=0.2)
        stream_of(portal, timeouts=limits).pipe_to(
            duckdb_target(tmp_path / "a.duckdb"), on_event=moves
        )
        expected = transfers(portal.chain, portal.chain.canonical())
        assert rows_of(tmp_path / "a.duckdb") == sorted(expected)
        assert sum(portal.node.met[fault] for fault in FAULTS) > 5


@pytest.mark.parametrize("source", ["portal", "node"])
def test_factories_find_the_same_children(tmp_path: Path, source: str) -> None:
    with simulated_portal(
        seed=5, blocks=60, finality_depth=10, content=pool_truth.SETTINGS
    ) as portal:
        swaps = evm.events(
            pool_truth.SWAP_EVENT, contracts=pool_truth.pools_of(portal.chain), range=(0, 55)
        )
        stream_of(
            portal,
            portal=portal.node_url if source == "node" else portal.url,
            outputs={"swaps": swaps},
        ).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        found = rows_of(tmp_path / "a.duckdb", "swaps", pool_truth.COLUMNS)
        assert found == sorted(pool_truth.swaps_of(portal.chain, portal.chain.canonical(0, 55)))


def test_executors_read_history_from_a_node(tmp_path: Path, spark: SparkSession) -> None:
    with simulated_portal(seed=6, blocks=400, finality_depth=10) as portal:
        stream_of(portal, (0, 380), far=50, first_span=200, spark=spark).pipe_to(
            duckdb_target(tmp_path / "a.duckdb")
        )
        expected = transfers(portal.chain, portal.chain.canonical(0, 380))
        assert rows_of(tmp_path / "a.duckdb") == sorted(expected)
        assert portal.node.calls["eth_getLogs"] > 1


def test_verify_compares_with_a_node_and_finds_what_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    with simulated_portal(seed=6, blocks=60, finality_depth=10) as portal:
        stream = stream_of(portal, (0, 40))
        stream.pipe_to(duckdb_target(path))
        assert verify(stream, str(path)).is_equal
        with duckdb.connect(path) as database:
            database.execute("DELETE FROM transfers WHERE block_number = 17")
        assert not verify(stream, str(path)).is_equal


def test_the_data_source_reads_a_node(spark: SparkSession) -> None:
    with simulated_portal(seed=6, blocks=120, finality_depth=10) as portal:
        options = {"event": "erc20.Transfer", "from_block": "0", "to_block": "100"}
        reader = spark.read.format("headwater").options(portal=portal.node_url, **options)
        frame = (
            reader.option("partitions", "3")
            .load()
            .selectExpr(*COLUMNS.replace('"', "`").split(", "))
        )
        expected = transfers(portal.chain, portal.chain.canonical(0, 100))
        assert sorted(tuple(row) for row in frame.collect()) == sorted(expected)


@pytest.mark.parametrize("several", [False, True])
def test_a_changelog_of_a_node_follows_a_fork(
    spark: SparkSession, tmp_path: Path, several: bool
) -> None:
    rows: Counter[tuple[Any, ...]] = Counter()

    def keep(frame: DataFrame, _: int) -> None:
        for kind, *row in frame.selectExpr("_change_type", "block_hash", "log_index").collect():
            rows[tuple(row)] += 1 if kind == "insert" else -1

    with simulated_portal(seed=6, blocks=16, finality_depth=8) as portal:
        changes = (
            spark.readStream.format("headwater")
            .options(
                portal=f"{AWAY} {portal.node_url}" if several else portal.node_url,
                event="erc20.Transfer",
                journal=f"{tmp_path}/journal",
            )
            .load()
        )
        query = (
            changes.writeStream.foreachBatch(keep)
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .start()
        )
        try:
            query.processAllAvailable()
            portal.fork(4)
            query.processAllAvailable()
        finally:
            query.stop()
        expected = {(row[1], row[2]) for row in transfers(portal.chain, portal.chain.canonical())}
    assert {row for row, count in rows.items() if count} == expected
    assert set(rows.values()) <= {0, 1}


# --- what is refused, and what is not shown -------------------------------------------------------


def test_traces_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with simulated_portal(seed=6, blocks=20) as portal:
        stream = stream_of(portal, outputs={"calls": evm.traces(range=(0, 9))})
        with pytest.raises(NodeLacksError, match=r"E3011.*lacks=traces"):
            stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        assert portal.node.calls["eth_getLogs"] == 0


def test_a_node_that_lacks_a_method_ends_the_stream_with_its_words(tmp_path: Path) -> None:
    with simulated_portal(seed=6, blocks=20) as portal:
        portal.node.quirks.lacks = frozenset({"eth_getLogs"})
        with pytest.raises(PortalHttpError, match=r"E3001.*eth_getLogs.*does not exist"):
            stream_of(portal, (0, 9)).pipe_to(duckdb_target(tmp_path / "a.duckdb"))


@pytest.mark.parametrize(
    "address",
    [
        "rpc+https://",
        "rpc+ftp://host-of-mine.example/k",
        "rpc+ws://host-of-mine.example/k",
        "rpc+https://host-of-mine.example/k#confirmations=x",
        "rpc+https://user:pa#ss@host-of-mine.example/k",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(PortalUrlError, match="E0004") as refused:
        portal_stream(id="a", portal=address, outputs={"t": evm.events("erc20.Transfer", range=0)})
    assert "host-of-mine.example" not in str(refused.value)
    assert "pa#ss" not in str(refused.value)


def test_the_key_in_the_path_is_shown_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with simulated_portal(seed=6, blocks=20) as portal:
        stream = stream_of(portal, (0, 9), retry=RetryPolicy(attempts=2, schedule_s=(0.001,)))
        texts = [repr(stream), stream.address, str(stream.portal), repr(stream.portal)]
        stream.pipe_to(duckdb_target(tmp_path / "a.duckdb"))
    with pytest.raises(HeadwaterError) as failed:
        stream.pipe_to(duckdb_target(tmp_path / "b.duckdb"))
    texts += [str(failed.value), repr(failed.value.facts), caplog.text]
    assert not [text for text in texts if "a-secret-key" in text]


# --- finality -------------------------------------------------------------------------------------


def test_without_the_tag_final_blocks_are_counted_from_the_head(tmp_path: Path) -> None:
    with simulated_portal(seed=6, blocks=50, finality_depth=10) as portal:
        portal.node.quirks.has_finality = False
        path = tmp_path / "a.duckdb"
        seen = []

        def settled(event: Event) -> None:
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                seen.append(event.state.finalized)
                raise StopRequested

        stream_of(portal).pipe_to(duckdb_target(path), on_event=settled)
        counted = f"{portal.node_url}#confirmations=7"
        stream_of(portal, portal=counted).pipe_to(duckdb_target(path), on_event=settled)
        assert seen[0] is None
        assert seen[1] is not None
        assert seen[1].number == portal.chain.head.number - 7
