"""The query surface of the simulated portal: what a request to a network may name, and its meaning.

Names of fields, filters and flags are those of the catalogue (`headwater.query`). What they mean is
written here, from the wire's own description: how a filter's values are compared, what of a row
they are compared with, and which rows belong together. The simulator is where requests are judged,
so a mistake of the catalogue must not be hidden: every field stands in the contents as well, and a
filter that is on no field of its own name needs a line in `_FILTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwater.query import NETWORKS
from headwater.query.catalog import Entity
from headwater.query.catalog import Network as Catalogue
from headwater.query.filters import Family as Filters
from headwater.query.values import Condition, ValueKind
from headwater.testing.chain.population import Network

Row = dict[str, Any]
Getter = Callable[[Row], Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter key: how its values are written, and what of a row they are compared with."""

    kind: str
    get: Getter


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation flag: the family that it pulls in, and by what the rows belong together."""

    target: str
    by: str


@dataclass(frozen=True, slots=True)
class Family:
    """One family of items: the name of its fields' entity, its fields, filters and relations.

    Some families ask for items of another (`items`), those of which a value is `implied`. Items
    that are not `is_asked` for come by relations alone.
    """

    entity: str
    fields: tuple[str, ...]
    filters: dict[str, Filter]
    relations: dict[str, Relation]
    items: str
    implied: tuple[Getter, frozenset[str]] | None = None
    is_asked: bool = True


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that a request to one network may name."""

    block_fields: tuple[str, ...]
    families: dict[str, Family]

    def owner(self, family: str) -> str:
        """Return the key by which rows of a family name their transaction."""
        fields, keys = self.families[family].fields, ("transactionIndex", "extrinsicIndex", "index")
        return next(key for key in keys if key in fields)


TRANSACTION = "transaction"
"""Rows of one transaction belong together."""
INSTRUCTION = "instruction"
"""Rows of one instruction belong together."""
BELOW = "below"
"""Rows whose address continues this row's."""
ABOVE = "above"
"""Rows whose address this row's continues."""

_RELATIONS = {
    "subtraces": BELOW,
    "parents": ABOVE,
    "innerInstructions": BELOW,
    "parentInstructions": ABOVE,
    "instructions.logs": INSTRUCTION,
    "instruction": INSTRUCTION,
    "subcalls": BELOW,
    "stack": ABOVE,
    "call": INSTRUCTION,
    "events": INSTRUCTION,
}
"""By what rows belong together, by flag, where it is not the transaction."""

LOWEST, HIGHEST = "lowest", "highest"
"""Kinds of filter that hold one number: the lower or the upper end of a range."""

BLOOM = "bloom"
"""Kind of filter on any item of a list that is asked of a bloom filter: some others match, too."""

_KINDS = {
    ValueKind.HEX: "hex",
    ValueKind.BARE_HEX: "hex",
    ValueKind.TRON_ADDRESS: "hex",
    ValueKind.NUMBER: "number",
    ValueKind.BOOL: "flag",
}
"""How a portal compares values; all others are compared as they are."""

TRACE_FIELDS = {
    field.wire: (str(field.variant), *field.nested, field.nested[-1])
    for catalogue in NETWORKS
    for entity in catalogue.entities
    for field in entity.fields
    if field.nested
} | {"callType": ("call", "action", "type", "callType")}
"""Flat selection key: the trace type it is of, and the part, name and source it is sent as.

`callType` is what older portals call `callCallType`; they send it as `action.type`.
"""


def _column(name: str) -> Getter:
    return lambda row: row[name]


def _item(name: str, position: int) -> Getter:
    """Return what reads one item of a list; nothing where it is shorter."""

    def get(row: Row) -> Any:
        items = row[name] or ()
        return items[position] if position < len(items) else None

    return get


def _trace(key: str) -> Getter:
    kind, part, _, source = TRACE_FIELDS[key]
    return lambda row: row[part][source] if row["type"] == kind else None


def _nonce(row: Row) -> int:
    return int(row["nonce"])


def _accounts(row: Row) -> list[str]:
    loaded = row["loadedAddresses"] or {}
    return [*row["accountKeys"], *loaded.get("readonly", ()), *loaded.get("writable", ())]


def _inside(field: str, *places: str, length: int | None = None) -> Getter:
    """Return what stands at the first of some places in a field; or its beginning.

    Places are keys with dots between them.
    """

    def get(row: Row) -> Any:
        for place in places:
            value: Any = row[field]
            for key in place.split("."):
                if isinstance(value, list):
                    value = value[int(key)] if int(key) < len(value) else None
                else:
                    value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                return value[:length]
        return None

    return get


def _parameter(key: str, length: int | None = None) -> Getter:
    return _inside("parameter", f"value.{key}", length=length)


def _topics(family: str, *places: str) -> dict[str, Filter]:
    return {
        f"{family}.topic{at}": Filter(
            "hex", _inside("args", *(f"{place}.{at}" for place in places))
        )
        for at in range(4)
    }


_FILTERS = {
    "transactions.firstNonce": Filter(LOWEST, _nonce),
    "transactions.lastNonce": Filter(HIGHEST, _nonce),
    **{f"logs.topic{at}": Filter("hex", _item("topics", at)) for at in range(4)},
    "transactions.feePayer": Filter("text", _item("accountKeys", 0)),
    "transactions.mentionsAccount": Filter(BLOOM, _accounts),
    "instructions.mentionsAccount": Filter(BLOOM, _column("accounts")),
    **{f"instructions.a{at}": Filter("text", _item("accounts", at)) for at in range(16)},
    **{f"instructions.d{n}": Filter(f"bytes{n}", _column(f"d{n}")) for n in (1, 2, 4, 8)},
    "internalTransactions.caller": Filter("hex", _column("callerAddress")),
    "internalTransactions.transferTo": Filter("hex", _column("transferToAddress")),
    **{
        f"{family}Transactions.{key}": Filter("hex", _parameter(f"{key}_address"))
        for family in ("transfer", "transferAsset", "triggerSmartContract")
        for key in ("owner", "to", "contract")
    },
    "transferAssetTransactions.asset": Filter("text", _parameter("asset_name")),
    "triggerSmartContractTransactions.sighash": Filter("hex", _parameter("data", length=8)),
    **{f"fills.{key}": Filter("text", _column(key)) for key in ("user", "cloid", "builder")},
    "evmLogs.address": Filter("hex", _inside("args", "log.address", "address")),
    **_topics("evmLogs", "log.topics", "topics"),
    **_topics("reviveContractEmitted", "topics"),
    "ethereumTransactions.to": Filter(
        "hex",
        _inside(
            "args",
            "transaction.value.action.value",
            "transaction.value.destination.value",
            "transaction.action.value",
        ),
    ),
    "ethereumTransactions.sighash": Filter(
        "hex",
        _inside(
            "args",
            "transaction.value.input",
            "transaction.value.data",
            "transaction.input",
            length=10,
        ),
    ),
    "contractsEvents.contractAddress": Filter("text", _inside("args", "contract")),
    "gearMessagesEnqueued.programId": Filter("text", _inside("args", "destination")),
    "gearUserMessagesSent.programId": Filter("text", _inside("args", "message.source")),
    "reviveContractEmitted.contract": Filter("text", _inside("args", "contract")),
}
"""Filters that are not simply on a field of their name, by family and key."""


def _filter(family: str, fields: tuple[str, ...], condition: Condition) -> Filter:
    key, kind = condition.wire, _KINDS.get(condition.kind, "text")
    if (known := _FILTERS.get(f"{family}.{key}")) is not None:
        return known
    if key in TRACE_FIELDS:
        return Filter(kind, _trace(key))
    assert key in fields, f"the filter {family}.{key} is on no field, and has no line in _FILTERS"
    return Filter(kind, _column(key))


def _fields(entity: Entity) -> tuple[str, ...]:
    older = ("callType",) if entity.wire == "trace" else ()
    return (*(field.wire for field in entity.fields), *older)


def _family(catalogue: Catalogue, filters: Filters) -> Family:
    entity, name, implied = catalogue.entity(filters.entity), filters.wire, filters.implied
    fields = _fields(entity)
    return Family(
        entity.wire,
        fields,
        {condition.wire: _filter(name, fields, condition) for condition in filters.conditions},
        {
            flag.wire: Relation(
                catalogue.entity(flag.entity).collection,
                _RELATIONS.get(f"{name}.{flag.wire}") or _RELATIONS.get(flag.wire, TRANSACTION),
            )
            for flag in filters.relations
        },
        entity.collection,
        None if implied is None else (_column(implied[0]), frozenset(implied[1])),
    )


def _surface(catalogue: Catalogue) -> Surface:
    block, *entities = catalogue.entities
    families = {family.wire: _family(catalogue, family) for family in catalogue.families}
    by_relations = {
        entity.collection: Family(
            entity.wire, _fields(entity), {}, {}, entity.collection, is_asked=False
        )
        for entity in entities
        if entity.collection not in families
    }
    return Surface(_fields(block), families | by_relations)


SURFACES = {Network(catalogue.type): _surface(catalogue) for catalogue in NETWORKS}
