"""Forks of depth 1 to 60 on a service that names a single block in a conflict, over sockets.

The programs of the guides, and a target of Headwater's own, which keeps its own rollback chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater import RollbackHistory, create_target, evm, pipe_to_iterator, portal_stream
from headwater.core import BlockCursor
from headwater.core.messages import Event, RolledBack
from headwater.stream import StopRequested
from headwater.targets import duckdb_target
from headwater.testing import PortalServer, simulated_portal
from tests.stream.truth import COLUMNS, transfers

DEPTHS = (1, 2, 3, 7, 8, 19, 20, 21, 33, 59, 60)
MOST_CONFLICTS = 10


class Chain:
    """Forks once a stream is at its head; notes how many conflicts each fork took."""

    def __init__(self, portal: PortalServer) -> None:
        self.portal = portal
        self.depths = list(DEPTHS)
        self.conflicts: list[int] = []

    def reached(self, number: int) -> bool:
        """Take the number of a committed block; tell whether all is done."""
        if number < self.portal.chain.head.number:
            return False
        self.conflicts.append(self.portal.ledger.statuses()[409] - sum(self.conflicts))
        if not self.depths:
            return True
        depth = self.depths.pop(0)
        self.portal.fork(depth, depth + 1)
        return False

    def check(self) -> None:
        first, *each = self.conflicts
        assert (first, len(each)) == (0, len(DEPTHS))
        assert min(each) >= 1
        assert max(each) <= MOST_CONFLICTS, dict(zip(DEPTHS, each, strict=True))


@contextmanager
def chain_of_hints(surface: str) -> Iterator[Chain]:
    hints: dict[str, Any] = (
        {"surface": "hotblocks"} if surface == "hotblocks" else {"sample_size": 1}
    )
    with simulated_portal(seed=7, blocks=130, finality_depth=75, **hints) as portal:
        yield Chain(portal)


def stream_of(chain: Chain) -> Any:
    outputs: dict[str, Any] = {
        "transfers": evm.events("erc20.Transfer", range=50),
        "blocks": evm.blocks(range=50),
    }
    return portal_stream(id="one", portal=chain.portal.url, outputs=outputs)


def undo(rows: dict[int, str | None], history: RollbackHistory) -> Callable[..., BlockCursor]:
    def on_fork(previous_blocks: Sequence[BlockCursor]) -> BlockCursor:
        safe = history.resolve(previous_blocks)
        for number in [one for one in rows if one > safe.number]:
            del rows[number]
        return safe

    return on_fork


@pytest.mark.guarantee("FORK-1")
@pytest.mark.parametrize("surface", ["hotblocks", "one hint"])
@pytest.mark.parametrize("way", ["iterator", "create_target"])
def test_the_programs_of_the_guides_follow_forks_of_every_depth(surface: str, way: str) -> None:
    rows: dict[int, str | None] = {}
    history = RollbackHistory()
    with chain_of_hints(surface) as chain:

        def follow(batches: Any) -> None:
            for batch in batches:
                history.append(batch)
                block = batch.ctx.stream.state.current
                rows[block.number] = block.hash
                if chain.reached(block.number):
                    return

        stream = stream_of(chain)
        if way == "iterator":
            follow(pipe_to_iterator(stream, history.cursor, undo(rows, history)))
        else:
            stream.pipe_to(
                create_target(
                    write=lambda read: follow(read(history.cursor)), fork=undo(rows, history)
                )
            )
        chain.check()
        final = history.finalized
        assert final is not None
        canonical = chain.portal.chain.canonical(final.number, chain.portal.chain.head.number)
        assert {number: one for number, one in rows.items() if number >= final.number} == {
            block.number: block.hash for block in canonical
        }


@pytest.mark.guarantee("FORK-1")
@pytest.mark.parametrize("surface", ["hotblocks", "one hint"])
def test_a_target_follows_forks_of_every_depth_with_few_conflicts(
    tmp_path: Path, surface: str
) -> None:
    with chain_of_hints(surface) as chain:
        undone: list[int] = []

        def on_event(event: Event) -> None:
            if isinstance(event, RolledBack):
                undone.append(event.orphaned.number - event.state.number)
            if chain.reached(event.state.number):
                raise StopRequested

        target = duckdb_target(tmp_path / "a.duckdb")
        stream_of(chain).pipe_to(target, on_event=on_event)
        chain.check()
        head = chain.portal.chain.head.number
        rows = target.query(f"SELECT {COLUMNS} FROM transfers ORDER BY 1, 3")
        target.close()
        canonical = chain.portal.chain.canonical(50, head)
        found = [tuple(row.values()) for row in rows.to_pylist()]
        assert [(*row[:6], str(row[6])) for row in found] == transfers(
            chain.portal.chain, canonical
        )
        assert undone, "the stream went back"
