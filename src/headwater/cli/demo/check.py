"""The demo's last step: compares the tables with the chain.

The expected rows are worked out here from the simulator's contents, in plain Python and without the
client, the decoders, Spark or the target: what all of these agree on by mistake, this would notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from headwater.core import BlockCursor
from headwater.testing import ChainSim
from headwater.testing.chain.content.evm_scenes import APPROVAL, TRANSFER
from headwater.testing.scenarios.oracle import Oracle

Row = tuple[Any, ...]
Tables = Mapping[str, Iterable[Row]]

COLUMNS: dict[str, tuple[str, ...]] = {
    "transfers": ("from", "to", "value", "amount"),
    "approvals": ("owner", "spender", "value"),
}
"""What each table holds beside the columns of every log."""

LOG_COLUMNS = (
    "block_number",
    "block_hash",
    "seconds",
    "transaction_hash",
    "transaction_index",
    "log_index",
    "address",
)
_FIELDS = ("logIndex", "transactionIndex", "transactionHash", "address", "topics", "data")


def expected_tables(chain: ChainSim, tip: BlockCursor | None) -> dict[str, list[Row]]:
    """Return the rows that the demo's tables must hold if they end in this block."""
    oracle = Oracle(chain, "logs", _is_erc20, _FIELDS)
    tables: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for block in oracle.branch(tip):
        for log in oracle.rows_of(block):
            name = "transfers" if log["topics"][0] == TRANSFER else "approvals"
            first, second = (f"0x{topic[-40:]}" for topic in log["topics"][1:])
            value = str(int(log["data"], 16))
            if name == "transfers" and first == second:
                continue  # the demo's transform drops what an account sends to itself
            amount = (float(value),) if name == "transfers" else ()
            tables[name].append(
                (
                    block.number,
                    block.hash,
                    block.timestamp,
                    log["transactionHash"],
                    log["transactionIndex"],
                    log["logIndex"],
                    log["address"],
                    first,
                    second,
                    value,
                    *amount,
                )
            )
    return tables


def disagreements(held: Tables, expected: Tables) -> list[str]:
    """Return one sentence for each table that is not as expected; none is what we want."""
    found = []
    for name in sorted({*held, *expected}):
        ours, theirs = Counter(held.get(name, ())), Counter(expected.get(name, ()))
        extra, lacking = ours - theirs, theirs - ours
        if extra or lacking:
            example = min([*extra, *lacking], key=repr)
            found.append(
                f"{name}: {extra.total()} rows too many or different, {lacking.total()} missing; "
                f"first in block {example[0]}, log {example[5]}"
            )
    return found


def _is_erc20(log: Mapping[str, Any]) -> bool:
    return len(log["topics"]) == 3 and log["topics"][0] in (TRANSFER, APPROVAL)
