"""A start, publication or move of Parquet files that is paused anywhere, and replaced meanwhile.

On places without locks: in memory, and on an S3 server. Whatever the paused one does when it goes
on, the files hold what its successor has published, and it ends in a coded error.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from headwater.core import PipeState
from headwater.errors import ParquetWriterError
from headwater.targets.lake.paths import Place
from headwater.targets.parquet import ParquetSettings, Rollover, parquet_target
from headwater.testing.conformance.model import LOG, Rig, log, plain
from headwater.testing.conformance.suite import apply_changes
from tests.sampling import visit
from tests.targets.lake_places import bucket
from tests.targets.test_lake_zombies import Pause

ACTIONS = ["first", "recover", "publish", "table", "move", "forget"]
EVERY = {"memory": 3, "s3": 12}
LOOKS = ("files", "read", "folders", "replace", "create", "delete")


class Files:
    """An empty place, and writers of it."""

    def __init__(self, kind: str, pause: Pause) -> None:
        self.options: dict[str, str] = {}
        if kind == "memory":
            self.uri = f"memory://bucket/{uuid4().hex}"
        else:
            made = bucket()
            self.uri, self.options = made.uri, made.options

    def opened(self) -> Rig:
        target = parquet_target(
            self.uri, tables=[LOG, "plain"], on_data=apply_changes, options=self.options,
            settings=ParquetSettings(rollover=Rollover(bytes=None, seconds=None)),
        )  # fmt: skip
        target.bind("one")
        return Rig(target, lambda name: [], [])

    def started(self) -> Rig:
        rig = self.opened()
        state = rig.target.recover()
        if state.cursor is not None:
            rig.model.settle(state)
        return rig

    def rows(self) -> dict[int, str]:
        """Return the value of each block; a block that is there twice is an error."""
        place = Place.of(self.uri, self.options)
        found: dict[int, str] = {}
        for one in place.files(LOG):
            if one.name.startswith(f"{LOG}/_"):
                continue
            with place.open(one.name) as file:
                for row in pq.ParquetFile(file).read().to_pylist():
                    assert row["block_number"] not in found, one.name
                    found[row["block_number"]] = row["value"]
        return found


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Pause:
    watch = Pause()
    for name in LOOKS:
        whole = getattr(Place, name)

        def watched(self: Place, *given: Any, whole: Any = whole, **more: Any) -> Any:
            watch()
            return whole(self, *given, **more)

        monkeypatch.setattr(Place, name, watched)
    return watch


def begun(place: Files, action: str, expected: dict[int, str]) -> Rig:
    """Return who is to be paused; before an action other than the first, three blocks are there."""
    if action == "first":
        return place.opened()
    rig = place.started()
    for number in (1, 2, 3):
        rig.block(number, log(number, f"row {number}"), final=number)
        expected[number] = f"row {number}"
    if action in ("publish", "table"):
        return rig
    rig.target.close()
    return place.opened() if action == "recover" else place.started()


def act(rig: Rig, action: str) -> None:
    target: Any = rig.target
    if action in ("first", "recover"):
        target.recover()
    elif action == "publish":
        rig.block(4, log(4, "row 4"), final=4)
    elif action == "table":
        rig.block(4, log(4, "row 4"), plain("stale"), final=4)
    elif action == "move":
        state = target.recover()
        target.move(PipeState(state.cursor, None, state.rollback_chain))
    else:
        target.forget(keep_data=False)


@pytest.mark.guarantee("LAKE-3")
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("action", ACTIONS)
def test_whoever_is_replaced_while_it_is_paused_publishes_nothing(
    kind: str, action: str, pause: Pause
) -> None:
    def stop_at(at: int) -> int | None:
        place = Files(kind, pause)
        expected: dict[int, str] = {}
        rig = begun(place, action, expected)
        successor: list[Rig] = []

        def take_over() -> None:
            new = place.started()
            successor.append(new)
            state = new.state
            if state.number == 4:
                expected[4] = "row 4"
            elif state.cursor is None:
                expected.clear()
            number = max(state.number, 0) + 1
            new.block(number, log(number, "right"), final=number)
            expected[number] = "right"

        error: Exception | None = None
        with pause.watching(at, take_over):
            try:
                act(rig, action)
            except ParquetWriterError as refused:
                error = refused
        if pause.seen <= at:
            assert error is None
            return pause.seen
        (new,) = successor
        mine, other = (one.target._stored.epoch for one in (rig, new))  # type: ignore[attr-defined]
        if error is None and mine > other:
            with pytest.raises(ParquetWriterError):  # it has begun after all: the later start
                new.block(9, log(9, "late"), final=9)
            expected.pop(9, None)
        else:
            if error is None:
                with pytest.raises(ParquetWriterError):
                    rig.target._folders.check()  # type: ignore[attr-defined]
            number = new.state.number + 1
            new.block(number, log(number, "right"), final=number)
            expected[number] = "right"
        last = place.started()
        assert place.rows() == expected, (at, error)
        assert last.state.number == max(expected, default=-1)
        for one in (rig, new, last):
            one.target.close()
        return None

    visit(EVERY[kind], stop_at)


@pytest.mark.guarantee("LAKE-3")
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
def test_a_start_takes_over_what_the_writer_before_does_meanwhile(dies: bool, pause: Pause) -> None:
    """The earlier one publishes a block and a new table, or dies before they count."""

    def stop_at(at: int) -> int | None:
        place = Files("memory", pause)
        expected: dict[int, str] = {}
        old, new = begun(place, "publish", expected), place.opened()

        def go_on() -> None:
            def die(step: str) -> None:
                if step.startswith(f"put {LOG}/"):
                    old.target.on_step = lambda step: dies_now()  # type: ignore[attr-defined]

            def dies_now() -> None:
                raise KeyboardInterrupt

            if dies:
                old.target.on_step = die  # type: ignore[attr-defined]
            try:
                old.block(4, log(4, "row 4"), plain("late"), final=4)
            except (ParquetWriterError, KeyboardInterrupt):
                old.target.close()
            else:
                expected[4] = "row 4"

        with pause.watching(at, go_on):
            try:
                new.target.recover()
            except ParquetWriterError:  # it is started again
                new.target.close()
        if pause.seen <= at:
            return pause.seen
        state = new.target.recover()
        assert state.number == max(expected)
        new.model.settle(state)
        number = state.number + 1
        new.block(number, log(number, "right"), plain("right"), final=number)
        expected[number] = "right"
        new.target.close()
        place.started().target.close()
        assert place.rows() == expected, at
        return None

    visit(2, stop_at)
