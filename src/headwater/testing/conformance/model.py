"""What a target must hold, as dictionaries; and the rig that moves target and model together.

The model copies everything at every commit and throws copies away at a rollback. It knows nothing
of before-images or ranges, so it cannot share a mistake with the target.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from headwater.core import Batch, BlockCursor, BlockHeader, Head, PipeState
from headwater.core.state import hot_cursors
from headwater.targets.contract import Delivery, Target, prepared

Row = dict[str, Any]
Test = TypeVar("Test", bound=Callable[..., None])

LOG, BALANCES, PLAIN = "log", "balances", "plain"
KEY = ("owner", "token")
SCHEMAS = {
    LOG: pa.schema(
        [("block_number", pa.int64()), ("log_index", pa.int64()), ("value", pa.string())]
    ),
    BALANCES: pa.schema(
        [
            ("owner", pa.string()),
            ("token", pa.string()),
            ("value", pa.string()),
            ("note", pa.string()),
        ]
    ),
    PLAIN: pa.schema([("note", pa.string()), ("value", pa.string())]),
}
LARGEST = 2**256 - 1  # 78 digits


@dataclass(frozen=True, slots=True)
class Change:
    """One call of a callback: `insert`, `upsert` or `delete` with some rows.

    `frame` is what a target gets instead of an Arrow table of the rows.
    """

    kind: str
    table: str
    rows: tuple[Row, ...]
    frame: Any = None


def log(block: int, *values: object) -> Change:
    """Insert rows of a block into the append-only table."""
    rows = [
        {"block_number": block, "log_index": index, "value": str(value)}
        for index, value in enumerate(values)
    ]
    return Change("insert", LOG, tuple(rows))


def balance(owner: str, token: str, value: object, note: str | None = None) -> Row:
    """Return a row of the keyed table; its value is the exact text of an integer, or null."""
    text = None if value is None else str(value)
    return {"owner": owner, "token": token, "value": text, "note": note}


def insert(*rows: Row) -> Change:
    """Insert into the keyed table."""
    return Change("insert", BALANCES, rows)


def upsert(*rows: Row) -> Change:
    """Insert into the keyed table, or replace."""
    return Change("upsert", BALANCES, rows)


def delete(*keys: tuple[str, str]) -> Change:
    """Delete from the keyed table."""
    return Change("delete", BALANCES, tuple({"owner": a, "token": b} for a, b in keys))


def plain(*notes: str) -> Change:
    """Insert into the table without a key; the same row may occur twice."""
    return Change("insert", PLAIN, tuple({"note": note, "value": None} for note in notes))


class CountedFrame:
    """A frame as a stream hands it out: not an Arrow table, but something with `toArrow()`."""

    def __init__(self, rows: pa.Table) -> None:
        self.reads = 0
        self._rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802 - as a DataFrame has it
        """Return the rows, and count."""
        self.reads += 1
        return self._rows


def frame_of(change: Change) -> Any:
    """Return the rows of a change as a frame."""
    if change.frame is not None:
        return change.frame
    schema = SCHEMAS[change.table]
    if change.kind == "delete":
        schema = pa.schema([schema.field(name) for name in KEY])
    return pa.Table.from_pylist(list(change.rows), schema=schema)


def apply_changes(tx: Any, data: Mapping[str, Any], ctx: Sequence[Change]) -> None:
    """Serve as `on_data` of a target under test: do what the context says, in order."""
    for change in ctx:
        match change.kind:
            case "insert":
                tx.insert(change.table, frame_of(change))
            case "upsert":
                tx.upsert(change.table, frame_of(change), key=list(KEY))
            case _:
                tx.delete(change.table, frame_of(change), key=list(KEY))


@dataclass(slots=True)
class Contents:
    """The rows of all tables."""

    lists: dict[str, list[Row]] = field(default_factory=lambda: {LOG: [], PLAIN: []})
    balances: dict[tuple[str, str], Row] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Change the contents as a table would."""
        for row in change.rows:
            if change.table != BALANCES:
                self.lists[change.table].append(dict(row))
                continue
            key = (row["owner"], row["token"])
            if change.kind == "delete":
                self.balances.pop(key, None)
            else:
                assert change.kind == "upsert" or key not in self.balances, "a script's mistake"
                self.balances[key] = dict(row)

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table, in an order that does not depend on how they came."""
        found = self.balances.values() if table == BALANCES else self.lists[table]
        return in_order(found)


def in_order(rows: Any) -> list[Row]:
    """Sort rows by their content: a table has no order."""
    return sorted((dict(row) for row in rows), key=lambda row: repr(sorted(row.items())))


def difference(held: Sequence[Row], expected: Sequence[Row]) -> str:
    """Say which rows are missing, and which should not be there."""
    lacking, extra = list(expected), []
    for row in held:
        if row in lacking:
            lacking.remove(row)
        else:
            extra.append(row)
    found = ((lacking, "missing"), (extra, "that should not be there"))
    return "; ".join(f"{len(rows)} rows {what}: {rows[0]} …" for rows, what in found if rows)


class Model:
    """The contents after each commit that is still standing, oldest first."""

    def __init__(self) -> None:
        self._kept: list[tuple[PipeState, Contents]] = [(PipeState(), Contents())]

    @property
    def state(self) -> PipeState:
        """The state that was committed last."""
        return self._kept[-1][0]

    @property
    def contents(self) -> Contents:
        """What the tables hold."""
        return self._kept[-1][1]

    def commit(self, changes: Sequence[Change], state: PipeState) -> None:
        """Add a batch."""
        contents = copy.deepcopy(self.contents)
        for change in changes:
            contents.apply(change)
        self._kept.append((state, contents))

    def settle(self, state: PipeState) -> None:
        """Only the state moves."""
        self._kept[-1] = (state, self.contents)

    def roll_back(self, state: PipeState) -> None:
        """Return to the contents of the newest batch at or below the cursor."""
        number = state.number
        while (cursor := self.state.cursor) is not None and cursor.number > number:
            self._kept.pop()
        self._kept.append((state, self.contents))


class Rig:
    """A target and its model, moved together. `read_rows` reads what the target has committed."""

    def __init__(
        self, target: Target[Delivery], read_rows: Callable[[str], list[Row]], tables: Sequence[str]
    ) -> None:
        self.target = target
        self.model = Model()
        self._read_rows = read_rows
        self._tables = tuple(tables)

    @property
    def state(self) -> PipeState:
        """The state that was committed last."""
        return self.model.state

    def block(self, number: int, *changes: Change, branch: str = "a", final: int = -1) -> None:
        """Commit one block of a branch; `final` is the finalized number that the portal reports."""
        self.flush([(number, changes)], branch=branch, final=final)

    def flush(
        self,
        blocks: Sequence[tuple[int, Sequence[Change]]],
        *,
        branch: str = "a",
        final: int = -1,
        settled: int = -1,
    ) -> None:
        """Commit several blocks, each a batch, in one step.

        `settled` is how far finality has come before they are committed.
        """
        made, prepared_batches, state = [], [], self.state
        for number, changes in blocks:
            head = self._head(final, branch)
            parent = self._parent(state, number)
            header = BlockHeader(number, f"{branch}{number}", parent, number - 1, 1000 + number)
            state = state.advance([header], head)
            batch = Batch((header,), head, state, hot_cursors([header], final), tuple(changes))
            prepared_batches.append(self.prepare(batch))
            made.append((changes, state))
        if settled >= 0:
            state = state.settle(Head(BlockCursor(settled, f"{branch}{settled}")), confirmed=True)
            made[-1] = (made[-1][0], state)
        self.target.commit(prepared_batches, state)
        for changes, after in made:
            self.model.commit(changes, after)

    def prepare(self, batch: Batch[tuple[Change, ...]]) -> Batch[Delivery]:
        """Prepare the changes of a batch: inserts as frames, all of them as the context."""
        data: dict[str, pa.Table] = {}
        for change in batch.data:
            if change.kind == "insert":
                frame = frame_of(change)
                held = data.get(change.table)
                data[change.table] = frame if held is None else pa.concat_tables([held, frame])
        return prepared(self.target, batch.with_data(Delivery(data, batch.data)))

    def settle(self, final: int, branch: str = "a") -> None:
        """Commit that finality moved while nothing arrived."""
        state = self.state.settle(self._head(final, branch), confirmed=True)
        self.target.commit((), state)
        self.model.settle(state)

    def roll_back(self, number: int) -> None:
        """Go back to the landing point of this number."""
        safe = next(one for one in self.state.landing_points() if one.number == number)
        state = self.state.rewind(safe)
        self.target.roll_back(state)
        self.model.roll_back(state)

    def check(self) -> None:
        """Compare every table with the model.

        Raises:
            AssertionError: a row is missing, or one is there that should not be.
        """
        for table in self._tables:
            held, expected = in_order(self._read_rows(table)), self.model.contents.rows(table)
            if held != expected:
                cursor = self.state.cursor
                at = "before the first block" if cursor is None else f"at block {cursor.number}"
                raise AssertionError(f"table {table!r} {at}: {difference(held, expected)}")

    def _head(self, final: int, branch: str) -> Head:
        """Return a head that calls our own block of this number final, if we hold one."""
        held = {one.number: one for one in self.state.rollback_chain}
        return Head(held.get(final, BlockCursor(final, f"{branch}{final}")) if final >= 0 else None)

    @staticmethod
    def _parent(state: PipeState, number: int) -> str:
        if state.cursor is not None and state.cursor.number == number - 1:
            return str(state.cursor.hash)
        return f"a{number - 1}"


def needs(*capabilities: str) -> Callable[[Test], Test]:
    """Mark a test that only targets with these capabilities can pass."""

    def mark(test: Test) -> Test:
        test.__dict__["needs"] = capabilities
        return test

    return mark
