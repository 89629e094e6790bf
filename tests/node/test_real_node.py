"""Tables against a real node: contracts, transfers, reorganizations and reverted snapshots.

What must be in the tables is asked of the node directly, by calls of this test alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from headwater import StopRequested, evm
from headwater.pipeline import Event, Settled
from headwater.stream import PortalStream, portal_stream
from headwater.targets import Target, duckdb_target, postgres_target
from tests.node.anvil import TRANSFER, Anvil, installed_anvil
from tests.stream.truth import COLUMNS
from tests.targets.postgres_places import database

DEEPEST = 64


@pytest.fixture(scope="module")
def program() -> Path:
    found = installed_anvil()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def node(program: Path) -> Iterator[Anvil]:
    with Anvil(program) as running:
        yield running


class Place:
    """A target and how its rows are read."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._address = str(folder / "a.duckdb") if kind == "duckdb" else database()
        self._kind = kind

    def target(self) -> Target[Any]:
        return (duckdb_target if self._kind == "duckdb" else postgres_target)(self._address)

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM {table}"
        if self._kind == "duckdb":
            found = duckdb_target(self._address).query(sql).to_pylist()
            rows = [tuple(row.values()) for row in found]
        else:
            with psycopg.connect(self._address) as connection:
                rows = connection.execute(sql.encode()).fetchall()
        return sorted(tuple(_plain(value) for value in row) for row in rows)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else str(value)


def said_transfers(node: Anvil) -> list[tuple[Any, ...]]:
    """Return the transfers that the node has, as rows."""
    wanted = {"fromBlock": "0x0", "toBlock": "latest", "topics": [TRANSFER]}
    return sorted(
        (
            int(log["blockNumber"], 16),
            log["blockHash"],
            int(log["logIndex"], 16),
            log["address"],
            *(f"0x{topic[-40:]}" for topic in log["topics"][1:]),
            str(int(log["data"], 16)),
        )
        for log in node("eth_getLogs", wanted)
    )


def said_transactions(node: Anvil) -> list[tuple[Any, ...]]:
    """Return the transactions that the node has, with the gas of their receipts."""
    rows = []
    for number in range(node.head + 1):
        block = node("eth_getBlockByNumber", hex(number), True)
        for tx in block["transactions"]:
            receipt = node("eth_getTransactionReceipt", tx["hash"])
            place = number, block["hash"], int(tx["transactionIndex"], 16)
            rows.append((*place, tx["hash"], int(receipt["gasUsed"], 16)))
    return sorted(rows)


def stream_of(node: Anvil, **options: Any) -> PortalStream:
    return portal_stream(
        id="token",
        portal=f"rpc+{node.url}",
        outputs={
            "transfers": evm.events("erc20.Transfer", range=0),
            "transactions": evm.transactions(
                fields=["transaction_index", "hash", "gas_used"], range=0
            ),
        },
        poll_interval_s=0.01,
        **options,
    )


class Moves:
    """Does the next thing to the node whenever the stream has what the node has."""

    def __init__(self, node: Anvil, token: str, seed: int, depths: list[int]) -> None:
        self.node, self.token = node, token
        self.dice, self.depths = Random(seed), depths
        self._snapshot: str | None = None

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Settled) or event.state.cursor is None:
            return
        newest = self.node("eth_getBlockByNumber", "latest", False)
        if event.state.cursor.hash != newest["hash"]:
            return
        if not self.depths:
            raise StopRequested
        depth = self.depths.pop(0)
        if depth > 0:
            self.node.reorganize(depth)
        elif self._snapshot is None:
            self._snapshot = self.node("evm_snapshot")
        else:
            assert self.node("evm_revert", self._snapshot) is True
            self._snapshot = None
        self.trade()

    def trade(self) -> None:
        """Add a few blocks with transfers, some of them empty."""
        for _ in range(self.dice.randint(1, 3)):
            for _ in range(self.dice.randint(0, 3)):
                sender, receiver = self.dice.sample(range(10), 2)
                self.node.transfer(self.token, sender, receiver, self.dice.getrandbits(200))
            self.node.mine()


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_tables_equal_what_the_node_says_after_reorganizations(
    node: Anvil, tmp_path: Path, kind: str
) -> None:
    moves = Moves(node, node.deploy(), seed=1, depths=[])
    for _ in range(40):
        moves.trade()
    random_depths = [moves.dice.randint(1, DEEPEST) for _ in range(6)]
    moves.depths = [1, 2, *random_depths, DEEPEST, 1, 0, 3, 0, DEEPEST, 0, 0, 7]
    place = Place(kind, tmp_path)
    stream_of(node).pipe_to(place.target(), on_event=moves)
    assert place.rows("transfers", COLUMNS) == said_transfers(node)
    columns = "block_number, block_hash, transaction_index, transaction_hash, gas_used"
    assert place.rows("transactions", columns) == said_transactions(node)
    assert len(said_transfers(node)) > 10


def test_a_fork_while_the_stream_is_down_is_found_when_it_starts(
    node: Anvil, tmp_path: Path
) -> None:
    moves = Moves(node, node.deploy(), seed=2, depths=[])
    place = Place("duckdb", tmp_path)
    for depth in (1, 9, 30):
        for _ in range(20):
            moves.trade()
        moves.depths = []
        stream_of(node).pipe_to(place.target(), on_event=moves)
        node.reorganize(depth)
        moves.trade()
    stream_of(node).pipe_to(place.target(), on_event=moves)
    assert place.rows("transfers", COLUMNS) == said_transfers(node)
