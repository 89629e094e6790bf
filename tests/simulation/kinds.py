"""Every kind of place there is, and what the product offers there: `make_place` draws one."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tests.simulation.fan_out import FanOutPlace
from tests.simulation.lakes import LAKES
from tests.simulation.places import (
    DuckDBPlace,
    Engines,
    MemoryPlace,
    Place,
)
from tests.simulation.servers import ClickHousePlace, PostgresPlace
from tests.simulation.situations import Fault, Feature, cell

CLASSES: dict[str, type[Place]] = {
    one.kind: one for one in (MemoryPlace, DuckDBPlace, PostgresPlace, ClickHousePlace, FanOutPlace)
} | dict(LAKES)
NAMES = (*CLASSES, *(f"{one} on S3" for one in LAKES))
SERVERS = ("PostgreSQL", "ClickHouse")  # which are reached over a connection that is cut
REMOTE = 0.25  # of the lakes of a fan-out that are on S3
_OF_ALL = {  # what a fan-out has if all of its targets have it
    Feature.OUTPUTS, Feature.ADDED, Feature.RENAMED, Feature.KEYED, Feature.GIVEN_UP,
}  # fmt: skip
MERGE_TREES = ["CollapsingMergeTree", "ReplacingMergeTree", "MergeTree"]
# Real databases are costly: of 20 seeds in a row this is the kind of the first stream. Rare points
# are met by turns: a seed's block of 20 says in which call its focus is, and whether it is a pause.
KINDS = (
    ("PostgreSQL",) * 3
    + ("DuckDB", "ClickHouse", "DuckDB")
    + ("memory",) * 9
    + ("Parquet", "Delta", "Iceberg")
    + ("fan-out",) * 2
)


def make_place(
    kind: str, engines: Engines, dice: Random, *, feature: Feature | None = None
) -> Place:
    """Return an empty one, on which a feature can be had."""
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
            lakes = [f"{one} on S3" if dice.random() < REMOTE else one for one in LAKES]
            if feature in _OF_ALL:
                first, lakes = "DuckDB", ["Delta", dice.choice(["Iceberg", "Iceberg on S3"])]
            kinds = [first, *dice.sample(lakes, dice.choice([1, 1, 2]))]
            own = Random(dice.random())
            return FanOutPlace([make_place(one, engines, dice) for one in kinds], own)
        case "memory":
            return MemoryPlace(engines)
        case _:
            return LAKES[kind.removesuffix(" on S3")](engines, remote=kind.endswith(" on S3"))


def offers(kind: str, feature: Feature) -> bool:
    """Tell whether the product has a feature on a kind of target."""
    place = CLASSES[kind.removesuffix(" on S3")]
    several = kind == "fan-out"  # it can what all of its targets can
    needs = {
        Feature.OUTPUTS: place.evolves or several,
        Feature.KEYED: place.keyed or several,
        Feature.AGGREGATE: place.sums,
        Feature.CHANGES: place.changes or place.applies,
        Feature.SUBSTREAMS: place.changes or place.applies,
        Feature.FOREACH_BATCH: place.side_tables and not several,
        Feature.FACTORY: place.side_tables,
        Feature.OUTBOX: place.side_tables,
        Feature.ADDED: place.evolves or several,
        Feature.RENAMED: kind != "Delta on S3" and (place.evolves or several),
        Feature.MAINTAINED: place.maintained or several,
        Feature.PLAN: kind == "DuckDB",  # a plan does not know where its rows go, and Spark is slow
        Feature.COLLISION: kind not in ("memory", "fan-out"),
        Feature.GIVEN_UP: place.side_tables,
        Feature.REWOUND: kind not in ("memory", "fan-out"),  # each target of which has its own
    }
    return needs.get(feature, True)


def meets(kind: str, feature: Feature, fault: Fault) -> bool:
    """Tell whether a feature of a target, where there is one, can meet a fault.

    Memory is never paused, and has no connection. A query and a Substreams module read no portal.
    """
    if kind == "memory" and fault in (Fault.PAUSED, Fault.CUT):
        return False
    if feature is Feature.FOREACH_BATCH and fault in (Fault.CUT, Fault.ANSWER, Fault.REPLICA):
        return offers(kind, feature) and fault is Fault.CUT and kind in SERVERS
    if feature is Feature.SUBSTREAMS and fault is Fault.REPLICA:
        return False
    return offers(kind, feature)


def never_met(cells: Mapping[str, int]) -> list[str]:
    """Name every cell of the table that the product offers and no world has met."""
    return [
        found
        for kind in NAMES
        for feature in Feature
        for fault in Fault
        if meets(kind, feature, fault) and not cells.get(found := cell(kind, feature, fault))
    ]
