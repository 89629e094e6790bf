"""A stream from history to the head, through forks: the same for every target that Spark fills."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from headwater import StopRequested, evm, portal_stream
from headwater.pipeline import Committed, Event, RolledBack, Settled
from headwater.testing import ChainSim, simulated_portal


def fill_through_forks(spark: SparkSession, target: Any) -> ChainSim:
    """Fill `transfers`: executors up to the seam, block by block after it; return the chain.

    At the head the chain is forked twice. The stream is seen to do all of it.
    """
    events: list[Event] = []
    with simulated_portal(seed=5, blocks=420, finality_depth=12) as portal:

        def on_event(event: Event) -> None:
            events.append(event)
            if isinstance(event, Settled) and event.state.cursor == portal.chain.head.cursor:
                if len(portal.chain.forks) < 2:
                    portal.fork(3)
                else:
                    raise StopRequested

        portal_stream(
            id="transfers",
            portal=portal.url,
            outputs={"transfers": evm.events("erc20.Transfer", range=0)},
            spark=spark,
            far=50,
            first_span=150,
            poll_interval_s=0.01,
        ).pipe_to(target, on_event=on_event)
        assert max(event.blocks for event in events if isinstance(event, Committed)) > 100
        assert sum(isinstance(event, RolledBack) for event in events) == 2
        return portal.chain
