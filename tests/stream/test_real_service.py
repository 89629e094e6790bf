"""What the real-time service says in its own words, over sockets: refusals, conflicts, no data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater import StopRequested, evm, portal_stream
from headwater.core import BlockCursor
from headwater.errors import PortalHttpError
from headwater.pipeline import Event, RolledBack
from headwater.portal import PortalClient
from headwater.targets import DuckDBTarget, duckdb_target
from headwater.testing import PortalServer, simulated_portal
from headwater.testing.faults import ConflictFault, Fault, Status
from headwater.testing.portal.answer import Draft
from tests.stream.truth import COLUMNS, transfers

FIRST = 20
UNKNOWN_FIELD = "Failed to deserialize the JSON body into the target type: unknown field `kind`"
ENVELOPE = {"type": "invalid_request_error", "code": "bad_query", "message": "no such field: kind"}


@dataclass(frozen=True, slots=True)
class EnvelopeFault(ConflictFault):
    """A 409 with the error envelope that is planned beside its sample."""

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        sample = [{"number": one.number, "hash": one.hash} for one in draft.sample or []]
        error = {"type": "invalid_request_error", "code": "base_block_mismatch", "message": "x"}
        draft.become(409, json.dumps({"error": error, "previousBlocks": sample}))
        draft.content_type = "application/json"


@dataclass(frozen=True, slots=True)
class StrayEntryFault(ConflictFault):
    """A 409 that names a block of no chain beside one that is final, as near the first block."""

    final: BlockCursor = BlockCursor(0)  # noqa: RUF009 - immutable

    def bend(self, sample: list[BlockCursor], draft: Draft, dice: Random) -> list[BlockCursor]:
        stray = BlockCursor(self.final.number - 1, "0x" + "5a" * 32)
        return [stray, self.final, *sample]


@dataclass(frozen=True, slots=True)
class NoDataFault(Fault):
    """The service has just been started: it knows no block, and no first one."""

    def apply(self, draft: Draft, dice: Random, now: float) -> None:
        if draft.on_stream:
            draft.become(204, "")
            return
        known = {"dataset": "simulated", "real_time": True, "start_block": None}
        draft.parts = [json.dumps(known if draft.route == "metadata" else None).encode()]


def follow(portal: PortalServer, target: DuckDBTarget, forks: int = 0) -> int:
    """Run to the head, through some forks; return how many were undone."""
    undone = 0

    def on_event(event: Event) -> None:
        nonlocal undone, forks
        undone += isinstance(event, RolledBack)
        if event.state.cursor == portal.chain.head.cursor:
            if not forks:
                raise StopRequested
            forks -= 1
            portal.fork(4)

    outputs: dict[str, Any] = {"transfers": evm.events("erc20.Transfer", range=FIRST)}
    stream = portal_stream(id="one", portal=portal.url, outputs=outputs, poll_interval_s=0.01)
    stream.pipe_to(target, on_event=on_event, progress=False)
    return undone


def check(portal: PortalServer, target: DuckDBTarget) -> None:
    rows = target.query(f"SELECT {COLUMNS} FROM transfers ORDER BY 1, 3").to_pylist()
    target.close()
    found = [(*row[:6], str(row[6])) for row in (tuple(one.values()) for one in rows)]
    assert found == transfers(portal.chain, portal.chain.canonical(FIRST))


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (422, UNKNOWN_FIELD, "unknown field `kind`"),
        (400, "Failed to parse the request body as JSON: EOF while parsing", "EOF while parsing"),
        (400, json.dumps({"error": ENVELOPE}), "no such field: kind"),
    ],
)
def test_a_refusal_in_any_form_is_told_and_a_restart_goes_on(
    tmp_path: Path, status: int, text: str, words: str
) -> None:
    with simulated_portal(seed=7, blocks=60, finality_depth=20, surface="hotblocks") as portal:
        target = duckdb_target(tmp_path / "a.duckdb")
        portal.sim.faults.add(Status(status, text=text), route="stream", nth=2)
        with pytest.raises(PortalHttpError, match="E3001") as caught:
            follow(portal, target, forks=1)
        assert words in str(caught.value)
        assert "{" not in str(caught.value)
        target = duckdb_target(tmp_path / "a.duckdb")
        follow(portal, target)
        check(portal, target)


@pytest.mark.guarantee("FORK-1")
def test_a_conflict_with_an_error_beside_its_blocks_is_a_fork(tmp_path: Path) -> None:
    with simulated_portal(seed=7, blocks=60, finality_depth=20, surface="hotblocks") as portal:
        portal.sim.faults.add(EnvelopeFault(), times=None)
        target = duckdb_target(tmp_path / "a.duckdb")
        assert follow(portal, target, forks=2) >= 2
        check(portal, target)


@pytest.mark.guarantee("FORK-1")
def test_a_conflict_that_names_our_final_block_contradicts_nothing(tmp_path: Path) -> None:
    """Whatever else it holds: the service adds an entry of no chain near its first block."""
    with simulated_portal(seed=7, blocks=60, finality_depth=20, surface="hotblocks") as portal:
        final = portal.chain.finalized
        assert final is not None
        portal.sim.faults.add(StrayEntryFault(final=final.cursor), times=None)
        target = duckdb_target(tmp_path / "a.duckdb")
        assert follow(portal, target, forks=3) >= 3
        check(portal, target)


def test_a_service_without_any_block_is_waited_for_and_read_from_the_first(tmp_path: Path) -> None:
    """Its heads are `null`, and so is its first block; each question is asked again later."""
    with simulated_portal(seed=7, blocks=60, finality_depth=20, surface="hotblocks") as portal:
        for route in ("metadata", "head", "finalized-head", "stream"):
            portal.sim.faults.add(NoDataFault(), route=route, times=3)
        target = duckdb_target(tmp_path / "a.duckdb")
        follow(portal, target)
        check(portal, target)
        assert portal.ledger.statuses()[204] >= 3


def test_a_time_beyond_the_head_may_be_answered_with_nothing() -> None:
    """204, as portals will, where they say 404 today."""
    with simulated_portal(seed=7, blocks=60) as portal:
        late = (portal.chain.head.timestamp or 0) + 1000
        portal.sim.faults.add(Status(204), route=f"timestamps/{late}/block", times=None)
        with PortalClient(portal.url) as client:
            known = portal.chain.canonical(30, 30)[0].timestamp or 0
            assert client.block_at(known) == 30
            assert client.block_at(late) is None
