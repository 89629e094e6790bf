"""The promises of a target that keeps side tables; part of `TargetConformance`.

A model is a value: the state, and the rows of each side table by key. A step says what it asks of
the target and what the model is afterwards, so a step that a crash interrupts is easily judged: the
target must hold the model before it, or the one after.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar

import pyarrow as pa

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.targets.contract import Delivery, SideTable, prepared
from headwater.testing.conformance.crash import WHOLE, Clock, Crash, Sample, crash_everywhere
from headwater.testing.conformance.model import needs

Key = tuple[int, int]
Rows = Mapping[Key, Mapping[str, Any]]
Call = Callable[[Any], None]
KEY = [pa.field("block_number", pa.int64()), pa.field("ordinal", pa.int64())]
KEY_NAMES = tuple(one.name for one in KEY)
NOTES = SideTable(
    "notes",
    pa.schema(
        [
            *KEY,
            pa.field("text", pa.string()),
            pa.field("raw", pa.binary()),
            pa.field("good", pa.bool_()),
            pa.field("at", pa.timestamp("us", "UTC")),
        ]
    ),
)
MOVED = SideTable("moved", pa.schema([*KEY, pa.field("text", pa.string())]))
TABLES = (NOTES, MOVED)
TEXTS = ["", "plain", "a|b", "'", '"', "\\", "ü\n\t", "null", "{}", "%s"]


@dataclass(frozen=True, slots=True)
class SideModel:
    """What a target must hold."""

    state: PipeState = PipeState()  # noqa: RUF009 - immutable
    tables: Mapping[str, Rows] = field(default_factory=lambda: {"notes": {}, "moved": {}})


@dataclass(frozen=True, slots=True)
class Step:
    """What is asked of the target, and what it must hold then."""

    call: Call
    after: SideModel


def block(model: SideModel, number: int, branch: str = "a", final: int = -1) -> Step:
    """Commit a block; its rows follow from its number and branch."""
    head = Head(BlockCursor(final, f"a{final}") if final >= 0 else None)
    parent = "" if model.state.cursor is None else str(model.state.cursor.hash)
    header = BlockHeader(number, f"{branch}{number}", parent or f"a{number - 1}", number - 1, 1)
    state = model.state.advance([header], head)
    rows = notes_of(header)
    side = {"notes": frame_of(NOTES, rows)}
    batch = Batch((header,), head, state, (), Delivery({}, (), side))

    def call(target: Any) -> None:
        target.commit([prepared(target, batch)], state)

    notes = {**model.tables["notes"], **rows}
    return Step(call, SideModel(state, {**model.tables, "notes": notes}))


def roll_back(model: SideModel, number: int) -> Step:
    """Go back to the landing point of this number."""
    safe = next(one for one in model.state.landing_points() if one.number == number)
    state = model.state.rewind(safe)
    tables = {
        name: {key: row for key, row in rows.items() if key[0] <= number}
        for name, rows in model.tables.items()
    }
    return Step(lambda target: target.roll_back(state), SideModel(state, tables))


def settle(model: SideModel, up_to: Key) -> Step:
    """Take the notes up to a key, and move every second one of them."""
    taken = [key for key in sorted(model.tables["notes"]) if key <= up_to]
    moved = {
        key: dict(zip(MOVED.columns.names, [*key, f"moved {key}"], strict=True))
        for key in taken[::2]
    }
    notes = {key: row for key, row in model.tables["notes"].items() if key > up_to}
    tables = {"notes": notes, "moved": {**model.tables["moved"], **moved}}
    rows = {"moved": frame_of(MOVED, moved)}

    def call(target: Any) -> None:
        target.capabilities.side_tables.settle_side_rows("notes", up_to, rows)

    return Step(call, replace(model, tables=tables))


def notes_of(header: BlockHeader) -> Rows:
    """Return the rows of a block, in no order; some blocks have none."""
    dice = Random(header.hash)
    rows: dict[Key, Mapping[str, Any]] = {}
    for ordinal in dice.sample(range(5), dice.randrange(5)):
        values = [
            header.number,
            ordinal,
            dice.choice([*TEXTS, header.hash, None]),
            dice.choice([None, b"", bytes(3), header.hash.encode()]),
            dice.choice([None, True, False]),
            dice.choice([None, dt.datetime(2024, 1, 1, 0, 0, 0, ordinal, dt.UTC)]),
        ]
        rows[header.number, ordinal] = dict(zip(NOTES.columns.names, values, strict=True))
    return rows


def frame_of(table: SideTable, rows: Rows) -> pa.Table:
    """Return rows as Arrow."""
    return pa.Table.from_pylist([dict(row) for row in rows.values()], schema=table.columns)


class SideTablePromises:
    """Tests of side tables. A target that keeps them sets `side_tables`."""

    side_tables: ClassVar[bool] = False
    side_walks: ClassVar[int] = 6
    sample: ClassVar[Sample] = WHOLE  # which crashes and random scenarios are taken

    make_target: Callable[..., Any]
    fresh: Callable[[], None]
    watch_io: Callable[..., None]
    crash: Callable[[Any], None]

    def open_side(
        self, stream_id: str = "one", tables: Sequence[SideTable] = TABLES
    ) -> tuple[Any, PipeState]:
        """Return a target that has opened side tables and recovered, and its state."""
        target: Any = self.make_target(stream_id)
        assert target.capabilities.side_tables is not None, "side_tables is set"
        target.capabilities.side_tables.open_side_tables(tables)
        state: PipeState = target.recover()
        return target, state

    def reopen_side(self, target: Any, stream_id: str = "one") -> Any:
        """Let the process die and start again."""
        self.crash(target)
        return self.open_side(stream_id)[0]

    @staticmethod
    def held(target: Any) -> SideModel:
        """Return what a target holds."""
        tables: dict[str, Rows] = {}
        for table in TABLES:
            rows = target.capabilities.side_tables.read_side_table(table.name)
            assert rows.schema == table.columns, (
                f"{table.name}: {rows.schema} is not {table.columns}"
            )
            keys = [(row["block_number"], row["ordinal"]) for row in rows.to_pylist()]
            assert keys == sorted(keys), "not in the order of keys"
            tables[table.name] = dict(zip(keys, rows.to_pylist(), strict=True))
        return SideModel(target.recover(), tables)

    def do(self, target: Any, step: Step) -> SideModel:
        """Do a step, and compare."""
        step.call(target)
        held = self.held(target)
        assert held == step.after, f"side tables hold {held}, expected {step.after}"
        return step.after

    def side_blocks(self, last: int, final: int | None = None) -> tuple[Any, SideModel]:
        """Commit blocks to an empty place; each is final, or all up to `final` are."""
        self.fresh()
        target, _ = self.open_side()
        model = SideModel()
        for number in range(1, last + 1):
            at = number if final is None else final
            model = self.do(target, block(model, number, final=at))
        return target, model

    @needs("side_tables")
    def test_side_rows_come_with_their_batch_and_survive_a_restart(self) -> None:
        """In their types, and exactly."""
        self.fresh()
        target, state = self.open_side()
        assert (state, self.held(target)) == (PipeState(), SideModel())
        model = SideModel()
        for number in range(1, 9):
            model = self.do(target, block(model, number, final=number - 4))
        assert len(model.tables["notes"]) > 8
        target = self.reopen_side(target)
        assert self.held(target) == model
        target.close()

    @needs("side_tables")
    def test_side_rows_are_read_from_a_key_up_to_a_block_and_so_many(self) -> None:
        """Any combination, also where no row has that key."""
        target, model = self.side_blocks(6)
        keys = sorted(model.tables["notes"])
        for after in (None, (0, 0), keys[2], (3, -1), (3, 10**9), keys[-1]):
            for up_to in (None, 0, 3, 6):
                for limit in (None, 1, 3):
                    found = target.capabilities.side_tables.read_side_table(
                        "notes", after=after, up_to_block=up_to, limit=limit
                    )
                    expected = [
                        key
                        for key in keys
                        if (after is None or key > after) and (up_to is None or key[0] <= up_to)
                    ][:limit]
                    got = zip(*(found.column(name).to_pylist() for name in KEY_NAMES), strict=True)
                    assert list(got) == expected, (after, up_to, limit)
        target.close()

    @needs("side_tables")
    def test_a_fork_takes_side_rows_away_and_others_come(self) -> None:
        """Also when it is repeated, and after a restart."""
        target, model = self.side_blocks(7, final=2)
        undo = roll_back(model, 4)
        model = self.do(target, undo)
        self.do(target, undo)
        target = self.reopen_side(target)
        assert self.held(target) == model
        for number in range(5, 9):
            model = self.do(target, block(model, number, "b", final=2))
        target.close()

    @needs("side_tables")
    def test_settled_side_rows_are_gone_and_moved_in_one_step(self) -> None:
        """Settling again changes nothing."""
        target, model = self.side_blocks(7)
        keys = sorted(model.tables["notes"])
        for key in (keys[3], (4, -1), keys[-2]):
            step = settle(model, key)
            model = self.do(target, step)
            self.do(target, step)
        target = self.reopen_side(target)
        assert self.held(target) == model
        assert model.tables["moved"]
        target.close()

    @needs("side_tables")
    def test_rows_of_one_table_can_be_rewritten_in_one_step(self) -> None:
        """They are removed first, then added."""
        target, model = self.side_blocks(4)
        keys = sorted(model.tables["notes"])
        kept = {key: model.tables["notes"][key] for key in keys[::2]}
        for _ in range(2):
            target.capabilities.side_tables.settle_side_rows(
                "notes", keys[-1], {"notes": frame_of(NOTES, kept)}
            )
            assert self.held(target).tables["notes"] == kept
        target.close()

    @needs("side_tables")
    def test_a_fork_undoes_side_rows_that_this_run_has_not_asked_for(self) -> None:
        """A stream may run without a part of it for a while."""
        target, model = self.side_blocks(5, final=1)
        self.crash(target)
        target, state = self.open_side(tables=[])
        assert state == model.state
        step = roll_back(model, 3)
        step.call(target)
        target = self.reopen_side(target)
        assert self.held(target) == step.after
        target.close()

    @needs("side_tables", "shares")
    def test_two_streams_share_side_tables_and_see_their_own_rows(self) -> None:
        """A fork or a settlement of one leaves the other's alone."""
        self.fresh()
        (one, _), (two, _) = self.open_side("one"), self.open_side("two")
        ours = theirs = SideModel()
        for number in range(1, 6):
            ours = self.do(one, block(ours, number, final=1))
            theirs = self.do(two, block(theirs, number, "b" if number > 1 else "a", final=1))
        ours = self.do(one, roll_back(ours, 2))
        assert self.held(two) == theirs
        theirs = self.do(two, settle(theirs, (3, 10)))
        assert self.held(one) == ours
        for target, stream_id, model in ((one, "one", ours), (two, "two", theirs)):
            again = self.reopen_side(target, stream_id)
            assert self.held(again) == model
            again.close()

    @needs("side_tables", "watches_io")
    def test_a_crash_at_any_step_of_io_leaves_side_rows_and_state_together(self) -> None:
        """In the opening, a commit, a rollback, a settlement."""
        assert crash_everywhere(self.run_side_script, self.sample) > 20, "nothing was watched"

    def run_side_script(self, clock: Clock) -> None:
        """Run some steps; die where the clock says, recover, judge, and go on."""
        self.fresh()
        model = SideModel()
        target = self.make_target("one")
        self.watch_io(target, clock.tick)
        script: list[Callable[[SideModel], Step]] = [
            lambda model: Step(
                lambda target: target.capabilities.side_tables.open_side_tables(TABLES), model
            ),
            lambda model: Step(lambda target: target.recover(), model),
            *(lambda model, n=n: block(model, n, final=1) for n in (1, 2, 3)),
            lambda model: roll_back(model, 1),
            *(lambda model, n=n: block(model, n, "b", final=n) for n in (2, 5)),
            lambda model: settle(model, (2, 10)),
            lambda model: settle(model, (5, 1)),
        ]
        for make in script:
            if clock.is_over:
                break
            step = make(model)
            clock.begin_call()
            while True:
                try:
                    step.call(target)
                    break
                except Crash:
                    clock.recovered(again=step.after != model)
                target = self.reopen_side(target)
                held = self.held(target)
                assert held in (model, step.after), f"crash at {clock.died[-1]}: {held}"
                self.watch_io(target, clock.tick)
                if held == step.after:
                    break
            model = step.after
        self.watch_io(target, lambda: None)
        assert self.held(target) == model
        target.close()

    @needs("side_tables")
    def test_random_steps_agree_with_the_model_of_side_tables(self) -> None:
        """Blocks, forks, settlements and restarts in any order."""
        for seed in self.sample.seeds(range(self.side_walks)):
            dice, model, branch = Random(f"side {seed}"), SideModel(), "a"
            self.fresh()
            target, _ = self.open_side()
            for _ in range(25):
                number = -1 if model.state.cursor is None else model.state.cursor.number
                final = -1 if model.state.finalized is None else model.state.finalized.number
                match dice.choices(["block", "fork", "settle", "crash"], [6, 2, 2, 1])[0]:
                    case "fork" if number > final >= 0:
                        points = [one.number for one in model.state.landing_points()]
                        step, branch = roll_back(model, dice.choice(points)), f"f{dice.random()}"
                    case "settle" if model.tables["notes"]:
                        up_to = [key for key in model.tables["notes"] if key[0] <= final]
                        step = settle(model, dice.choice([*up_to, (final, 2)]))
                    case "crash":
                        target = self.reopen_side(target)
                        assert self.held(target) == model
                        continue
                    case _:
                        shown = number + 1 if branch == "a" else number - 3
                        at = dice.randint(0, max(0, shown)) if branch == "a" else -1
                        step = block(model, number + 1, branch, final=at)
                model = self.do(target, step)
            target.close()
