"""What micro-batches hold, on random chains with forks, kills and replays; no Spark is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from headwater.core import (
    AtHead,
    BlockCursor,
    BlockHeader,
    BlockRange,
    Blocks,
    Density,
    Fork,
    Head,
    PipeState,
    Span,
)
from headwater.errors import MissingBlocksError
from headwater.pipeline import Answers, Said, Source
from headwater.portal import PortalClient
from headwater.spark.streaming.folder import LocalFolder
from headwater.spark.streaming.journal import Journal, Offset, ReadFrom
from headwater.spark.streaming.source import (
    Changelog,
    FinalPart,
    JournalPart,
    Upstream,
    load_stream,
)
from headwater.stream.changelog import Follower
from headwater.testing import (
    Balance,
    ChainSim,
    ContentSettings,
    PortalSim,
    SimBlock,
    SimTransport,
    VirtualClock,
    simulated_portal,
)
from tests.sampling import is_whole
from tests.spark.streaming.micro_batches import ROWS, TRANSFER, Killed, Query, limits
from tests.stream.truth import transfers

SEEDS = range(100 if is_whole() else 16)


def chain_of(seed: int, blocks: int = 40, final: int = 25) -> ChainSim:
    content = ContentSettings(transactions_per_block=1.5, transfers_per_transaction=1)
    chain = ChainSim(seed, content=content)
    chain.grow(blocks)
    chain.finalize(final)
    return chain


class Truth:
    """The rows of branches, worked out from the simulated contents alone."""

    def __init__(self, chain: ChainSim, first: int = 0) -> None:
        self._chain = chain
        self._first = first
        self._rows: dict[str, list[tuple[str, ...]]] = {}

    def rows(self, block: SimBlock) -> list[tuple[str, ...]]:
        if block.hash not in self._rows:
            found = transfers(self._chain, [block] if block.number >= self._first else [])
            self._rows[block.hash] = [tuple(map(str, one)) for one in found]
        return self._rows[block.hash]

    def check(self, query: Query) -> None:
        """At every offset, what is netted so far is the branch that ends there."""
        if not query.sink:
            return
        end = query.ends[max(query.sink)]
        expected = [row for one in self._chain.path(end["hash"]) for row in self.rows(one)]
        found = [tuple(str(row[name]) for name in NAMES) for row in query.net().values()]
        assert sorted(found) == sorted(expected)
        versions = [version for version, _, _ in query.versions()]
        assert versions == sorted(set(versions)), "versions ascend and never repeat"


NAMES = ("block_number", "block_hash", "log_index", "address", "from", "to", "value")


@pytest.mark.guarantee("STREAM-1")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_netted_changelog_is_the_canonical_chain_whatever_is_killed(
    seed: int, tmp_path: Path
) -> None:
    dice = Random(f"changelog {seed}")
    chain = chain_of(seed)
    portal = PortalSim(
        chain,
        seed=seed,
        replicas=dice.choice([1, 1, 2]),
        balance=dice.choice(list(Balance)),
        blocks_per_answer=dice.choice([(3, 3), (1, 20), (500, 500)]),
        sample_size=dice.choice([1, 3, 50]),
    )
    far = dice.choice([2, 10, 1000])
    settings = limits(far=far, hot_blocks=dice.choice([1, 4]))
    first = dice.choice([0, 0, chain.head.number])
    truth = Truth(chain, first)
    with Query(portal, tmp_path, dice=dice, limits=settings, first_block=lambda: first) as query:
        query.kill_rate = dice.choice([0.0, 0.05, 0.2])
        for _ in range(90):
            act(query, chain, truth, dice)
        query.kill_rate = 0
        chain.extend(9)  # a head that fell back comes to stand above what was read
        for _ in range(200):
            if not query.trigger() and query.ends and query.ends[-1]["hash"] == chain.head.hash:
                break
        else:
            pytest.fail("the head was not reached")
        truth.check(query)


def act(query: Query, chain: ChainSim, truth: Truth, dice: Random) -> None:
    """Let one thing happen to the chain or to the query, and check what the query holds."""
    final = 0 if chain.finalized is None else chain.finalized.number
    match dice.choices(["grow", "finalize", "fork", "kill", "step"], [20, 8, 8, 3, 60])[0]:
        case "grow":
            chain.extend(dice.choice([1, 1, 2, 5]))
        case "finalize":
            chain.finalize(max(0, chain.head.number - dice.randrange(12)))
        case "fork":
            room = chain.head.number - final
            if room:
                depth = dice.choice([1, min(2, room), dice.randint(1, room)])
                chain.fork(depth, dice.choice([None, depth, max(0, depth - 1)]))
        case "kill":
            query.kill()
        case _:
            try:
                query.trigger()
            except Killed:
                query.kill()
            truth.check(query)


def test_many_tasks_read_what_is_far_behind_and_one_reads_at_the_head(tmp_path: Path) -> None:
    """A micro-batch of hot blocks is small in number of blocks and in bytes."""
    chain = chain_of(3, blocks=60)
    sizes, settings = [], limits(far=10, first_span=12)
    for hot_bytes in (1 << 24, 1):
        settings = replace(settings, hot_bytes=hot_bytes)
        folder = tmp_path / str(hot_bytes)
        with Query(PortalSim(chain, seed=3), folder, dice=Random(3), limits=settings) as query:
            while query.trigger():
                pass
            assert query.ends[-1]["hash"] == chain.head.hash
            ends = [Offset.before(0), *map(Offset.from_json, query.ends)]
            first, last = query.follower.plan(*ends[:2]), query.follower.plan(*ends[-2:])
            blocks = [part.part.blocks for part in first if isinstance(part, FinalPart)]
            assert len(blocks) == 3
            assert (blocks[0].from_block, blocks[-1].to_block) == (0, ends[1].number)
            assert [type(part) for part in last] == [JournalPart]
            hot = [
                rows
                for end, rows in zip(query.ends, query.sink.values(), strict=True)
                if end["read"] == "journal"
            ]
            sizes.append(max(len({row["block_hash"] for row in rows}) for rows in hot))
    assert sizes == [4, 1]


def sizes_of(portal: PortalSim) -> dict[int, int]:
    """Return the bytes of the lines that the portal sends, by block: none where none has rows."""
    client = PortalClient(SimTransport(portal, VirtualClock()))
    last = BlockRange(0, portal.chain.head.number)
    answers = [one for one in client.read(TRANSFER.query, last) if isinstance(one, Blocks)]
    return {
        header.number: len(line)
        for one in answers
        for header, line in zip(one.headers, one.lines, strict=True)
    }


def run_with(folder: Path, portal: PortalSim, **options: str) -> list[Offset]:
    """Let a query with these options reach the head; return the ends of its micro-batches."""
    needed = {"portal": "http://127.0.0.1:1/d", "event": "erc20.Transfer", "journal": str(folder)}
    loaded = load_stream({**needed, "far": "10", **options})
    with Query(portal, folder, dice=Random(3), limits=loaded.limits) as query:
        while query.trigger():
            pass
        assert query.ends[-1]["hash"] == portal.chain.head.hash
        Truth(portal.chain).check(query)
        return [Offset.before(0), *map(Offset.from_json, query.ends)]


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_max_blocks_per_trigger_bounds_every_micro_batch(most: int, tmp_path: Path) -> None:
    """Those of final blocks, which executors read, and those of hot ones."""
    portal = PortalSim(chain_of(3), seed=3)
    sizes = sizes_of(portal)
    ends = run_with(tmp_path, portal, maxBlocksPerTrigger=str(most))
    assert {one.read for one in ends[1:]} == {ReadFrom.PORTAL, ReadFrom.JOURNAL}
    for begin, end in pairwise(ends):
        held = [number for number in sizes if begin.number < number <= end.number]
        assert len(held) <= most


@pytest.mark.parametrize("blocks", [0, 4])
def test_max_bytes_per_trigger_bounds_every_micro_batch(blocks: int, tmp_path: Path) -> None:
    """A block that is larger by itself is a micro-batch by itself. Final blocks are estimated."""
    portal = PortalSim(chain_of(3, blocks=120, final=60), seed=3)
    sizes = sizes_of(portal)
    most = 1 + blocks * sum(sizes.values()) // len(sizes)
    ends = run_with(tmp_path, portal, maxBytesPerTrigger=str(most))
    largest = 0
    for begin, end in pairwise(ends):
        numbers = [number for number in sizes if begin.number < number <= end.number]
        size = sum(sizes[number] for number in numbers)
        if end.read is ReadFrom.JOURNAL:
            assert size <= most or len(numbers) == 1
            largest = max(largest, len(numbers))
        elif begin.read is not ReadFrom.START:  # the first one is not measured yet
            assert size <= 3 * most or len(numbers) == 1
    assert largest > 1 if blocks else largest == 1


def test_a_run_up_to_now_ends_at_the_head_of_its_start_while_the_chain_grows(
    tmp_path: Path,
) -> None:
    """Also where a fork takes the head of its start: then at the canonical block of its height."""
    chain = chain_of(3)
    with Query(PortalSim(chain, seed=3), tmp_path, dice=Random(3), limits=limits()) as query:
        for run in range(2):
            goal = chain.head.number
            query.follower.end_at_head()
            while query.trigger():
                chain.extend(1)
                if query.ends[-1]["number"] >= goal and query.ends[-1]["forks"] == run:
                    chain.fork(chain.head.number - goal + 2)
            assert query.ends[-1]["number"] == goal < chain.head.number
            assert query.ends[-1]["hash"] == chain.canonical()[goal].hash
            assert query.ends[-1]["forks"] == run + 1
            query.kill()


def test_a_changelog_ends_where_the_portal_has_lost_its_next_block(tmp_path: Path) -> None:
    """A query that was down for longer than the window; what is in its journal stays."""
    chain = chain_of(3)
    portal = PortalSim(chain, seed=3, surface="hotblocks")
    with Query(portal, tmp_path, dice=Random(3), limits=limits()) as query:
        while query.trigger():
            pass
        ends = list(query.ends)
        query.kill()
        chain.fork(5)
        chain.extend(40)
        portal.drop_below(chain.head.number - 10)
        for _ in range(2):
            with pytest.raises(MissingBlocksError, match="E3010"):
                query.trigger()
        assert query.ends == ends


def test_a_changelog_that_may_lose_blocks_goes_on_behind_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it keeps of before was final; what follows is the chain's; what is missing is named."""
    chain = chain_of(3)
    portal = PortalSim(chain, seed=3, surface="hotblocks")
    may_lose = replace(limits(), may_lose=True)
    with Query(portal, tmp_path, dice=Random(3), limits=may_lose) as query:
        while query.trigger():
            pass
        known, final = query.ends[-1]["number"], query.ends[-1]["finalized"]
        query.kill()
        chain.fork(5)
        chain.extend(40)
        oldest = chain.head.number - 10
        portal.drop_below(oldest)
        while query.trigger():
            pass
        assert query.ends[-1]["number"] == chain.head.number
        kept = [row["block_number"] for row in query.net().values()]
        assert kept
        assert not [number for number in kept if final < number < oldest]
        hashes = {row["block_hash"] for row in query.net().values() if row["block_number"] > final}
        assert hashes <= {block.hash for block in chain.canonical()}
        assert final < known < oldest
    assert any(f"{final + 1}..{oldest - 1}" in message for message in caplog.messages)


def test_parts_of_blocks_that_are_lost_are_not_planned(tmp_path: Path) -> None:
    """So a query whose tasks no longer found them goes on when it is started again."""
    chain = chain_of(3)
    portal = PortalSim(chain, seed=3, surface="hotblocks")
    portal.drop_below(20)
    with Query(portal, tmp_path, dice=Random(3), limits=replace(limits(), may_lose=True)) as query:
        parts = query.upstream().cut(BlockRange(5, 29), ())
        assert (parts[0].from_block, parts[-1].to_block) == (20, 29)
        assert not query.upstream().cut(BlockRange(5, 19), ())
    with Query(portal, tmp_path, dice=Random(3), limits=limits()) as query:
        assert query.upstream().cut(BlockRange(5, 29), ())[0].from_block == 5


def test_a_changelog_that_begins_below_the_oldest_block_is_refused() -> None:
    """It was made to begin with the oldest block, without a word."""
    with simulated_portal(seed=3, blocks=40, surface="hotblocks", window=10) as portal:
        options = {"portal": portal.url, "event": "erc20.Transfer", "final_only": "true"}
        with pytest.raises(MissingBlocksError, match=r"missing=5\.\.29"):
            load_stream({**options, "from_block": "5"}).first_block()
        assert load_stream({**options, "from_block": "30"}).first_block() == 30
        lenient = {**options, "startingBlock": "5", "failOnDataLoss": "false"}
        assert load_stream(lenient).first_block() == 30


def test_the_net_meets_forks_kills_and_replays(tmp_path: Path) -> None:
    """The run above is worth something only if what it is about does happen."""
    seen = {"forks": 0, "kills": 0, "replays": 0, "deletes": 0}
    for seed in range(2):
        dice = Random(seed)
        chain = chain_of(seed)
        portal, truth = PortalSim(chain, seed=seed), Truth(chain)
        with Query(portal, tmp_path / str(seed), dice=dice, limits=limits()) as query:
            query.kill_rate = 0.15
            for step in range(60):
                try:
                    query.trigger()
                except Killed:
                    query.kill()
                chain.extend(1)
                if step % 7 == 3:
                    chain.fork(2)
                truth.check(query)
            seen["forks"] += query.ends[-1]["forks"]
            seen["kills"] += query.kills
            seen["replays"] += query.replays
            seen["deletes"] += sum(sign < 0 for _, sign, _ in query.versions())
    assert min(seen.values()) > 2, seen


class Script:
    """A source, and where it comes from, that says what a test wrote down: a list per reading."""

    def __init__(self, *readings: list[Said]) -> None:
        self._readings = iter(readings)

    def open(self, state: PipeState) -> None:
        pass

    def read(self, state: PipeState) -> Answers | None:
        return (answer for answer in next(self._readings))


class Scripted(Upstream):
    def __init__(self, script: Script) -> None:
        self._script = script

    def newest(self, *, final: bool) -> BlockCursor | None:
        return None

    def open(self, first: int, last: int | None, *, final: bool) -> Source:
        return self._script

    def rest(self) -> None:
        pass

    def cut(self, blocks: BlockRange, measured: Sequence[Density]) -> Sequence[BlockRange]:
        return [blocks]


def header(number: int) -> BlockHeader:
    return BlockHeader(number, f"0x{number}", f"0x{number - 1}", number - 1)


def test_a_fork_below_the_first_block_is_a_step_before_executors_read_on(tmp_path: Path) -> None:
    """It takes no block that was read; what follows it has other versions all the same."""
    line = b'{"header":{"number":40,"hash":"0x40","parentHash":"0x39","timestamp":1},"logs":[]}'
    head = Head(BlockCursor(25, "0x25"), header(40).cursor)
    final = header(60)
    script = Script(
        [Blocks((header(40),), (line,), head), Fork((header(39).cursor, BlockCursor(40, "0xb")))],
        [AtHead(Head()), Fork((BlockCursor(25, "0x25"), BlockCursor(39, "0xc")))],
        [Span(BlockRange(26, 60), final, Head(final.cursor, final.cursor))],
        [Blocks((header(61),), (line.replace(b"40", b"61").replace(b"39", b"60"),), Head())],
    )
    journal = Journal(LocalFolder(tmp_path), "rows")
    follower = Follower(Changelog(Scripted(script), ROWS, journal, limits()))
    ends = [follower.begin(40)]
    for _ in range(5):
        ends.append(follower.next(ends[-1]))
    places = [(end.number, end.version, end.forks) for end in ends]
    assert places == [(39, 39, 0), (40, 40, 0), (39, 41, 1), (25, 42, 2), (60, 77, 2), (61, 78, 2)]
    parts = [part for begin, end in pairwise(ends) for part in follower.plan(begin, end)]
    assert [type(part) for part in parts] == [JournalPart] * 3 + [FinalPart, JournalPart]
    assert isinstance(parts[3], FinalPart)
    assert (parts[3].part.blocks, parts[3].shift) == (BlockRange(26, 60), 17)
    follower.close()
