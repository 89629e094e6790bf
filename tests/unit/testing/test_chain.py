"""The simulated block tree: growth, forks, finality, lookups."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest

from headwater.core import BlockCursor
from headwater.errors import InvalidOptionError
from headwater.query import base58
from headwater.testing.chain.tree import ChainSim, ContentSettings, ForkRecord, Network, SimBlock

BOTH = pytest.mark.parametrize("network", list(Network))


def hashes(blocks: list[SimBlock]) -> list[str]:
    return [block.hash for block in blocks]


@BOTH
def test_a_chain_is_born_with_its_first_block(network: Network) -> None:
    chain = ChainSim(1, network=network, start_block=1000, genesis_time=50)
    assert chain.canonical() == [chain.head]
    assert (chain.head.number, chain.head.timestamp) == (1000, 50)
    assert chain.head.parent_number == 999
    assert chain.finalized is None


def test_an_evm_genesis_block_has_a_parent_of_zeros() -> None:
    assert ChainSim(1).head.parent_hash == "0x" + "0" * 64
    assert ChainSim(1).head.parent_number == 0


@BOTH
def test_each_block_names_its_predecessor(network: Network) -> None:
    chain = ChainSim(2, network=network)
    chain.extend(200)
    for parent, child in pairwise(chain.canonical()):
        assert (child.parent_hash, child.parent_number) == (parent.hash, parent.number)
        assert child.height == parent.height + 1
        assert child.timestamp >= parent.timestamp
        assert child.number > parent.number


def test_hashes_look_like_those_of_the_network() -> None:
    evm = ChainSim(3).extend(1)[0]
    assert len(evm.hash) == 66
    assert int(evm.hash, 16)
    solana = ChainSim(3, network=Network.SOLANA).extend(1)[0]
    assert len(base58.decode(solana.hash)) == 32


def test_evm_numbers_have_no_gaps_and_twelve_seconds_between_them() -> None:
    blocks = ChainSim(0, genesis_time=0).extend(50)
    assert [block.number for block in blocks] == list(range(1, 51))
    assert [block.timestamp for block in blocks] == list(range(12, 612, 12))


def test_solana_skips_about_the_asked_share_of_slots() -> None:
    chain = ChainSim(4, network=Network.SOLANA, skipped_share=0.2)
    chain.grow(5000)
    assert chain.head.height == 5000
    skipped = 1 - 5000 / chain.head.number
    assert 0.17 < skipped < 0.23
    assert chain.head.timestamp == chain.genesis_time + chain.head.number * 2 // 5


def test_solana_without_skipped_slots_has_no_gaps() -> None:
    blocks = ChainSim(4, network=Network.SOLANA, skipped_share=0).extend(50)
    assert [block.number for block in blocks] == list(range(1, 51))


@BOTH
def test_the_same_seed_and_calls_give_the_same_chain(network: Network) -> None:
    def run(seed: int) -> list[SimBlock]:
        chain = ChainSim(seed, network=network)
        chain.extend(20)
        chain.fork(3)
        chain.extend(5)
        return chain.canonical()

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_growing_in_steps_or_at_once_is_the_same() -> None:
    steps, leap = ChainSim(5), ChainSim(5)
    for _ in range(10):
        steps.extend()
    assert leap.grow(10) == steps.head
    assert leap.canonical() == steps.canonical()


def test_a_fork_replaces_the_newest_blocks_by_siblings() -> None:
    chain = ChainSim(6)
    before = [chain.head, *chain.extend(10)]
    ancestor = chain.fork(3)
    assert ancestor == before[7]
    assert chain.head.number == 11
    assert chain.canonical(to_block=7) == before[:8]
    assert not set(hashes(chain.canonical(8))) & set(hashes(before))
    assert chain.forks == [
        ForkRecord(ancestor, 3, tuple(hashes(before[8:])), tuple(hashes(chain.canonical(8))))
    ]


def test_a_fork_may_be_shorter_or_let_the_head_fall_back() -> None:
    chain = ChainSim(6)
    chain.extend(10)
    chain.fork(5, 2)
    assert chain.head.number == 7
    old = chain.head
    chain.fork(1, 0)
    assert chain.head.number == 6
    assert chain.extend(1)[0].hash != old.hash


def test_forks_at_the_same_place_give_other_blocks_each_time() -> None:
    chain = ChainSim(7)
    chain.extend(5)
    tips = {chain.head.hash}
    for _ in range(20):
        chain.fork(1, 1)
        tips.add(chain.head.hash)
    assert len(tips) == 21


def test_final_blocks_are_not_replaced_unless_forced() -> None:
    chain = ChainSim(8)
    chain.extend(10)
    chain.finalize(7)
    chain.fork(3)
    with pytest.raises(InvalidOptionError, match="block 7"):
        chain.fork(5)
    violated = chain.block(chain.at_or_below(7).hash)  # type: ignore[union-attr]
    chain.fork(5, force=True)
    assert chain.finalized is not None
    assert chain.finalized.number == 7
    assert chain.finalized != violated


@pytest.mark.parametrize(("depth", "length"), [(0, 1), (11, 1), (-1, None), (3, -1)])
def test_a_fork_that_cannot_be_is_refused(depth: int, length: int | None) -> None:
    chain = ChainSim(9)
    chain.extend(10)
    with pytest.raises(InvalidOptionError, match="depth must be between 1 and 10"):
        chain.fork(depth, length)
    assert chain.head.number == 10


def test_finality_takes_the_block_at_or_below_and_never_goes_back() -> None:
    chain = ChainSim(10, network=Network.SOLANA, skipped_share=0.5, start_block=100)
    blocks = chain.extend(50)
    gap = next(number for number in range(110, 300) if number not in {b.number for b in blocks})
    below = [block for block in blocks if block.number < gap][-1]
    assert chain.finalize(gap) == below
    assert chain.finalize(101) == below
    assert chain.finalize(10**9) == chain.head == chain.finalized
    with pytest.raises(InvalidOptionError, match="100 or more"):
        chain.finalize(99)


def test_block_zero_can_be_final() -> None:
    chain = ChainSim(10)
    assert chain.finalize(0) == chain.head == chain.finalized


def test_an_orphaned_branch_can_become_canonical_again() -> None:
    chain = ChainSim(11)
    chain.extend(10)
    first = chain.canonical()
    chain.fork(4, 6)
    second = chain.canonical()
    ancestor = chain.adopt(first[-1].hash)
    assert ancestor == first[6]
    assert chain.canonical() == first
    assert chain.path(second[-1].hash) == second
    assert chain.forks[-1].new_hashes == chain.forks[0].orphaned_hashes
    assert chain.extend(1)[0].parent_hash == first[-1].hash
    with pytest.raises(InvalidOptionError, match="orphaned"):
        chain.adopt(chain.head.hash)


def test_a_branch_is_known_by_its_tip_alone() -> None:
    chain = ChainSim(12)
    chain.extend(10)
    old = chain.canonical()
    chain.fork(4)
    chain.extend(3)
    older = chain.canonical()
    chain.fork(7)
    assert chain.path(old[-1].hash) == old
    assert chain.path(older[-1].hash, from_number=6) == older[6:]
    assert chain.path(old[3].hash) == old[:4]
    assert chain.at_or_below(8, old[-1].hash) == old[8]
    assert chain.at_or_below(3, old[-1].hash) == old[3]
    assert chain.at_or_below(99, old[5].hash) == old[5]
    assert chain.at_or_below(-1) is None
    assert chain.is_ancestor(old[6].hash, older[-1].hash)
    assert not chain.is_ancestor(old[7].hash, older[-1].hash)
    assert chain.is_ancestor(old[9].hash, old[9].hash)


@BOTH
def test_unknown_hashes_are_refused_or_nobodys_ancestor(network: Network) -> None:
    chain = ChainSim(13, network=network)
    chain.extend(3)
    foreign = ChainSim(14, network=network).extend(3)[-1]
    for unknown in (foreign.hash, "", "0x", "0x12", "0xzz", "0", "O0"):
        assert chain.find(unknown) is None
        assert not chain.is_ancestor(unknown, chain.head.hash)
        assert not chain.is_ancestor(chain.head.hash, unknown)
        with pytest.raises(InvalidOptionError):
            chain.block(unknown)
        with pytest.raises(InvalidOptionError):
            chain.path(unknown)
        with pytest.raises(InvalidOptionError):
            chain.at_or_below(1, unknown)


def test_a_block_gives_its_cursor() -> None:
    block = ChainSim(15).head
    assert block.cursor == BlockCursor(block.number, block.hash)
    assert block.cursor.timestamp == block.timestamp


def test_the_first_block_at_a_time_is_found() -> None:
    chain = ChainSim(16, genesis_time=1000, block_time_s=10)
    blocks = [chain.head, *chain.extend(5)]
    assert chain.first_at(0) == blocks[0]
    assert chain.first_at(1010) == blocks[1]
    assert chain.first_at(1011) == blocks[2]
    assert chain.first_at(1051) is None


def test_a_chain_that_follows_a_clock_ends_now_with_the_hashes_of_its_seed() -> None:
    now = [5000.5]
    chain, same = ChainSim(16, block_time_s=10), ChainSim(16)
    chain.grow(5)
    chain.follow_clock(lambda: now[0])
    assert [one.timestamp for one in chain.canonical()] == [4950, 4960, 4970, 4980, 4990, 5000]
    now[0] = 5003
    old = chain.extend(2)
    now[0] = 5001  # a clock that goes back
    chain.fork(2)
    assert [one.timestamp for one in chain.canonical(5)] == [5000, 5001, 5001, 5001]
    assert chain.block(old[0].hash).timestamp == 5003
    chain.adopt(old[-1].hash)
    assert [one.timestamp for one in chain.canonical(5)] == [5000, 5003, 5003]
    assert chain.head == old[-1] == chain.canonical()[-1]
    assert chain.first_at(5001) == old[0]
    same.grow(7)
    assert [one.hash for one in chain.canonical()] == [one.hash for one in same.canonical()]


@pytest.mark.parametrize(
    "options",
    [
        {"start_block": -1},
        {"skipped_share": 0.8},
        {"skipped_share": -0.1},
        {"block_time_s": -1},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        ChainSim(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"transactions_per_block": -1},
        {"failed_share": 1.5},
        {"accounts": 3},
        {"tokens": 1},
    ],
)
def test_content_settings_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidOptionError):
        ContentSettings(**options)


def test_growing_by_less_than_nothing_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="count"):
        ChainSim().extend(-1)


def test_a_long_chain_is_light_and_answers_at_once() -> None:
    chain = ChainSim(17)
    chain.grow(200_000)
    held = sys.getsizeof(chain._hashes) + sys.getsizeof(chain._numbers)
    assert held < 200_000 * 50
    assert [block.number for block in chain.canonical(150_000, 150_002)] == [
        150_000,
        150_001,
        150_002,
    ]
    middle = chain.canonical(99_999, 99_999)[0]
    assert chain.block(middle.hash) == middle
    assert chain.is_ancestor(middle.hash, chain.head.hash)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"\0", "1"),
        (b"\0\0a", "112g"),
        (bytes(32), "1" * 32),
        (b"hello world", "StV1DL6CwTryKyV"),
        (bytes.fromhex("0300743ba40b000000"), "3DXy58UDhJuu"),
        (bytes.fromhex("02000000a215120000000000"), "3Bxs4Ty4XnVSszuM"),
        (b"\x03", "4"),
    ],
)
def test_base58_agrees_with_known_vectors(raw: bytes, text: str) -> None:
    assert base58.encode(raw) == text
    assert base58.decode(text) == raw


def test_base58_refuses_foreign_characters() -> None:
    with pytest.raises(ValueError, match="not a base58 character"):
        base58.decode("0OIl")
