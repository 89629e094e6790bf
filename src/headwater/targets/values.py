"""Values that a target cannot hold, found in whole columns: replaced, nulled, left out, or refused.

What a column can hold is a `Room` (`core/rooms.py`); what is done with the rest is the target's
policy (`unrepresentable=`). A `Fitting` is planned once per frame and table, pickles, and runs
where rows are encoded: on the driver or on executors. Columns whose type leaves nothing to look for
have no check. No value becomes a Python object, but those that have to be replaced.

Replaced: the character 0 becomes U+FFFD, a text that is too long is cut, a number or a time beyond
the ends becomes the end, more digits than there is room for are cut. What is no number, time or
bytes at all becomes null, and zero where the column cannot be null. Texts and bytes of a key end
with a digest of what they were, so that two of them never become one; other values of a key cannot
be replaced, and their rows are left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.rooms import Form, Policy, Room
from headwater.errors import HeadwaterError, InvalidOptionError
from headwater.targets.value_checks import check_of, put
from headwater.targets.value_texts import Check, nulls, zeros

logger = logging.getLogger("headwater.targets")


def check_policy(given: str) -> Policy:
    """Return the policy that a user names.

    Raises:
        InvalidOptionError: there is none of that name.
    """
    try:
        return Policy(given)
    except ValueError:
        raise InvalidOptionError(
            "unrepresentable= says what is done with a value that the target cannot hold",
            got=repr(given),
            known=", ".join(Policy),
        ) from None


TEXTS = (Form.TEXT, Form.JSON)  # what changes and sums hold as text: their numbers were compared


def no_row_left_out(policy: Policy) -> Policy:
    """Return the policy for changes and sums, of which none can be left out for one value."""
    return Policy.REPLACE if policy is Policy.SKIP else policy


# --- all columns of a frame -----------------------------------------------------------------------


@dataclass
class Tally:
    """What was done to the rows of one frame: values by column, rows, and where it was first."""

    values: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    first: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values)

    def note(self, column: str, count: int, block: int) -> None:
        """Note values of a column."""
        self.values[column] = self.values.get(column, 0) + count
        self.first[column] = min(block, self.first.get(column, block))

    def renamed(self, names: Mapping[str, str]) -> Tally:
        """Return it with the columns' names in the table."""
        tally = Tally(rows=self.rows)
        for column, count in self.values.items():
            tally.note(names[column], count, self.first[column])
        return tally

    def add(self, other: Tally) -> None:
        """Add what was done elsewhere."""
        self.rows += other.rows
        for column, count in other.values.items():
            self.note(column, count, other.first[column])

    def dump(self) -> str:
        """Return it as text, for a receipt; nothing if nothing was done."""
        return json.dumps([self.values, self.rows, self.first]) if self else ""

    @classmethod
    def load(cls, text: str) -> Tally:
        """Read it again."""
        return cls(*json.loads(text)) if text else cls()


@dataclass(frozen=True, slots=True)
class Fitting:
    """How the rows of one frame are made to fit one table. It pickles.

    `rooms` holds only columns that are checked. `error` is what the target raises; it always does
    where the number of a block has no place: a row of another block could not be undone.
    """

    rooms: Mapping[str, Room]
    policy: Policy
    error: type[HeadwaterError]
    block_column: str = ""
    block: int = -1

    @classmethod
    def plan(
        cls,
        schema: pa.Schema,
        rooms: Mapping[str, Room],
        policy: Policy,
        error: type[HeadwaterError],
        block_column: str = "",
        block: int = -1,
    ) -> Fitting:
        """Plan it, by the names that the frame gives its columns."""
        checked = {
            field.name: rooms[field.name]
            for field in schema
            if field.name in rooms and check_of(field.type, rooms[field.name]) is not None
        }
        return cls(checked, policy, error, block_column, block)

    def __bool__(self) -> bool:
        return bool(self.rooms)

    def apply(self, rows: Any, tally: Tally) -> Any:
        """Return rows (a table or a batch) that fit; note in the tally what was done.

        Raises:
            HeadwaterError: a value does not fit, and the policy is to stop.
        """
        left_out = None
        for name, room in self.rooms.items():
            place = rows.schema.get_field_index(name)
            if place < 0:
                continue  # a deletion sends its key alone
            values = _one(rows.column(place))
            plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
            if plain.type == pa.string_view():
                plain = plain.cast(pa.string())
            check = check_of(plain.type, room)
            marks = None if check is None else check.wrong(plain)
            if check is None or marks is None:
                continue
            tally.note(name, pc.sum(marks).as_py(), self._first_block(rows, marks))
            if self.policy is Policy.STOP or name == self.block_column:
                self._refuse(rows, name, plain, marks)
            gone, plain = self._settled(plain, marks, check, room)
            left_out = gone if left_out is None else pc.or_(left_out, gone)
            fitted = plain if plain.type == values.type else _as(plain, values.type)
            rows = rows.set_column(place, rows.schema.field(place), fitted)
        if left_out is not None and pc.any(left_out).as_py():
            tally.rows += pc.sum(left_out).as_py()
            rows = rows.filter(pc.invert(left_out))
        return rows

    def through(self, batches: Iterable[Any], tally: Tally) -> Iterable[Any]:
        """Pass batches on, each as `apply` returns it."""
        return (self.apply(batch, tally) for batch in batches) if self else batches

    def _settled(
        self, values: pa.Array, marks: pa.Array, check: Check, room: Room
    ) -> tuple[pa.Array, pa.Array]:
        """Return which rows are left out, and the column of those that stay."""
        if self.policy is Policy.SKIP or (room.unique and not _stays_apart(values.type, room)):
            return marks, values
        nulled = self.policy is Policy.NULL and not (room.required or room.unique)
        others = values.filter(marks)
        others = nulls(others) if nulled else check.mend(others)
        if room.required and not room.unique:
            others = zeros(others, room)
        values = put(values, marks, others)
        if room.unique:
            return pc.and_(marks, pc.is_null(values)), values
        return pa.repeat(False, len(values)), values

    def _first_block(self, rows: Any, marks: pa.Array) -> int:
        if self.block_column not in rows.schema.names:
            return self.block
        first = pc.min(_one(rows.column(self.block_column)).filter(marks)).as_py()
        return self.block if first is None else int(first)

    def _refuse(self, rows: Any, name: str, values: pa.Array, marks: pa.Array) -> None:
        got = values.filter(marks).slice(0, 1).cast(pa.string(), safe=False)[0].as_py() if (
            not pa.types.is_nested(values.type)
        ) else "a part of it"  # fmt: skip
        raise self.error(
            "a value does not fit its column",
            column=name,
            got=f"{got!r:.80}",
            frame=values.type,
            block=self._first_block(rows, marks),
        )


def _stays_apart(kind: pa.DataType, room: Room) -> bool:
    """Tell whether what replaces a value of a key is like no other value."""
    types = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return kind in types and room.form not in (Form.INTEGER, Form.DECIMAL)


def _one(column: Any) -> pa.Array:
    """Return a column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(
        [*column.chunks, pa.nulls(0, column.type)]
    )  # fmt: skip


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return values.dictionary_encode().cast(kind)
    return values.cast(kind)


# --- what a target has done -----------------------------------------------------------------------


class Altered:
    """Counts what was done to values, and says it once per table and column.

    What a batch that is tried again did is counted once: `begin` forgets what does not count yet.
    """

    def __init__(self, policy: Policy = Policy.REPLACE) -> None:
        self.policy = policy
        self.values = self.rows = 0
        self._pending: list[tuple[str, Tally]] = []
        self._told: set[tuple[str, str]] = set()

    def totals(self) -> tuple[int, int]:
        """Return how many values were met, and how many rows were left out for them."""
        return self.values, self.rows

    def begin(self) -> None:
        """Forget what was done for a batch that is written once more."""
        self._pending.clear()

    def note(self, table: str, tally: Tally) -> None:
        """Note what was done to rows of a table."""
        if tally:
            self._pending.append((table, tally))

    def committed(self) -> None:
        """Count what is committed now."""
        for table, tally in self._pending:
            self.rows += tally.rows
            for column, count in tally.values.items():
                self.values += count
                if (table, column) not in self._told:
                    self._told.add((table, column))
                    logger.warning(
                        "value.unrepresentable table=%s column=%s block=%d policy=%s values=%d "
                        "rows_left_out=%d: said once; the metric counts them all",
                        table, column, tally.first[column], self.policy, count, tally.rows,
                    )  # fmt: skip
        self._pending.clear()
