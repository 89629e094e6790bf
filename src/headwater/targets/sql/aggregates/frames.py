"""A delta as the frame of a merge: every row an upsert of its key."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headwater.changes.model import one_array
from headwater.changes.values import one_spelling
from headwater.targets.sql.aggregates.columns import Columns
from headwater.targets.sql.aggregates.declaration import Plan
from headwater.targets.sql.aggregates.deltas import reduce_delta
from headwater.targets.sql.merge.frames import ADD, GIVEN, LOWER, RAISE, SET, UPSERT, Lanes, Staged
from headwater.targets.sql.merge.shape import Shape

_LANES = {"add": ADD, "min": LOWER, "max": RAISE, "last": SET}


def stage_delta(plan: Plan, delta: pa.Table, shape: Shape, columns: Columns, block: int) -> Staged:
    """Return a delta as the merge takes it; keys get the one spelling that the table has."""
    for at, name in enumerate(plan.key):
        spelt = one_spelling(one_array(delta[f"k{at}"]), shape.columns[name].kind, name)
        delta = delta.set_column(at, f"k{at}", spelt)
    delta = reduce_delta(plan, delta, columns.numeric)
    size = delta.num_rows
    frame: dict[str, pa.Array] = {
        "place": pa.array(range(size), pa.int64()),
        "block": pa.repeat(pa.scalar(block, pa.int64()), size),
        "kind": pa.repeat(UPSERT, size),
    }
    for at, name in enumerate(shape.key):
        frame[f"k{at}"] = one_array(delta[f"k{plan.key.index(name)}"])
    numbers = {name: index for index, name in enumerate(shape.columns)}
    lanes: Lanes = {}
    for at, (name, operation) in enumerate(plan.operations.items()):
        place = shape.columns[name]
        values = one_spelling(one_array(delta[f"v{at}"]), place.kind, name)
        frame[f"{_LANES[operation]}{numbers[name]}"] = values
        lanes[name] = frozenset({_LANES[operation]})
        if operation == "last":
            frame[f"{GIVEN}{numbers[name]}"] = pc.is_valid(one_array(delta[f"o{at}"]))
            lanes[name] = frozenset({SET, GIVEN})
    return Staged(shape, pa.table(frame), frozenset({UPSERT}), lanes, frozenset())
