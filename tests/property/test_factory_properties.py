"""Children against the plain model: any cut into batches, any rollback, any way of storing."""

from __future__ import annotations

import json
import pickle
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import BlockRange
from headwater.decode import Children, Output, decode_entities, evm, read_outputs
from headwater.decode.evm.factory import FOUND_FIELDS, with_children
from headwater.query import merge_queries
from headwater.stream import factory_index
from headwater.stream.factory_index import CHILDREN, FactoryIndex, factories_of, query_children
from headwater.testing import ChainSim, Network, Selection
from headwater.testing.chain.tree import SimBlock
from tests.sampling import examples
from tests.stream import pool_truth as truth

BLOCKS = 60


@cache
def chain_of(seed: int) -> tuple[ChainSim, list[SimBlock]]:
    chain = ChainSim(seed=seed, content=truth.SETTINGS)
    chain.extend(BLOCKS)
    return chain, list(chain.canonical())


def outputs_of(chain: ChainSim, start: int, since: Any = "transaction") -> dict[str, Output]:
    pools = truth.pools_of(chain, start=start, since=since)
    launched = truth.launched_of(chain, start=start, since=since)
    return {
        "swaps": evm.events(truth.SWAP_EVENT, contracts=pools),
        "launched": evm.events(truth.SWAP_EVENT, contracts=launched),
        "calls": evm.calls(truth.SWAP_CALL, contracts=pools),
        "traces": evm.calls(truth.SWAP_CALL, contracts=pools, source="traces"),
    }


def index_of(outputs: dict[str, Output], start: int) -> FactoryIndex:
    found = factories_of(outputs.values())
    return FactoryIndex(found, {one.key: start for one in found})


def lines_of(chain: ChainSim, blocks: list[SimBlock], query: Any) -> list[bytes]:
    selection = Selection(Network.EVM, json.loads(query.body(0)))
    return [
        line
        for block in blocks
        if (line := selection.line(chain, block, boundary=True)) is not None
    ]


class Run:
    """What a stream does with lines, a target that keeps side rows, and nothing else."""

    def __init__(self, chain: ChainSim, start: int, since: str = "transaction") -> None:
        self.chain, self.start = chain, start
        self.outputs = outputs_of(chain, start, since)
        self.stored = CHILDREN.columns.empty_table()
        self.tables: dict[str, pa.Table] = {}
        self.at = -1
        self.index = index_of(self.outputs, start)

    def take(self, blocks: list[SimBlock]) -> None:
        first, last = blocks[0].number, blocks[-1].number
        every = {name: [BlockRange(0)] for name in self.outputs}
        wanted: list[Any] = [(one, [BlockRange(0)]) for one in self.outputs.values()]
        wanted += self.index.wanted(BlockRange(first, last))
        query = merge_queries([output.query for output, _ in wanted])
        entities = read_outputs(wanted, lines_of(self.chain, blocks, query))
        self.index.observe(entities, last)
        bound = self.index.bind(self.outputs, last)
        tables = decode_entities(bound, entities, every).tables
        for name, table in tables.items():
            held = self.tables.get(name)
            self.tables[name] = table if held is None else pa.concat_tables([held, table])
        self.stored = pa.concat_tables([self.stored, self.index.take_rows(last)])
        self.at = last

    def roll_back(self, number: int) -> None:
        self.index.roll_back(number)
        self.stored = up_to(self.stored, number)
        self.tables = {name: up_to(table, number) for name, table in self.tables.items()}
        self.at = number

    def restart(self) -> None:
        self.index = index_of(self.outputs, self.start)
        self.index.load(self.stored)
        for _ in range(3):
            for key, (output, missing) in self.index.missing(self.at).items():
                lines = lines_of(self.chain, chain_of(self.chain.seed)[1], output.query)
                entities = read_outputs([(output, [missing])], lines)
                self.index.add(key, output.decode(entities, [missing]).table, self.at)


def up_to(table: pa.Table, number: int) -> pa.Table:
    return table.filter(pa.array(table["block_number"].to_numpy() <= number))


def rows_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.select(list(names)).to_pylist()]


@pytest.mark.guarantee("FACTORY-1")
@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 3),
    start=st.sampled_from([0, 0, 7]),
    since=st.sampled_from(["transaction", "transaction", "block", "log"]),
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "take", "back", "restart"]), st.integers(1, 9)),
        max_size=14,
    ),
)
def test_any_batches_rollbacks_and_restarts_give_what_the_model_gives(
    seed: int, start: int, since: str, steps: list[tuple[str, int]]
) -> None:
    chain, blocks = chain_of(seed)
    run = Run(chain, start, since)
    for what, size in [*steps, ("take", BLOCKS)]:
        if what == "take" and run.at < BLOCKS:
            run.take(blocks[run.at + 1 : run.at + 1 + size])
        elif what == "back" and run.at >= 0:
            run.roll_back(max(0, run.at - size))
        elif what == "restart":
            run.restart()
    taken = blocks[: run.at + 1]
    columns = truth.COLUMNS.split(", ")
    swaps = truth.Model(chain, start=start, since=since).swaps(taken)
    assert rows_of(run.tables["swaps"], *columns) == swaps
    launched = truth.Model(chain, start=start, since=since, nested=True).swaps(taken)
    assert rows_of(run.tables["launched"], *columns) == launched
    for name, source in (("calls", "transactions"), ("traces", "traces")):
        expected = truth.Model(chain, start=start, since=since).calls(taken, source)
        place = ("block_number", "transaction_index", "address")
        assert rows_of(run.tables[name], *place) == expected
    keys = run.stored.select(["block_number", "ordinal"]).to_pylist()
    assert len({tuple(key.values()) for key in keys}) == len(keys), "a key is stored twice"


def test_the_rare_cases_do_occur() -> None:
    """Trades before a creation in its transaction and in its block; pools of launchpads."""
    in_transaction = in_block = 0
    for seed in range(4):
        chain, blocks = chain_of(seed)
        of = {
            since: set(truth.Model(chain, since=since).swaps(blocks))
            for since in ("block", "transaction", "log")
        }
        assert of["log"] <= of["transaction"] <= of["block"]
        in_transaction += len(of["transaction"] - of["log"])
        in_block += len(of["block"] - of["transaction"])
        assert len(truth.Model(chain, nested=True).swaps(blocks)) > 10
    assert in_transaction
    assert in_block


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 3), first=st.integers(0, 30), size=st.integers(1, 20))
def test_asking_by_address_gives_what_asking_by_topic_gives(
    seed: int, first: int, size: int
) -> None:
    """As executors do it: the children are known beforehand, and only theirs is asked for."""
    chain, blocks = chain_of(seed)
    run = Run(chain, 0)
    run.take(blocks)
    last = min(first + size, BLOCKS)
    bound = run.index.bind(run.outputs, last)
    query = query_children(bound.values(), last)
    sent = query.body(0).decode()
    assert all(child in sent for child in truth_pools(chain, blocks[: last + 1]))
    lines = lines_of(chain, blocks[first : last + 1], query)
    every: dict[str, list[BlockRange]] = {name: [BlockRange(0)] for name in bound}
    shipped: dict[str, Output] = pickle.loads(pickle.dumps(bound))
    entities = read_outputs([(one, [BlockRange(0)]) for one in shipped.values()], lines)
    tables = decode_entities(shipped, entities, every).tables
    for name, table in tables.items():
        whole = run.tables[name]
        numbers = whole["block_number"].to_numpy()
        assert table == whole.filter(pa.array((numbers >= first) & (numbers <= last)))


def truth_pools(chain: ChainSim, blocks: list[SimBlock]) -> set[str]:
    model = truth.Model(chain)
    model.swaps(blocks)
    return set(model.pools)


@pytest.mark.parametrize("limit", [0, 10, 60, 4000])
def test_a_request_names_no_more_addresses_than_it_may(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fewest children come first; whoever finds no room is asked for by topic."""
    monkeypatch.setattr(factory_index, "MAX_ADDRESSES", limit)
    chain, blocks = chain_of(1)
    run = Run(chain, 0)
    run.take(blocks)
    bound = list(run.index.bind(run.outputs, BLOCKS).values())
    query = query_children(bound, BLOCKS)
    named = [
        len(value)
        for one in query.filters
        for wire, value in one.conditions
        if wire in ("address", "to", "callTo") and isinstance(value, tuple)
    ]
    counts = [len(one.scope.children) for one in bound]  # type: ignore[attr-defined]
    assert sum(named) <= limit
    room = limit - sum(named)
    assert len(named) == 4 or min(sorted(counts)[len(named) :]) > room
    assert len(query.filters) >= 3


def test_a_large_list_of_addresses_still_fits_a_request() -> None:
    texts = [f"0x{number:040x}" for number in range(factory_index.MAX_ADDRESSES)]
    found = found_table([(0, 0, at, text) for at, text in enumerate(texts)])
    factory = evm.factory(texts[0], truth.CREATED, child="pair")
    output = evm.events(truth.SWAP_EVENT, contracts=factory)
    assert output.scope is not None
    bound = with_children(output, factory.none().add(found))
    assert 170_000 < len(query_children([bound], 0).body(0)) < 200_000
    assert query_children([with_children(output, factory.none())], 0) == (
        output.query.headers_only().add_fields(log=["address", "data", "log_index", "topics",
                                                    "transaction_hash", "transaction_index"])
    )  # fmt: skip


# --- looking up -----------------------------------------------------------------------------------


def found_table(rows: list[tuple[int, int, int, str]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    arrays = [pa.array(one, kind.type) for one, kind in zip(columns, FOUND_FIELDS, strict=True)]
    return pa.table(arrays, schema=pa.schema(FOUND_FIELDS))


ALIKE = st.sampled_from([f"0x{'ab' * 8}{tail:024x}" for tail in range(6)])
ADDRESS = st.one_of(ALIKE, st.binary(min_size=20, max_size=20).map(lambda one: f"0x{one.hex()}"))
NO_ADDRESS = st.sampled_from([None, "", "0x", "0x" + "g" * 40, "0X" + "ab" * 21, "0x" + "ab" * 19])


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(ADDRESS, st.integers(0, 3)), max_size=8), max_size=5),
    asked=st.lists(st.one_of(ADDRESS, NO_ADDRESS), max_size=12),
    cut=st.integers(0, 6),
)
def test_looking_up_is_what_a_dictionary_gives(
    batches: list[list[tuple[str, int]]], asked: list[str | None], cut: int
) -> None:
    """Also of addresses that begin alike, of nulls, and of text that is no address."""
    children, model = Children.none(pa.schema([])), dict[str, tuple[int, int]]()
    for block, batch in enumerate(batches):
        rows = [(block, log // 2, log, address) for log, (address, _) in enumerate(batch)]
        children = children.add(found_table(rows[::-1]))
        for _, _, log, address in rows:
            model.setdefault(address, (block, log))
    children = children.up_to(cut)
    model = {address: place for address, place in model.items() if place[0] <= cut}
    assert len(children) == len(model)
    probes = [*asked, *model]
    at = children.find(pa.array(probes, pa.string()))
    for probe, row in zip(probes, at.tolist(), strict=True):
        expected = model.get(probe or "")
        got = None if row < 0 else (children.places[0][row], children.places[2][row])
        assert got == expected
    again = children.found(0, cut)
    assert dict(
        zip(again["address"].to_pylist(), again["block_number"].to_pylist(), strict=True)
    ) == {address: place[0] for address, place in model.items()}


def test_fifty_thousand_children_are_found_among_as_many_strangers() -> None:
    chance = np.random.default_rng(1)
    texts = [f"0x{chance.bytes(20).hex()}" for _ in range(100_000)]
    rows = [(block, 0, 0, text) for block, text in enumerate(texts[:50_000])]
    children = Children.none(pa.schema([])).add(found_table(rows))
    order = chance.permutation(100_000)
    at = children.find(pa.array([texts[one] for one in order], pa.string()))
    assert (at == np.where(order < 50_000, order, -1)).all()
    assert len(pickle.dumps(children)) < 3_000_000
