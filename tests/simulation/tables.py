"""What a stream of the simulation writes, and what its tables must hold.

Each stream reads the transfers of a few tokens and keeps them; the keyed table and the sums show
what an append-only table cannot: a block undone twice, or counted twice, changes them. Some also
read the swaps of a factory's pools, and some write all of it as changes, with a change log.
`expected` reads the simulated contents directly; it shares no code with the client or the decoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from headwater.changes import TableSchema, add, from_columns
from headwater.decode import Output
from headwater.decode.evm import events, factory
from headwater.targets import aggregate
from headwater.targets.sql.aggregates import Aggregate
from headwater.testing.chain.content import content_of
from headwater.testing.chain.content.evm_scenes import PAIR_CREATED, SWAP
from headwater.testing.chain.tree import ChainSim, SimBlock
from tests.simulation import plans
from tests.simulation.ends import NAMES as ENDS
from tests.simulation.ends import add_ends, ends_of, seen

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
TRANSFERS, LATEST, SUMS, SWAPS, POOLS = "transfers", "latest", "sums", "swaps", "pools"
MORE = "more"
COLUMNS = {
    TRANSFERS: ("block_number", "log_index", "address", "from", "to", "value"),
    LATEST: ("token", "block_number", "value"),
    SUMS: ("owner", "amount", "rows"),
    SWAPS: ("block_number", "log_index", "address", "factory_n"),
    MORE: ("block_number", "log_index", "address", "from", "to", "value"),
    POOLS: ("address",),  # the children of the factory that the stream knows
}
_LARGE = ("value", "amount", "factory_n")  # compared as text
_SMALL = ("block_number", "log_index", "rows")
_SWAP = (
    "Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out, "
    "uint256 amount1Out, address indexed to)"
)
_CREATED = "PairCreated(address indexed token0, address indexed token1, address pair, uint256 n)"
Row = tuple[Any, ...]
Tables = dict[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows that a transform has made; no Spark is needed to look at them."""

    rows: pa.Table

    def toArrow(self) -> pa.Table:  # noqa: N802 - as a DataFrame spells it
        """Return the rows."""
        return self.rows


@dataclass(frozen=True, slots=True)
class Shape:
    """Which tables a stream writes, and what they are called.

    `changes`: it writes them as changes, and a change log undoes them. `plain`: each output goes
    into the table of its name; then a later definition can have `more`, the transfers of more
    tokens, or another name for the first table (`moved`). `ends`: with values at ends of types.
    `plan`: transfers are what a plan of Spark makes of them.
    """

    stream: str
    schema: str = ""
    latest: bool = False
    sums: bool = False
    swaps: bool = False
    changes: bool = False
    plain: bool = False
    moved: bool = False
    more: tuple[str, ...] = ()
    ends: bool = False
    plan: bool = False

    @property
    def tables(self) -> list[str]:
        """The tables there are."""
        more = {LATEST: self.latest, SUMS: self.sums, SWAPS: self.swaps, MORE: bool(self.more)}
        return [TRANSFERS, *(name for name, wanted in more.items() if wanted)]

    def name(self, table: str) -> str:
        """Return the name of a table in its database."""
        name = "moved" if self.moved and table == TRANSFERS else table
        if self.plain and self.schema:  # outputs have their tables where no schema is named
            return f"public.{name}_{self.stream}_{self.schema}"
        return f"{self.schema}.{name}_{self.stream}" if self.schema else f"{name}_{self.stream}"

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table that are compared."""
        if self.plan and table == TRANSFERS:
            return COLUMNS[table] + plans.NAMES
        return COLUMNS[table] + (ENDS if self.ends and table in (TRANSFERS, LATEST) else ())

    def output(self, table: str) -> str:
        """Return the output whose rows a table holds."""
        return self.name(table).removeprefix("public.") if self.plain else table

    def on_data(self) -> Any:
        """Return what targets are given to write with; None where outputs are tables."""
        if self.changes:
            return self.apply
        return None if self.plain else self.write

    def outputs(self, tokens: Iterable[str], pools_of: str) -> dict[str, Output]:
        """Return what the stream asks for."""
        asked: dict[str, Output] = {
            self.output(TRANSFERS): events("erc20.Transfer", contracts=list(tokens), range=0)
        }
        if self.swaps:
            pools = factory(pools_of, _CREATED, child="pair", columns=["n"])
            asked[self.output(SWAPS)] = events(_SWAP, contracts=pools, range=0)
        if self.more:
            more = events("erc20.Transfer", contracts=list(self.more), range=0)
            asked[self.output(MORE)] = more
        return asked

    def add_ends(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Serve as a transform: give transfers values at the ends of their types."""
        name = self.output(TRANSFERS)
        return {**data, name: Frame(add_ends(data[name].toArrow()))}

    def aggregates(self) -> list[Aggregate]:
        """Declare the sums."""
        if not self.sums or self.changes:
            return []
        return [
            aggregate(
                self.name(SUMS),
                source=TRANSFERS,
                keys={"owner": "to"},
                add={"amount": "value", "rows": 1},
            )
        ]

    def apply(self, tx: Any, data: Mapping[str, Any]) -> None:
        """Serve as `on_data` of targets that apply changes without a change log."""
        for changes in data.values():
            tx.apply(changes)

    def write(self, tx: Any, data: Mapping[str, Any]) -> None:
        """Serve as `on_data` of the targets."""
        tx.insert(self.name(TRANSFERS), data[TRANSFERS])
        if self.swaps:
            tx.insert(self.name(SWAPS), data[SWAPS])
        if not self.latest:
            return
        rows = data[TRANSFERS].toArrow()
        if self.plan:  # a join has an order of its own
            rows = rows.sort_by([("block_number", "ascending"), ("log_index", "ascending")])
        newest = {token: at for at, token in enumerate(rows["address"].to_pylist())}
        if newest:
            rows = rows.take(list(newest.values())).append_column("token", pa.array(list(newest)))
            tx.upsert(self.name(LATEST), rows.select(self.columns(LATEST)), key=["token"])

    # --- as changes -------------------------------------------------------------------------------

    def schemas(self) -> list[TableSchema]:
        """Declare the tables that changes are applied to."""
        keys = {TRANSFERS: 2, LATEST: 1, SUMS: 1, SWAPS: 2}
        return [
            TableSchema(
                self.name(one),
                COLUMNS[one][: keys[one]],
                {name: "integer" if name in _LARGE + _SMALL else "text" for name in COLUMNS[one]},
            )
            for one in self.tables
        ]

    def to_changes(self, data: Mapping[str, Any], ctx: object) -> dict[str, pa.Table]:
        """Serve as a transform: return the changes that the rows of a batch stand for."""
        rows = data[TRANSFERS].toArrow()
        rows = rows.append_column("one", pa.array([1] * rows.num_rows, pa.int64()))
        owner = {"owner": "to"}
        made = [self._changes(TRANSFERS, rows, "insert", COLUMNS[TRANSFERS][:2])]
        if self.latest:
            made.append(self._changes(LATEST, rows, "upsert", {"token": "address"}))
        if self.sums:
            added = {"amount": add("value"), "rows": add("one")}
            made.append(self._changes(SUMS, rows, "upsert", owner, added))
        if self.swaps:
            swaps = data[SWAPS].toArrow()
            made.append(self._changes(SWAPS, swaps, "insert", COLUMNS[SWAPS][:2]))
        return {TRANSFERS: pa.concat_tables(made)}

    def _changes(
        self, table: str, rows: pa.Table, operation: Any, key: Any, fields: Any = None
    ) -> pa.Table:
        own = [name for name in COLUMNS[table] if name not in key]
        return from_columns(
            rows,
            table=self.name(table),
            operation=operation,
            key=key,
            fields=own if fields is None else fields,
            ordinal="log_index",
        )


def transfers_of(chain: ChainSim, block: SimBlock, tokens: Iterable[str]) -> list[Row]:
    """Return the transfers of some tokens in a block, in the order of its logs."""
    wanted = set(tokens)
    found: list[Row] = []
    for log in content_of(chain, block).rows("logs"):
        topics = log["topics"]
        if topics[:1] != [TRANSFER] or len(topics) != 3 or log["address"] not in wanted:
            continue
        sender, receiver = ("0x" + topic[-40:] for topic in topics[1:])
        value = str(int(log["data"], 16))
        found.append((block.number, log["logIndex"], log["address"], sender, receiver, value))
    return found


def pools_created(chain: ChainSim, block: SimBlock) -> list[str]:
    """Return the pools that the chain's factory announces in a block."""
    return [
        "0x" + log["data"][26:66]
        for log in content_of(chain, block).rows("logs")
        if log["topics"][0] == PAIR_CREATED and log["address"] == chain.population.factory
    ]


def expected(
    chain: ChainSim, branch: Iterable[SimBlock], tokens: Iterable[str], shape: Shape
) -> Tables:
    """Return what the tables hold after these blocks, in their order."""
    tokens = list(tokens)
    transfers: list[Row] = []
    more: list[Row] = []
    latest: dict[str, Row] = {}
    sums: dict[str, tuple[int, int]] = {}
    swaps: list[Row] = []
    pools: dict[str, str] = {}
    for block in branch:
        for row in transfers_of(chain, block, tokens):
            receiver, value = row[4:]
            if shape.plan and not plans.keeps(row[1]):
                continue
            ends = ends_of(*row[:2]) if shape.ends else ()
            planned = plans.planned_of(row[2], value) if shape.plan else ()
            transfers.append(row + planned + ends)
            latest[row[2]] = (row[2], block.number, value, *ends)
            amount, rows = sums.get(receiver, (0, 0))
            sums[receiver] = (amount + int(value), rows + 1)
        more += transfers_of(chain, block, shape.more)
        if shape.swaps:
            swaps += _swaps_of(chain, block, pools)
    held: Tables = {TRANSFERS: sorted(transfers)}
    if shape.more:
        held[MORE] = sorted(more)
    if shape.latest:
        held[LATEST] = sorted(latest.values())
    if shape.sums:
        held[SUMS] = sorted((owner, str(amount), rows) for owner, (amount, rows) in sums.items())
    if shape.swaps:
        held[SWAPS], held[POOLS] = sorted(swaps), sorted((one,) for one in pools)
    return held


def _swaps_of(chain: ChainSim, block: SimBlock, pools: dict[str, str]) -> list[Row]:
    """Return the swaps of known pools in a block, and learn of new ones.

    A pool counts from the start of the transaction that announces it.
    """
    found: list[Row] = []
    logs = content_of(chain, block).rows("logs")
    for _, several in groupby(logs, lambda log: log["transactionIndex"]):
        together = list(several)
        for log in together:
            if log["topics"][0] == PAIR_CREATED and log["address"] == chain.population.factory:
                pools.setdefault("0x" + log["data"][26:66], str(int(log["data"][66:], 16)))
        for log in together:
            address = log["address"]
            if log["topics"][0] == SWAP and address in pools:
                found.append((block.number, log["logIndex"], address, pools[address]))
    return found


def in_order(shape: Shape, table: str, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return rows of a database in the form and order of `expected`."""
    columns = shape.columns(table)
    kinds: list[Callable[[Any], Any]] = [
        partial(seen, one) if one in ENDS else int if one in _SMALL else str for one in columns
    ]
    return sorted(
        tuple(kind(row[one]) for one, kind in zip(columns, kinds, strict=True)) for row in rows
    )


def pools_in(addresses: Iterable[str]) -> list[Row]:
    """Return stored children in the form of `expected`; marks among them have no address."""
    return sorted({(one,) for one in addresses if one})


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
