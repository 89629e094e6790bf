"""Write docs/queries.md from the catalogue. Run it after changing what can be asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headwater.query import NETWORKS, Condition, Entity, Family, Field, Network, Presence
from headwater.query.values import describe_item

PAGE = Path(__file__).resolve().parent.parent / "docs" / "queries.md"

_INTRODUCTION = """\
# Queries

A query says which items to fetch (filters) and which of their fields (selection). It is an
immutable value: every `add_…` returns a new one.

```python
from headwater.query import EvmQuery

query = (
    EvmQuery()
    .add_fields(log=["address", "topics", "data"], transaction=["hash", "from"])
    .add_logs(
        address=["0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48"],
        topic0=["0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"],
        transaction=True,
    )
)
request = query.body(from_block=20_000_000, to_block=20_000_099)
```

- Within one filter all keys must match, and a key matches any value of its list. Several filters
  add up: an item that matches one of them is fetched. A filter without keys matches every item.
- An empty list would match nothing, and is refused.
- A flag such as `transaction=True` also brings the related items; select their fields too.
- Always selected: the block's number, hash, parent hash and timestamp (on Solana also the parent's
  number), which prove that blocks follow each other; and the `type` of a trace.
- Only blocks with a match are certain to arrive; `EvmQuery(include_all_blocks=True)` fetches all.
- A portal accepts 100 filters and 256 KiB per request; more is refused before it is sent. A list of
  5000 addresses is one filter.

The other networks have builders of the same kind: `SolanaQuery`, `BitcoinQuery`, `TronQuery`,
`HyperliquidQuery`, `SubstrateQuery`. Addresses are checked, and sent in the form that a portal
compares:

```python
from headwater.query import BitcoinQuery, HyperliquidQuery, SubstrateQuery, TronQuery

requests = [
    BitcoinQuery()
    .add_fields(output=["value", "script_pub_key_address"])
    .add_outputs(script_pub_key_address=["1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"]),
    TronQuery()
    .add_fields(log=["topics", "data"])
    .add_logs(address=["TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"]),
    HyperliquidQuery().add_fields(fill=["px", "sz"]).add_fills(coin=["BTC"]),
    SubstrateQuery().add_fields(event=["args"]).add_events(name=["Balances.Transfer"]),
]
sent = [query.body(from_block=0) for query in requests]
```

Names are given in Python's spelling; the wire uses camelCase.
"""

_TYPES = """\
## Types

| type | on the wire |
|---|---|
| number | integer, not negative |
| integer | integer |
| index | integer of 32 bits without a sign |
| seconds, milliseconds | integer: a time, counted from 1970 |
| float | a number, a double on the portal's server |
| bitcoins | a number with at most 8 decimals |
| hex | `"0x…"`, whole bytes |
| bare hex | hex without `0x`, whole bytes |
| quantity | `"0x…"`, an integer of up to 256 bits |
| decimal, wide decimal | an integer of up to 64 or 128 bits as a decimal string |
| base58, string, bool | as named |
| json | any value |

`[]` is a list; `?` may be absent or null; `or null` is always there but may be null.
"""


def reference_page() -> str:
    """Return the text of `docs/queries.md`: an introduction, then every field and every filter."""
    return "\n".join([_INTRODUCTION, _TYPES, *(_network(item) for item in NETWORKS)])


def _network(network: Network) -> str:
    return "\n".join(
        [
            f"## {network.type}: fields\n",
            *(_entity(entity) for entity in network.entities),
            f"## {network.type}: filters\n",
            *(_family(family, network) for family in network.families),
        ]
    )


def _entity(entity: Entity) -> str:
    nested = any(field.nested for field in entity.fields)
    header = ["field", "type", *(["trace type", "place in the result"] if nested else [])]
    rows = (
        [
            f"`{field.name}`",
            _type(field),
            *([field.variant or "all", f"`{'.'.join(field.path)}`"] if nested else []),
        ]
        for field in entity.fields
    )
    return f"### {entity.name}\n\n{_table(header, rows)}"


def _family(family: Family, network: Network) -> str:
    rows = [
        *([f"`{item.name}`", _value(item)] for item in family.conditions),
        *(
            [f"`{item.name}`", f"flag: brings each related {network.entity(item.entity).name}"]
            for item in family.relations
        ),
    ]
    title = f"### add_{family.name}\n"
    if family.implied is not None:
        values = " or ".join(f"`{one}`" for one in family.implied[1])
        title += f"\nOf the {family.entity} whose `{family.implied[0]}` is {values}.\n"
    return f"{title}\n{_table(['key', 'takes'], rows)}"


def _type(field: Field) -> str:
    name = str(field.type)
    if field.members:
        name = "{" + ", ".join(f"{item.wire} {_type(item)}" for item in field.members) + "}"
    if field.is_list:
        name += "[]"
    match field.presence:
        case Presence.REQUIRED:
            return name
        case Presence.OPTIONAL:
            return f"{name}?"
        case Presence.NULLABLE:
            return f"{name} or null"


def _value(condition: Condition) -> str:
    words = describe_item(condition).replace("'", "`")
    return f"list of {words}" if condition.is_list else words


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(reference_page(), encoding="utf-8")
    print(f"wrote {PAGE}")
