"""Several outputs, one request per block: the union of queries, and where each union applies.

Each block is fetched once however many outputs want it. An output sees what the others asked for
too, so it re-checks its own filters and its own range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headwater.core import BlockRange, segment_ranges
from headwater.errors import QueryError
from headwater.query.query import Query


def merge_queries(queries: Iterable[Query]) -> Query:
    """Return the query that asks for all that these ask for; repeated filters are sent once.

    Raises:
        QueryError: there is no query, or they are for different types of network.
    """
    merged = list(queries)
    if not merged:
        raise QueryError("there is no query to merge")
    _refuse_other_networks(merged)
    return replace(
        merged[0],
        fields=tuple(item for query in merged for item in query.fields),
        filters=tuple(item for query in merged for item in query.filters),
        include_all_blocks=any(query.include_all_blocks for query in merged),
    )


def plan_requests(outputs: Sequence[tuple[BlockRange, Query]]) -> list[tuple[BlockRange, Query]]:
    """Return what to ask for where: ascending ranges, each with the union of what applies there.

    Blocks that no output wants are in none of them. Neighbours that ask for the same are joined.
    """
    _refuse_other_networks([query for _, query in outputs])
    plan: list[tuple[BlockRange, Query]] = []
    for block_range, applying in segment_ranges(outputs):
        query = merge_queries(applying)
        if plan and _touches(plan[-1][0], block_range) and plan[-1][1] == query:
            plan[-1] = (BlockRange(plan[-1][0].from_block, block_range.to_block), query)
        else:
            plan.append((block_range, query))
    return plan


def _touches(lower: BlockRange, upper: BlockRange) -> bool:
    return lower.to_block is not None and lower.to_block + 1 == upper.from_block


def _refuse_other_networks(queries: Iterable[Query]) -> None:
    types = sorted({query.network.type for query in queries})
    if len(types) > 1:
        raise QueryError("one stream reads one type of network", got=", ".join(types))
