"""A stream from history to the head, through forks: the same for every target that Spark fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from headwater import StopRequested, evm, portal_stream
from headwater.pipeline import Committed, Event, RolledBack, Settled
from headwater.testing import ChainSim, PortalServer, simulated_portal


def run_to_head(
    portal: PortalServer,
    target: Any,
    spark: SparkSession,
    *,
    far: int = 50,
    forks: int = 0,
    transform: Callable[..., Any] | None = None,
) -> list[Event]:
    """Fill `transfers` to the head of the chain; there it is forked some times, and then stopped.

    Blocks that are `far` behind the head or more are read by executors, others one by one.
    """
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
            if len(portal.chain.forks) < forks:
                portal.fork(3)
            else:
                raise StopRequested

    stream = portal_stream(
        id="transfers",
        portal=portal.url,
        outputs={"transfers": evm.events("erc20.Transfer", range=0)},
        spark=spark,
        far=far,
        first_span=150,
        poll_interval_s=0.01,
    )
    stream = stream if transform is None else stream.pipe(transform)
    stream.pipe_to(target, on_event=on_event)
    return events


def fill_through_forks(spark: SparkSession, target: Any) -> ChainSim:
    """Fill `transfers` through two forks; the stream is seen to do all of it. Return the chain."""
    with simulated_portal(seed=5, blocks=280, finality_depth=12) as portal:
        events = run_to_head(portal, target, spark, forks=2)
        assert max(event.blocks for event in events if isinstance(event, Committed)) > 100
        assert sum(isinstance(event, RolledBack) for event in events) == 2
        return portal.chain
