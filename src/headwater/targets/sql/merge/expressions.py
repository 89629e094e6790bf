"""What a column holds after a merge, as SQL that both databases read the same way.

Null: adding to null gives the value, raising and lowering ignore it, filling replaces it.
`GREATEST` and `LEAST` leave nulls out in both databases. The staged frame is called `s`.
"""

from __future__ import annotations

from headwater.targets.sql.merge.frames import ADD, FIRST, GIVEN, LOWER, RAISE, SET, Staged


def changed(staged: Staged, name: str, held: str) -> str:
    """Return what a column holds in a row that is there, where it holds `held` now."""
    if name in staged.always:
        return _lane(staged, name, SET)
    stepped = _stepped(staged, name, held)
    if SET not in staged.lanes[name]:
        return stepped
    given, value = _lane(staged, name, GIVEN), _lane(staged, name, SET)
    return f"CASE WHEN {given} THEN {value} ELSE {stepped} END"


def made(staged: Staged, name: str) -> str:
    """Return what a column holds in a new row: its default, unless something was said."""
    steps = staged.lanes[name] - {SET, GIVEN}
    value = _stepped(staged, name, "NULL") if steps else ""
    if SET in staged.lanes[name]:
        given, fixed = _lane(staged, name, GIVEN), _lane(staged, name, SET)
        value = f"CASE WHEN {given} THEN {fixed} ELSE {value} END" if steps else fixed
    default = staged.shape.columns[name].default
    if default is None or name in staged.always:
        return value
    told = [f"{_lane(staged, name, lane)} IS NOT NULL" for lane in sorted(steps)]
    if SET in staged.lanes[name]:
        told.append(_lane(staged, name, GIVEN))
    return f"CASE WHEN {' OR '.join(told)} THEN {value} ELSE {default} END"


def _stepped(staged: Staged, name: str, held: str) -> str:
    """Return the column after filling, adding, raising and lowering, in this order."""
    lanes, value = staged.lanes[name], held
    if FIRST in lanes:
        value = f"COALESCE({value}, {_lane(staged, name, FIRST)})"
    if ADD in lanes:
        more = _lane(staged, name, ADD)
        plus = f"CASE WHEN {more} IS NULL THEN {value} ELSE COALESCE({value} + {more}, {more}) END"
        value = more if value == "NULL" else plus
    if RAISE in lanes:
        value = f"GREATEST({value}, {_lane(staged, name, RAISE)})"
    if LOWER in lanes:
        value = f"LEAST({value}, {_lane(staged, name, LOWER)})"
    return value


def _lane(staged: Staged, name: str, lane: str) -> str:
    return f"s.{staged.lane(name, lane)}"
