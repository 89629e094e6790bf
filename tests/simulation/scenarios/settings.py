"""What stays the same throughout one random scenario: network, ranges, query, fault rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from headwater.core import BlockRange, Flush, FlushRules
from headwater.query import EvmQuery, Query, SolanaQuery
from headwater.stream.undo_buffer import UndoBuffer, WatchedSource
from headwater.testing.chain.tree import ChainSim, Network
from headwater.testing.fault_plan import Asked, FaultPlan
from headwater.testing.faults import ForeignBlock
from headwater.testing.oracle import Oracle

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
EVM_FIELDS = ("logIndex", "transactionIndex", "address", "data", "topics")
SOLANA_FIELDS = ("transactionIndex", "instructionAddress", "programId", "data")


@dataclass(frozen=True, slots=True)
class Flow:
    """How blocks flow into the target: when they are committed, how many are held back."""

    flush: FlushRules
    undo_buffer: int

    @classmethod
    def draw(cls, dice: Random) -> Flow:
        """Draw one; what waits is committed after some seconds in any case."""
        rules = FlushRules(_draw_flush(dice), _draw_flush(dice))
        return cls(rules, dice.choice([0, 0, 0, 1, 3, 10]))

    def buffer(
        self, source: WatchedSource, pause: Callable[[], None], patience: int, cap: int
    ) -> UndoBuffer | None:
        """Return the undo buffer in front of a source, if there is to be one."""
        if not self.undo_buffer:
            return None
        return UndoBuffer(source, self.undo_buffer, pause=pause, patience=patience, cap=cap)


def _draw_flush(dice: Random) -> Flush:
    limits = (dice.choice([None, 2, 5, 20]), dice.choice([None, 3, 30]), dice.choice([1, 10.0, 60]))
    return Flush(*limits) if dice.random() < 0.5 else Flush()


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same throughout one scenario."""

    network: Network
    ranges: tuple[BlockRange, ...]
    every_block: bool
    finality_known: bool
    finality_lies: bool
    rollback_cap: int
    far: int | None

    @classmethod
    def draw(cls, dice: Random, start_block: int) -> Setting:
        """Draw one."""
        first = dice.choice([start_block, 0, start_block + dice.randrange(10)])
        gap = BlockRange(start_block, start_block + dice.randrange(20, 50))
        later = BlockRange((gap.to_block or 0) + dice.randrange(2, 12))
        known = dice.random() < 0.85
        network = Network.SOLANA if dice.random() < 0.25 else Network.EVM
        parted = dice.random() < 0.2 and (known or network is Network.EVM)  # skipped slots settle
        return cls(
            network=network,
            ranges=(gap, later) if parted else (BlockRange(first),),
            every_block=dice.random() < 0.4,
            finality_known=known,
            finality_lies=known and dice.random() < 0.1,
            rollback_cap=dice.choice([1000, 12]),
            far=dice.choice([None, 4, 12]),
        )

    def query(self, tokens: Sequence[str]) -> Query:
        """Ask for the transfers of some tokens, or of the token program."""
        if self.network is Network.EVM:
            asked: Query = (
                EvmQuery()
                .add_fields(log=["log_index", "transaction_index", "address", "data", "topics"])
                .add_logs(address=list(tokens), topic0=[TRANSFER])
            )
        else:
            asked = (
                SolanaQuery()
                .add_fields(
                    instruction=["transaction_index", "instruction_address", "program_id", "data"]
                )
                .add_instructions(program_id=[TOKEN_PROGRAM], is_committed=True)
            )
        return replace(asked, include_all_blocks=self.every_block)

    def watch(self) -> Query:
        """Ask for headers alone."""
        asked: Query = EvmQuery() if self.network is Network.EVM else SolanaQuery()
        return replace(asked, include_all_blocks=self.every_block)

    def oracle(self, chain: ChainSim, tokens: Sequence[str]) -> Oracle:
        """Say which rows count, in other words than the query."""
        if self.network is Network.EVM:

            def transfer(row: dict[str, Any]) -> bool:
                return row["address"] in tokens and row["topics"][:1] == [TRANSFER]

            return Oracle(chain, "logs", transfer, EVM_FIELDS, self.ranges)

        def committed(row: dict[str, Any]) -> bool:
            return row["programId"] == TOKEN_PROGRAM and bool(row["isCommitted"])

        return Oracle(chain, "instructions", committed, SOLANA_FIELDS, self.ranges)

    def faults(self, seed: int, dice: Random) -> FaultPlan:
        """Make the plan of what goes wrong."""
        plan = FaultPlan.random(seed, self.rates(dice))
        if self.every_block:  # without an anchor a foreign block could not be told
            plan.add(ForeignBlock(), times=None, probability=0.01, where=_is_anchored)
        return plan

    def rates(self, dice: Random) -> dict[str, float]:
        """Say how often which fault hits an answer."""
        quiet = dice.random() < 0.3
        often, seldom = (0.002, 0.001) if quiet else (0.02, 0.006)
        rates = dict.fromkeys(
            ("drop-before-headers", "drop-after", "stall-before-headers", "stall-after", "delay",
             "failed", "overloaded", "torn-line", "finality-regressed", "no-head-headers"),
            often,
        )  # fmt: skip
        rates |= dict.fromkeys(
            ("garbage-line", "invalid-utf8", "non-block-line", "duplicate-block", "refused"),
            seldom,
        )  # fmt: skip
        rates |= dict.fromkeys(
            ("sample-of-one", "shuffled-sample", "newest-first", "empty-sample",
             "no-previous-blocks"),
            0.08,
        )  # fmt: skip
        if self.every_block:  # a filtered stream cannot tell a lost block from an unwanted one
            rates |= dict.fromkeys(("missing-block", "swapped-blocks"), 2 * seldom)
        if self.ranges[-1].to_block is None and len(self.ranges) == 1:
            rates["empty-answer"] = often
        if self.finality_known:
            rates["sample-below-finality"] = 0.1
        if self.finality_lies:
            rates["wrong-finality-hash"] = 0.2
        return rates


def _is_anchored(asked: Asked) -> bool:
    return asked.parent_block_hash is not None
