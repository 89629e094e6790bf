"""What the tables of these tests must hold, worked out from the simulated contents alone."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.testing import ChainSim, SimBlock
from headwater.testing.chain.content import content_of

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"

Row = tuple[int, str, int, str, str, str, str]


def transfers(chain: ChainSim, blocks: Iterable[SimBlock]) -> list[Row]:
    """Return ERC-20 transfers: block, hash, log index, token, sender, receiver, value."""
    rows: list[Row] = []
    for block in blocks:
        for log in content_of(chain, block).rows("logs"):
            topics = log["topics"]
            if topics[:1] == [TRANSFER] and len(topics) == 3:
                sender, receiver = ("0x" + topic[-40:] for topic in topics[1:])
                value = str(int(log["data"], 16))
                rows.append(
                    (
                        block.number,
                        block.hash,
                        log["logIndex"],
                        log["address"],
                        sender,
                        receiver,
                        value,
                    )
                )
    return rows


COLUMNS = 'block_number, block_hash, log_index, address, "from", "to", value'
