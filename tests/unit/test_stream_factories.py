"""Creations are read up to a cursor only if they are of its own branch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import (
    AtHead,
    Batch,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Blocks,
    Fork,
    Head,
    PipeState,
    RangeEnd,
    RangeSpec,
)
from headwater.decode import Output, evm
from headwater.decode.evm.factory import FOUND_FIELDS
from headwater.errors import BlockLinkError
from headwater.portal import SystemClock
from headwater.query import Query, merge_queries
from headwater.spark.parts import SpanReport
from headwater.spark.startup import SparkOfRun
from headwater.stream.assemble import Assembler, Decoder, Planned
from headwater.stream.context import QueryInfo
from headwater.stream.factories import Factories, FactoryScan
from headwater.stream.factory_index import FactoryIndex, factories_of, from_rows, query_children
from headwater.testing import ChainSim, Network, Selection, SimBlock
from tests.stream import pool_truth as truth
from tests.unit.decode.samples import line


class Portal:
    """A portal that serves one branch of a chain, or says what it is told to."""

    def __init__(self, chain: ChainSim) -> None:
        self.chain = chain
        self.branch = list(chain.canonical())
        self.final = -1
        self.says: list[Any] = []
        self.asked: list[BlockRange] = []

    def read(
        self, query: Query, blocks: BlockRange, after: Any = None, *, finalized: bool = False
    ) -> Iterator[Any]:
        self.asked.append(blocks)
        if self.says:
            yield from self.says
            return
        selection = Selection(Network.EVM, json.loads(query.body(0)))
        inside = [one for one in self.branch if one.number in blocks]
        lines = [selection.line(self.chain, one, boundary=True) for one in inside]
        yield Blocks(tuple(map(header, inside)), tuple(one or b"" for one in lines), Head())
        yield RangeEnd(Head())

    def finalized_head(self, attempts: Any = None) -> BlockCursor | None:
        return BlockCursor(self.final) if self.final >= 0 else None

    def resolve_range(self, spec: RangeSpec) -> BlockRange:
        return spec.resolve()


def header(block: SimBlock) -> BlockHeader:
    return BlockHeader(block.number, block.hash, block.parent_hash, block.timestamp)


def no_span(*_: Any) -> Iterator[tuple[str, pa.Table]]:
    raise AssertionError("few blocks are read by the driver")


@pytest.fixture
def portal() -> Portal:
    chain = ChainSim(seed=4, content=truth.SETTINGS)
    chain.extend(30)
    return Portal(chain)


def outputs_of(portal: Portal) -> dict[str, Output]:
    return {"swaps": evm.events(truth.SWAP_EVENT, contracts=truth.launched_of(portal.chain))}


def scan_of(portal: Any) -> tuple[FactoryIndex, FactoryScan]:
    found = factories_of(outputs_of(portal).values())
    index = FactoryIndex(found, {one.key: 0 for one in found})
    return index, FactoryScan(index, portal, no_span, 10**9)


@pytest.mark.parametrize("final", [-1, 12, 40])
def test_all_creations_up_to_a_cursor_are_found(portal: Portal, final: int) -> None:
    index, scan = scan_of(portal)
    assert scan.read_to(portal.chain.head.cursor, final)
    assert not index.missing(30)
    model = truth.Model(portal.chain, nested=True)
    model.swaps(portal.branch)
    stored = [one for one in index.take_rows(30)["address"].to_pylist() if one]
    assert sorted(stored) == sorted([*model.pools, *model.launchpads])
    asked = len(portal.asked)
    assert scan.read_to(portal.chain.head.cursor, final)
    assert len(portal.asked) == asked, "what is known is not read again"


@pytest.mark.parametrize(
    "says",
    [
        [Fork((BlockCursor(29, "0x1"),))],
        [AtHead(Head()), AtHead(Head()), AtHead(Head())],
        [RangeEnd(Head())],
    ],
)
def test_a_cursor_that_the_portal_cannot_confirm_leaves_the_index_as_it_was(
    portal: Portal, says: list[Any]
) -> None:
    index, scan = scan_of(portal)
    portal.says = says
    assert not scan.read_to(portal.chain.head.cursor, -1)
    assert index.missing(30)
    assert index.take_rows(30).num_rows == 0


def test_creations_of_another_branch_are_not_taken(portal: Portal) -> None:
    index, scan = scan_of(portal)
    old = portal.chain.head.cursor
    portal.chain.fork(4)
    portal.branch = list(portal.chain.canonical())
    assert not scan.read_to(old, 10)
    assert [one.from_block for _, one in index.missing(30).values()] == [11]
    assert scan.read_to(portal.chain.head.cursor, 10)
    assert not index.missing(30)


def union(outputs: dict[str, Output], plan: list[tuple[BlockRange, Query]]) -> Query:
    return merge_queries([*(one.query for one in outputs.values()), *(one for _, one in plan)])


def batch_of(portal: Portal, block: SimBlock, query: Query) -> Batch[Any]:
    selection = Selection(Network.EVM, json.loads(query.body(0)))
    line = selection.line(portal.chain, block, boundary=True)
    return Batch((header(block),), Head(), PipeState(block.cursor), (), (line,))


def test_a_batch_whose_predecessors_cannot_be_read_is_refused(portal: Portal) -> None:
    """The chain went away while creations were read, and came back with a batch."""
    outputs, pauses = outputs_of(portal), []
    client: Any = portal
    factories = Factories(
        factories_of(outputs.values()), client, no_span, 10**9, lambda: pauses.append(1)
    )
    cursor = portal.branch[28].cursor
    query = union(outputs, factories.plan([BlockRange(0)], cursor))
    portal.says = [Fork((cursor,))]
    factories.catch_up(PipeState(cursor))
    batch = batch_of(portal, portal.branch[29], query)
    with pytest.raises(BlockLinkError, match="E3005"):
        factories.decode(outputs, batch, {"swaps": [BlockRange(0)]})
    assert pauses
    portal.says = []
    rows = factories.decode(outputs, batch, {"swaps": [BlockRange(0)]}).tables["swaps"]
    wanted = truth.Model(portal.chain, nested=True).swaps(portal.branch[:30], first=29)
    assert rows.num_rows == len(wanted)


def test_creations_are_asked_of_one_replica_after_the_other(portal: Portal) -> None:
    """Two questions per try went to the same of two replicas every time."""
    outputs, asked = outputs_of(portal), [0]

    class TakesTurns:
        """Two replicas by turns: the second one is on another branch."""

        def __getattr__(self, name: str) -> Any:
            return getattr(portal, name)

        def finalized_head(self, attempts: Any = None) -> BlockCursor | None:
            asked[0] += 1
            return None

        def read(self, *arguments: Any, **named: Any) -> Iterator[Any]:
            asked[0] += 1
            portal.says = [] if asked[0] % 2 else [Fork((cursor,))]
            return portal.read(*arguments, **named)

    client: Any = TakesTurns()
    factories = Factories(factories_of(outputs.values()), client, no_span, 10**9, lambda: None)
    cursor = portal.branch[28].cursor
    factories.plan([BlockRange(0)], cursor)
    assert not factories.catch_up(PipeState(cursor))
    assert factories.insist()


def test_blocks_behind_all_that_was_asked_for_are_made_up_for(portal: Portal) -> None:
    """A user's fork went back behind the first block: what was not asked for is read apart."""
    outputs = outputs_of(portal)
    client: Any = portal
    factories = Factories(factories_of(outputs.values()), client, no_span, 10**9, lambda: None)
    portal.final = 18
    query = union(outputs, factories.plan([BlockRange(20)], None))
    factories.catch_up(PipeState())
    ranges = {"swaps": [BlockRange(20)]}
    for block in portal.branch[19:21]:
        factories.decode(outputs, batch_of(portal, block, query), ranges)
    back = PipeState(portal.branch[15].cursor)
    factories.forget(back)
    factories.catch_up(back)
    empty = query.headers_only()
    for block, asked in ((portal.branch[18], empty), (portal.branch[19], query)):
        factories.decode(outputs, batch_of(portal, block, asked), ranges)
    made = factories.decode(outputs, batch_of(portal, portal.branch[20], query), ranges)
    wanted = truth.Model(portal.chain, nested=True).swaps(portal.branch[:21], first=20)
    assert made.tables["swaps"].num_rows == len(wanted)
    model = truth.Model(portal.chain, nested=True)
    model.swaps(portal.branch[:21])
    stored: Any = factories.rows(batch_of(portal, portal.branch[20], query))
    addresses = [one for one in stored["factory_children"]["address"].to_pylist() if one]
    assert sorted(addresses) == sorted([*model.pools, *model.launchpads])


def test_creations_that_are_left_out_are_counted_with_the_batch_that_is_read_next(
    portal: Portal,
) -> None:
    """Each is a child whose rows will be missing."""
    made = evm.factory(
        "0x" + "11" * 20, "Made(address indexed token, address pool)", child="pool", on_error="skip"
    )
    outputs: dict[str, Output] = {"swaps": evm.events(truth.SWAP_EVENT, contracts=made)}
    client: Any = portal
    factories = Factories([made], client, no_span, 10**9, lambda: None)
    factories.plan([BlockRange(1)], None)
    topics = [made.event.topic0, "0x" + "00" * 12 + "22" * 20]
    counted = []
    for number, logs in enumerate([[log(made, 0, topics), log(made, 1, topics)], []], start=1):
        batch: Batch[Any] = Batch(
            (BlockHeader(number, f"0x{number}"),), Head(), PipeState(), (), (line(number, logs),)
        )
        found = factories.decode(outputs, batch, {"swaps": [BlockRange(1)]})
        counted.append(found.skipped)
    assert counted == [{"swaps": 0, "factory Made": 2}, {"swaps": 0}]
    factories.note_skipped({made.key: 3})
    assert factories.take_skipped() == {"factory Made": 3}
    assert factories.take_skipped() == {}


class ReadSpan:
    """A span whose executors left one row out; they have read it once it was asked for a report."""

    def __init__(self) -> None:
        self.frames: dict[str, Any] = {}
        self.known_report: SpanReport | None = None

    def report(self) -> SpanReport:
        self.known_report = SpanReport(10, 500, None, {"swaps": 7, "mints": 0}, {"swaps": 1}, {})
        return self.known_report


def test_creations_that_are_left_out_before_a_span_are_counted_with_its_rows() -> None:
    """Nothing is read for the count alone: it is not known before the span is read."""

    class Planning(Decoder):
        ranges = (BlockRange(1),)

        def plan(self, batch: Batch[Any]) -> Planned:
            span: Any = ReadSpan()
            return Planned(span, 10, keep=False, skipped={"factory Made": 3})

        def decode(self, batch: Batch[Any]) -> Any:
            raise AssertionError("executors decode it")

        def asked(self, number: int) -> QueryInfo:
            return QueryInfo("", "", b"")

    assembler = Assembler("s", Planning(), (), SparkOfRun(None), SystemClock())
    batch: Batch[Any] = Batch((BlockHeader(10, "0xa"),), Head(), PipeState(), (), ())
    info = assembler(batch).data.ctx.batch
    assert info.known() is None
    assert info.skipped == {"swaps": 1, "factory Made": 3}
    assert info.known() == info.counts()
    assert (info.blocks_count, info.rows_count, info.bytes_size) == (10, 7, 500)
    assert info.known().filled == {"swaps"}


def log(made: Any, index: int, topics: list[str]) -> dict[str, Any]:
    """Return a creation whose child is longer than an address."""
    return {
        "logIndex": index, "transactionIndex": 0, "address": made.contracts[0], "topics": topics,
        "data": "0x" + "ff" * 32, "transactionHash": "0x" + "33" * 32,
    }  # fmt: skip


def test_a_creation_by_a_log_that_a_node_added_is_stored_and_found_again() -> None:
    """Its index has all 32 bits; no log has the key of a mark."""
    made = evm.factory("0x" + "11" * 20, "Made(address indexed token)", child="token")
    index, places = FactoryIndex([made], {made.key: 1}), [0, 2**31 - 1, 0xFFFF_FFE2, 2**32 - 1]
    addresses = [f"0x{at:040x}" for at in range(4)]
    columns = [[1] * 4, places, places, addresses]
    arrays = [pa.array(one, kind.type) for one, kind in zip(columns, FOUND_FIELDS, strict=True)]
    index.add(made.key, pa.table(arrays, schema=pa.schema(FOUND_FIELDS)), 1)
    rows = index.take_rows(1)
    assert len(set(rows["ordinal"].to_pylist())) == 5
    assert set(rows["log_index"].to_pylist()) == {0, 2**31 - 1, -30, -1}
    found, marked = from_rows(made, rows)
    assert marked == 1
    assert found["log_index"].to_pylist() == found["transaction_index"].to_pylist() == places
    again = FactoryIndex([made], {made.key: 1})
    again.load(rows)
    assert again.take_rows(1).num_rows == 0


def test_many_events_of_one_factory_are_one_filter() -> None:
    """An ABI may have hundreds of events; a portal takes a hundred filters."""
    made = evm.factory("0x" + "11" * 20, "Made(address indexed token)", child="token")
    events = [evm.events(f"Event{at}(uint256 value)", contracts=made) for at in range(130)]
    index = FactoryIndex([made], {made.key: 0})
    found = [1, 0, 0, "0x" + "22" * 20]
    columns = [pa.array([one], kind.type) for one, kind in zip(found, FOUND_FIELDS, strict=True)]
    index.add(made.key, pa.table(columns, schema=pa.schema(FOUND_FIELDS)), 10)
    bound = index.bind({"all": evm.union(*events)}, 10)
    asked = query_children(bound.values(), 10)
    assert len(asked.filters) == 1
    asked_for = dict(asked.filters[0].conditions)
    assert isinstance(asked_for["topic0"], tuple)
    assert (len(asked_for["topic0"]), asked_for["address"]) == (130, (found[3],))
    asked.body(0)
