"""What tables must hold after changes, as dictionaries: the oracle of the change model.

Everything here is done one operation after the other, with Python's own numbers. It shares no code
with `headwater.changes`, so that they cannot share a mistake. Changes are dictionaries with the
columns of `CHANGES_SCHEMA` (`table.to_pylist()`), rows are texts by column, by table and key; a
column that is null is left out.

    rows, images = apply_to_model(rows, folded)     # what a target must hold, and its before-images
    rows = undo(rows, images, to_block=100)         # what it must hold after a fork
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Key = tuple[str, tuple[tuple[str, str], ...]]
Row = dict[str, str]
Rows = dict[Key, Row]
Change = Mapping[str, Any]
Steps = dict[str, list[tuple[str, str | None]]]


class RowExistsError(AssertionError):
    """A row is inserted while it is there. Targets must refuse it too."""


@dataclass(frozen=True, slots=True)
class BeforeImage:
    """A row as it was before a block touched it first; None if it was not there."""

    block: int
    key: Key
    row: Row | None


def key_of(change: Change) -> Key:
    """Return table and key of a change; the order of the key's columns does not matter."""
    return change["table"], tuple(sorted((one["name"], one["value"]) for one in change["pk"]))


def apply_one_by_one(rows: Rows, changes: Iterable[Change]) -> Rows:
    """Return the rows after the changes, unfolded, in the order given."""
    after = dict(rows)
    for change in changes:
        key, operation, fields = key_of(change), change["operation"], change["fields"] or ()
        if operation == "insert" and key in after:
            raise RowExistsError(f"{key} in block {change['block_number']}")
        if operation == "delete":
            after.pop(key, None)
        elif key in after or operation != "update":
            after[key] = stepped(after.get(key, {}), fields)
    return after


def apply_to_model(rows: Rows, folded: Iterable[Change]) -> tuple[Rows, list[BeforeImage]]:
    """Return the rows after folded changes, and the before-images that undo them."""
    after, images = dict(rows), []
    for change in folded:
        key, operation = key_of(change), change["operation"]
        held = after.get(key)
        images.append(BeforeImage(change["block_number"], key, held))
        if held is not None and operation in ("insert", "transient"):
            raise RowExistsError(f"{key} in block {change['block_number']}")
        if operation in ("delete", "transient"):
            after.pop(key, None)
        elif operation in ("insert", "replace") or (operation == "upsert" and held is None):
            after[key] = stepped({}, ({**one, "operation": "set"} for one in change["fresh"]))
        elif held is not None:
            after[key] = stepped(held, change["fields"])
    return after, images


def undo(rows: Rows, images: Sequence[BeforeImage], *, to_block: int) -> Rows:
    """Return the rows as they were after `to_block`: newest image first, back to the oldest."""
    before = dict(rows)
    for image in reversed(images):
        if image.block > to_block:
            before.pop(image.key, None)
            if image.row is not None:
                before[image.key] = image.row
    return before


def fold_one_by_one(changes: Iterable[Change], *, finalized: int | None = None) -> list[Change]:
    """Fold changes with a dictionary: what `headwater.changes.fold` must agree with.

    Of several operations on a column of a row that may be there, equal kinds are joined and others
    kept as they are, one after the other.
    """
    floor = -1 if finalized is None else finalized
    folded: dict[tuple[int, Key], dict[str, Any]] = {}
    for change in changes:
        place = (max(change["block_number"], floor), key_of(change))
        one = folded.setdefault(
            place, {**change, "new_only": False, "gone": False, "there": {}, "row": None}
        )
        _join(one, change)
    return [_finished(one) for one in folded.values()]


def stepped(row: Row, fields: Iterable[Change]) -> Row:
    """Return a row after field operations."""
    after = dict(row)
    for one in fields:
        value = step(after.pop(one["name"], None), one["operation"], one["value"])
        if value is not None:
            after[one["name"]] = value
    return after


def step(held: str | None, operation: str, value: str | None) -> str | None:
    """Return what a column holds after one field operation."""
    if operation == "set" or (operation == "set_if_null" and held is None):
        return value
    if operation == "set_if_null" or value is None:
        return held
    number = -exact_number(value) if operation == "sub" else exact_number(value)
    if held is not None:
        other = exact_number(held)
        if operation in ("add", "sub"):
            number += other
        else:
            number = max(number, other) if operation == "max" else min(number, other)
    return exact_text(number)


def exact_number(text: str) -> int | Fraction:
    """Return the number that a text stands for; an int where it can be, for speed."""
    return int(text) if text.lstrip("-").isdigit() and text.isascii() else Fraction(text)


def exact_text(number: int | Fraction) -> str:
    """Return a decimal fraction as text without an exponent or idle zeros."""
    if isinstance(number, int):
        return str(number)
    scale = 0
    while (number * 10**scale).denominator != 1:
        scale += 1
    digits = str(abs(number) * 10**scale).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def _join(one: dict[str, Any], change: Change) -> None:
    operation = change["operation"]
    fields = change["fields"] or ()
    if operation == "insert":
        if one["row"] is not None:
            raise RowExistsError(f"{key_of(change)} in block {change['block_number']}")
        one["new_only"] = one["new_only"] or not one["gone"]
    if operation == "delete":
        one["gone"], one["row"] = True, None
        return
    if operation != "update" and one["row"] is None:
        one["row"] = {}
    if one["row"] is not None:
        one["row"] = stepped(one["row"], fields)
    if not one["gone"]:
        for field in fields:
            steps = one["there"].setdefault(field["name"], [])
            _add_step(steps, field["operation"], field["value"])


def _add_step(steps: list[tuple[str, str | None]], operation: str, value: str | None) -> None:
    if operation == "set":
        steps[:] = [("set", value)]
    elif steps and (steps[-1][0] == "set" or steps[-1][0] == operation != "sub"):
        steps[-1] = (steps[-1][0], step(steps[-1][1], operation, value))
    else:
        steps.append((operation, value))


def _finished(one: Mapping[str, Any]) -> Change:
    row, new_only, gone = one["row"], one["new_only"], one["gone"]
    if new_only or gone:
        kinds = ("insert", "transient") if new_only else ("replace", "delete")
        operation = kinds[row is None]
    else:
        operation = "update" if row is None else "upsert"
    there: Steps = one["there"]
    fields = [
        {"name": name, "value": value, "operation": kind}
        for name, steps in there.items()
        for kind, value in steps
    ]
    return {
        "table": one["table"],
        "pk": one["pk"],
        "operation": operation,
        "fields": fields if operation in ("update", "upsert") else None,
        "fresh": None if row is None else [{"name": n, "value": v} for n, v in row.items()],
        "ordinal": one["ordinal"],
        "block_number": one["block_number"],
    }
