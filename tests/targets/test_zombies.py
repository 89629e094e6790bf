"""Writers of PostgreSQL and DuckDB that are paused at any statement, and go on later.

While a paused writer holds the stream, a second one is refused. Once the server has given the
paused one up, as it does when keepalives are missing, a successor takes over, and whatever the
paused one sends afterwards changes nothing.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from headwater.errors import HeadwaterError
from headwater.targets.contract import Capabilities, Delivery
from headwater.testing.conformance.model import (
    BALANCES,
    LOG,
    Change,
    Rig,
    Row,
    balance,
    log,
    upsert,
)
from tests.sampling import is_whole, visit
from tests.targets.places import Place, has_effect, make_place
from tests.targets.postgres_places import empty
from tests.targets.zombies import Zombie

KINDS = {"postgres": "PostgreSQL", "duckdb": "DuckDB"}
ACTIONS = ["first", "commit", "rollback", "recover"]
EVERY = 12


def changes(number: int) -> list[Change]:
    """Return rows of a block, and a key that every block writes."""
    return [log(number, f"row {number}"), upsert(balance("all", "t", number))]


class Places:
    """Empty places, one after the other."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder, self._numbers = kind, folder, itertools.count()
        self._place = make_place(kind, folder)
        self._place.lock_wait_s = 0.01

    def fresh(self) -> Place:
        if self._kind == "postgres":
            empty(self._place.address)
            return self._place
        return Place("duckdb", str(self._folder / f"{next(self._numbers)}.duckdb"))


def drop_sessions(place: Place) -> None:
    """Have the server end all sessions of a database, and wait for it."""
    with psycopg.connect(place.address, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def rows_of(place: Place) -> Callable[[str], list[Row]]:
    """Return what reads a table; it is empty while it does not exist."""

    def rows(table: str) -> list[Row]:
        try:
            return place.rows(table)
        except (psycopg.errors.UndefinedTable, duckdb.CatalogException, duckdb.IOException):
            return []

    return rows


class Paused:
    """A writer that has committed blocks 1 to 3 and is paused in an action.

    `outcomes` are the rigs that it may have left: before the action, or after it.
    """

    def __init__(self, place: Place, action: str, at: int, counts: Callable[[str], bool]) -> None:
        self.place = place
        self.rig = Rig(place.target(), rows_of(place), [LOG, BALANCES])
        if action != "first":
            self.rig.target.recover()
            for number in range(1, 4):
                self.rig.block(number, *changes(number), final=1)
        if action == "recover":
            self.rig.target.close()
            self.rig.target = place.target()
        before = copy.deepcopy(self.rig.model)

        def act(rig: Rig) -> None:
            if action in ("first", "recover"):
                rig.target.recover()
            elif action == "commit":
                rig.block(4, *changes(4), final=1)
            else:
                rig.roll_back(2)

        after = Rig(_Nothing(), rows_of(place), [LOG, BALANCES])
        after.model = copy.deepcopy(before)
        act(after)
        self.outcomes = [before, after.model]
        self.zombie = Zombie(KINDS[place.kind], self.rig.target, lambda: act(self.rig), at, counts)

    def successor(self) -> Rig:
        """Return another writer, whose state and tables are those of an outcome."""
        target = self.place.target()
        try:
            state = target.recover()
        except HeadwaterError:
            target.close()
            raise
        rig = Rig(target, rows_of(self.place), [LOG, BALANCES])
        (rig.model,) = [one for one in self.outcomes if one.state == state][:1]
        rig.check()
        return rig


class _Nothing:
    """Stands in for a target while only the model is to move."""

    capabilities: Capabilities[Delivery] = Capabilities()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def go_on(rig: Rig, *, forked: bool) -> None:
    """Let a writer fork or not, and commit a block."""
    if forked and rig.state.number > 2:
        rig.roll_back(2)
    number = max(rig.state.number, 0) + 1
    rig.block(number, *changes(number), branch="b" if forked else "a", final=1)
    rig.check()


@pytest.mark.guarantee("FENCE-2")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_paused_writer_whose_session_the_server_ended_changes_nothing_after_its_successor(
    action: str, tmp_path: Path
) -> None:
    """The successor forks first, or not, by turns."""
    places = Places("postgres", tmp_path)

    def pause_at(at: int) -> int | None:
        paused = Paused(places.fresh(), action, at, lambda sql: True)
        if paused.zombie.done.is_set():
            assert paused.zombie.error is None
            paused.rig.target.close()
            return paused.zombie.seen
        drop_sessions(paused.place)
        new = paused.successor()
        go_on(new, forked=at % 2 == 1)
        paused.zombie.wake()
        assert isinstance(paused.zombie.error, HeadwaterError), paused.zombie.at
        new.check()
        for one in (paused.rig, new):
            one.target.close()
        return None

    assert len(visit(EVERY, pause_at)) >= (4 if is_whole() else 2)


@pytest.mark.guarantee("FENCE-2")
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("action", ACTIONS)
def test_while_a_paused_writer_holds_the_stream_a_second_one_is_refused(
    kind: str, action: str, tmp_path: Path
) -> None:
    """One that had not begun when it was paused is refused itself, if another one has."""
    places, refused = Places(kind, tmp_path), 0

    def pause_at(at: int) -> int | None:
        nonlocal refused
        paused = Paused(places.fresh(), action, at, has_effect)
        if paused.zombie.done.is_set():
            assert paused.zombie.error is None
            paused.rig.target.close()
            return paused.zombie.seen
        rig = paused.rig
        try:
            new = paused.successor()
        except HeadwaterError:
            refused += 1
            paused.zombie.wake()
            assert paused.zombie.error is None, paused.zombie.at
        else:
            assert action in ("first", "recover"), paused.zombie.at
            go_on(new, forked=True)
            paused.zombie.wake()
            assert isinstance(paused.zombie.error, HeadwaterError), paused.zombie.at
            rig.target.close()
            rig = new
        rig.check()
        go_on(rig, forked=True)
        rig.target.close()
        return None

    visit(EVERY, pause_at)
    assert refused >= (2 if is_whole() else 1)
