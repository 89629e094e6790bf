"""Creations of factories that no batch brings: those before a stream's first block, and ahead.

Final blocks are read by executors if they are many, else here. Hot ones are read only where a
cursor is given by someone who keeps no children: then what was read must end in that very cursor,
or it is of another branch and is not used. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from headwater.core import BlockCursor, BlockRange, Blocks, Fork
from headwater.decode import CreationsOutput, Output, read_outputs
from headwater.portal import PortalClient
from headwater.query import Query, merge_queries
from headwater.stream.child_queries import query_children
from headwater.stream.factory_index import FactoryIndex

ReadSpan = Callable[
    [Mapping[str, Output], Mapping[str, tuple[BlockRange, ...]], Query, BlockRange],
    Iterator[tuple[str, pa.Table]],
]
"""Reads final blocks on executors: outputs, their ranges, what to ask for, and where.

Yields tables of bounded size; each output has one at least.
"""

Missing = Mapping[str, tuple[CreationsOutput, BlockRange]]

_TRIES = 3  # answers without blocks before a replica counts as too far behind


class FactoryScan:
    """Completes an index. `far` is the number of blocks from which on executors read them."""

    def __init__(
        self, index: FactoryIndex, client: PortalClient, read_span: ReadSpan, far: int
    ) -> None:
        self._index = index
        self._client = client
        self._read_span = read_span
        self._far = far

    def read_final(self, to_block: int) -> None:
        """Learn all creations up to a block that is final."""
        while missing := self._index.missing(to_block):
            first = min(one.from_block for _, one in missing.values())
            blocks = BlockRange(max(first, min(self._client.start_block(), to_block)), to_block)
            if to_block - blocks.from_block + 1 < self._far:
                lines: list[bytes] = []
                for answer in self._client.read(_union(missing), blocks, finalized=True):
                    lines += answer.lines if isinstance(answer, Blocks) else ()
                self._add(missing, lines, to_block)
                continue
            ranges = {key: (one,) for key, (_, one) in missing.items()}
            outputs: dict[str, Output] = {key: output for key, (output, _) in missing.items()}
            query = query_children(outputs.values(), to_block)
            for key, found in self._read_span(outputs, ranges, query, blocks):
                self._index.add(key, found, to_block)

    def read_to(self, cursor: BlockCursor, final: int) -> bool:
        """Learn all creations up to a cursor that may be hot; False if it is not on the chain."""
        self.read_final(min(cursor.number, final))
        while missing := self._index.missing(cursor.number):
            first = min(one.from_block for _, one in missing.values())
            lines = self._lines_up_to(cursor, _union(missing), first)
            if lines is None:
                return False
            self._add(missing, lines, cursor.number)
        return True

    def _add(self, missing: Missing, lines: list[bytes], to_block: int) -> None:
        entities = read_outputs([(output, [one]) for output, one in missing.values()], lines)
        for key, (output, block_range) in missing.items():
            self._index.add(key, output.decode(entities, [block_range]).table, to_block)

    def _lines_up_to(self, cursor: BlockCursor, query: Query, first: int) -> list[bytes] | None:
        """Return the blocks up to a cursor, if they end in it."""
        lines: list[bytes] = []
        last: BlockCursor | None = None
        empty = 0
        for answer in self._client.read(query, BlockRange(first, cursor.number)):
            if isinstance(answer, Blocks):
                lines += answer.lines
                last = answer.headers[-1].cursor
            elif isinstance(answer, Fork) or (empty := empty + 1) >= _TRIES:
                break
        same = last is not None and last.number == cursor.number
        return lines if same and cursor.hash in (None, last.hash if last else None) else None


def _union(missing: Missing) -> Query:
    return merge_queries([output.query for output, _ in missing.values()])
