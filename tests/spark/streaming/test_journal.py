"""The journal and the offsets: what is kept, what goes, and what is refused. No Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import fsspec  # type: ignore[import-untyped]
import pytest

from headwater.errors import (
    JournalFormatError,
    JournalInUseError,
    JournalMissingError,
    OffsetFormatError,
    SourceOptionError,
)
from headwater.spark.streaming.folder import Folder, LocalFolder, open_folder
from headwater.spark.streaming.journal import HEADER, Journal
from headwater.spark.streaming.offsets import Offset, ReadFrom
from headwater.spark.streaming.source import is_stream, load_stream
from headwater.testing import ChainSim, PortalSim
from tests.spark.streaming.micro_batches import Query, limits
from tests.spark.streaming.test_follower import chain_of


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
        query.begin()


def test_a_journal_is_used_by_one_process(query: Query, tmp_path: Path) -> None:
    run(query)
    second = Journal(LocalFolder(tmp_path, wait_s=0), "rows")
    with pytest.raises(JournalInUseError, match="E5013"):
        second.open()


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_folders_write_a_file_once(kind: str, tmp_path: Path) -> None:
    address = tmp_path.as_uri() if kind == "local" else f"memory://journal-{tmp_path.name}"
    folder: Folder = open_folder(address)
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


def test_a_remote_journal_does_as_a_local_one(chain: ChainSim, tmp_path: Path) -> None:
    address = f"memory://journal-of-{tmp_path.name}"
    portal = PortalSim(chain, seed=3)
    with Query(portal, tmp_path, dice=Random(3), limits=limits(), address=address) as query:
        run(query)
        query.kill()
        chain.fork(3)
        run(query)
        assert query.ends[-1]["hash"] == chain.head.hash
        assert query.ends[-1]["forks"] == 1
    assert not query.files()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a journal"),
        ({"journal": "/j", "final_only": "true"}, "either a journal"),
        ({"final_only": "perhaps"}, "true or false"),
        ({"journal": "/j", "maxBlocksPerTrigger": "0"}, "maxblockspertrigger"),
        ({"journal": "/j", "checkpoint": "/c"}, "unknown option 'checkpoint'"),
        ({"journal": "/j", "to_block": "+5"}, "to_block"),
    ],
)
def test_options_are_checked_when_the_stream_is_loaded(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(SourceOptionError, match=message):
        load_stream(
            {"portal": "http://127.0.0.1:1/datasets/x", "event": "erc20.Transfer", **options}
        )


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
