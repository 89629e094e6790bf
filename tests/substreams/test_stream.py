"""`substreams_stream` over gRPC: the walkthrough, undo signals of every kind, random histories."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from threading import Event as Event_
from threading import current_thread
from typing import Any

import pyarrow as pa
import pytest

from headwater import BlockCursor, Flush
from headwater.core import PipeState
from headwater.errors import (
    ConfigChangedError,
    DatabaseChangesError,
    ForkHandlerMissingError,
    InvalidOptionError,
    StreamIdError,
    SubstreamsMessageError,
    UndoDepthError,
    UnknownTableError,
)
from headwater.pipeline import Committed, Event, Recovered, RolledBack
from headwater.stream import StopRequested, create_target
from headwater.stream.substreams import substreams_stream
from headwater.substreams.client import Dialling
from headwater.substreams.messages import ModuleOutput, OutputDecoder
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.substreams import (
    DB_OUT,
    EndsWith,
    FallsSilent,
    LowersFinality,
    RepeatsBlocks,
    RepeatsUndo,
    UndoesTo,
    simulated_endpoint,
)
from tests.sampling import every
from tests.shared import HANG_S
from tests.substreams.scripted import (
    CREATE,
    DELETE,
    TABLES,
    UPDATE,
    CrashError,
    Weather,
    chain_of,
    changes,
    expected,
    module,
    run,
    stop_at,
    stored,
    stream_of,
)
from tests.targets.change_log.places import Place

pytestmark = pytest.mark.usefixtures("short_pauses")


def cursors(target: Any) -> list[tuple[int, str]]:
    """Return the stored cursors of the endpoint."""
    rows = target.query(
        "SELECT block_number, cursor FROM headwater_substreams_cursors ORDER BY block_number"
    )
    return [tuple(row.values()) for row in rows.to_pylist()]


# --- the seed's walkthrough -----------------------------------------------------------------------

TRANSFER = (
    'CREATE TABLE transfer (id varchar PRIMARY KEY, "from" varchar, "to" varchar, value bigint)'
)
ROW_1000 = '{"id":"tx1","from":"alice","to":"bob","value":1000}'
ROW_1500 = '{"id":"tx1","from":"alice","to":"bob","value":1500}'


def walk(block: SimBlock) -> bytes:
    """Insert in block 100, update in 101, delete in 102; the other branch does nothing."""
    steps: dict[int, tuple[str, str, int, dict[str, object]]] = {
        100: ("transfer", "tx1", CREATE, {"from": "alice", "to": "bob", "value": 1000}),
        101: ("transfer", "tx1", UPDATE, {"value": 1500}),
        102: ("transfer", "tx1", DELETE, {}),
    }
    return changes(steps[block.number]) if block.number in steps and not block.salt else b""


@pytest.mark.guarantee("UNDO-1")
def test_the_walkthrough_of_the_seed_sentence_by_sentence(place: Place) -> None:
    place.sql(TRANSFER)
    target = place.target("transfer")
    chain = ChainSim(1, start_block=99)
    chain.finalize(99)
    name = f"{place.schema}.transfer"
    seen: dict[str, object] = {}

    def look() -> tuple[object, object]:
        rows = target.query("SELECT * FROM transfer").to_pylist()
        log = target.query(
            "SELECT op, table_name, pk, prev_value, block_num FROM substreams_history ORDER BY id"
        ).to_pylist()
        return [tuple(row.values()) for row in rows], [tuple(row.values()) for row in log]

    def listen(event: Event) -> None:
        if isinstance(event, Recovered | Committed):
            seen[f"block {event.state.number}"] = look()
            if event.state.number == 102:
                chain.fork(2, length=0)  # a re-org at block 101: blocks 101 and above are invalid
            else:
                chain.extend(1)
        elif isinstance(event, RolledBack):
            seen["undone"] = look(), event.state.cursor
            raise StopRequested

    with simulated_endpoint(chain=chain, modules=[module(walk)]) as server:
        run(stream_of(server, start=100), target, listen)

    inserted = ("I", name, '{"id":"tx1"}', None, 100)
    updated = ("U", name, '{"id":"tx1"}', ROW_1000, 101)
    deleted = ("D", name, '{"id":"tx1"}', ROW_1500, 102)
    assert seen == {
        "block -1": ([], []),
        "block 100": ([("tx1", "alice", "bob", 1000)], [inserted]),
        "block 101": ([("tx1", "alice", "bob", 1500)], [inserted, updated]),
        "block 102": ([], [inserted, updated, deleted]),
        # "transfer" holds the row of block 100, "substreams_history" its insert alone
        "undone": (
            ([("tx1", "alice", "bob", 1000)], [inserted]),
            BlockCursor(100, chain.head.hash.removeprefix("0x")),
        ),
    }


# --- undo signals ---------------------------------------------------------------------------------


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.parametrize(
    "options",
    [{}, {"flush": Flush(blocks=4)}, {"undo_buffer": 2}, {"undo_buffer": 8}],
    ids=["at once", "flush", "shallow buffer", "deep buffer"],
)
def test_an_undo_while_it_runs_leaves_what_the_chain_says(
    place: Place, options: dict[str, Any]
) -> None:
    """It reaches into what is committed, what waits for a flush and what is held back."""
    chain, target = chain_of(30, 20), place.target(*TABLES)
    forked: list[SimBlock] = []

    def listen(event: Event) -> None:
        if not forked and isinstance(event, Committed) and event.state.number >= 20:
            forked.append(chain.fork(6, length=20))

    with simulated_endpoint(chain=chain) as server:
        server.faults.add(RepeatsUndo())
        run(stream_of(server, stop=33, **options), target, listen)
        assert len(server.sessions) <= 3
    assert stored(target.query) == expected(chain.canonical(0, 32))
    assert target.query("SELECT max(block_number) AS n FROM headwater_substreams_cursors")[
        "n"
    ].to_pylist() == [32]


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.parametrize("depth", [1, 5, 9])
def test_an_undo_comes_first_after_a_resume_and_again_after_another(
    place: Place, depth: int
) -> None:
    chain = chain_of(30, 20)
    with simulated_endpoint(chain=chain) as server:
        run(stream_of(server), place.target(*TABLES), stop_at(29))
        chain.fork(depth, length=depth + 2)
        for _ in range(2):  # the second run stops right after the undo: before anything is read
            target = place.target(*TABLES)
            events = run(stream_of(server), target, stop_at_undo_or(31))
        assert not any(isinstance(one, RolledBack) for one in events)
        assert stored(target.query) == expected(chain.canonical(0, 31))
        used = [session.cursor for session in server.sessions]
        assert used[0] == ""
        assert used[1]
        assert used[2] != used[1], "after the undo the cursor is that of the last valid block"


@pytest.mark.guarantee("UNDO-1")
def test_a_cursor_that_the_endpoint_cannot_locate_is_undone_down_to_its_final_block(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that was replaced does not know orphaned blocks: it undoes all that is not final."""
    chain = chain_of(30, 20)
    with simulated_endpoint(chain=chain) as server:
        run(stream_of(server), place.target(*TABLES), stop_at(29))
        chain.fork(3, length=5)
        monkeypatch.setattr(chain, "find", lambda block_hash: None)
        target = place.target(*TABLES)
        events = run(stream_of(server), target, stop_at(31))
    undone = [one.state.number for one in events if isinstance(one, RolledBack)]
    assert undone == [20]
    assert stored(target.query) == expected(chain.canonical(0, 31))


def stop_at_undo_or(number: int) -> Any:
    def listen(event: Event) -> None:
        if isinstance(event, RolledBack) or event.state.number >= number:
            raise StopRequested

    return listen


@pytest.mark.guarantee("UNDO-2")
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (UndoesTo(1, 5, "00"), UndoDepthError),
        (UndoesTo(1, 25, "00"), UndoDepthError),
    ],
    ids=["below finality", "another block"],
)
def test_what_cannot_be_ends_the_stream_before_anything_changes(
    place: Place, fault: Any, error: type[Exception]
) -> None:
    chain, target = chain_of(30, 20), place.target(*TABLES)
    with simulated_endpoint(chain=chain, bundle=30) as server:
        server.faults.add(fault)
        with pytest.raises(error):
            run(stream_of(server), target)
        assert len(server.sessions) == 1
    assert stored(target.query) == expected(chain.canonical(0, 29))


def test_blocks_that_come_twice_end_the_stream(place: Place) -> None:
    chain, target = chain_of(30, 20), place.target(*TABLES)
    with simulated_endpoint(chain=chain, bundle=5) as server:
        server.faults.add(RepeatsBlocks(2))
        with pytest.raises(SubstreamsMessageError, match="do not ascend"):
            run(stream_of(server), target)
    last = target.query("SELECT max(current_number)::bigint AS n FROM sync")["n"].to_pylist()[0]
    assert stored(target.query) == expected(chain.canonical(0, -1 if last is None else last))


def test_an_undo_below_the_first_block_of_a_stream_begins_again(place: Place) -> None:
    """A stream that began with a hot block can lose all of it."""
    chain, target = chain_of(30, 20), place.target(*TABLES)

    def listen(event: Event) -> None:
        if isinstance(event, Committed) and event.state.number == 29:
            chain.fork(7)

    with simulated_endpoint(chain=chain, bundle=1) as server:
        events = run(stream_of(server, start=26, stop=31), target, listen)
    assert any(isinstance(one, RolledBack) for one in events)
    assert stored(target.query) == expected(chain.canonical(26, 30))


def test_finality_that_falls_back_is_not_followed_down(place: Place) -> None:
    chain, target = chain_of(30, 20), place.target(*TABLES)
    with simulated_endpoint(chain=chain, bundle=3) as server:
        server.faults.add(LowersFinality(3))
        events = run(stream_of(server, stop=30), target)
    marks = [one.state.finalized.number for one in events if one.state.finalized is not None]
    assert marks == sorted(marks)


# --- the cursor -----------------------------------------------------------------------------------


@pytest.mark.guarantee("CURSOR-1")
def test_the_cursor_is_stored_with_the_rows_and_is_what_a_resume_sends(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.substreams.source.TOGETHER_BLOCKS", 1)
    chain = chain_of(30, 20)
    with simulated_endpoint(chain=chain, bundle=1) as server:
        target = place.target(*TABLES)
        run(stream_of(server), target, stop_at(24))
        kept = cursors(target)
        assert kept[-1][0] == 24
        again = place.target(*TABLES)
        run(stream_of(server, stop=30), again)
        assert server.sessions[1].cursor == kept[-1][1]
        assert stored(again.query) == expected(chain.canonical(0, 29))
        sync = again.query("SELECT max(current_number)::bigint AS n FROM sync")["n"].to_pylist()
        assert sync == [29] == [cursors(again)[-1][0]]


@pytest.mark.guarantee("CURSOR-1")
@pytest.mark.parametrize("skip_empty", [True, False])
def test_blocks_without_output_advance_the_cursor_and_may_be_left_out(
    place: Place, skip_empty: bool
) -> None:
    chain, target = chain_of(60, 40), place.target(*TABLES)
    with simulated_endpoint(chain=chain, skip_empty=skip_empty, bundle=1) as server:
        run(stream_of(server, stop=60), target)
    last = max(one.number for one in chain.canonical() if DB_OUT.make(one) or not skip_empty)
    assert cursors(target)[-1][0] == last
    assert stored(target.query) == expected(chain.canonical(0, 59))


def test_a_finished_range_is_not_dialled_again(place: Place) -> None:
    with simulated_endpoint(chain=chain_of(30, 20)) as server:
        for _ in range(2):
            run(stream_of(server, stop=15), place.target(*TABLES))
        assert len(server.sessions) == 1


def test_cursors_that_no_resume_needs_are_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.substreams.cursors.PRUNE_AT", 5)
    monkeypatch.setattr("headwater.substreams.source.TOGETHER_BLOCKS", 1)
    chain, target = chain_of(60, 50), place.target(*TABLES)
    with simulated_endpoint(chain=chain, bundle=1) as server:
        run(stream_of(server, stop=60), target)
    kept = [number for number, _ in cursors(target)]
    assert kept[-10:] == list(range(50, 60)), "each block that an undo may name"
    assert len(kept) < 20


def test_another_package_is_another_stream(place: Place) -> None:
    with simulated_endpoint(chain=chain_of(30, 20)) as server:
        run(stream_of(server, stop=15), place.target(*TABLES))
        other = DB_OUT.package(binary=b"other")  # type: ignore[arg-type]
        with pytest.raises(ConfigChangedError):
            run(stream_of(server, package=other, stop=20), place.target(*TABLES))
        ignoring = stream_of(server, package=other, stop=20, on_config_change="ignore")
        run(ignoring, place.target(*TABLES))


def test_final_blocks_are_decoded_as_they_arrive_and_hot_ones_by_the_loop(place: Place) -> None:
    chain, target = chain_of(60, 40), place.target(*TABLES)
    seen: list[tuple[bool, int]] = []
    with simulated_endpoint(chain=chain, bundle=10, skip_empty=False) as server:
        stream = stream_of(server, stop=60, tables=TABLES)
        watched = Watched(stream.decoder, seen)
        run(replace(stream, decoder=watched), target)
    ahead = {number for is_ahead, number in seen if is_ahead}
    loop = {number for is_ahead, number in seen if not is_ahead}
    assert ahead == set(range(40)), "whole messages of final blocks"
    assert loop == set(range(40, 60)), "none of them twice"
    assert stored(target.query) == expected(chain.canonical(0, 59))


class Watched:
    """A decoder that notes in which thread it decodes a block."""

    def __init__(self, inner: OutputDecoder, seen: list[tuple[bool, int]]) -> None:
        self.schemas, self.type_url = inner.schemas, inner.type_url
        self._inner, self._seen = inner, seen

    def decode(self, outputs: Sequence[ModuleOutput]) -> dict[str, pa.Table]:
        ahead = current_thread().name == "headwater-substreams"
        self._seen += [(ahead, one.clock.number) for one in outputs]
        return self._inner.decode(outputs)


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few blocks be enough for a commit."""
    monkeypatch.setattr("headwater.substreams.source.DECODED_BLOCKS", 5)
    monkeypatch.setattr("headwater.substreams.source.TOGETHER_BLOCKS", 10)


@pytest.mark.usefixtures("small_commits")
def test_changes_are_folded_ahead_while_the_commit_before_them_runs(place: Place) -> None:
    chain, target = chain_of(60, 40), place.target(*TABLES)
    ahead: list[int] = []
    commits, hot = 0, 0
    more = Event_()
    prepare_rows, commit = target.prepare_rows, target.commit

    def preparing(tables: Any) -> Any:
        made = prepare_rows(tables)
        assert current_thread().name == "headwater-substreams"
        ahead.append(tables["changes"].num_rows)
        if len(ahead) > 1:
            more.set()
        return made

    def committing(batches: Sequence[Any], state: PipeState) -> None:
        nonlocal commits, hot
        if batches and state.number < 40:  # whole messages of final blocks
            assert all(one.data.ctx.laid_out is not None for one in batches)
            assert more.wait(HANG_S), "the next one is prepared before this one is committed"
        commits += bool(batches)
        hot += state.is_hot
        commit(batches, state)

    target.prepare_rows, target.commit = preparing, committing
    with simulated_endpoint(chain=chain, bundle=5, skip_empty=False) as server:
        run(stream_of(server, stop=60, tables=TABLES), target)
    assert len(ahead) >= 4
    assert commits > len(ahead)
    assert hot, "hot blocks are folded by the loop"
    assert stored(target.query) == expected(chain.canonical(0, 59))


@pytest.mark.usefixtures("small_commits")
def test_a_transform_sees_changes_before_they_are_folded(place: Place) -> None:
    chain, target = chain_of(30, 25), place.target(*TABLES)
    target.prepare_rows = lambda tables: pytest.fail("they are not what is committed")
    with simulated_endpoint(chain=chain, bundle=5) as server:
        run(stream_of(server, stop=30, tables=TABLES).pipe(lambda data: data), target)
    assert stored(target.query) == expected(chain.canonical(0, 29))


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.usefixtures("small_commits")
def test_stops_cuts_and_undos_lose_nothing_of_what_is_prepared(place: Place) -> None:
    """Each stop drops what was prepared and not committed; the next run prepares it again."""
    chain, target = chain_of(60, 40), place.target(*TABLES)
    stopped = []

    def listen(event: Event) -> None:
        if isinstance(event, Committed) and not event.state.is_hot:
            stopped.append(event.state.number)
            raise StopRequested

    with simulated_endpoint(chain=chain, bundle=5) as server:
        server.faults.add(*[EndsWith(2, "INTERNAL") for _ in range(2)])
        for _ in range(3):
            run(stream_of(server, stop=62, tables=TABLES), place.target(*TABLES), listen)
        run(stream_of(server, stop=62, tables=TABLES), place.target(*TABLES), stop_at(50))
        chain.fork(15, length=20)
        run(stream_of(server, stop=62, tables=TABLES), target)
    assert stopped == sorted(set(stopped))
    assert len(stopped) == 3
    assert stored(target.query) == expected(chain.canonical(0, 61))


@pytest.mark.usefixtures("small_commits")
def test_changes_that_are_refused_end_the_stream_at_their_piece(place: Place) -> None:
    """What comes before them is committed; the error is the one that the loop would raise."""

    def wrong(block: SimBlock) -> bytes:
        key, fields = f"{block.number:x}", {"from": "a", "to": "b", "value": block.number}
        table = "transfer" if block.number != 27 else "transfers"
        return changes((table, key, CREATE, fields))

    target = place.target(*TABLES)
    endpoint = simulated_endpoint(chain=chain_of(40, 39), modules=[module(wrong)], bundle=5)
    with endpoint as server, pytest.raises(UnknownTableError, match=r"E6002.*transfers"):
        run(stream_of(server, stop=40, tables=TABLES), target)
    held = target.query("SELECT max(value) AS last, count(*) AS rows FROM transfer").to_pylist()
    last = int(held[0]["last"])
    assert 10 <= last < 27
    assert held[0]["rows"] == last + 1


def test_an_output_that_cannot_be_decoded_ends_the_stream_at_its_block(place: Place) -> None:
    def broken(block: SimBlock) -> bytes:
        return b"\xff" if block.number == 25 else b""

    target = place.target(*TABLES)
    with (
        simulated_endpoint(chain=chain_of(40, 35), modules=[module(broken)], bundle=10) as server,
        pytest.raises(DatabaseChangesError, match=r"E6007.*block=25"),
    ):
        run(stream_of(server, stop=40), target)


# --- other ways to read ---------------------------------------------------------------------------


def test_final_blocks_only_and_iteration_never_undo() -> None:
    chain = chain_of(30, 20)
    with simulated_endpoint(chain=chain) as server:
        read = [batch.ctx.stream.state.current.number for batch in stream_of(server, stop=21)]
        assert read[-1] == 20
        assert server.sessions[0].final_only


def test_a_target_of_one_s_own_resumes_by_number_and_decides_undo_signals() -> None:
    chain = chain_of(30, 20)
    asked: list[list[BlockCursor]] = []
    batches: list[Any] = []

    def fork(previous: list[BlockCursor]) -> BlockCursor:
        asked.append(previous)
        return previous[0]

    def write(read: Any) -> None:
        start = BlockCursor(25, chain.canonical(25, 25)[0].hash.removeprefix("0x"))
        for batch in read(start):
            batches.append(batch.ctx.stream.state.current.number)
            if len(batches) == 3:
                chain.fork(3)
            if batches[-1] == 30:
                return

    with simulated_endpoint(chain=chain, bundle=1) as server:
        stream_of(server).pipe_to(create_target(write=write, fork=fork), progress=False)
        assert server.sessions[0].start == 25, "the block itself is looked at again"
        assert [one.number for one in asked[0]] == [26]
        assert batches[-4:] == [27, 28, 29, 30]
        chain.fork(1)
        with pytest.raises(ForkHandlerMissingError):
            stream_of(server).pipe_to(create_target(write=read_on), progress=False)


def read_on(read: Any) -> None:
    """Read one batch after a block that is not on the chain."""
    next(read(BlockCursor(30, "00")))


def test_a_stream_is_stopped_while_it_waits_for_the_endpoint(place: Place) -> None:
    with simulated_endpoint(chain=chain_of(30, 20)) as server:
        server.faults.add(FallsSilent(1))
        stream = stream_of(server, dialling=Dialling(idle_s=60))
        handle = stream.start(place.target(*TABLES))
        while handle.last_progress is None:
            assert not handle.await_termination(0.02)
        handle.stop()
        assert handle.exception() is None


@pytest.mark.parametrize(
    "options",
    [{"stop": 5, "start": 5}, {"stop": "5"}, {"stop": "+0"}, {"start": "latest"},
     {"undo_buffer": -1}],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with simulated_endpoint(blocks=2) as server:
        with pytest.raises(InvalidOptionError):
            stream_of(server, **options)
        with pytest.raises(StreamIdError):
            stream_of(server, id=" ")
        assert stream_of(server, start=5, stop="+3").stop == 8


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "import headwater\n"
        "try:\n    headwater.substreams_stream\n"
        "except headwater.ConfigError as error:\n    print(error)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert "pip install 'headwater[substreams]'" in made.stdout


# --- random histories -----------------------------------------------------------------------------


@pytest.mark.guarantee("UNDO-1")
@pytest.mark.guarantee("CURSOR-1")
@pytest.mark.parametrize("seed", every(6).seeds(range(6)))
def test_random_histories_with_faults_and_restarts_equal_the_oracle(
    place: Place, seed: int
) -> None:
    random = Random(seed)
    chain = chain_of(12, 4, seed)
    weather = Weather(chain, random, 70)
    options: dict[str, Any] = {
        "undo_buffer": random.choice([0, 0, 2, 5]),
        "flush": random.choice([None, Flush(blocks=3)]),
        "flush_backfill": random.choice([None, Flush(blocks=10)]),
        "dialling": Dialling(idle_s=0.4, version=random.choice([None, 3, 2])),
    }
    with simulated_endpoint(
        chain=chain, bundle=random.choice([1, 4, 50]), skip_empty=random.random() < 0.5
    ) as server:
        server.faults.by_chance(seed, 0.4)
        while not weather.is_over:
            with suppress(CrashError):
                stream = stream_of(server, on_message=weather.hear, **options)
                run(stream, place.target(*TABLES), weather)
        server.faults.by_chance(seed, 0.0)
        stop = chain.head.number + 1
        chain.grow(10)  # so that an undo buffer lets go of the last blocks
        target = place.target(*TABLES)
        run(stream_of(server, stop=stop, **options), target)
    assert stored(target.query) == expected(chain.canonical(0, stop - 1))


def test_a_connection_that_breaks_often_costs_nothing(place: Place) -> None:
    chain, target = chain_of(40, 30), place.target(*TABLES)
    with simulated_endpoint(chain=chain, bundle=3) as server:
        server.faults.add(*[EndsWith(at % 3, "INTERNAL") for at in range(9)])
        run(stream_of(server, stop=40), target)
        assert len(server.sessions) == 10
    assert stored(target.query) == expected(chain.canonical(0, 39))


def test_simulate_serves_an_endpoint_and_says_where_its_package_is() -> None:
    command = [sys.executable, "-c", "from headwater.cli import main; main()", "simulate"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = ["--substreams", "--substreams-port", port]
    options += ["--for", "20", "--blocks", "40", "--fork-rate", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said: dict[str, str] = {}
        while "package" not in said:
            name, _, value = process.stdout.readline().strip().partition(" ")
            said[name] = value.strip()
        assert said["endpoint"] == f"http://127.0.0.1:{port}"
        stream = substreams_stream(
            id="s", endpoint=said["endpoint"], package=said["package"], stop=10
        )
        read = [batch.ctx.stream.state.current.number for batch in stream]
        process.kill()
    assert read[-1] == 9
