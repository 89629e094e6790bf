"""What tables of pools must hold, worked out log by log from the simulated contents alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from headwater import evm
from headwater.testing import ChainSim, ContentSettings, SimBlock
from headwater.testing.chain.content import content_of
from headwater.testing.chain.content.evm import LAUNCHPAD_ADDED
from headwater.testing.chain.content.evm_scenes import PAIR_CREATED, SIGHASHES, SWAP

SETTINGS = ContentSettings(transactions_per_block=4, pool_share=0.8)

SWAP_EVENT = (
    "Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out, "
    "uint256 amount1Out, address indexed to)"
)
SWAP_CALL = "swap(uint256 amount0Out, uint256 amount1Out, address to, bytes data)"
CREATED = "PairCreated(address indexed token0, address indexed token1, address pair, uint256 n)"
ADDED = "LaunchpadAdded(address indexed launchpad)"

Row = tuple[Any, ...]
COLUMNS = "block_number, block_hash, log_index, address, factory_token1, factory_n"


def pools_of(chain: ChainSim, **options: Any) -> evm.Factory:
    """The pools of the chain's factory, with two columns of the creation."""
    return evm.factory(
        chain.population.factory, CREATED, child="pair", columns=["token1", "n"], **options
    )


def launchpads_of(chain: ChainSim, **options: Any) -> evm.Factory:
    """The launchpads, which are children of the registrar."""
    return evm.factory(chain.population.registrar, ADDED, child="launchpad", **options)


def launched_of(chain: ChainSim, **options: Any) -> evm.Factory:
    """The pools of launchpads."""
    launchpads = launchpads_of(chain, **options)
    return evm.factory(launchpads, CREATED, child="pair", columns=["token1", "n"], **options)


def united_of(chain: ChainSim, block_range: Any, **options: Any) -> evm.UnionOutput:
    """Two events of children of two factories: swaps of pools, and what launchpads create."""
    return evm.union(
        evm.events(SWAP_EVENT, contracts=pools_of(chain, **options), range=block_range),
        evm.events(CREATED, contracts=launchpads_of(chain, **options), range=block_range),
    )


@dataclass
class Model:
    """The plainest registry: a dictionary, filled log by log."""

    chain: ChainSim
    nested: bool = False
    start: int = 0
    since: str = "transaction"
    token1: str | None = None
    launchpads: set[str] = field(default_factory=set)
    pools: dict[str, tuple[int, int, str, str]] = field(default_factory=dict)
    creations: list[Row] = field(default_factory=list)

    def swaps(self, blocks: Iterable[SimBlock], first: int = 0) -> list[Row]:
        """Return the swaps of known pools in these blocks, which begin with the chain's first."""
        rows: list[Row] = []
        for block in blocks:
            for logs in self._told_together(block):
                self._learn(block, logs)
                for log in logs:
                    pool = self.pools.get(log["address"])
                    if pool is not None and log["topics"][0] == SWAP and block.number >= first:
                        rows.append(
                            (block.number, block.hash, log["logIndex"], log["address"], *pool[2:])
                        )
        return rows

    def calls(self, blocks: Iterable[SimBlock], source: str) -> list[Row]:
        """Return the calls of `swap` on known pools: block, transaction, contract."""
        rows: list[Row] = []
        for block in blocks:
            content = content_of(self.chain, block)
            for logs in self._told_together(block):
                self._learn(block, logs)
            for item in content.rows(source):
                data = item if source == "transactions" else item.get("action", {})
                pool = self.pools.get(data.get("to") or "")
                if pool is None or data["sighash"] != SIGHASHES["swap"]:
                    continue
                place = item["transactionIndex"]
                at, begins = (block.number, place), (pool[0], pool[1])
                if self.since == "block":
                    counts = at[0] >= begins[0]
                elif self.since == "log" and source == "transactions":
                    counts = at > begins
                else:
                    counts = at >= begins
                if counts:
                    rows.append((block.number, place, data["to"]))
        return rows

    def _told_together(self, block: SimBlock) -> list[list[dict[str, Any]]]:
        """Return the logs of a block, those together whose children count for each other."""
        logs = list(content_of(self.chain, block).rows("logs"))
        keys = {"block": lambda log: 0, "log": lambda log: log["logIndex"],
                "transaction": lambda log: log["transactionIndex"]}  # fmt: skip
        return [list(several) for _, several in groupby(logs, keys[self.since])]

    def _learn(self, block: SimBlock, logs: list[dict[str, Any]]) -> None:
        if block.number < self.start:
            return
        people = self.chain.population
        for log in logs:
            if log["topics"][0] == LAUNCHPAD_ADDED and log["address"] == people.registrar:
                self.launchpads.add("0x" + log["topics"][1][26:])
        by_whom = self.launchpads if self.nested else {people.factory}
        for log in logs:
            if log["topics"][0] == PAIR_CREATED and log["address"] in by_whom:
                self._learn_pool(block, log)

    def _learn_pool(self, block: SimBlock, log: dict[str, Any]) -> None:
        self.creations.append((block.number, block.hash, log["logIndex"], log["address"]))
        token1 = "0x" + log["topics"][2][26:]
        if self.token1 in (None, token1):
            address, n = "0x" + log["data"][26:66], str(int(log["data"][66:], 16))
            creation = (block.number, log["transactionIndex"], token1, n)
            self.pools.setdefault(address, creation)


def swaps_of(chain: ChainSim, blocks: Iterable[SimBlock], **options: Any) -> list[Row]:
    """Return the swaps of a fresh model."""
    return Model(chain, **options).swaps(blocks)
