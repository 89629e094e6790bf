"""The children that a stream knows, in step with its cursor.

Near the head, creations arrive in the same lines as the rows of children. Far behind it they are
read ahead, so that executors know every child of the blocks they are given. Either way the index
knows all creations from each factory's start to the cursor: it is stored with the batches, rolled
back with them, and read anew where nothing is stored. Runs on the driver, in one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange
from headwater.decode import Children, Entities, Factory, Output, creations_of
from headwater.decode.evm.factory.creations import CreationsOutput
from headwater.decode.evm.union import UnionOutput
from headwater.stream.child_queries import parts_of, scope_of
from headwater.stream.child_rows import CHILDREN, MARK_EVERY, from_rows, mark, to_rows

_Output = TypeVar("_Output", bound=Output)


@dataclass(slots=True)
class _Known:
    """One factory: its first block, and its children up to the block `complete`.

    What was created up to `taken` is in the target, or on its way; `stored` names the creations
    behind it that are there too, by block and log. `marked` is the last mark, -1 for none.
    """

    factory: Factory
    start: int
    children: Children = field(init=False)
    complete: int = field(init=False)
    taken: int = -1
    marked: int = -1
    stored: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.children = self.factory.none()
        self.complete = self.start - 1

    def missing(self, to_block: int) -> BlockRange | None:
        """Return the blocks whose creations are not known yet."""
        first = max(self.start, self.complete + 1)
        return BlockRange(first, to_block) if first <= to_block else None


class FactoryIndex:
    """The children of all factories of a stream; `starts` are the first blocks, by key."""

    def __init__(self, factories: Sequence[Factory], starts: Mapping[str, int]) -> None:
        self._known = {one.key: _Known(one, starts[one.key]) for one in factories}

    def load(self, rows: pa.Table) -> None:
        """Take over what a target has stored, up to the last mark. Called once per run."""
        for one in self._known.values():
            found, one.marked = from_rows(one.factory, rows)
            behind = pc.field("block_number") > one.marked
            one.children = one.factory.none().add(found.filter(~behind))
            one.complete, one.taken = max(one.complete, one.marked), one.marked
            one.stored = set(_pairs(found.filter(behind)))

    # --- finding ----------------------------------------------------------------------------------

    def missing(self, to_block: int) -> dict[str, tuple[CreationsOutput, BlockRange]]:
        """Return what to read to know all creations up to a block; nothing if they are known.

        Where factories have factories for children, those above come first: add what they created,
        and ask again.
        """
        lacking = [
            (one, block_range)
            for one in self._known.values()
            if (block_range := one.missing(to_block)) is not None
        ]
        depth = min((one.factory.depth for one, _ in lacking), default=0)
        return {
            one.factory.key: (self._creations(one), block_range)
            for one, block_range in lacking
            if one.factory.depth == depth
        }

    def wanted(self, blocks: BlockRange) -> list[tuple[CreationsOutput, list[BlockRange]]]:
        """Return the outputs that find children, with what they want of some blocks."""
        return [
            (self._creations(one), [BlockRange(max(one.start, blocks.from_block), blocks.to_block)])
            for one in self._known.values()
            if blocks.to_block is None or one.start <= blocks.to_block
        ]

    def add(self, key: str, found: pa.Table, to_block: int) -> None:
        """Add the creations that were read, which are all up to a block."""
        one = self._known[key]
        one.children = one.children.add(found)
        one.complete = max(one.complete, to_block)

    def observe(self, entities: Entities, to_block: int) -> None:
        """Find the creations among the items of a batch's blocks, which follow what is known."""
        for key, one in self._known.items():
            missing = one.missing(to_block)
            if missing is not None:
                found = self._creations(one).decode(entities, [missing]).table
                self.add(key, found, to_block)

    def bind(self, outputs: Mapping[str, Output], to_block: int) -> dict[str, Output]:
        """Return the outputs with the children that exist up to a block."""
        return {name: self._bind(one, to_block) for name, one in outputs.items()}

    # --- in step with the target ------------------------------------------------------------------

    def take_rows(self, to_block: int) -> pa.Table:
        """Return what to store with the batch that ends with this block: what was not taken yet.

        A batch that is discarded is rolled back first, so its rows are taken again.
        """
        tables = [CHILDREN.columns.empty_table()]
        for one in self._known.values():
            known = min(to_block, one.complete)
            found = one.children.found(one.taken + 1, known)
            if one.stored:
                fresh = [place not in one.stored for place in _pairs(found)]
                found, one.stored = found.filter(pa.array(fresh, pa.bool_())), set()
            tables.append(to_rows(one.factory, found))
            if known >= one.start and (one.marked < 0 or known - one.marked >= MARK_EVERY):
                tables.append(mark(one.factory, known))
                one.marked = known
            one.taken = max(one.taken, known)
        return pa.concat_tables(tables)

    def roll_back(self, to_block: int) -> None:
        """Forget what was created above a block."""
        for one in self._known.values():
            one.children = one.children.up_to(to_block)
            one.complete = min(one.complete, to_block)
            one.taken = min(one.taken, to_block)
            one.marked = one.marked if one.marked <= to_block else -1
            one.stored = {place for place in one.stored if place[0] <= to_block}

    def _creations(self, one: _Known) -> CreationsOutput:
        output = creations_of(one.factory)
        if output.scope is None or one.factory.parent is None:
            return output
        children = self._known[one.factory.parent.key].children
        return output.with_scope(output.scope.with_children(children))

    def _bind(self, output: _Output, to_block: int) -> _Output:
        if isinstance(output, UnionOutput):
            return replace(output, parts=tuple(self._bind(one, to_block) for one in output.parts))
        scope = scope_of(output)
        if scope is None:
            return output
        children = self._known[scope.factory.key].children.up_to(to_block)
        bound: _Output = output.with_scope(scope.with_children(children))  # type: ignore[attr-defined]
        return bound


def _pairs(found: pa.Table) -> list[tuple[int, int]]:
    """Return block and log of each creation."""
    columns = (found[name].to_pylist() for name in ("block_number", "log_index"))
    return list(zip(*columns, strict=True))


def factories_of(outputs: Iterable[Output]) -> list[Factory]:
    """Return the factories that outputs name, each once, those above others first."""
    found: dict[str, Factory] = {}
    for part in (part for output in outputs for part in parts_of(output)):
        scope = scope_of(part)
        factory = None if scope is None else scope.factory
        while factory is not None:
            found[factory.key] = factory
            factory = factory.parent
    return sorted(found.values(), key=lambda one: one.depth)
