"""The children that a stream knows, in step with its cursor; their rows, and what to ask for them.

Near the head, creations arrive in the same lines as the rows of children. Far behind it they are
read ahead, so that executors know every child of the blocks they are given. Either way the index
knows all creations from each factory's start to the cursor: it is stored with the batches, rolled
back with them, and read anew where nothing is stored.

Children are rows of a side table: committed with their batch, undone with it. A factory's rows
stand under its key. Marks among them, rows without an address, say that all creations up to their
block are stored. So nothing is missed by a stream that ran without a factory for a while, or whose
cursor was moved by hand: what lies behind the last mark is read again.

A list of addresses keeps the portal from sending what other contracts log. Each costs 45 bytes, and
a portal takes requests of 256 KiB: so a request names `MAX_ADDRESSES` at most. Whatever is not
named is asked for by its topics, or sighash, and told apart here: rows are the same either way.
Runs on the driver, in one thread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import BlockRange
from headwater.decode import Children, ChildScope, Entities, Factory, Output, creations_of
from headwater.decode.evm.events import CreationsOutput, UnionOutput
from headwater.decode.evm.factory import FOUND_FIELDS, with_children
from headwater.query import Query, merge_requests
from headwater.targets.contract import SideTable

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
        self._known = {factory.key: _Known(factory, starts[factory.key]) for factory in factories}
        self._skipped: Counter[str] = Counter()

    def load(self, rows: pa.Table) -> None:
        """Take over what a target has stored, up to the last mark. Called once per run."""
        for known in self._known.values():
            children, known.marked = from_rows(known.factory, rows)
            behind = pc.field("block_number") > known.marked
            known.children = known.factory.none().add(children.filter(~behind))
            known.complete, known.taken = max(known.complete, known.marked), known.marked
            known.stored = set(_pairs(children.filter(behind)))

    # --- finding ----------------------------------------------------------------------------------

    def missing(self, to_block: int) -> dict[str, tuple[CreationsOutput, BlockRange]]:
        """Return what to read to know all creations up to a block; nothing if they are known.

        Where factories have factories for children, those above come first: add what they created,
        and ask again.
        """
        lacking = [
            (known, block_range)
            for known in self._known.values()
            if (block_range := known.missing(to_block)) is not None
        ]
        depth = min((known.factory.depth for known, _ in lacking), default=0)
        return {
            known.factory.key: (self._creations(known), block_range)
            for known, block_range in lacking
            if known.factory.depth == depth
        }

    def wanted(self, blocks: BlockRange) -> list[tuple[CreationsOutput, list[BlockRange]]]:
        """Return the outputs that find children, with what they want of some blocks."""
        return [
            (
                self._creations(known),
                [BlockRange(max(known.start, blocks.from_block), blocks.to_block)],
            )
            for known in self._known.values()
            if blocks.to_block is None or known.start <= blocks.to_block
        ]

    def add(self, key: str, found: pa.Table, to_block: int) -> None:
        """Add the creations that were read, which are all up to a block."""
        known = self._known[key]
        known.children = known.children.add(found)
        known.complete = max(known.complete, to_block)

    def skip(self, counts: Mapping[str, int]) -> None:
        """Count creations that could not be decoded and were left out, by the factory's key."""
        for key, count in counts.items():
            self._skipped[f"factory {self._known[key].factory.event.name}"] += count

    def take_skipped(self) -> dict[str, int]:
        """Return what was left out since the last call; nothing is left out in most streams."""
        skipped, self._skipped = dict(+self._skipped), Counter()
        return skipped

    def observe(self, entities: Entities, to_block: int) -> None:
        """Find the creations among the items of a batch's blocks, which follow what is known."""
        for key, known in self._known.items():
            missing = known.missing(to_block)
            if missing is not None:
                creations = self._creations(known).decode(entities, [missing])
                self.skip({key: creations.skipped})
                self.add(key, creations.table, to_block)

    def bind(self, outputs: Mapping[str, Output], to_block: int) -> dict[str, Output]:
        """Return the outputs with the children that exist up to a block."""
        return {name: self._bind(output, to_block) for name, output in outputs.items()}

    # --- in step with the target ------------------------------------------------------------------

    def take_rows(self, to_block: int) -> pa.Table:
        """Return what to store with the batch that ends with this block: what was not taken yet.

        A batch that is discarded is rolled back first, so its rows are taken again.
        """
        tables = [CHILDREN.columns.empty_table()]
        for entry in self._known.values():
            known = min(to_block, entry.complete)
            children = entry.children.found(entry.taken + 1, known)
            if entry.stored:
                fresh = [place not in entry.stored for place in _pairs(children)]
                children, entry.stored = children.filter(pa.array(fresh, pa.bool_())), set()
            tables.append(to_rows(entry.factory, children))
            if known >= entry.start and (entry.marked < 0 or known - entry.marked >= MARK_EVERY):
                tables.append(mark(entry.factory, known))
                entry.marked = known
            entry.taken = max(entry.taken, known)
        return pa.concat_tables(tables)

    def roll_back(self, to_block: int) -> None:
        """Forget what was created above a block."""
        for known in self._known.values():
            known.children = known.children.up_to(to_block)
            known.complete = min(known.complete, to_block)
            known.taken = min(known.taken, to_block)
            known.marked = known.marked if known.marked <= to_block else -1
            known.stored = {place for place in known.stored if place[0] <= to_block}

    def _creations(self, one: _Known) -> CreationsOutput:
        output = creations_of(one.factory)
        if output.scope is None or one.factory.parent is None:
            return output
        children = self._known[one.factory.parent.key].children
        return with_children(output, children)

    def _bind(self, output: _Output, to_block: int) -> _Output:
        if isinstance(output, UnionOutput):
            return replace(output, parts=tuple(self._bind(part, to_block) for part in output.parts))
        scope = scope_of(output)
        if scope is None:
            return output
        children = self._known[scope.factory.key].children.up_to(to_block)
        return with_children(output, children)


def _pairs(found: pa.Table) -> list[tuple[int, int]]:
    """Return block and log of each creation."""
    columns = (found[name].to_pylist() for name in ("block_number", "log_index"))
    return list(zip(*columns, strict=True))


def factories_of(outputs: Iterable[Output]) -> list[Factory]:
    """Return the factories that outputs name, each once, those above others first."""
    factories: dict[str, Factory] = {}
    for part in (part for output in outputs for part in parts_of(output)):
        scope = scope_of(part)
        factory = None if scope is None else scope.factory
        while factory is not None:
            factories[factory.key] = factory
            factory = factory.parent
    return sorted(factories.values(), key=lambda factory: factory.depth)


# --- rows -----------------------------------------------------------------------------------------


CHILDREN = SideTable(
    "factory_children",
    pa.schema(
        [
            ("block_number", pa.int64()),
            ("ordinal", pa.int64()),
            ("factory", pa.string()),
            ("address", pa.string()),
            ("transaction_index", pa.int32()),  # by their 32 bits, which have no sign
            ("log_index", pa.int32()),
            ("details", pa.string()),
        ]
    ),
    complete=True,
)

MARK_EVERY = 1000  # blocks, about: what a restart reads again at most
_BITS = 0xFFFF_FFFF  # of an index


def to_rows(factory: Factory, found: pa.Table) -> pa.Table:
    """Return creations as rows of the side table; the same creation has the same key every time."""
    first = _first_ordinal(factory)
    count = found.num_rows
    columns = [
        found["block_number"],
        pc.add(found["log_index"], first),
        pa.array([factory.key] * count, pa.string()),
        found["address"],
        *(found[name].cast(pa.int32(), safe=False) for name in ("transaction_index", "log_index")),
        _details(found.select([field.name for field in factory.fields])),
    ]
    return pa.table(columns, schema=CHILDREN.columns)


def mark(factory: Factory, block: int) -> pa.Table:
    """Return the row that says: all creations up to this block are stored. No log has its key."""
    row = [block, ~_first_ordinal(factory), factory.key, "", -1, -1, None]
    columns = [
        pa.array([value], kind) for value, kind in zip(row, CHILDREN.columns.types, strict=True)
    ]
    return pa.table(columns, schema=CHILDREN.columns)


def from_rows(factory: Factory, rows: pa.Table) -> tuple[pa.Table, int]:
    """Return a factory's creations among stored rows, and its last mark; -1 if it has none."""
    own = rows.filter(pc.equal(rows["factory"], factory.key))
    is_mark = pc.equal(own["address"], "")
    marked = pc.max(own.filter(is_mark)["block_number"]).as_py()
    own = own.filter(pc.invert(is_mark))
    names = [field.name for field in FOUND_FIELDS]
    columns = [
        pc.bit_wise_and(own[column.name].cast(pa.int64()), _BITS)
        if column.name.endswith("_index")
        else own[column.name]
        for column in FOUND_FIELDS
    ]
    texts = [json.loads(text) for text in own["details"].to_pylist()] if factory.fields else []
    for at, detail in enumerate(factory.fields):
        columns.append(_typed([row[at] for row in texts], detail.type))
        names.append(detail.name)
    return pa.table(columns, names=names), -1 if marked is None else marked


def _first_ordinal(factory: Factory) -> int:
    """Factories of one stream must not share keys: each has the ordinals of its own 2^32."""
    return (int(factory.key[:8], 16) >> 1) << 32


def _details(columns: pa.Table) -> pa.Array:
    """Return the values of each row as a JSON list of text; null without columns."""
    if not columns.num_columns:
        return pa.nulls(columns.num_rows, pa.string())
    texts = [_texts(column) for column in columns.columns]
    return pa.array([json.dumps(row) for row in zip(*texts, strict=True)], pa.string())


def _texts(column: pa.ChunkedArray) -> Sequence[Any]:
    if pa.types.is_binary(column.type):
        return [value.hex() for value in column.to_pylist()]
    texts: list[Any] = column.cast(pa.string()).to_pylist()
    return texts


def _typed(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array([bytes.fromhex(text) for text in texts], kind)
    return pa.array(texts, pa.string()).cast(kind)


# --- queries --------------------------------------------------------------------------------------


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
    for output in (part for parent in outputs for part in parts_of(parent)):
        scope = scope_of(output)
        if scope is None or scope.children is None:
            queries.append(output.query)
        else:
            narrowed.append((len(scope.children.up_to(block)), output, scope))
    left = MAX_ADDRESSES
    for count, output, scope in sorted(narrowed, key=lambda entry: entry[0]):
        if count > left or scope.children is None:
            queries.append(output.query)
            continue
        left -= count
        addresses = scope.children.found(0, block)["address"].to_pylist()
        queries.append(scope.narrow(output.query, addresses))
    return merge_requests(queries)
