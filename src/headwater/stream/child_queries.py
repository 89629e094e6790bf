"""What to ask for children of factories: their addresses while they are few, otherwise topics.

A list of addresses keeps the portal from sending what other contracts log. Each costs 45 bytes, and
a portal takes requests of 256 KiB: so a request names `MAX_ADDRESSES` at most. Whatever is not
named is asked for by its topics, or sighash, and told apart here: rows are the same either way.
Pure; runs on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.decode import ChildScope, Output
from headwater.query import Query, merge_queries

MAX_ADDRESSES = 4000  # 180 KB, so that 80 KB are left for everything else


def scope_of(output: Output) -> ChildScope | None:
    """Return the factory that restricts an output, or None."""
    return getattr(output, "scope", None)


def query_children(outputs: Iterable[Output], block: int) -> Query:
    """Return the union of what these outputs ask for, up to a block whose children are all known.

    Outputs with the fewest children are the first to be asked for by address.
    """
    queries: list[Query] = []
    narrowed: list[tuple[int, Output, ChildScope]] = []
    for output in outputs:
        scope = scope_of(output)
        if scope is None or scope.children is None:
            queries.append(output.query)
        else:
            narrowed.append((len(scope.children.up_to(block)), output, scope))
    left = MAX_ADDRESSES
    for count, output, scope in sorted(narrowed, key=lambda one: one[0]):
        if count > left or scope.children is None:
            queries.append(output.query)
            continue
        left -= count
        addresses = scope.children.found(0, block)["address"].to_pylist()
        queries.append(scope.narrow(output.query, addresses))
    return merge_queries(queries)
