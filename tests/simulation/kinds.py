"""Every kind of place there is, and what the product offers there: `make_place` draws one."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tests.simulation.fan_out import FanOutPlace
from tests.simulation.lakes import LAKES
from tests.simulation.places import (
    ClickHousePlace,
    DuckDBPlace,
    Engines,
    MemoryPlace,
    Place,
    PostgresPlace,
)
from tests.simulation.situations import Fault, Feature, cell

CLASSES: dict[str, type[Place]] = {
    one.kind: one for one in (MemoryPlace, DuckDBPlace, PostgresPlace, ClickHousePlace, FanOutPlace)
} | dict(LAKES)
NAMES = (*CLASSES, *(f"{one} on S3" for one in LAKES))
MERGE_TREES = ["CollapsingMergeTree", "ReplacingMergeTree", "MergeTree"]
REMOTE = 0.25  # of lakes that are on S3


def make_place(kind: str, engines: Engines, dice: Random) -> Place:
    """Return an empty one."""
    engine = dice.choice(MERGE_TREES)
    match kind:
        case "ClickHouse":
            return ClickHousePlace(engines, engine)
        case "PostgreSQL":
            return PostgresPlace(engines)
        case "DuckDB":
            return DuckDBPlace(engines)
        case "fan-out":
            first = dice.choice(["DuckDB"] * 6 + ["PostgreSQL", "ClickHouse"])
            kinds = [first, *dice.sample(list(LAKES), dice.choice([1, 1, 2]))]
            own = Random(dice.random())
            return FanOutPlace([make_place(one, engines, dice) for one in kinds], own)
        case "memory":
            return MemoryPlace(engines)
        case _:
            return LAKES[kind](engines, remote=dice.random() < REMOTE)


def offers(kind: str, feature: Feature) -> bool:
    """Tell whether the product has a feature on a kind of target."""
    place = CLASSES[kind.removesuffix(" on S3")]
    several = kind == "fan-out"  # it can what all of its targets can
    needs = {
        Feature.OUTPUTS: place.evolves or several,
        Feature.KEYED: place.keyed or several,
        Feature.AGGREGATE: place.sums,
        Feature.CHANGES: place.changes,
        Feature.SUBSTREAMS: place.changes,
        Feature.FOREACH_BATCH: place.side_tables and not several,
        Feature.FACTORY: place.side_tables,
        Feature.OUTBOX: place.side_tables,
        Feature.ADDED: place.evolves or several,
        Feature.RENAMED: place.evolves or several,
        Feature.MAINTAINED: place.maintained or several,
        Feature.COLLISION: kind not in ("memory", "fan-out"),
    }
    return needs.get(feature, True)


def never_met(cells: Mapping[str, int]) -> list[str]:
    """Name every cell of the table that the product offers and no world has met."""
    return [
        found
        for kind in NAMES
        for feature in Feature
        for fault in Fault
        if offers(kind, feature)
        and not (kind == "memory" and fault in (Fault.PAUSED, Fault.CUT))
        and not cells.get(found := cell(kind, feature, fault))
    ]
