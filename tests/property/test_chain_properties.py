"""The simulated chain against a naive tree over random scenarios; selections against contents."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headwater.query import base58
from headwater.testing.chain.content import FAMILIES, contents
from headwater.testing.chain.content.evm_scenes import APPROVAL, SWAP, TRANSFER
from headwater.testing.chain.content.solana import system_transfer_data, token_transfer_data
from headwater.testing.chain.population import SYSTEM_PROGRAM, TOKEN_PROGRAM
from headwater.testing.chain.tree import (
    ChainSim,
    ContentSettings,
    Network,
    SimBlock,
    derive_hash,
    number_in_hash,
)
from headwater.testing.portal.select import Selection
from headwater.testing.portal.surface import SURFACES, TRACE_FIELDS

networks = st.sampled_from(list(Network))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(0, 6), st.none()),
        st.tuples(st.just("fork"), st.integers(1, 8), st.one_of(st.none(), st.integers(0, 9))),
        st.tuples(st.just("finalize"), st.integers(0, 12), st.none()),
        st.tuples(st.just("adopt"), st.integers(0, 30), st.none()),
    ),
    max_size=25,
)
Step = tuple[str, int, int | None]


@dataclass
class History:
    """A chain driven by steps, beside a dictionary of every block that it ever had."""

    chain: ChainSim
    seen: dict[str, SimBlock] = field(default_factory=dict)
    finals: list[SimBlock] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.learn()

    def learn(self) -> None:
        self.seen.update((block.hash, block) for block in self.chain.canonical())
        if self.chain.finalized is not None:
            self.finals.append(self.chain.finalized)

    def hot(self) -> int:
        """Return how many blocks a fork may replace."""
        final = self.chain.finalized
        first = self.chain.canonical()[0].number if final is None else final.number
        return len(self.chain.canonical(first + 1))

    def take(self, step: Step) -> None:
        verb, amount, length = step
        if verb == "extend":
            self.chain.extend(amount)
        elif verb == "fork" and self.hot():
            self.chain.fork(min(amount, self.hot()), length)
        elif verb == "finalize":
            self.chain.finalize(max(self.chain.head.number - amount, self.chain.start_block))
        elif verb == "adopt":
            self.adopt(amount)
        self.learn()

    def adopt(self, choice: int) -> None:
        current = {block.hash for block in self.chain.canonical()}
        final = self.chain.finalized
        orphans = [
            block
            for block in self.seen.values()
            if block.hash not in current and (final is None or final in self.naive_path(block.hash))
        ]
        if orphans:
            self.chain.adopt(orphans[choice % len(orphans)].hash)

    def naive_path(self, block_hash: str) -> list[SimBlock]:
        path = []
        while block_hash in self.seen:
            path.append(self.seen[block_hash])
            block_hash = path[-1].parent_hash
        return path[::-1]


def run(seed: int, network: Network, taken: list[Step]) -> History:
    history = History(ChainSim(seed, network=network, start_block=seed % 3 * 100))
    for step in taken:
        history.take(step)
    return history


@given(seed=st.integers(0, 50), network=networks, taken=steps)
def test_the_canonical_branch_is_linked_and_ascending(
    seed: int, network: Network, taken: list[Step]
) -> None:
    chain = run(seed, network, taken).chain
    blocks = chain.canonical()
    assert blocks[0].number == chain.start_block
    assert blocks[-1] == chain.head
    for parent, child in pairwise(blocks):
        assert (child.parent_hash, child.parent_number) == (parent.hash, parent.number)
        assert child.number > parent.number
        assert child.timestamp >= parent.timestamp
        assert child.height == parent.height + 1
    middle = blocks[len(blocks) // 2].number
    assert chain.canonical(middle, middle + 3) == [
        block for block in blocks if middle <= block.number <= middle + 3
    ]


@given(seed=st.integers(0, 50), network=networks, taken=steps)
def test_finality_is_canonical_and_never_lowered(
    seed: int, network: Network, taken: list[Step]
) -> None:
    history = run(seed, network, taken)
    for earlier, later in pairwise(history.finals):
        assert earlier.number <= later.number
    canonical = history.chain.canonical()
    assert all(final in canonical for final in history.finals)


@given(seed=st.integers(0, 50), network=networks, taken=steps, data=st.data())
def test_branches_agree_with_a_naive_walk(
    seed: int, network: Network, taken: list[Step], data: st.DataObject
) -> None:
    history = run(seed, network, taken)
    chain, known = history.chain, list(history.seen.values())
    for block in known:
        assert chain.block(block.hash) == block
    tip = data.draw(st.sampled_from(known))
    other = data.draw(st.sampled_from(known))
    number = data.draw(st.integers(chain.start_block - 1, chain.head.number + 2))
    path = history.naive_path(tip.hash)
    assert path[0].number == chain.start_block
    assert chain.path(tip.hash) == path
    assert chain.path(tip.hash, number) == [block for block in path if block.number >= number]
    assert chain.is_ancestor(other.hash, tip.hash) == (other in path)
    below = [block for block in path if block.number <= number]
    assert chain.at_or_below(number, tip.hash) == (below[-1] if below else None)


@given(seed=st.integers(0, 50), network=networks, taken=steps)
def test_the_same_history_gives_the_same_tree(
    seed: int, network: Network, taken: list[Step]
) -> None:
    one, other = run(seed, network, taken), run(seed, network, taken)
    assert one.seen == other.seen
    assert one.chain.forks == other.chain.forks
    assert one.chain.canonical() == other.chain.canonical()


@given(seed=st.integers(0, 50), network=networks, taken=steps)
def test_fork_records_tell_what_happened(seed: int, network: Network, taken: list[Step]) -> None:
    history = run(seed, network, taken)
    for record in history.chain.forks:
        assert len(record.orphaned_hashes) == record.depth
        for branch in (record.orphaned_hashes, record.new_hashes):
            for parent, child in pairwise((record.ancestor.hash, *branch)):
                assert history.seen[child].parent_hash == parent
        assert not set(record.orphaned_hashes) & set(record.new_hashes)


@given(
    parent=st.binary(min_size=32, max_size=32),
    number=st.integers(0, 2**62),
    salt=st.integers(0, 99),
)
def test_a_hash_tells_its_number(parent: bytes, number: int, salt: int) -> None:
    assert number_in_hash(derive_hash(parent, number, salt)) == number


@given(st.binary(max_size=80))
def test_base58_is_read_as_it_was_written(data: bytes) -> None:
    assert base58.decode(base58.encode(data)) == data


@given(st.integers(0, 2**64 - 1))
def test_transfer_data_holds_the_amount(amount: int) -> None:
    assert int.from_bytes(token_transfer_data(amount)[1:], "little") == amount
    assert int.from_bytes(system_transfer_data(amount)[4:], "little") == amount


# --- selections -----------------------------------------------------------------------------------

CHAINS = {
    network: ChainSim(31, network=network, content=ContentSettings(transactions_per_block=8))
    for network in Network
}
for _chain in CHAINS.values():
    _chain.grow(30)

PEOPLE, CAST = CHAINS[Network.EVM].population, CHAINS[Network.SOLANA].population
VALUES: dict[Network, dict[str, dict[str, list[Any]]]] = {
    Network.EVM: {
        "logs": {"topic0": [TRANSFER, APPROVAL, SWAP], "address": list(PEOPLE.tokens)},
        "transactions": {"from": list(PEOPLE.accounts), "type": [0, 1, 2, 3]},
        "traces": {"type": ["call", "create"], "callTo": [PEOPLE.router, PEOPLE.factory]},
        "stateDiffs": {"kind": ["+", "-", "*", "="], "key": ["balance", "nonce"]},
    },
    Network.SOLANA: {
        "instructions": {
            "programId": [TOKEN_PROGRAM, SYSTEM_PROGRAM, CAST.program],
            "d1": ["0x02", "0x03"],
            "a0": list(CAST.accounts),
        },
        "transactions": {"feePayer": list(CAST.accounts)},
        "logs": {"kind": ["log", "data", "other"], "programId": [TOKEN_PROGRAM, CAST.program]},
        "balances": {"account": list(CAST.accounts)},
        "tokenBalances": {"preMint": list(CAST.tokens), "postOwner": list(CAST.accounts)},
        "rewards": {"pubkey": list(CAST.producers)},
    },
    Network.BITCOIN: {
        "transactions": {},
        "inputs": {
            "type": ["tx", "coinbase"],
            "prevoutScriptPubKeyAddress": list(CHAINS[Network.BITCOIN].population.accounts),
        },
        "outputs": {"scriptPubKeyType": ["pubkeyhash", "scripthash", "nulldata"]},
    },
    Network.TRON: {
        "transactions": {"type": ["TransferContract", "TriggerSmartContract"]},
        "transferTransactions": {"owner": list(CHAINS[Network.TRON].population.accounts)},
        "triggerSmartContractTransactions": {"sighash": ["a9059cbb"]},
        "logs": {"address": [one[2:] for one in CHAINS[Network.TRON].population.tokens]},
        "internalTransactions": {"caller": list(CHAINS[Network.TRON].population.tokens)},
    },
    Network.HYPERLIQUID: {
        "fills": {
            "coin": ["BTC", "ETH"],
            "user": list(CHAINS[Network.HYPERLIQUID].population.accounts),
        },
    },
    Network.SUBSTRATE: {
        "events": {"name": ["Balances.Transfer", "EVM.Log"]},
        "calls": {"name": ["Utility.batch", "Balances.transfer_keep_alive"]},
        "evmLogs": {"address": list(CHAINS[Network.SUBSTRATE].population.tokens)},
        "ethereumTransactions": {"sighash": ["0xa9059cbb"]},
        "gearUserMessagesSent": {"programId": list(CHAINS[Network.SUBSTRATE].population.producers)},
    },
}


@st.composite
def filters(draw: st.DrawFn, network: Network) -> tuple[str, dict[str, Any]]:
    family = draw(st.sampled_from(sorted(VALUES[network])))
    values = VALUES[network][family]
    keys = draw(st.sets(st.sampled_from(sorted(values)))) if values else set()
    chosen: dict[str, Any] = {
        key: draw(st.lists(st.sampled_from(values[key]), min_size=1, max_size=6)) for key in keys
    }
    relations = sorted(SURFACES[network].families[family].relations)
    if relations:
        chosen |= dict.fromkeys(draw(st.sets(st.sampled_from(relations), max_size=2)), True)
    return family, chosen


@st.composite
def field_choices(draw: st.DrawFn, network: Network) -> dict[str, dict[str, bool]]:
    surface = SURFACES[network]
    names = {family.entity: family.fields for family in surface.families.values()}
    names["block"] = surface.block_fields
    return {
        entity: dict.fromkeys(draw(st.sets(st.sampled_from(sorted(options)))), True)
        for entity, options in sorted(names.items())
    }


def rows_of(
    network: Network, fields: dict[str, Any], block: SimBlock, *wanted: tuple[str, Any]
) -> dict[str, list[Any]]:
    body: dict[str, Any] = {"type": network.value, "fields": fields}
    for family, chosen in wanted:
        body.setdefault(family, []).append(chosen)
    line = Selection(network, body).line(CHAINS[network], block, boundary=True)
    assert line is not None
    parsed = json.loads(line)
    return {family: parsed.get(family, []) for family in FAMILIES[network]}


@given(network=networks, data=st.data())
def test_two_filters_give_the_union_of_each_alone_in_block_order(
    network: Network, data: st.DataObject
) -> None:
    one, other = data.draw(filters(network)), data.draw(filters(network))
    block = data.draw(st.sampled_from(CHAINS[network].canonical()))
    surface = SURFACES[network]
    fields = {
        family.entity: dict.fromkeys((f for f in family.fields if f != "callType"), True)
        for family in surface.families.values()
    }
    both = rows_of(network, fields, block, one, other)
    alone = [rows_of(network, fields, block, wanted) for wanted in (one, other)]
    full = contents(CHAINS[network], block)
    for family, rows in both.items():
        assert rows == [row for row in full[family] if any(row in part[family] for part in alone)]


@given(network=networks, data=st.data())
def test_a_line_holds_the_selected_fields_and_no_others(
    network: Network, data: st.DataObject
) -> None:
    fields = data.draw(field_choices(network))
    wanted = data.draw(st.lists(filters(network), max_size=3))
    block = data.draw(st.sampled_from(CHAINS[network].canonical()))
    body: dict[str, Any] = {"type": network.value, "fields": fields}
    for family, chosen in wanted:
        body.setdefault(family, []).append(chosen)
    line = Selection(network, body).line(CHAINS[network], block, boundary=True)
    assert line is not None
    assert b"\n" not in line
    parsed = json.loads(line)
    assert parsed.pop("header").keys() == {"number", "hash", *fields["block"]}
    for family, rows in parsed.items():
        assert rows, "a family without rows is left out"
        selected = set(fields[SURFACES[network].families[family].entity])
        for row in rows:
            if family == "traces" and network is Network.EVM:
                assert row.keys() - {"action", "result"} == selected - TRACE_FIELDS.keys()
                kinds = {TRACE_FIELDS[name][:3] for name in selected & TRACE_FIELDS.keys()}
                sent = {(part, name) for part in ("action", "result") for name in row.get(part, ())}
                assert sent <= {place[1:] for place in kinds}
            else:
                assert row.keys() == selected
