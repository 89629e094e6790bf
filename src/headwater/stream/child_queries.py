"""What to ask for children of factories: their addresses while they are few, otherwise topics.

A list of addresses keeps the portal from sending what other contracts log. Each costs 45 bytes, and
a portal takes requests of 256 KiB: so a request names `MAX_ADDRESSES` at most. Whatever is not
named is asked for by its topics, or sighash, and told apart here: rows are the same either way.
Pure; runs on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.decode import ChildScope, Output
from headwater.decode.evm.union import UnionOutput
from headwater.query import Query, merge_queries

MAX_ADDRESSES = 4000  # 180 KB, so that 80 KB are left for everything else


def parts_of(output: Output) -> tuple[Output, ...]:
    """Return the events of a union, each of which may follow a factory; else the output itself."""
    return output.parts if isinstance(output, UnionOutput) else (output,)


def scope_of(part: Output) -> ChildScope | None:
    """Return the factory that restricts an output that is no union, or None."""
    return getattr(part, "scope", None)


def query_children(outputs: Iterable[Output], block: int) -> Query:
    """Return the union of what these outputs ask for, up to a block whose children are all known.

    Those with the fewest children are the first to be asked for by address.
    """
    queries: list[Query] = []
    narrowed: list[tuple[int, Output, ChildScope]] = []
    for output in (part for one in outputs for part in parts_of(one)):
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
