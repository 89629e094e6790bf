import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import BlockCursor, BlockHeader, Fork, Head
from headwater.errors import MalformedAnswerError, MalformedLineError
from headwater.portal.wire import (
    Dataset,
    LineSplitter,
    explain,
    read_block_at,
    read_dataset,
    read_fork,
    read_head,
    read_head_answer,
    read_header,
)

# --- lines


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=8),
       st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")))  # fmt: skip
def test_lines_do_not_depend_on_where_the_body_is_cut(parts: list[bytes], rest: bytes) -> None:
    body = b"".join(part + b"\n" for part in parts) + rest
    expected = [part for part in parts if part.strip()]
    for cut in range(len(body) + 1):
        splitter = LineSplitter()
        assert splitter.feed(body[:cut]) + splitter.feed(body[cut:]) == expected
        assert splitter.rest == rest


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_any_number_of_cuts_gives_the_same_lines(body: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    splitter, found = LineSplitter(), []
    for start, end in pairwise(edges):
        found += splitter.feed(body[start:end])
    *complete, rest = body.split(b"\n")
    assert found == [line for line in complete if line.strip()]
    assert splitter.rest == rest


def test_blank_lines_are_dropped() -> None:
    assert LineSplitter().feed(b"\n\r\n  \na\n\n") == [b"a"]


def test_a_huge_line_in_tiny_chunks_is_joined_once() -> None:
    splitter = LineSplitter()
    for _ in range(200_000):  # joining at every chunk would copy 20 GB
        splitter.feed(b"x")
    assert splitter.feed(b"\n") == [b"x" * 200_000]
    assert splitter.rest == b""


# --- headers


def test_a_header_is_read_and_the_rest_of_the_line_is_left_alone() -> None:
    line = b'{"header":{"number":5,"hash":"0x5","parentHash":"0x4","timestamp":50,"x":1},"logs":[]}'
    assert read_header(line) == BlockHeader(5, "0x5", "0x4", None, 50)


def test_a_slot_names_its_parent_slot() -> None:
    line = b'{"logs":[1],"header":{"number":7,"hash":"b","parentNumber":4,"parentHash":"a"}}\r'
    assert read_header(line) == BlockHeader(7, "b", "a", 4, None)


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ("1700000000", 1_700_000_000),
        ("1700000000.9", 1_700_000_000),
        ("1700000000999", 1_700_000_000),
        ("0", 0),
        ("null", None),
        ('"2024-01-01"', None),
        ("true", None),
        ("{}", None),
    ],
)
def test_timestamps_are_seconds_or_unknown(timestamp: str, seconds: int | None) -> None:
    line = f'{{"header":{{"number":1,"hash":"h","timestamp":{timestamp}}}}}'.encode()
    assert read_header(line).timestamp == seconds


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"header":{"number":8,"hash":"h"},"logs":[1,}', "block=8, byte=44, of=45"),
        (b'{"header":{"number":8,"hash":"h"},"logs":[1', "byte=43, of=43"),
        (b'{"header":{"number":8,"hash":"h"}} x', "trailing"),
        (b'{"header":{"number":8,"hash":"h"},"a":"\xff"}', "not UTF-8"),
        (b'{"header":{"number":8,"hash":"\xff"}}', "byte=30"),
        (b'{"header":{"number":8,"hash":"h"},"a":"\\q"}', "byte="),
        (b'{"header":{"number":8}}', "block=8"),
        (b'{"header":{"number":8,"hash":""}}', "block=8"),
        (b'{"header":{"number":8,"hash":7}}', "block=8"),
        (b'{"header":{"number":8,"hash":"h","parentHash":1}}', "block=8"),
        (b'{"header":{"number":-8,"hash":"h"}}', "number"),
        (b'{"header":{"number":1.5,"hash":"h"}}', "number"),
        (b'{"header":{"number":"8","hash":"h"}}', "number"),
        (b'{"header":{"number":18446744073709551616,"hash":"h"}}', "number"),
        (b'{"header":{"number":8,"hash":"h","timestamp":1e999}}', "timestamp"),
        (b'{"header":null}', "header"),
        (b'{"error":"too busy"}', "too busy"),
        (b"[]", "array"),
        (b"<html>", "<html>"),
        (b'{"header":{"number":8,"hash":"h"},"a":' + b"[" * 100_000, "block=8"),
    ],
)
def test_what_is_no_block_is_refused_with_its_place(line: bytes, text: str) -> None:
    with pytest.raises(MalformedLineError, match=r"\[E3003\].*after block 7:") as caught:
        read_header(line, 7)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_bad_first_line_has_no_block_before_it() -> None:
    with pytest.raises(MalformedLineError, match="before any block"):
        read_header(b"?")


@given(st.binary(max_size=80))
def test_any_line_gives_a_header_or_the_coded_error(line: bytes) -> None:
    with pytest.raises(MalformedLineError):
        read_header(line)


def test_a_block_cut_anywhere_is_never_taken_for_a_block() -> None:
    line = b'{"header":{"number":5,"hash":"0x5"},"logs":[{"data":"\\u00e9 \xc3\xa9"}]}'
    for cut in range(len(line)):
        with pytest.raises(MalformedLineError):
            read_header(line[:cut])


# --- heads and forks


def test_head_headers_are_read() -> None:
    headers = {
        "x-sqd-finalized-head-number": "0",
        "x-sqd-finalized-head-hash": "0xa",
        "x-sqd-head-number": "12",
    }
    assert read_head(headers) == Head(BlockCursor(0, "0xa"), BlockCursor(12))


@pytest.mark.parametrize("number", ["", "-1", "1.0", "x", " 1", "1_0", "\u0661", "9" * 5_000])
def test_malformed_head_numbers_are_absent(number: str) -> None:
    headers = {
        "x-sqd-finalized-head-number": number,
        "x-sqd-finalized-head-hash": "0xa",
        "x-sqd-head-number": number,
    }
    assert read_head(headers) == Head()


def test_a_finalized_head_needs_number_and_hash() -> None:
    assert read_head({"x-sqd-finalized-head-number": "1"}) == Head()
    assert read_head({"x-sqd-finalized-head-hash": "0x1"}) == Head()
    assert read_head(
        {"x-sqd-finalized-head-number": "1", "x-sqd-finalized-head-hash": ""}
    ) == Head()  # fmt: skip


def test_a_fork_is_read_in_any_order_with_anything_beside_it() -> None:
    body = b'{"error":{},"previousBlocks":[{"number":5,"hash":"b","x":1},{"number":4,"hash":"a"}]}'
    assert read_fork(body) == Fork((BlockCursor(5, "b"), BlockCursor(4, "a")))


def test_an_empty_sample_is_left_to_whoever_resolves_it() -> None:
    assert read_fork(b'{"previousBlocks":[]}') == Fork(())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"conflict",
        b"{}",
        b"[]",
        b'{"previousBlocks":null}',
        b'{"previousBlocks":[{"number":1}]}',
        b'{"previousBlocks":[{"number":-1,"hash":"a"}]}',
        b'{"previousBlocks":[{"number":1,"hash":""}]}',
        b'{"previousBlocks":[{"number":1,"hash":"\xff"}]}',
    ],
)
def test_a_fork_without_usable_blocks_is_refused(body: bytes) -> None:
    """CASE-15."""
    with pytest.raises(MalformedAnswerError, match=r"\[E3006\].*409"):
        read_fork(body)


# --- single answers


def test_metadata_is_read_with_and_without_its_details() -> None:
    body = {
        "dataset": "ethereum-mainnet",
        "aliases": ["eth"],
        "real_time": True,
        "start_block": 7,
        "metadata": {"kind": "evm", "display_name": "Ethereum", "evm": {"chain_id": 1}, "x": 2},
    }
    assert read_dataset(json.dumps(body).encode()) == Dataset(
        "ethereum-mainnet", ("eth",), True, 7, "evm", "Ethereum", 1
    )
    assert read_dataset(b'{"dataset":"d"}') == Dataset("d")
    assert read_dataset(b'{"dataset":"d","start_block":null,"metadata":{"kind":"solana"}}') == (
        Dataset("d", kind="solana")
    )


def test_a_head_is_a_block_or_nothing() -> None:
    assert read_head_answer(b'{"number":5,"hash":"h"}') == BlockCursor(5, "h")
    assert read_head_answer(b'{"number":5}') == BlockCursor(5)
    assert read_head_answer(b"null") is None
    assert read_head_answer(b" ") is None
    with pytest.raises(MalformedAnswerError):
        read_head_answer(b"{}")


def test_a_block_by_time_is_a_number() -> None:
    assert read_block_at(b'{"block_number":5}') == 5
    with pytest.raises(MalformedAnswerError, match="by time"):
        read_block_at(b'{"block_number":"5"}')


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"dataset starts\n from block 5", "dataset starts from block 5"),
        (b'{"error":{"message":"too many"}}', "too many"),
        (b'{"message":"","error":"no"}', "no"),
        (b'{"code":5}', '{"code":5}'),
        (b'"plain"', "plain"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b"x" * 900, "x" * 500),
    ],
)
def test_a_refusal_is_explained_in_the_servers_words(body: bytes, text: str) -> None:
    assert explain(body) == text
