"""The changes of one key, folded one after the other, for keys whose changes are mixed.

`fold` works on columns. It leaves two kinds of keys to this module: those where one column has
different field operations, and those where updates come before the first upsert, so that a row that
is there and a new one get different fields.

Applied one after the other, any chain of set, add, min, max and set-if-null is either one `set`, or

    take `first` if the column is null; add; then at least `lowest`; then at most `highest`

because a sum that is clamped and then added to or clamped again is again a clamped sum. So every
chain folds, and how many operations there were before no longer matters. Null: adding to null gives
the value, min and max ignore it, set-if-null fills it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headwater.changes.numbers import format_number, negated, parse_number, plus

Step = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Chain:
    """The operations of one column, folded. Immutable; `then` returns the longer chain.

    `fixed` says that it began with a set: then `first` is the value, whatever was there before, and
    the rest is not used.
    """

    fixed: bool = False
    first: str | None = None
    added: Decimal | None = None
    lowest: Decimal | None = None
    highest: Decimal | None = None

    def then(self, operation: str, value: str | None) -> Chain:
        """Return the chain with one more operation. Called per change of a key that is mixed."""
        if operation == "set":
            return Chain(True, value)
        if self.fixed:
            return Chain(True, apply_step(self.first, operation, value))
        if operation == "set_if_null":
            empty = self.first is None and not self._computes()
            return Chain(False, value) if empty else self
        if value is None:
            raise ValueError(f"{operation} of null")  # refused when changes are conformed
        text = negated(value) if operation == "sub" else value
        return self._compute("add" if operation == "sub" else operation, parse_number(text))

    def on(self, value: str | None) -> str | None:
        """Return what the column holds afterwards, if it held `value` before."""
        for operation, operand in self.steps():
            value = apply_step(value, operation, operand)
        return value

    def steps(self) -> list[Step]:
        """Return the shortest list of operations that does the same, in this order."""
        if self.fixed:
            return [("set", self.first)]
        numbers = (("add", self.added), ("max", self.lowest), ("min", self.highest))
        steps: list[Step] = [
            (operation, format_number(number))
            for operation, number in numbers
            if number is not None
        ]
        if self.first is not None and (not steps or not self._first_is_implied(steps)):
            steps.insert(0, ("set_if_null", self.first))
        return steps

    def _first_is_implied(self, steps: list[Step]) -> bool:
        """Tell whether null becomes the same without saying what it counts as."""
        implied: str | None = None
        stated: str | None = self.first
        for operation, operand in steps:
            implied = apply_step(implied, operation, operand)
            stated = apply_step(stated, operation, operand)
        return implied == stated

    def _computes(self) -> bool:
        return any(one is not None for one in (self.added, self.lowest, self.highest))

    def _compute(self, operation: str, number: Decimal) -> Chain:
        first = self.first
        if first is None and not self._computes():
            first = "0" if operation == "add" else format_number(number)
        low, high = self.lowest, self.highest
        match operation:
            case "add":
                added = number if self.added is None else plus(self.added, number)
                return Chain(
                    False,
                    first,
                    added,
                    None if low is None else plus(low, number),
                    None if high is None else plus(high, number),
                )
            case "max":
                low = number if low is None else max(low, number)
                high = None if high is None else max(high, number)
            case _:
                high = number if high is None else min(high, number)
        return Chain(False, first, self.added, low, high)


def apply_step(held: str | None, operation: str, value: str | None) -> str | None:
    """Return what a column that held `held` holds after one operation.

    Raises:
        ChangeNumberError: a number is needed and one of the two is none.
    """
    if operation == "set":
        return value
    if operation == "set_if_null":
        return value if held is None else held
    if value is None:
        return held
    number = parse_number(negated(value) if operation == "sub" else value)
    if held is not None:
        other = parse_number(held)
        if operation in ("add", "sub"):
            number = plus(other, number)
        else:
            number = max(other, number) if operation == "max" else min(other, number)
    return format_number(number)


Chains = dict[str, Chain]


def fold_one_key(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return operation, fields and fresh of the changes of one key, given in order.

    Called by `fold`, where it runs; that no insert meets a row was checked before. The same
    changes give the same result again.
    """
    there: Chains = {}  # what a row gets that was there before the first change
    fresh: Chains | None = None  # the row, if none was there before; None while there is none
    new_only = gone = False  # an insert says that none was there; a delete ends what was there
    for change in changes:
        operation, fields = change["operation"], change["fields"] or ()
        if operation == "delete":
            gone, fresh = True, None
            continue
        if operation == "insert":
            new_only = new_only or not gone
        creates = operation in ("insert", "upsert")
        if fresh is None and creates:
            fresh = {}
        for field in fields:
            step = (field["operation"], field["value"])
            if fresh is not None:
                fresh[field["name"]] = fresh.get(field["name"], Chain()).then(*step)
            if not gone:
                there[field["name"]] = there.get(field["name"], Chain()).then(*step)
    return _folded(there, fresh, new_only=new_only, gone=gone)


def _folded(there: Chains, fresh: Chains | None, *, new_only: bool, gone: bool) -> dict[str, Any]:
    if fresh is None and (gone or new_only):
        return {"operation": "transient" if new_only else "delete", "fields": None, "fresh": None}
    row = None if fresh is None else _row(fresh)
    if new_only or gone:
        return {"operation": "insert" if new_only else "replace", "fields": None, "fresh": row}
    fields = [
        {"name": name, "value": value, "operation": operation}
        for name in sorted(there)
        for operation, value in there[name].steps()
    ]
    return {"operation": "update" if row is None else "upsert", "fields": fields, "fresh": row}


def _row(chains: Chains) -> list[dict[str, Any]]:
    return [{"name": name, "value": chains[name].on(None)} for name in sorted(chains)]
