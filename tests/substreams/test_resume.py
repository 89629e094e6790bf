"""Where a stream of a module goes on: after the block that it holds, or nowhere."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater.errors import SkippedBlocksError, UndoDepthError
from headwater.stream import create_target
from headwater.stream.module_changelog import load_module
from headwater.targets import duckdb_target
from headwater.testing.chain.tree import ChainSim
from headwater.testing.substreams import TRANSFERS, simulated_endpoint
from tests.spark.streaming.micro_batches import plain
from tests.substreams.scripted import TABLES, chain_of, expected, run, stop_at, stored, stream_of
from tests.substreams.test_changelog import ModuleQuery, reach_head
from tests.targets.change_log.places import Place

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.duckdb"


def transfers(path: Path) -> Any:
    """Return a target of plain rows, which say their block."""
    return duckdb_target(path, tables=["transfers", "transfers_hops", "transfers_message"])


def held(path: Path) -> list[tuple[int, str]]:
    """Return the blocks of the rows of a target, each once."""
    rows = duckdb_target(path).query(
        "SELECT DISTINCT block_number, block_hash FROM transfers_message ORDER BY 1"
    )
    return [tuple(row.values()) for row in rows.to_pylist()]


def wanted(chain: ChainSim, first: int, last: int) -> list[tuple[int, str]]:
    """Return all blocks: the module puts a message out in each, also if it holds no transfer."""
    blocks = chain.canonical(first, last)
    return [(one.number, one.hash.removeprefix("0x")) for one in blocks]


# --- the first block ------------------------------------------------------------------------------


@pytest.mark.guarantee("RANGE-1")
def test_a_start_that_is_raised_over_blocks_which_are_not_there_is_refused(place: Place) -> None:
    chain = chain_of(40, 30)
    with simulated_endpoint(chain=chain) as server:
        run(stream_of(server, start=5, stop=21), place.target(*TABLES))
        sessions = len(server.sessions)
        with pytest.raises(SkippedBlocksError, match=r"E0016.*first=25.*skipped=21\.\.24"):
            run(stream_of(server, start=25, stop=40), place.target(*TABLES))
        assert len(server.sessions) == sessions, "nothing was asked"
        target = place.target(*TABLES)
        run(stream_of(server, start=21, stop=36), target)
        assert stored(target.query) == expected(chain.canonical(5, 35))
        with pytest.raises(SkippedBlocksError, match=r"skipped=31\.\.32"):  # a fork may reach them
            run(stream_of(server, start=33, stop=40), place.target(*TABLES))
        run(stream_of(server, start=-3, stop=40), target)  # counted from a head that moved on
        assert stored(target.query) == expected(chain.canonical(5, 39))


def test_a_cursor_of_ones_own_below_the_start_is_refused_too() -> None:
    chain = chain_of(40, 30)

    def read_on(read: Any) -> None:
        next(read(chain.canonical(10, 10)[0].cursor))

    with (
        simulated_endpoint(chain=chain) as server,
        pytest.raises(SkippedBlocksError, match=r"skipped=11\.\.19"),
    ):
        stream_of(server, start=20).pipe_to(create_target(write=read_on), progress=False)


# --- the block that it holds ----------------------------------------------------------------------


@pytest.mark.guarantee("UNDO-1")
def test_a_target_that_was_left_out_on_a_branch_that_died_is_put_right(tmp_path: Path) -> None:
    """The other target knows the endpoint's cursors of blocks that this one does not hold."""
    chain = chain_of(30, 20)
    left, other = tmp_path / "left.duckdb", tmp_path / "other.duckdb"
    with simulated_endpoint(chain=chain, modules=[TRANSFERS]) as server:
        run(stream_of(server), [transfers(left), transfers(other)], stop_at(29))
        chain.fork(5, length=8)
        chain.finalize(31)
        run(stream_of(server), transfers(other), stop_at(32))
        assert held(left) != wanted(chain, 0, 29)
        run(stream_of(server, stop=33), [transfers(left), transfers(other)])
    assert held(left) == wanted(chain, 0, 32)
    assert held(other) == wanted(chain, 0, 32)


@pytest.mark.guarantee("STREAM-1")
def test_a_changelog_goes_on_from_the_middle_of_a_segment_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block that it stands at was not the last of its segment, and is orphaned in its turn."""
    monkeypatch.setattr("headwater.substreams.source.IDLE_S", 0.05)
    chain = chain_of(25, 12)
    with simulated_endpoint(chain=chain, modules=[TRANSFERS]) as server:
        package = tmp_path / "module.spkg"
        package.write_bytes(server.package)
        options = {
            "package": str(package),
            "endpoint": server.url,
            "output": "transfers_message",
            "journal": str(tmp_path / "journal"),
        }
        loaded = load_module(options)
        with ModuleQuery(loaded, tmp_path / "checkpoint", Random(1)) as query:
            query.kill_rate = 0
            reach_head(query, chain)
            query.kill()
            chain.fork(4, length=0)  # into the middle of the last segment
            assert any(query.trigger() for _ in range(100))
            assert query.ends[-1]["number"] == chain.head.number
            query.kill()
            chain.fork(3, length=9)  # and further back
            reach_head(query, chain)
            found = [plain(row) for row in query.net().values()]
    blocks = sorted((row["block_number"], row["block_hash"]) for row in found)
    assert blocks == wanted(chain, 0, chain.head.number)


# --- another chain --------------------------------------------------------------------------------


@pytest.mark.guarantee("UNDO-2")
@pytest.mark.parametrize(("final", "to"), [(9, 9), (29, 29), (9, 29)], ids=str)
def test_another_chain_behind_the_address_ends_the_stream_after_some_patience(
    path: Path, final: int, to: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody undoes final blocks, and an endpoint takes the cursor of one as it is."""
    chain, foreign = chain_of(30, final, seed=1), chain_of(60, 50, seed=2)
    with simulated_endpoint(chain=chain, modules=[TRANSFERS]) as server:
        run(stream_of(server), transfers(path), stop_at(29))
    if to < 29:
        rewound(path, to)
    before = held(path)
    with simulated_endpoint(chain=foreign, modules=[TRANSFERS]) as server:
        with pytest.raises(UndoDepthError, match="E3106"):
            run(stream_of(server), transfers(path))
        assert len(server.sessions) <= 6
    assert held(path) == before
    waits = [text for text in caplog.messages if "another block than" in text]
    assert bool(waits) == (final == to), "that it waits is told"


def test_a_stream_goes_on_after_a_block_whose_hash_nobody_knows(path: Path) -> None:
    """`rewind --force` into the middle of what is final leaves a number alone."""
    chain = chain_of(30, 25)
    with simulated_endpoint(chain=chain, modules=[TRANSFERS]) as server:
        run(stream_of(server), transfers(path), stop_at(29))
        rewound(path, 7)
        run(stream_of(server, stop=31), transfers(path), stop_at(29))
        assert len(server.sessions) == 2
    assert held(path) == wanted(chain, 0, 29)


def rewound(path: Path, to: int) -> None:
    """Do what `headwater rewind --force` does."""
    from typer.testing import CliRunner

    from headwater.cli import app

    command = ["rewind", str(path), "--id", "one", "--to", str(to), "--force", "--yes"]
    made = CliRunner().invoke(app, command, catch_exceptions=False)
    assert made.exit_code == 0, made.output
