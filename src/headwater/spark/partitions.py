"""Into how many parts a span is cut: the work of one task each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headwater.core import BlockRange, Density, block_count, even_partitions
from headwater.portal import SAMPLES, PortalClient, StreamQuery, probe

_TASKS_PER_CORE = 4
_SMALL_TASK = 1 << 20
_LARGE_TASK = 64 << 20
_UNKNOWN = 10_000.0  # bytes of a block that was not measured


def plan_parts(
    client: PortalClient,
    query: StreamQuery,
    block_range: BlockRange,
    *,
    partitions: int | None,
    cores: int,
    samples: int = SAMPLES,
    densities: Sequence[Density] = (),
) -> list[BlockRange]:
    """Return the parts that tasks will read: measure the range, choose how many, cut evenly.

    Called on the driver, once per range. What was measured already is not measured again. Without
    `samples`, or for one part, nothing is asked and all blocks count as equal.
    """
    if not densities:
        if samples > 0 and min(block_count(block_range), partitions or 2) > 1:
            densities = probe(client, query, block_range, samples)
        else:
            densities = [Density(block_range, _UNKNOWN)]
    count = partition_count(densities, cores) if partitions is None else partitions
    return even_partitions(densities, count)


def partition_count(densities: Sequence[Density], cores: int) -> int:
    """Return into how many parts to cut, if the user does not say.

    Four per core keep all cores busy to the end; but no task is so small that starting it costs
    more than running it, or so large that repeating it hurts.
    """
    total = sum(one.total for one in densities)
    wanted = min(_TASKS_PER_CORE * cores, math.ceil(total / _SMALL_TASK))
    return max(1, wanted, math.ceil(total / _LARGE_TASK))
