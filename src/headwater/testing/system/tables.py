"""What a stream of the simulation writes, and what its tables must hold.

Each stream reads the transfers of a few tokens and keeps them; the keyed table and the sums show
what an append-only table cannot: a block undone twice, or counted twice, changes them. `expected`
reads the simulated contents directly; it shares no code with the client or the decoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.decode import Output
from headwater.decode.evm import events
from headwater.targets import aggregate
from headwater.targets.sql.aggregates import Aggregate
from headwater.testing.chain.content import content_of
from headwater.testing.chain.tree import ChainSim, SimBlock

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
TRANSFERS, LATEST, SUMS = "transfers", "latest", "sums"
COLUMNS = {
    TRANSFERS: ("block_number", "log_index", "address", "from", "to", "value"),
    LATEST: ("owner", "block_number", "value"),
    SUMS: ("owner", "amount", "rows"),
}
Row = tuple[Any, ...]
Tables = dict[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Shape:
    """Which tables a stream writes, and what they are called."""

    stream: str
    schema: str = ""
    latest: bool = False
    sums: bool = False

    @property
    def tables(self) -> list[str]:
        """The tables there are."""
        return [TRANSFERS, *([LATEST] if self.latest else []), *([SUMS] if self.sums else [])]

    def name(self, table: str) -> str:
        """Return the name of a table in its database."""
        return f"{self.schema}.{table}_{self.stream}" if self.schema else f"{table}_{self.stream}"

    def aggregates(self) -> list[Aggregate]:
        """Declare the sums."""
        if not self.sums:
            return []
        return [
            aggregate(
                self.name(SUMS),
                source=TRANSFERS,
                keys={"owner": "to"},
                add={"amount": "value", "rows": 1},
            )
        ]

    def write(self, tx: Any, data: Mapping[str, Any]) -> None:
        """Serve as `on_data` of the targets."""
        tx.insert(self.name(TRANSFERS), data[TRANSFERS])
        if not self.latest:
            return
        newest = {
            row["to"]: {"owner": row["to"], "block_number": row["block_number"],
                        "value": row["value"]}
            for row in data[TRANSFERS].toArrow().to_pylist()
        }  # fmt: skip
        if newest:
            rows = pa.Table.from_pylist(list(newest.values()))
            tx.upsert(self.name(LATEST), rows, key=["owner"])


def outputs(tokens: Iterable[str]) -> dict[str, Output]:
    """Return what a stream asks for."""
    return {TRANSFERS: events("erc20.Transfer", contracts=list(tokens), range=0)}


def expected(
    chain: ChainSim, branch: Iterable[SimBlock], tokens: Iterable[str], shape: Shape
) -> Tables:
    """Return what the tables hold after these blocks, in their order."""
    wanted = set(tokens)
    transfers: list[Row] = []
    latest: dict[str, Row] = {}
    sums: dict[str, tuple[int, int]] = {}
    for block in branch:
        for log in content_of(chain, block).rows("logs"):
            topics = log["topics"]
            if topics[:1] != [TRANSFER] or len(topics) != 3 or log["address"] not in wanted:
                continue
            sender, receiver = ("0x" + topic[-40:] for topic in topics[1:])
            value = int(log["data"], 16)
            transfers.append(
                (block.number, log["logIndex"], log["address"], sender, receiver, str(value))
            )
            latest[receiver] = (receiver, block.number, str(value))
            amount, rows = sums.get(receiver, (0, 0))
            sums[receiver] = (amount + value, rows + 1)
    held: Tables = {TRANSFERS: sorted(transfers)}
    if shape.latest:
        held[LATEST] = sorted(latest.values())
    if shape.sums:
        held[SUMS] = sorted((owner, str(amount), rows) for owner, (amount, rows) in sums.items())
    return held


def in_order(table: str, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return rows of a database in the form and order of `expected`."""
    columns = COLUMNS[table]
    return sorted(
        tuple(str(row[one]) if one in ("value", "amount") else row[one] for one in columns)
        for row in rows
    )


def difference(held: Tables, wanted: Tables) -> str:
    """Say how tables differ from what they must hold; nothing if they do not."""
    said = []
    for table, rows in wanted.items():
        if held[table] != rows:
            extra = [row for row in held[table] if row not in rows]
            lacking = [row for row in rows if row not in held[table]]
            said.append(
                f"{table}: {len(held[table])} rows for {len(rows)}; "
                f"too many {extra[:2]}, missing {lacking[:2]}"
            )
    return "; ".join(said)
