"""Writers that are paused at any statement, and go on after another one has taken over.

A pause is a hook that blocks before a statement is sent: what SIGSTOP, a long collection of garbage
or a paused machine come to. Whatever the paused writer sends afterwards changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import ClickHouseConnectionError, ClickHouseWriterError, HeadwaterError
from headwater.targets.clickhouse import (
    ClickHouseClient,
    ClickHouseSettings,
    ClickHouseTarget,
    clickhouse_target,
    table,
)
from headwater.targets.clickhouse.transfer import plan_transfer
from headwater.targets.contract import Scope
from tests.sampling import is_whole, visit
from tests.shared import HANG_S
from tests.targets.clickhouse_places import Stream, database
from tests.targets.zombies import Zombie

ENGINES = ["CollapsingMergeTree", "ReplacingMergeTree", "MergeTree"]
EVERY = {"CollapsingMergeTree": 14, "ReplacingMergeTree": 28, "MergeTree": 28}
_IDS = "'headwater-%#%'"


def frame(block: int, branch: str = "h") -> pa.Table:
    """Return the rows of a block: a forked one has the same keys, and other values."""
    return pa.table(
        {
            "block_number": pa.array([block] * 2, pa.int64()),
            "log_index": pa.array([0, 1], pa.int32()),
            "value": [f"{branch}{block}/0", f"{branch}{block}/1"],
        }
    )


class Place:
    """One stream with a table of its own in a database that several share."""

    def __init__(self, url: str, engine: str, number: int) -> None:
        self.url, self.engine = url, engine
        self.name, self.table = f"s{number}", f"t{number}"

    def target(self) -> ClickHouseTarget:
        return clickhouse_target(
            self.url,
            tables=[table(self.table, engine=self.engine)],
            on_data=lambda store, data: [store.insert(name, one) for name, one in data.items()],
            settings=ClickHouseSettings(id=self.name),
        )

    def started(self) -> Stream:
        return Stream(self.target(), self.url)

    def extend(self, s: Stream, last: int, branch: str = "h") -> None:
        """Commit the blocks that follow, up to one."""
        for number in range(max(s.state.number, 0) + 1, last + 1):
            s.block(number, {self.table: frame(number, branch)}, branch=branch)

    def values(self, s: Stream) -> list[str]:
        shown = self.table if self.engine == "MergeTree" else f"{self.table}_live"
        if not s.rows(f"SELECT 1 FROM system.tables WHERE database = currentDatabase() "
                      f"AND name = '{shown}'"):  # fmt: skip
            return []
        found = s.rows(f"SELECT value FROM {shown} ORDER BY block_number, log_index")
        return [row["value"] for row in found]


def is_effective(sql: str) -> bool:
    """Leave out what creates the tables of the state: it comes before a writer begins."""
    return not sql.startswith(("CREATE", "SELECT name FROM system.tables")) and (
        "system.databases" not in sql
    )


def is_write(sql: str) -> bool:
    return sql.startswith(("INSERT", "DELETE", "ALTER", "KILL"))


@pytest.mark.guarantee("FENCE-1")
@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize(
    ("engine", "action"),
    [(ENGINES[0], "first"), *product(ENGINES, ["commit", "rollback", "recover"])],
)
def test_a_writer_that_was_paused_at_any_statement_changes_nothing_after_its_successor(
    engine: str, action: str, forked: bool
) -> None:
    url, took_over = database(), 0
    every = action in ("commit", "rollback") or (engine == ENGINES[0] and action == "recover")

    def pause_at(at: int) -> int | None:
        nonlocal took_over
        place = Place(url, engine, at)
        old = Stream.__new__(Stream)
        old.target, old.client = place.target(), ClickHouseClient(url)
        if action != "first":
            old = place.started()
            place.extend(old, 5)
        if action == "recover":  # after a crash with half a batch
            old.target.on_statement = die_at_state
            with pytest.raises(Died):
                place.extend(old, 6)
            old.target.close()
            old.target = place.target()

        def act(old: Stream = old, place: Place = place) -> None:
            if action in ("first", "recover"):
                old.state = old.target.recover()
                place.extend(old, 7)
            elif action == "commit":
                place.extend(old, 7)
            else:
                old.fork(3)
                place.extend(old, 5, "y")

        counts = is_effective if every else is_write
        zombie = Zombie("ClickHouse", old.target, act, at, counts)
        if zombie.done.is_set():
            assert zombie.error is None
            return zombie.seen
        new = place.started()
        own = "y" if str(new.state.cursor and new.state.cursor.hash).startswith("y") else "h"
        expected = rows_of(range(1, min(new.state.number, 3) + 1), "h")
        expected += rows_of(range(4, new.state.number + 1), own)
        assert place.values(new) == expected, zombie.at
        if forked and new.state.cursor is not None:
            new.fork(max(one.number for one in new.state.landing_points() if one.number <= 2))
        expected = expected[: 2 * max(new.state.number, 0)]
        branch = "x" if forked else "h"
        expected += rows_of(range(max(new.state.number, 0) + 1, 9), branch)
        place.extend(new, 8, branch)
        zombie.wake()
        assert place.values(new) == expected, zombie.at
        writing, stopped = new, old
        if zombie.error is None:  # it had not begun when it was paused: it is the successor
            assert action in ("first", "recover"), zombie.at
            assert old.state == new.state
            writing, stopped = old, new
            took_over += 1
        else:
            assert isinstance(zombie.error, HeadwaterError), zombie.at
            stopped.state = writing.state
        with pytest.raises(ClickHouseWriterError):
            place.extend(stopped, 9)
        place.extend(writing, 9, branch)
        assert place.values(new) == expected + rows_of([9], branch)
        if engine == ENGINES[0]:
            assert new.rows(f"SELECT sum(sign) AS n FROM {place.table}") == [{"n": 18}]
        state = writing.state
        again = place.started()
        assert again.state == state
        for one in (old, new, again):
            one.target.close()
            one.client.close()
        return None

    assert len(visit(EVERY[engine], pause_at)) - took_over >= (4 if is_whole() else 1)


@pytest.mark.guarantee("FENCE-1")
def test_a_first_writer_that_was_paused_before_it_made_its_table_is_told_of_its_successor() -> None:
    place = Place(database(), ENGINES[0], 0)
    old = Stream.__new__(Stream)
    old.target, old.client = place.target(), ClickHouseClient(place.url)

    def act() -> None:
        old.state = old.target.recover()
        place.extend(old, 2)

    zombie = Zombie(
        "ClickHouse",
        old.target,
        act,
        0,
        lambda sql: sql.startswith("CREATE") and "`t0`" in sql,
    )
    assert zombie.at
    new = place.started()
    place.extend(new, 2, "x")
    zombie.wake()
    assert isinstance(zombie.error, ClickHouseWriterError)
    assert place.values(new) == rows_of([1, 2], "x")
    for one in (old, new):
        one.target.close()
        one.client.close()


def rows_of(blocks: Iterable[int], branch: str) -> list[str]:
    return [f"{branch}{number}/{row}" for number in blocks for row in (0, 1)]


class Died(BaseException):
    pass


def die_at_state(sql: str) -> None:
    if sql.startswith("INSERT") and "`sync`" in sql.split("SELECT")[0]:
        raise Died


class Starter:
    """Starts a stream when it is told, and commits blocks."""

    def __init__(self, place: Place, last: int = 6) -> None:
        self.go = threading.Event()
        self._last = last
        self.target = place.target()
        self._place = place
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        assert self.go.wait(HANG_S)
        try:
            self._place.extend(Stream(self.target, self._place.url), self._last)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self._error = error

    def result(self) -> BaseException | None:
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()
        return self._error


@pytest.mark.guarantee("FENCE-1")
def test_two_starts_at_one_moment_leave_one_writer() -> None:
    url = database()
    for number in range(9 if is_whole() else 3):
        place = Place(url, ENGINES[number % 3], number)
        first = place.started()
        place.extend(first, 3)
        starters = [Starter(place) for _ in range(2)]
        for one in starters:
            one.go.set()
        errors = [one.result() for one in starters]
        assert any(error is None for error in errors)
        assert all(error is None or isinstance(error, ClickHouseWriterError) for error in errors)
        with pytest.raises(ClickHouseWriterError):
            place.extend(first, 4)
        last = place.started()
        assert last.state.number == 6
        assert place.values(last) == rows_of(range(1, 7), "h")
        for target in (first.target, last.target, *(one.target for one in starters)):
            target.close()


@pytest.mark.guarantee("FENCE-1")
@pytest.mark.parametrize("after", ["start", "commit"])
def test_an_executor_that_was_paused_inserts_nothing_later(after: str) -> None:
    """Neither after another driver has started, nor after its own driver has committed."""
    place = Place(database(), ENGINES[0], 0)
    s = place.started()
    place.extend(s, 1)
    catalog = s.target._catalog
    layout = catalog.prepare(catalog.parse(place.table), frame(2).schema)
    transfer = plan_transfer(frame(2).schema, layout, place.name, Scope(2, 1, False), 0)
    task = s.target._inserts.writer(transfer, "token")
    place.extend(s, 2)
    if after == "start":
        s = place.started()
    with pytest.raises(ClickHouseWriterError):
        next(task(frame(2).to_batches(), 0))
    assert place.values(s) == ["h1/0", "h1/1", "h2/0", "h2/1"]
    s.target.close()


class Slow:
    """A body whose second half comes when it is woken."""

    def __init__(self, body: pa.Buffer) -> None:
        whole = body.to_pybytes()
        self._parts = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
        self.size = len(whole)
        self.halfway, self.woken = threading.Event(), threading.Event()

    def read(self, size: int) -> bytes:
        if len(self._parts) == 1:
            self.halfway.set()
            assert self.woken.wait(HANG_S)
        return self._parts.pop(0) if self._parts else b""


@pytest.mark.guarantee("FENCE-1")
def test_an_insert_that_is_half_sent_is_over_before_a_successor_repairs() -> None:
    """The server has checked its condition already: the start ends it, and waits for its end."""
    place = Place(database(), ENGINES[0], 0)
    s = place.started()
    place.extend(s, 1)
    catalog, client = s.target._catalog, s.target._client
    layout = catalog.prepare(catalog.parse(place.table), frame(2).schema)
    transfer = plan_transfer(frame(2).schema, layout, place.name, Scope(2, 1, False), 0)
    many = pa.concat_tables([frame(2)] * 20_000)
    body: Any = Slow(client._stream(transfer.apply(many)))
    errors: list[BaseException] = []

    def insert() -> None:
        try:
            client.attempts = 1
            client.insert_body(transfer.target(s.target._lease.condition), body, "token")
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    sender = threading.Thread(target=insert)
    sender.start()
    assert body.halfway.wait(HANG_S)
    other = ClickHouseClient(place.url)
    await_statement(other, "startsWith(query, 'INSERT')")
    successor = Starter(place, 2)
    successor.go.set()
    await_statement(other, "startsWith(query, 'INSERT') AND is_cancelled")
    body.woken.set()
    sender.join(HANG_S)
    assert successor.result() is None
    assert isinstance(errors[0], ClickHouseConnectionError)
    assert place.values(s) == rows_of([1, 2], "h")
    for one in (other, s.target, successor.target):
        one.close()


def await_statement(client: ClickHouseClient, which: str) -> None:
    """Wait until the server runs a statement of a stream."""
    query = f"SELECT count() AS n FROM system.processes WHERE {which} AND query_id LIKE {_IDS}"
    deadline = time.monotonic() + HANG_S
    while not client.rows(query)[0]["n"]:
        assert time.monotonic() < deadline
