"""The journal and the offsets: what is kept, what goes, and what is refused. No Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from headwater.core import DEFAULT_CAP
from headwater.errors import (
    ForkCursorMissingError,
    JournalFormatError,
    JournalInUseError,
    JournalMissingError,
    JournalStorageError,
    OffsetFormatError,
    SourceOptionError,
)
from headwater.spark.streaming.folder import Folder, LocalFolder, open_folder
from headwater.spark.streaming.journal import (
    HEADER,
    Journal,
    Offset,
    ReadFrom,
    decode_segment,
    encode_segment,
    segment_rows,
)
from headwater.spark.streaming.source import is_stream, load_stream
from headwater.testing import ChainSim, ContentSettings, PortalSim
from tests.spark.streaming.micro_batches import Killed, Query, limits
from tests.spark.streaming.test_follower import Truth, act, chain_of
from tests.targets.lake_places import ACCESS_KEY, SECRET_KEY, bucket


@pytest.fixture
def chain() -> ChainSim:
    return chain_of(3)


@pytest.fixture
def query(chain: ChainSim, tmp_path: Path) -> Iterator[Query]:
    with Query(PortalSim(chain, seed=3), tmp_path, dice=Random(3), limits=limits()) as query:
        yield query


def run(query: Query) -> None:
    while query.trigger():
        pass


def reach_head(query: Query, chain: ChainSim) -> None:
    for _ in range(200):
        if not query.trigger() and query.ends[-1]["hash"] == chain.head.hash:
            return
    pytest.fail("the head was not reached")


def rewrite(path: Path, **changed: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def test_offsets_are_stored_and_read_again() -> None:
    offset = Offset(12, 10, "0xab", ReadFrom.JOURNAL, 7, 1)
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert list(offset.to_json())[:3] == ["format", "version", "number"]


@pytest.mark.guarantee("STREAM-3")
@pytest.mark.parametrize(
    "changed",
    [{"format": 2}, {"format": None}, {"version": "12"}, {"read": "elsewhere"}, {"forks": None}],
)
def test_an_offset_of_another_format_is_refused(changed: dict[str, object]) -> None:
    stored = {**Offset(12, 10, "0xab", ReadFrom.PORTAL).to_json(), **changed}
    with pytest.raises(OffsetFormatError, match="E5010"):
        Offset.from_json(stored)


def test_offsets_that_do_not_belong_together_are_refused(query: Query) -> None:
    run(query)
    end = Offset.from_json(query.ends[0])
    with pytest.raises(OffsetFormatError, match="belong"):
        query.follower.plan(Offset(5, 3, "0xab", ReadFrom.JOURNAL), end)


@pytest.mark.guarantee("STREAM-2")
def test_the_journal_holds_the_hot_blocks_and_no_more(query: Query, chain: ChainSim) -> None:
    run(query)
    for _ in range(60):
        chain.extend(1)
        chain.finalize(chain.head.number - 8)
        run(query)
        # the hot blocks, the one that finality stands on, and what is not committed yet
        assert len(query.files()) <= 10
    assert len(query.files()) >= 8


@pytest.mark.guarantee("STREAM-2")
def test_the_journal_is_bounded_where_finality_is_not_known(tmp_path: Path) -> None:
    """What a fork can reach is bounded; a deeper one is refused, and nothing is retracted."""
    chain = ChainSim(3, content=ContentSettings(transactions_per_block=1.5))
    hot = limits(hot_blocks=100)
    with Query(PortalSim(chain, seed=3), tmp_path, dice=Random(3), limits=hot) as query:
        for _ in range(6):  # not every block has rows
            chain.extend(300)
            run(query)
            assert journal_blocks(query) <= DEFAULT_CAP + 2 * 100
        assert journal_blocks(query) >= DEFAULT_CAP
        query.kill()
        chain.fork(chain.head.number - 20)
        before = dict(query.sink)
        with pytest.raises(ForkCursorMissingError, match="E1003"):
            run(query)
        assert query.sink == before


@pytest.mark.guarantee("STREAM-2")
def test_the_journal_grows_while_finality_stands_still_and_shrinks_once_it_moves(
    query: Query, chain: ChainSim
) -> None:
    run(query)
    chain.extend(100)
    run(query)
    held = journal_blocks(query)
    query.kill()
    chain.fork(105)
    run(query)
    Truth(chain).check(query)
    assert query.ends[-1]["forks"] == 1
    chain.finalize(chain.head.number - 3)
    chain.extend(1)
    for _ in range(3):  # Spark tells of a commit one micro-batch later
        run(query)
        chain.extend(1)
    assert journal_blocks(query) < 15 < held


def journal_blocks(query: Query) -> int:
    """Return the blocks that the journal says it holds; its bytes are those of its files."""
    told = query.follower.newest()
    assert told is not None
    assert told["journal_bytes"] == sum(
        (query.folder / one).stat().st_size for one in query.files()
    )
    return int(told["journal_blocks"])


def test_the_size_of_a_journal_is_told_after_a_restart(query: Query, chain: ChainSim) -> None:
    run(query)
    held = journal_blocks(query)
    assert held >= 10
    query.kill()
    chain.extend(1)
    run(query)
    assert journal_blocks(query) >= held


def test_a_fork_while_the_query_was_down_is_retracted(query: Query, chain: ChainSim) -> None:
    run(query)
    query.kill()
    chain.fork(4, 6)
    run(query)
    deleted = [version for version, sign, _ in query.versions() if sign < 0]
    assert deleted
    assert query.ends[-1]["forks"] == 1
    assert {row["block_hash"] for row in query.net().values()} <= {
        one.hash for one in chain.canonical()
    }


def test_a_journal_that_kept_places_in_32_bits_goes_on(query: Query, chain: ChainSim) -> None:
    """An earlier release wrote it: what a fork takes back has the columns of now."""
    reach_head(query, chain)
    query.kill()
    for path in (query.folder / name for name in query.files()):
        data = path.read_bytes()
        segment, rows = decode_segment(data, path.name), segment_rows(data)
        path.write_bytes(encode_segment(segment, rows.cast(_narrow(rows.schema))))
    chain.fork(5, 8)
    reach_head(query, chain)
    Truth(chain).check(query)
    assert any(row["_change_type"] == "delete" for rows in query.sink.values() for row in rows)


def _narrow(schema: pa.Schema) -> pa.Schema:
    for name in ("transaction_index", "log_index"):
        schema = schema.set(schema.get_field_index(name), pa.field(name, pa.int32()))
    return schema


def test_deletes_come_newest_first_and_before_inserts(query: Query, chain: ChainSim) -> None:
    run(query)
    chain.fork(5)
    run(query)
    rows = next(rows for rows in query.sink.values() if any(row["_sign"] < 0 for row in rows))
    deleted = [(row["block_number"], row["log_index"]) for row in rows if row["_sign"] < 0]
    assert deleted == sorted(deleted, reverse=True)
    signs = [row["_sign"] for row in rows]
    assert signs == sorted(signs)
    kinds = {(row["_sign"], row["_change_type"]) for row in rows}
    assert kinds == {(1, "insert"), (-1, "delete")}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_query_that_began_at_the_head_starts_again(
    depth: int, tmp_path: Path, chain: ChainSim
) -> None:
    """Blocks below the first one can be landed on, and are not in the journal: none is missing."""
    first = chain.head.number
    with Query(
        PortalSim(chain, seed=3), tmp_path, dice=Random(3), first_block=lambda: first,
        limits=limits(),
    ) as query:  # fmt: skip
        assert query.trigger()
        query.kill()
        chain.fork(depth, depth + 2) if depth else chain.extend(2)
        run(query)
        assert query.ends[-1]["hash"] == chain.head.hash
        assert query.ends[-1]["forks"] == min(depth, 1)
        Truth(chain, first).check(query)


def test_a_driver_killed_while_executors_read_on_from_the_head_starts_again(
    query: Query, chain: ChainSim
) -> None:
    """Finality has reached the head, and many final blocks follow at once."""
    run(query)
    chain.finalize(chain.head.number)
    run(query)
    query.follower._stop_reading()  # as after the answer of a stale replica
    chain.extend(40)
    chain.finalize(chain.head.number)
    query.kill_at = "plan"
    with pytest.raises(Killed):
        query.trigger()
    assert query.ends[-1]["read"] == "portal"
    query.kill()
    run(query)
    assert query.ends[-1]["hash"] == chain.head.hash
    Truth(chain).check(query)


@pytest.mark.parametrize("final_only", [True, False])
def test_a_start_at_the_head_is_decided_once(
    chain: ChainSim, tmp_path: Path, final_only: bool
) -> None:
    """Spark asks for it again when it runs the first micro-batch, and after a kill."""
    with Query(
        PortalSim(chain, seed=3),
        tmp_path,
        dice=Random(3),
        limits=limits(far=1, first_span=20),
        first_block=lambda: chain.head.number - 16,
        final_only=final_only,
    ) as query:
        query.kill_at = "plan"
        with pytest.raises(Killed):
            query.trigger()
        query.kill()
        first, last = chain.head.number - 16, query.ends[0]["number"]
        chain.extend(2)
        chain.finalize(chain.head.number)
        run(query)
    expected = [row for one in chain.canonical()[first:] for row in Truth(chain).rows(one)]
    assert query.ends[0]["number"] == last
    assert len(query.net()) == len(expected)
    assert {row["block_hash"] for row in query.net().values()} == {row[1] for row in expected}


@pytest.mark.guarantee("STREAM-3")
def test_a_journal_of_another_format_or_query_is_refused(query: Query, tmp_path: Path) -> None:
    run(query)
    query.kill()
    header = tmp_path / HEADER
    before = header.read_text()
    for changed in ({"format": 9}, {"fingerprint": "other"}):
        rewrite(header, **changed)
        with pytest.raises(JournalFormatError, match="E5011"):
            query.trigger()
        query.kill()
        header.write_text(before)
    header.write_text("{")
    with pytest.raises(JournalFormatError, match="damaged"):
        query.trigger()
    query.kill()
    header.unlink()
    with pytest.raises(JournalFormatError, match="lost its header"):
        query.trigger()


def test_a_damaged_segment_is_refused_if_it_is_needed(query: Query, tmp_path: Path) -> None:
    run(query)
    query.kill()
    name = query.files()[-1]
    (tmp_path / name).write_bytes(b"torn")
    with pytest.raises(JournalFormatError, match="damaged"):
        query.trigger()


def test_a_segment_that_is_gone_is_missed(query: Query, tmp_path: Path) -> None:
    """Without it a fork would take back less than it must."""
    run(query)
    query.kill()
    for name in query.files()[:-1]:
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        with pytest.raises(JournalMissingError, match="E5012"):
            query.trigger()
        query.kill()
        (tmp_path / name).write_bytes(data)
    assert not query.trigger()


def test_a_truncated_segment_is_refused(query: Query, tmp_path: Path) -> None:
    run(query)
    query.kill()
    for name in query.files():
        data = (tmp_path / name).read_bytes()
        for kept in (0, 7, len(data) // 2, len(data) - 1):
            (tmp_path / name).write_bytes(data[:kept])
            with pytest.raises(JournalFormatError, match="E5011"):
                query.trigger()
            query.kill()
        (tmp_path / name).write_bytes(data)
    assert not query.trigger()


def test_a_segment_that_was_half_written_is_forgotten(
    query: Query, chain: ChainSim, tmp_path: Path
) -> None:
    """A store without atomic files may show one; no offset covers it."""
    run(query)
    query.kill()
    following = query.ends[-1]["version"] + 1
    (tmp_path / f"{following:020d}.arrow").write_bytes(b"ARROW1")
    chain.extend(2)
    run(query)
    assert query.ends[-1]["number"] == chain.head.number


def test_a_journal_that_is_gone_is_missed(query: Query, tmp_path: Path) -> None:
    run(query)
    query.kill()
    for one in tmp_path.iterdir():
        one.unlink()
    with pytest.raises(JournalMissingError, match="E5012"):
        query.trigger()


def test_a_checkpoint_that_went_back_is_refused(query: Query, chain: ChainSim) -> None:
    run(query)
    for _ in range(20):
        chain.extend(1)
        chain.finalize(chain.head.number - 3)
        run(query)
    hot = [end for end in query.ends if end["read"] == "journal"]
    with pytest.raises(JournalMissingError):
        query.follower.plan(Offset.from_json(hot[0]), Offset.from_json(hot[1]))
    query.kill()
    with pytest.raises(JournalMissingError):
        query.follower.next(Offset.from_json(hot[0]))


def test_a_checkpoint_that_was_deleted_needs_a_new_journal(query: Query, chain: ChainSim) -> None:
    run(query)
    for _ in range(20):
        chain.extend(1)
        chain.finalize(chain.head.number - 3)
        run(query)
    query.kill()
    with pytest.raises(JournalFormatError, match="no checkpoint"):
        query.start(0)


def test_a_journal_is_used_by_one_process(query: Query, tmp_path: Path) -> None:
    run(query)
    second = Journal(LocalFolder(tmp_path, wait_s=0), "rows")
    with pytest.raises(JournalInUseError, match="E5013"):
        second.open()


@pytest.fixture
def addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return the address of an empty folder of a kind."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)

    def address(kind: str) -> str:
        if kind == "s3":
            made = bucket()
            scheme, _, host = made.options["s3.endpoint"].partition("://")
            return f"{made.uri}?region=us-east-1&scheme={scheme}&endpoint_override={host}"
        return tmp_path.as_uri() if kind == "local" else f"memory://journal-{tmp_path.name}"

    return address


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_folders_write_a_file_once(kind: str, addresses: Callable[[str], str]) -> None:
    folder: Folder = open_folder(addresses(kind))
    folder.open()
    with closing(folder):
        assert folder.read("a") is None
        folder.create("b", b"2")
        folder.create("a", b"1")
        with pytest.raises(JournalInUseError):
            folder.create("a", b"3")
        assert (folder.names(), folder.read("a")) == (["a", "b"], b"1")
        folder.remove("a")
        folder.remove("a")
        assert folder.names() == ["b"]
    assert fsspec.available_protocols()


@pytest.mark.guarantee("STREAM-1")
@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_a_remote_journal_does_as_a_local_one(
    kind: str, chain: ChainSim, tmp_path: Path, addresses: Callable[[str], str]
) -> None:
    portal, address = PortalSim(chain, seed=3), addresses(kind)
    dice, truth = Random(3), Truth(chain)
    with Query(portal, tmp_path, dice=dice, limits=limits(), address=address) as query:
        query.kill_rate = 0.1
        for _ in range(40):
            act(query, chain, truth, dice)
        query.kill_rate = 0
        chain.extend(9)
        reach_head(query, chain)
        query.kill()
        chain.fork(3)
        reach_head(query, chain)
        truth.check(query)
        assert query.ends[-1]["forks"] >= 1
        assert query.kills > 3
    assert not query.files()


@pytest.mark.guarantee("STREAM-3")
@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_a_process_that_lost_a_remote_journal_hands_out_nothing(
    kind: str, chain: ChainSim, tmp_path: Path, addresses: Callable[[str], str]
) -> None:
    """Two processes on one journal, as after a driver that was only thought dead."""
    portal, address = PortalSim(chain, seed=3), addresses(kind)
    with (
        Query(portal, tmp_path, dice=Random(3), limits=limits(), address=address) as first,
        Query(portal, tmp_path, dice=Random(3), limits=limits(), address=address) as second,
    ):
        run(first)
        chain.extend(1)
        second.take_over(first)
        run(second)
        with pytest.raises(JournalInUseError, match="taken over"):
            first.trigger()
        chain.fork(2, 4)
        run(second)
        third = Query(portal, tmp_path, dice=Random(3), limits=limits(), address=address)
        with third:
            third.take_over(second)
            chain.extend(2)
            run(third)
            Truth(chain).check(third)
            assert third.ends[-1]["hash"] == chain.head.hash


def test_what_a_process_wrote_after_it_lost_the_journal_does_not_count(tmp_path: Path) -> None:
    """The claim of the second comes between a write of the first and its look at the claims."""
    address = f"memory://lost-{tmp_path.name}"
    first, second = open_folder(address), open_folder(address)
    first.open()
    first.create("1.arrow", b"1")
    second.open()
    second.create("2.arrow", b"of the second")
    for name in ("2.arrow", "3.arrow"):
        with pytest.raises(JournalInUseError):
            first.create(name, b"of the first")
    third = open_folder(address)
    third.open()
    assert third.names() == ["1.arrow", "2.arrow"]
    assert third.read("2.arrow") == b"of the second"


def test_a_journal_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(JournalStorageError, match="E5017"):
        open_folder(str(tmp_path / "file" / "journal")).open()
    with pytest.raises(SourceOptionError, match=r"E5002.*credentials"):
        open_folder("s3://key:secret@bucket/journal")
    with pytest.raises(SourceOptionError, match="cannot be opened"):
        open_folder("nowhere://journal")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a journal"),
        ({"journal": "/j", "final_only": "true"}, "either a journal"),
        ({"final_only": "perhaps"}, "true or false"),
        ({"journal": "/j", "maxBlocksPerTrigger": "0"}, "maxBlocksPerTrigger must be"),
        ({"journal": "/j", "checkpoint": "/c"}, "unknown option 'checkpoint'"),
        ({"journal": "/j", "to_block": "+5"}, "toBlock"),
        ({"journal": "/j", "to_block": "latest"}, "toBlock"),
    ],
)
def test_options_are_checked_when_the_stream_is_loaded(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(SourceOptionError, match=message):
        load_stream(
            {"portal": "http://127.0.0.1:1/datasets/x", "event": "erc20.Transfer", **options}
        )


def test_a_journal_of_release_0_2_is_that_of_the_same_query() -> None:
    """It kept places of logs and transactions in fewer bits."""
    options = {"portal": "http://localhost:1/datasets/x", "event": "erc20.Transfer"}
    loaded = load_stream({**options, "journal": "/journal"})
    known = "5294ba27eb00ba7daf5ce829532c3f1fd67cbd73a47193622355576e0f88c4a0"
    assert loaded.fingerprint == known


def test_a_stream_is_told_by_its_options() -> None:
    assert is_stream({"Journal": "/j"})
    assert is_stream({"final_only": "true"})
    assert not is_stream({"event": "erc20.Transfer"})


def test_final_only_needs_no_journal_and_retracts_nothing(chain: ChainSim, tmp_path: Path) -> None:
    settings = limits(far=5)
    with Query(
        PortalSim(chain, seed=3),
        tmp_path / "none",
        dice=Random(3),
        limits=settings,
        final_only=True,
    ) as query:
        for _ in range(10):
            run(query)
            chain.fork(2)
            chain.extend(4)
            chain.finalize(chain.head.number - 5)
            query.kill()
        run(query)
        final = chain.finalized
        assert final is not None
        assert query.ends[-1]["number"] == final.number
        assert {sign for _, sign, _ in query.versions()} == {1}
        assert [version for version, _, _ in query.versions()] == sorted(
            {row["block_number"] for row in query.net().values()}
        )
    assert not (tmp_path / "none").exists()
