"""Portals that keep a window of blocks: what left it is an error, or left out and counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater import (
    BlockCursor,
    RollbackHistory,
    StopRequested,
    create_target,
    find_rollback_index,
    pipe_to_iterator,
)
from headwater.cli import app
from headwater.core import BlockRange
from headwater.errors import InvalidOptionError, MissingBlocksError, SideTablesError, VerifyError
from headwater.pipeline import Event, Settled
from headwater.stream import StreamBatch
from headwater.stream.extensions import MISSING, missing_ranges
from headwater.stream.verification import verify
from headwater.targets import (
    clickhouse_target,
    delta_target,
    duckdb_target,
    iceberg_target,
    parquet_target,
    postgres_target,
)
from headwater.targets.admin import open_admin
from headwater.targets.compare import BlockFinding
from headwater.testing import PortalServer, simulated_portal
from tests.stream.test_factories import pool_portal
from tests.stream.test_factories import stream_of as pools_stream
from tests.stream.test_stream import StopAtHead, held, stream_of
from tests.stream.truth import transfers
from tests.targets import clickhouse_places, postgres_places

FINAL = 45


@pytest.fixture
def portal() -> Iterator[PortalServer]:
    """A real-time service: blocks 0 to 60, final up to 45."""
    with simulated_portal(seed=11, blocks=61, finality_depth=15, surface="hotblocks") as server:
        yield server


def run(portal: PortalServer, path: Path, block_range: object = 0, **options: Any) -> None:
    stream = stream_of(portal, block_range, **options)
    stream.pipe_to(duckdb_target(path), on_event=StopAtHead(portal))


def missing(path: Path, stream_id: str = "transfers") -> list[str]:
    rows = open_admin(str(path)).read_side_table(stream_id, MISSING)
    return [str(one) for one in missing_ranges(rows)]


def shown(path: Path | str) -> Any:
    """Return what `headwater status` says of the missing blocks."""
    result = CliRunner().invoke(app, ["status", str(path), "--json"])
    return json.loads(result.output)[0]["missing_blocks"]


def rows_without(portal: PortalServer, *gaps: BlockRange) -> list[tuple[Any, ...]]:
    blocks = portal.chain.canonical()
    return transfers(portal.chain, [b for b in blocks if not any(b.number in one for one in gaps)])


def test_a_range_that_begins_below_the_window_is_an_error(
    portal: PortalServer, tmp_path: Path
) -> None:
    portal.sim.drop_below(10)
    with pytest.raises(MissingBlocksError, match=r"E3010.*missing=0\.\.9, oldest=10"):
        run(portal, tmp_path / "a.duckdb")
    run(portal, tmp_path / "b.duckdb", 10)
    assert held(tmp_path / "b.duckdb") == rows_without(portal, BlockRange(0, 9))


def test_with_skip_it_is_left_out_counted_and_shown(portal: PortalServer, tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    portal.sim.drop_below(10)
    seen: list[str] = []
    stream_of(portal, (0, 30), missing_blocks="skip").pipe_to(
        create_target(write=lambda read: seen.extend(str(b.ctx.batch.missing) for b in read()))
    )
    assert seen == [str((BlockRange(0, 9),)), *["()"] * (len(seen) - 1)]
    run(portal, path, missing_blocks="skip")
    assert held(path) == rows_without(portal, BlockRange(0, 9))
    assert (missing(path), shown(path)) == (["0..9"], 10)


def test_a_stream_without_missing_blocks_shows_none(portal: PortalServer, tmp_path: Path) -> None:
    run(portal, tmp_path / "a.duckdb")
    assert shown(tmp_path / "a.duckdb") is None
    run(portal, tmp_path / "b.duckdb", missing_blocks="skip")
    assert shown(tmp_path / "b.duckdb") == 0


def test_a_pause_that_is_longer_than_the_window_is_an_error_and_changes_nothing(
    portal: PortalServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.duckdb"
    run(portal, path)
    before = held(path)
    portal.fork(depth=8, length=10)
    portal.extend(60)
    portal.sim.drop_below(100)
    for _ in range(2):
        with pytest.raises(MissingBlocksError, match=r"E3010.*missing=61\.\.99"):
            run(portal, path)
        assert held(path) == before


def test_with_skip_hot_rows_that_nobody_can_confirm_go_and_all_else_is_counted(
    portal: PortalServer, tmp_path: Path
) -> None:
    """Eight of the blocks are orphaned meanwhile, and no answer can tell any more."""
    path = tmp_path / "a.duckdb"
    run(portal, path)
    portal.fork(depth=8, length=10)
    portal.extend(60)
    portal.sim.drop_below(100)
    run(portal, path, missing_blocks="skip")
    assert held(path) == rows_without(portal, BlockRange(FINAL + 1, 99))
    assert (missing(path), shown(path)) == (["46..99"], 54)
    portal.extend(40)
    portal.sim.drop_below(portal.chain.head.number - 5)
    run(portal, path, missing_blocks="skip")
    lost = BlockRange(FINAL + 1, portal.sim.oldest - 1)
    assert held(path) == rows_without(portal, lost)
    assert (missing(path), shown(path)) == ([str(lost)], portal.sim.oldest - 1 - FINAL)


def place_of(kind: str, folder: Path) -> tuple[str, Callable[[], Any]]:
    """Return the address of an empty place, and what makes a target on it."""
    if kind == "postgres":
        address = postgres_places.database()
        return address, lambda: postgres_target(address)
    if kind == "clickhouse":
        address = clickhouse_places.database()
        return address, lambda: clickhouse_target(address)
    address = str(folder / "lake")
    if kind == "delta":
        return address, lambda: delta_target(address)
    return address, lambda: iceberg_target(address, tables=["transfers"])


@pytest.mark.guarantee("RANGE-1")
@pytest.mark.parametrize("kind", ["postgres", "clickhouse", "delta", "iceberg"])
def test_the_count_is_committed_with_the_rows_and_goes_with_them(
    kind: str, portal: PortalServer, tmp_path: Path
) -> None:
    address, target = place_of(kind, tmp_path)

    def run_again() -> None:
        stream = stream_of(portal, missing_blocks="skip")
        stream.pipe_to(target(), on_event=StopAtHead(portal))

    def missed() -> list[str]:
        rows = open_admin(address).read_side_table("transfers", MISSING)
        return [str(one) for one in missing_ranges(rows)]

    run_again()
    portal.fork(depth=8, length=10)
    portal.extend(60)
    portal.sim.drop_below(100)
    run_again()
    assert (missed(), shown(address)) == (["46..99"], 54)
    portal.fork(depth=5, length=6)
    run_again()
    assert missed() == ["46..99"], "a fork above the gap leaves it"
    found = verify(stream_of(portal), address)
    assert (found.is_equal, [one.name for one in found.left_out]) == (True, ["blocks 0..99"])
    portal.fork(depth=12, length=30)  # the first block behind the gap is among them
    portal.sim.drop_below(120)
    run_again()
    assert missed() == ["46..119"]
    assert verify(stream_of(portal), address).is_equal


@pytest.mark.parametrize("skip", [False, True])
def test_a_window_that_overtakes_a_running_stream(
    portal: PortalServer, tmp_path: Path, skip: bool
) -> None:
    path = tmp_path / "a.duckdb"
    overtaken = False

    class Overtake(StopAtHead):
        def __call__(self, event: Event) -> None:
            nonlocal overtaken
            if isinstance(event, Settled) and not overtaken:
                overtaken = True
                portal.extend(30)
                portal.sim.drop_below(80)
                return
            super().__call__(event)

    options: dict[str, Any] = {"missing_blocks": "skip"} if skip else {}
    stream = stream_of(portal, **options)
    if skip:
        stream.pipe_to(duckdb_target(path), on_event=Overtake(portal))
        assert held(path) == rows_without(portal, BlockRange(FINAL + 1, 79))
        assert shown(path) == 34
        return
    with pytest.raises(MissingBlocksError, match=r"missing=61\.\.79"):
        stream.pipe_to(duckdb_target(path), on_event=Overtake(portal))
    assert held(path) == rows_without(portal, BlockRange(61, 1000))


@pytest.mark.parametrize("skip", [False, True])
def test_a_fork_whose_ancestor_left_the_window(
    portal: PortalServer, tmp_path: Path, skip: bool
) -> None:
    path = tmp_path / "a.duckdb"
    run(portal, path)
    portal.fork(depth=10, length=12)
    portal.sim.drop_below(56)  # the common ancestor is 50
    if not skip:
        with pytest.raises(MissingBlocksError, match=r"E3010.*missing="):
            run(portal, path)
        return
    run(portal, path, missing_blocks="skip")
    gaps = missing_ranges(open_admin(str(path)).read_side_table("transfers", MISSING))
    assert gaps == (BlockRange(FINAL + 1, 55),)
    assert held(path) == rows_without(portal, *gaps)


def test_the_last_blocks_of_a_range_are_refused_where_nobody_can_confirm_them(
    portal: PortalServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.duckdb"
    run(portal, path, (0, 55))
    run(portal, path, (0, 55))
    before = held(path)
    portal.fork(depth=8, length=10)
    portal.extend(30)
    portal.sim.drop_below(70)
    for how in ("error", "skip"):  # nothing follows that could be read instead
        with pytest.raises(MissingBlocksError, match=r"missing=56\.\.69"):
            run(portal, path, (0, 55), missing_blocks=how)
        assert held(path) == before


def test_nothing_is_left_out_where_nothing_of_the_range_is_left(
    portal: PortalServer, tmp_path: Path
) -> None:
    portal.sim.drop_below(40)
    with pytest.raises(MissingBlocksError, match=r"missing=0\.\.39"):
        run(portal, tmp_path / "a.duckdb", (0, 30), missing_blocks="skip")


def test_each_target_of_a_fan_out_has_the_same(portal: PortalServer, tmp_path: Path) -> None:
    one, two = (tmp_path / f"{name}.duckdb" for name in "ab")
    run(portal, one, (0, 40))
    portal.extend(30)
    portal.sim.drop_below(60)
    stream = stream_of(portal, missing_blocks="skip")
    stream.pipe_to([duckdb_target(one), duckdb_target(two)], on_event=StopAtHead(portal))
    assert held(one) == rows_without(portal, BlockRange(41, 59))
    assert held(two) == rows_without(portal, BlockRange(0, 59))
    assert (missing(one), missing(two)) == (["41..59"], ["0..59"])


def test_a_target_of_the_users_is_asked_to_undo_what_nobody_can_confirm(
    portal: PortalServer,
) -> None:
    chain: list[BlockCursor] = []
    kept: dict[int, int] = {}
    left_out: list[BlockRange] = []
    paused = False

    def write(read: Any) -> None:
        nonlocal paused
        batch: StreamBatch
        for batch in read():
            ctx = batch.ctx
            chain[:] = [*chain, *ctx.stream.state.rollback_chain]
            final = ctx.stream.head.finalized
            if final is not None:
                chain[:] = [final, *(one for one in chain if one.number > final.number)]
            left_out.extend(ctx.batch.missing)
            kept[ctx.stream.state.current.number] = ctx.batch.rows_count
            if ctx.stream.state.current.number == 60 and not paused:
                paused = True
                portal.extend(30)
                portal.sim.drop_below(80)
            if ctx.stream.state.current.number == portal.chain.head.number:
                raise StopRequested

    def fork(previous_blocks: list[BlockCursor]) -> BlockCursor | None:
        index = find_rollback_index(chain, previous_blocks)
        if index < 0:
            return None
        del chain[index + 1 :]
        for number in [one for one in kept if one > chain[index].number]:
            del kept[number]
        return chain[index]

    stream = stream_of(portal, missing_blocks="skip")
    stream.pipe_to(create_target(write=write, fork=fork))
    assert left_out == [BlockRange(FINAL + 1, 79)]
    assert [one for one in kept if one > FINAL] == list(range(80, 91))


@pytest.mark.parametrize("depth", [1, 2, 5, 14])
def test_a_history_follows_forks_of_any_depth_where_a_conflict_names_one_block(
    portal: PortalServer, depth: int
) -> None:
    """Looking for a common block alone ends at the first fork of one block."""
    history, rows = RollbackHistory(), dict[int, int]()

    def on_fork(previous_blocks: list[BlockCursor]) -> BlockCursor:
        safe = history.resolve(previous_blocks)
        for number in [one for one in rows if one > safe.number]:
            del rows[number]
        return safe

    forks = 0
    for batch in pipe_to_iterator(stream_of(portal), None, on_fork):
        history.append(batch)
        rows[batch.ctx.stream.state.current.number] = batch.ctx.batch.rows_count
        if history.cursor == portal.chain.head.cursor:
            if forks == 3:
                break
            forks += 1
            portal.fork(depth, depth + 1)
    assert sum(rows.values()) == len(rows_without(portal))
    history = RollbackHistory.load(history.dump())
    portal.fork(depth, depth + 1)
    for batch in pipe_to_iterator(stream_of(portal), history.cursor, on_fork):
        history.append(batch)
        rows[batch.ctx.stream.state.current.number] = batch.ctx.batch.rows_count
        if history.cursor == portal.chain.head.cursor:
            break
    assert sum(rows.values()) == len(rows_without(portal))


def test_creations_that_left_the_window_are_an_error_or_counted(tmp_path: Path) -> None:
    with pool_portal(seed=4, surface="hotblocks") as portal:
        portal.sim.drop_below(10)
        with pytest.raises(MissingBlocksError, match=r"missing=0\.\.9"):
            pools_stream(portal, 15).pipe_to(duckdb_target(tmp_path / "a.duckdb"))
        path = tmp_path / "b.duckdb"
        for _ in range(2):
            stream = pools_stream(portal, 15, missing_blocks="skip")
            stream.pipe_to(duckdb_target(path), on_event=StopAtHead(portal))
            assert missing(path, "pools") == ["0..9"]


def test_verify_names_what_the_portal_has_no_more_and_calls_nothing_an_orphan(
    portal: PortalServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.duckdb"
    run(portal, path)
    portal.sim.drop_below(40)
    found = verify(stream_of(portal), str(path))
    assert (found.is_equal, found.is_complete) == (True, False)
    assert [one.name for one in found.left_out] == ["blocks 0..39"]
    assert found.tables[0].expected == found.tables[0].stored > 0
    portal.sim.drop_below(61)
    portal.extend(3)
    portal.sim.drop_below(62)
    with pytest.raises(VerifyError, match="does not have these blocks any more"):
        verify(stream_of(portal), str(path))


def test_verify_finds_what_was_left_out_where_another_portal_has_it(
    portal: PortalServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.duckdb"
    portal.sim.drop_below(10)
    run(portal, path, missing_blocks="skip")
    with simulated_portal(chain=portal.chain) as archive:
        found = verify(stream_of(archive, missing_blocks="skip"), str(path))
    gone = rows_without(portal, BlockRange(10, 10**6))
    holes = [one.holes for one in found.tables[0].findings if isinstance(one, BlockFinding)]
    assert sum(holes) == len(gone) > 0
    assert found.is_complete


def test_what_cannot_be_kept_is_refused_before_anything_is_asked(
    portal: PortalServer, tmp_path: Path
) -> None:
    with pytest.raises(SideTablesError, match="ParquetTarget"):
        stream_of(portal, missing_blocks="skip").pipe_to(parquet_target(tmp_path / "lake"))
    with pytest.raises(InvalidOptionError, match='missing_blocks is "error" or "skip"'):
        stream_of(portal, missing_blocks="clip")
    assert portal.ledger.stream_requests() == []
